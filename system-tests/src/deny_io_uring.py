"""Runs a command that may not use io_uring, as in a container with the usual seccomp profile:
io_uring_setup fails with EPERM. Usage: deny_io_uring.py COMMAND [ARGUMENT...]"""
import ctypes
import errno
import os
import signal
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, FAIL_WITH = 0x7FFF0000, 0x00050000
IO_URING_SETUP = 425  # on every architecture but alpha


def instruction(code, value, when_true=0, when_false=0):
    return struct.pack("HBBI", code, when_true, when_false, value)


def deny():
    rules = ctypes.create_string_buffer(
        instruction(LOAD_NUMBER, 0)
        + instruction(JUMP_IF_EQUAL, IO_URING_SETUP, 0, 1)
        + instruction(RETURN, FAIL_WITH | errno.EPERM)
        + instruction(RETURN, ALLOW)
    )
    program = ctypes.create_string_buffer(struct.pack("HP", 4, ctypes.addressof(rules)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int] + [ctypes.c_void_p] * 4
    for words in ((PR_SET_NO_NEW_PRIVS, 1, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program)):
        padded = list(words) + [0] * (5 - len(words))
        if prctl(*padded) != 0:
            sys.exit(f"deny_io_uring: prctl({words[0]}): {os.strerror(ctypes.get_errno())}")


deny()
# Python ignores SIGPIPE, and the command would inherit that.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
os.execvp(sys.argv[1], sys.argv[1:])
