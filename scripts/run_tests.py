#!/usr/bin/env python3
"""Runs test programs that scripts/build-tests.sh has built, several at a time.

Usage: run_tests.py [--jobs N] [--list] LIST PATTERN...

LIST is the output of `cargo test --no-run --message-format=json`. A PATTERN is PACKAGE or
PACKAGE:TARGET, both with wildcards; one that begins with ! removes programs again. Words after --
go to each program. A program runs in the folder of its package, as cargo runs it. The output has
all lines of a failed program, and of the others the SKIPPED lines and the last line.
"""
import argparse
import concurrent.futures
import fnmatch
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

# Seconds that a program may take: several times what the longest takes on two slow cores.
LIMIT = 900
# Programs that take longest; they start first, so that none of them runs alone at the end.
LONGEST = ["system-tests:*", "drystone-drivers:absence", "drystone:*", "drystone-lab:*"]

RESULT = re.compile(r"^test result: .*? (\d+) passed; (\d+) failed; (\d+) ignored", re.M)


class Program:
    """A built test program."""

    def __init__(self, artifact):
        self.folder = pathlib.Path(artifact["manifest_path"]).parent
        self.path = artifact["executable"]
        self.name = f"{manifest_name(self.folder)}:{artifact['target']['name']}"

    def run(self, words):
        """Its exit status (None if it took too long), output, seconds and processor seconds."""
        environment = os.environ | {"CARGO_MANIFEST_DIR": str(self.folder)}
        started = time.monotonic()
        process = subprocess.Popen(
            [self.path, *words], cwd=self.folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        RUNNING.add(process)
        late = threading.Event()
        timer = threading.Timer(LIMIT, lambda: (late.set(), os.killpg(process.pid, signal.SIGKILL)))
        timer.start()
        output = process.stdout.read()
        # Only this call tells what the program and its own programs used.
        _, status, usage = os.wait4(process.pid, 0)
        timer.cancel()
        RUNNING.discard(process)
        process.returncode = None if late.is_set() else os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started, usage.ru_utime + usage.ru_stime
        return process.returncode, output.decode(errors="replace"), seconds


RUNNING = set()


def manifest_name(folder):
    """The name of the package in a folder."""
    return re.search(r'^name = "(.*)"', (folder / "Cargo.toml").read_text(), re.M).group(1)


def programs(path):
    """The test programs in a list of cargo's."""
    found = []
    for line in open(path):
        artifact = json.loads(line)
        if artifact.get("executable") and artifact.get("profile", {}).get("test"):
            found.append(Program(artifact))
    return found


def is_wanted(name, patterns):
    """Whether the last pattern that fits takes it in."""
    wanted = False
    for pattern in patterns:
        text = pattern.removeprefix("!")
        text = text if ":" in text else text + ":*"
        if fnmatch.fnmatch(name, text):
            wanted = not pattern.startswith("!")
    return wanted


def rank(program):
    fits = [index for index, text in enumerate(LONGEST) if fnmatch.fnmatch(program.name, text)]
    return fits[0] if fits else len(LONGEST)


def report(program, outcome):
    """Prints how a program did; its counts of passed and failed tests."""
    status, output, seconds = outcome
    found = RESULT.search(output)
    # A program with a main function of its own prints no counts: it counts as one test.
    counts = (int(text) for text in found.groups()) if found else (int(status == 0), 0, 0)
    passed, failed, ignored = counts
    if status == 0:
        for line in output.splitlines():
            if "SKIPPED" in line:
                print(line)
        print(f"{program.name}: {passed} passed, {ignored} ignored in {seconds[0]:.0f} s "
              f"({seconds[1]:.0f} s of processor time)", flush=True)
        return passed, 0
    why = f"not done in {LIMIT} s" if status is None else f"exit status {status}"
    print(f"---- {program.name}: {why}; its output:\n{output}\n---- end of it", flush=True)
    return passed, max(failed, 1)


def stop(*_):
    """Ends all programs when this one is ended."""
    for process in list(RUNNING):
        os.killpg(process.pid, signal.SIGKILL)
    os._exit(1)


def main():
    arguments = argparse.ArgumentParser(usage=__doc__)
    arguments.add_argument("--jobs", type=int, default=2)
    arguments.add_argument("--list", action="store_true")
    arguments.add_argument("programs")
    arguments.add_argument("patterns", nargs="+")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    taken, words = arguments.parse_args(words[:split]), words[split + 1:]
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    chosen = [one for one in programs(taken.programs) if is_wanted(one.name, taken.patterns)]
    if not chosen:
        sys.exit(f"run_tests.py: {' '.join(taken.patterns)} fits no test program")
    if taken.list:
        print("\n".join(sorted(one.name for one in chosen)))
        return
    passed, failed = 0, []
    lock = threading.Lock()

    def one(program):
        outcome = program.run(words)
        with lock:
            return program, report(program, outcome)

    with concurrent.futures.ThreadPoolExecutor(taken.jobs) as pool:
        for program, counts in pool.map(one, sorted(chosen, key=rank)):
            passed += counts[0]
            failed += [program.name] if counts[1] else []
    state = "ok" if not failed else f"FAILED: {', '.join(failed)}"
    print(f"test programs: {len(chosen)}, tests passed: {passed}: {state}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
