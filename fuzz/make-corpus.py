#!/usr/bin/env python3
"""Writes the seed inputs of the fuzz targets, one small file for each good starting point.

Inputs of NBD are the bytes of a client, made from the protocol text: from the client's flags on for
the handshake, from the first request on for the transmission. A few bytes stand before them, by
which the entry points (`fuzz.rs` of the crates) choose the configuration and the pieces in which
the bytes arrive. Inputs of md are bytes that Linux wrote to members of its arrays, and variations
of them. Inputs that a fuzzer found are added by hand under other names; this script does not change
them.
"""
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "corpus"

EXPORT = b"a"  # the entry points offer "a" and "b"
EXPORT_NAME, ABORT, LIST, STARTTLS, INFO, GO = 1, 2, 3, 5, 6, 7
STRUCTURED_REPLY, LIST_META, SET_META, EXTENDED_HEADERS = 8, 9, 10, 11
READ, WRITE, DISCONNECT, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS = range(8)
FUA, NO_HOLE, DF, REQ_ONE, FAST_ZERO, PAYLOAD_LEN = 1, 2, 4, 8, 16, 32


def flags(value=3):
    return struct.pack(">I", value)


def option(number, data=b"", length=None, magic=b"IHAVEOPT"):
    return magic + struct.pack(">II", number, len(data) if length is None else length) + data


def text(value):
    return struct.pack(">I", len(value)) + value


def info(name, *wanted):
    return text(name) + struct.pack(f">H{len(wanted)}H", len(wanted), *wanted)


def meta(name, *queries):
    return text(name) + struct.pack(">I", len(queries)) + b"".join(map(text, queries))


def request(kind, offset=0, length=512, flag=0, cookie=0x1122334455667788, magic=0x25609513):
    return struct.pack(">IHHQQI", magic, flag, kind, cookie, offset, length)


def extended(kind, offset=0, length=512, flag=0, cookie=0x1122334455667788, magic=0x21E41C71):
    return struct.pack(">IHHQQQ", magic, flag, kind, cookie, offset, length)


HANDSHAKE = {
    "go": flags() + option(GO, info(EXPORT, 3)),
    "go-default": flags() + option(GO, info(b"")),
    "go-unknown": flags() + option(GO, info(b"nowhere", 0, 1, 2, 3, 9)),
    "info-then-go": flags() + option(INFO, info(EXPORT, 3)) + option(GO, info(EXPORT)),
    "export-name": flags() + option(EXPORT_NAME, EXPORT),
    "export-name-zeroes": flags(1) + option(EXPORT_NAME, b""),
    "list": flags() + option(LIST) + option(ABORT),
    "list-with-data": flags() + option(LIST, b"x"),
    "starttls-with-data": flags() + option(STARTTLS, b"data"),
    "structured": flags() + option(STRUCTURED_REPLY) + option(GO, info(EXPORT)),
    "meta": flags() + option(STRUCTURED_REPLY) + option(SET_META, meta(EXPORT, b"base:allocation"))
    + option(GO, info(EXPORT)),
    "meta-list": flags() + option(STRUCTURED_REPLY) + option(LIST_META, meta(EXPORT))
    + option(LIST_META, meta(EXPORT, b"base:", b"x:y")),
    "meta-too-early": flags() + option(SET_META, meta(EXPORT, b"base:allocation")),
    "meta-lying-count": flags() + option(STRUCTURED_REPLY)
    + option(SET_META, text(EXPORT) + struct.pack(">I", 0xFFFFFFFF)),
    "extended": flags() + option(EXTENDED_HEADERS) + option(GO, info(EXPORT)),
    "unknown-option": flags() + option(99, b"abc") + option(ABORT),
    "long-option": flags() + option(GO, b"", length=0xFFFFFFFF),
    "long-name": flags() + option(GO, info(b"n" * 4097)),
    "lying-name": flags() + option(GO, struct.pack(">I", 0xFFFFFFFF) + EXPORT),
    "bad-flags": flags(0xFFFFFFFF),
    "bad-magic": flags() + option(GO, info(EXPORT), magic=b"IHAVEOPS"),
    "not-utf8": flags() + option(GO, info(b"\xff\xfe")),
    "half-option": flags() + option(GO, info(EXPORT))[:13],
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "empty": b"",
}

PIECES = 11  # an arbitrary number: it seeds the lengths of the pieces
TLS_OFF, TLS_OPTIONAL, TLS_REQUIRED = 0, 1, 2


def handshake_input(clear, secret=b"", policy=TLS_OFF):
    """`secret` holds the client's bytes after the TLS handshake."""
    return struct.pack(">BBH", policy, PIECES, len(clear)) + clear + secret


TLS_HANDSHAKE = {
    "tls-then-go": (flags() + option(STARTTLS), option(GO, info(EXPORT, 3)), TLS_REQUIRED),
    "tls-then-list": (flags() + option(LIST) + option(STARTTLS), option(LIST), TLS_OPTIONAL),
    "tls-twice": (flags() + option(STARTTLS), option(STARTTLS), TLS_OPTIONAL),
    "tls-plain-rest": (flags() + option(STARTTLS) + option(GO, info(EXPORT)), b"", TLS_REQUIRED),
    "tls-refusing-plain": (flags() + option(GO, info(EXPORT)), b"", TLS_REQUIRED),
    "tls-meta": (flags() + option(STRUCTURED_REPLY) + option(STARTTLS),
                 option(SET_META, meta(EXPORT, b"base:allocation")) + option(GO, info(EXPORT)),
                 TLS_OPTIONAL),
}

TRANSMISSION = {
    "read": request(READ),
    "read-df": request(READ, length=4096, flag=DF),
    "write": request(WRITE) + bytes(512),
    "write-fua": request(WRITE, flag=FUA) + b"\xaa" * 512,
    "write-short": request(WRITE) + bytes(100),
    "flush": request(FLUSH, length=0),
    "trim": request(TRIM, length=65536) + request(TRIM, flag=FUA),
    "zero": request(WRITE_ZEROES, length=65536, flag=NO_HOLE)
            + request(WRITE_ZEROES, flag=FAST_ZERO),
    "cache": request(CACHE),
    "status": request(BLOCK_STATUS, length=65536) + request(BLOCK_STATUS, flag=REQ_ONE),
    "disconnect": request(DISCONNECT, length=0) + request(READ),
    "pipeline": b"".join(request(READ, offset=n * 512, cookie=n) for n in range(8)),
    "out-of-range": request(READ, offset=2**63) + request(WRITE, offset=2**64 - 512) + bytes(512),
    "wraps": request(READ, offset=2**64 - 1, length=2**32 - 1),
    "oversize": request(READ, length=2**32 - 1),
    "oversize-write": request(WRITE, length=2**32 - 1),
    "zero-length": b"".join(request(kind, length=0) for kind in (READ, WRITE, TRIM, WRITE_ZEROES)),
    "unaligned": request(READ, offset=1, length=3),
    "unknown-command": request(77) + request(READ),
    "unknown-flags": request(READ, flag=0xFFFF),
    "bad-magic": request(READ, magic=0x25609514),
    "extended-read": extended(READ),
    "extended-write": extended(WRITE, flag=PAYLOAD_LEN) + bytes(512),
    "extended-big-trim": extended(TRIM, length=2**40),
    "extended-status": extended(BLOCK_STATUS, length=2**63),
    "half-request": request(READ)[:15],
    "empty": b"",
}

DEVICE = '[device.d0]\ntype = "ram"\nsize = "64MiB"\n'
STACK_FILE = {
    "ram": DEVICE + '\n[export.vol]\ndevice = "d0"\n'
           'nbd = ["unix:vol.sock", "tcp:127.0.0.1:10809"]\n',
    "file": '[device.d0]\ntype = "file"\npath = "d0.img"\nsize = "10GiB"\n'
    'queue = { scheduler = "none", nr_requests = 256, io_poll = false }\n',
    "null": '[device.n]\ntype = "null"\nsize = "1TiB"\n'
            '[export.n]\ndevice = "n"\nnbd = ["unix:n"]\ndefault = true\n',
    "array": "".join(DEVICE.replace("d0", f"d{n}") for n in range(4))
    + '[device.a]\ntype = "raid5"\nmembers = ["d0", "d1", "d2", "d3"]\nchunk = "64KiB"\n',
    "table": DEVICE + '[device.t]\ntable = "0 131072 striped 1 128 d0 0"\n',
    "groups": DEVICE + '[group.a]\n[group."a/b"]\nio.max = ["d0 rbps=200MiB wiops=3000"]\n',
    "clients": DEVICE + '[group.a]\nio.max = "d0 rbps=1 wbps=max riops=3k"\n'
               '[export.e]\ndevice = "d0"\nnbd = "unix:e"\n'
    'group = "a"\ntls = { mode = "required", cert = "c", key = "k", client_ca = "a" }\n'
    '[export.e.clients]\n"uid:0" = "/"\n"tls:alice" = "a"\n',
    "volumes": "".join(DEVICE.replace("d0", f"d{n}") for n in range(4))
    + '[device.l]\ntype = "linear"\nmembers = ["d0", "s"]\nread_only = true\n'
    + '[device.s]\ntype = "striped"\nmembers = ["d1", "d2"]\nchunk = "4KiB"\n'
      'queue = { iostats = false }\n'
    + '[device.z]\ntype = "zero"\nsize = "1GiB"\n'
    + '[device.t]\ntable = ["0 8 linear d3 0", "8 8 error", "16 8 linear d3 8"]\n',
    "cycle": '[device.a]\nmembers = ["b"]\n[device.b]\nmembers = ["a"]\n',
    "unknown-key": DEVICE + 'sise = "1"\n',
    "wrong-type": '[device.d0]\ntype = 7\nsize = ["a"]\n',
    "sizes": "".join(f'[device.d{n}]\ntype = "ram"\nsize = "{size}"\n' for n, size in enumerate(
        ["0", "-1", "1.5GiB", "99999999999999999999", "16EiB", "1 KB", "KiB", "1KiBKiB", ""])),
    "duplicate": DEVICE + DEVICE,
    "deep": "a = " + "[" * 200 + "]" * 200 + "\n",
    "bad-toml": "[device\n",
    "not-utf8": b"[device.\xff\xfe]\n",
    "controls": '[device."\\u0000\\u001b[31m"]\ntype = "ram"\n',
    "empty": "",
}


VECTORS = FOLDER.parent.parent / "crates" / "raid" / "tests" / "vectors"


def image(vector, member, offset, length):
    """Bytes of a member of an md array that Linux wrote (encoding: README.md there)."""
    out = bytearray(offset + length)
    for line in (VECTORS / vector / f"m{member}.mdv").read_text().splitlines()[1:]:
        words = line.split()
        if words[0] == "H":
            at, data = int(words[1]), bytes.fromhex(words[2])
            out[at:at + len(data)] = data[:max(0, len(out) - at)]
            continue
        block, count, value, step = int(words[1]), int(words[2]), int(words[3], 16), int(words[4])
        for k in range(min(count, len(out) // 4096 - block)):
            word = (value + k * step) % 2**64
            out[(block + k) * 4096:(block + k + 1) * 4096] = struct.pack("<Q", word) * 512
    return bytes(out[offset:offset + length])


def superblocks(vector, members):
    """Superblocks with correct checksums, of devices of 8 MiB."""
    return b"\1" + b"".join(image(vector, member, 4096, 512) for member in range(members))


def patched(data, offset, layout, *values):
    """The same bytes with other numbers at an offset."""
    new = struct.pack("<" + layout, *values)
    return data[:offset] + new + data[offset + len(new):]


RAID_SUPERBLOCK = {
    "whole": superblocks("r5-ls", 4),
    "degraded": superblocks("r5-ls", 3),
    "one": superblocks("r5-ls", 1),
    "raid4": superblocks("r4", 4),
    "raid6": superblocks("r6-ls", 5),
    "stale": superblocks("r5-ls-stale", 4),
    "faulty": superblocks("r5-ls-faulty-kept", 4),
    "replacing": superblocks("r5-ls-replacing", 5),
    "recovering": superblocks("r5-ls-recovering", 5),
    "spare": superblocks("r5-ls-spare", 5),
    "journal": superblocks("r5-ls-journal", 5),
    "reshape": superblocks("r5-ls-reshape", 5),
    "bad-blocks": superblocks("r5-ls-badblocks", 4),
    "crashed-ppl": superblocks("r5-ls-ppl-torn", 4),
    "two-arrays": superblocks("r5-ls", 2) + superblocks("r5-la", 2)[1:],
    "empty": b"\1",
}

BITMAP = image("r5-ls-bitmap-torn", 0, 8192, 512)
RAID_BITMAP = {
    "torn": BITMAP,
    "clean": image("r5-ls-bitmap", 0, 8192, 512),
    "header": BITMAP[:256],
    "half": BITMAP[:100],
    "cluster": patched(BITMAP, 4, "I", 5),
    "lockless": patched(BITMAP, 4, "I", 6),
    "host-endian": patched(BITMAP, 4, "I", 3),
    "small-chunk": patched(BITMAP, 52, "I", 512),
    "large-chunk": patched(BITMAP, 52, "I", 1 << 31),
    "odd-chunk": patched(BITMAP, 52, "I", 65537),
    "endless": patched(BITMAP, 40, "Q", 2**64 - 1),
    "nothing": patched(BITMAP, 40, "Q", 0),
    "empty": b"",
}


def ppl(*entries, flags=0x25, signature=7):
    """A header of entries (array sector, bytes of partial parity, bytes of data, role).

    The flags say RAID-5 of four members, left-symmetric, and a correct first checksum."""
    head = bytes([flags]) + b"\xff" * 512 + struct.pack("<IIQII", signature, 0, 1,
                                                                len(entries), 0)
    packed = b"".join(struct.pack("<QIIII", *entry, 0) for entry in entries)
    return (head + packed).ljust(4097, b"\0")


RAID_PPL = {
    "linux-empty": b"\x25" + image("r5-ls-ppl", 0, 8192, 4096),
    "linux-torn": b"\x25" + image("r5-ls-ppl-torn", 1, 8192, 4096),
    "ring": ppl((8, 0, 12288, 3), signature=0xAB689AA8)
            + image("r5-ls-ppl-torn", 1, 8192 + 72 * 512, 4096),
    "one-block": ppl((24064, 4096, 4096, 1)),
    "two-members": ppl((24008, 28672, 57344, 1)),
    "whole-chunks": ppl((128, 65536, 131072, 3)),
    "full-stripe": ppl((8, 0, 12288, 3)),
    "several": ppl((0, 4096, 4096, 3), (16, 4096, 8192, 3), (24, 0, 12288, 3)),
    "wrong-role": ppl((0, 4096, 4096, 2)),
    "far": ppl((2**64 - 8, 4096, 4096, 3)),
    "large": ppl((0, 2**32 - 4096, 2**32 - 4096, 3)),
    "odd": ppl((1, 1, 1, 3)),
    "none": ppl(),
    "empty": b"",
}


def devices(vector, *changes, members=4, flags=1):
    """Four devices of 16 sectors from the superblock's on.

    A change is (member, offset, layout, values...). The flags say correct checksums and 4 MiB."""
    parts = [image(vector, member, 4096, 16 * 512) for member in range(members)]
    for member, offset, layout, *values in changes:
        parts[member] = patched(parts[member], offset, layout, *values)
    return bytes([flags]) + b"".join(parts)


RAID_PLACES = {
    "ppl": devices("r5-ls-ppl"),
    "bitmap": devices("r5-ls-bitmap"),
    "bad-blocks": devices("r5-ls-badblocks"),
    "small-member": devices("r5-ls-ppl", (1, 80, "Q", 128), (1, 96, "h", 8192)),
    "small-first": devices("r5-ls-bitmap", (0, 80, "Q", 128), (0, 96, "i", 4096)),
    "ppl-beyond": devices("r5-ls-ppl", (2, 96, "h", 32767), members=3),
    "ppl-before": devices("r5-ls-ppl", (0, 96, "h", -8)),
    "list-in-bitmap": devices("r5-ls-bitmap", *((n, 188, "i", 8) for n in range(4))),
    "list-in-ppl": devices("r5-ls-ppl", (0, 188, "i", 100), (0, 8, "I", 0x808)),
    "bitmap-at-2": devices("r5-ls-bitmap", *((n, 96, "i", 2) for n in range(4))),
    "endless": devices("r5-ls-bitmap", (1, 80, "Q", 2**64 - 128), (2, 128, "Q", 2**64 - 8)),
    "no-list": devices("r5-ls", (0, 8, "I", 8), (0, 188, "i", 0)),
    "tiny": devices("r5-ls-ppl", flags=5),
    "empty": b"\1",
}

# The first byte is the length of the pieces in which the bytes arrive.
CONTROL_LINE = {
    "list": b'@{"command":"list"}\n',
    "id": b'@{ "id" : 123456789012345678901234567890 , "command":"version"}\n',
    "id-text": b'\5{"id":"a\\u00e9","command":"version"}\n',
    "set": b'@{"command":"set","arguments":{"device":"disk","attribute":"queue/nomerges",'
           b'"value":2},"id":1}\n',
    "set-refused": b'@{"command":"set","arguments":{"device":"disk","attribute":'
                   b'"queue/nr_requests","value":"2"}}\n',
    "show": b'@{"command":"show","arguments":{"device":"disk"}}\n',
    "create": b'@{"command":"create","arguments":{"device":"v","table":"0 8 zero\\n8 8 error"}}\n',
    "reload": b'@{"command":"reload","arguments":{"device":"disk","table":'
              b'"0 8 linear a 0","force":true}}\n',
    "suspend": b'@{"command":"suspend","arguments":{"device":"disk","timeout":"10s",'
               b'"noflush":true}}\n',
    "message": b'@{"command":"message","arguments":{"device":"disk","sector":8,'
               b'"message":"mark here"}}\n',
    "md": b'@{"command":"md-add","arguments":{"device":"md0","member":"m0",'
          b'"path":"/x/m0","force":false}}\n'
          b'{"command":"md-check","arguments":{"device":"none"}}\n{"command":"md-detail"}\n',
    "group": b'@{"command":"group-set","arguments":{"path":"a/b","device":"disk",'
             b'"rbps":"1MiB","wiops":"max"}}\n'
             b'{"command":"group-create","arguments":{"path":"a"}}\n'
             b'{"command":"group-stat","arguments":{"reset":true}}\n',
    "lockstat": b'\1{"command":"lockstat","arguments":{"reset":true,"hold":false}}\n',
    "poll-mode": b'@{"command":"poll-mode","arguments":{"mode":"adaptive"}}\n',
    "twice": b'@{"command":"list","command":"version"}\n',
    "unknown": b'@{"command":"lsit","arguments":3,"x":null}\n',
    "no-json": b'@list\n\n[]\n1\n"\n',
    "no-utf8": b'@{"command":"\xff\xfe"}\n',
    "deep": b'@' + b'[' * 300 + b'\n',
    "cut-off": b'@{"command":"list"',
}

DM_TABLE = {
    "linear": "0 8 linear a 0",
    "two": "0 8 linear a 0\n8 8 linear b 8\n",
    "striped": "0 64 striped 2 8 a 0 b 0",
    "zero-error": "0 8 zero\n8 8 error\n",
    "delay": "0 8 delay a 0 5 b 8 10",
    "delay-three": "0 8 delay a 0 5 b 8 10 a 0 1",
    "flakey": "0 8 flakey a 0 1 2 5 corrupt_bio_byte 32 r 1 0 random_read_corrupt 5",
    "flakey-drop": "0 8 flakey a 0 1 2 1 drop_writes",
    "log-writes": "0 8 log-writes a b",
    "comment": "# all of it\n0 8 linear a 0 # to its end\n",
    "gap": "0 8 zero\n9 8 zero\n",
    "overlap": "0 8 zero\n7 8 zero\n",
    "huge": "0 99999999999999999999 linear a 18446744073709551615",
    "last": "18446744073709551615 18446744073709551615 zero",
    "many": "".join(f"{n} 1 zero\n" for n in range(20)),
    "unknown": "0 8 thin a 0",
    "short": "0",
    "quotes": "0 8 linear \"a\" \\ \u00e9\n",
    "empty": "",
}


def log(*entries, block=512, count=None, magic=0x6A736677736872, version=1):
    """A write log; an entry is (sector, sectors, flags, text, data)."""
    out = struct.pack("<QQQI", magic, version, len(entries) if count is None else count, block)
    out = out.ljust(block, b"\0")
    for sector, sectors, flag, text_bytes, data in entries:
        head = struct.pack("<QQQQ", sector, sectors, flag, len(text_bytes)) + text_bytes
        out += head.ljust(block, b"\0") + data
    return out


WRITE_LOG = {
    "write": log((8, 1, 0, b"", bytes(512))),
    "flush-fua": log((0, 0, 1, b"", b""), (8, 1, 3, b"", bytes(512))),
    "discard": log((8, 100, 4, b"", b"")),
    "mark": log((0, 0, 8, b"dm-log-writes-end", b"")),
    "blocks": log((1, 1, 2, b"", bytes(4096)), block=4096),
    "metadata": log((1, 1, 16, b"", bytes(512))),
    "cut": log((8, 4, 0, b"", bytes(512))),
    "huge": log((8, 2**64 - 1, 0, b"", b"")),
    "far": log((2**64 - 1, 1, 0, b"", bytes(512)), (2**64 - 1, 2, 0, b"", bytes(1024))),
    "count": log((8, 1, 0, b"", bytes(512)), count=2**64 - 1),
    "nothing": log((0, 0, 0, b"", b"")),
    "version": log(version=2),
    "magic": log(magic=0),
    "odd-block": log()[:24] + struct.pack("<I", 768),
    "long-text": patched(log((0, 0, 8, b"x", b"")), 512 + 24, "Q", 481),
    "empty": b"",
}


def der(tag, *parts):
    """An element of DER."""
    content = b"".join(parts)
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([0x82]) + struct.pack(">H", size)
    return bytes([tag]) + length + content


def attribute(kind, text_bytes, tag=0x0C):
    return der(0x31, der(0x30, der(6, bytes([0x55, 4, kind])), der(tag, text_bytes)))


def certificate(subject=attribute(3, b"name"), names=der(0x82, b"host.example"), version=2,
                times=(b"240101000000Z", b"340101000000Z"), time_tag=0x17):
    """A certificate that nobody has signed."""
    algorithm = der(0x30, der(6, bytes.fromhex("2a8648ce3d040302")))
    key = der(0x30, der(0x30, der(6, bytes.fromhex("2a8648ce3d0201")),
                        der(6, bytes.fromhex("2a8648ce3d030107"))),
                     der(3, bytes([0, 4]) + bytes(64)))
    extension = der(0x30, der(6, bytes([0x55, 0x1D, 0x11])), der(4, der(0x30, names)))
    signed = der(0x30, der(0xA0, der(2, bytes([version]))), der(2, b"\1"), algorithm,
                 der(0x30, attribute(3, b"issuer")),
                 der(0x30, *(der(time_tag, time) for time in times)), der(0x30, subject), key,
                 der(0xA3, der(0x30, extension)))
    return der(0x30, signed, algorithm, der(3, b"\0" + bytes(70)))


CERTIFICATE = {
    "plain": certificate(),
    "uri": certificate(names=der(0x86, b"spiffe://example/a")),
    "both": certificate(names=der(0x82, b"a.example") + der(0x86, b"urn:a") + der(0x87, bytes(4))),
    "two-names": certificate(attribute(10, b"firm") + attribute(3, b"one") + attribute(3, b"two")),
    "printable": certificate(attribute(3, b"printable", 0x13)),
    "teletex": certificate(attribute(3, b"\xff\xfe", 0x14)),
    "not-utf8": certificate(attribute(3, b"\xff\xfe")),
    "no-subject": certificate(b""),
    "generalized": certificate(times=(b"20240101000000Z", b"99991231235959Z"), time_tag=0x18),
    "odd-time": certificate(times=(b"249901000000Z", b"")),
    "old-version": certificate(version=0),
    "wild-name": certificate(names=der(0x82, b"*.example") + der(0x82, b"\0\r\n")),
    "subject-alone": attribute(3, b"name"),
    "long-length": bytes([0x30, 0x84, 0xFF, 0xFF, 0xFF, 0xFF]),
    "cut": certificate()[:100],
    "empty": b"",
}


def fuse(opcode, body=b"", length=None, unique=2, node=1):
    """A request of the kernel (linux/fuse.h), in the byte order of most machines."""
    length = 40 + len(body) if length is None else length
    return struct.pack("<IIQQIIIHH", length, opcode, unique, node, 0, 0, 1, 0, 0) + body


def fuse_range(offset, length, data=b""):
    """The body of a read or write."""
    return struct.pack("<QQIIQII", 0, offset, length, 0, 0, 0, 0) + data


FUSE_REQUEST = {
    "init": fuse(26, struct.pack("<IIIII", 7, 40, 131072, 2**32 - 1, 2**32 - 1) + bytes(44)),
    "init-old": fuse(26, struct.pack("<IIII", 7, 31, 131072, 1 << 22)),
    "init-other": fuse(26, struct.pack("<IIII", 8, 0, 0, 0)),
    "lookup": fuse(1, b"vol\0"),
    "lookup-endless": fuse(1, b"vol"),
    "forget": fuse(2, struct.pack("<Q", 1)),
    "batch-forget": fuse(42, struct.pack("<IIQQ", 1, 0, 1, 1)),
    "getattr": fuse(3, bytes(16)),
    "setattr": fuse(4, struct.pack("<IIQQ", 8, 0, 0, 4096) + bytes(64)),
    "open": fuse(14, struct.pack("<II", 0o40002, 0)),
    "read": fuse(15, fuse_range(4096, 4096)),
    "write": fuse(16, fuse_range(4096, 512, bytes(512))),
    "write-lying": fuse(16, fuse_range(4096, 513, bytes(512))),
    "write-short": fuse(16, fuse_range(0, 0)[:30]),
    "statfs": fuse(17),
    "release": fuse(18, bytes(24)),
    "fsync": fuse(20, bytes(16)),
    "readdir": fuse(28, fuse_range(0, 4096)),
    "fallocate": fuse(43, struct.pack("<QQQII", 0, 0, 4096, 3, 0)),
    "lseek": fuse(46, struct.pack("<QQII", 0, 0, 3, 0)),
    "unknown": fuse(4711, bytes(8)),
    "longer-than-it-says": fuse(17, bytes(8), 40),
    "header-cut": fuse(17)[:39],
    "empty": b"",
}


GET_FEATURES, SET_FEATURES, SET_OWNER, RESET_OWNER, SET_MEM_TABLE, SET_LOG_BASE = range(1, 7)
SET_LOG_FD, VRING_NUM, VRING_ADDR, VRING_BASE, GET_VRING_BASE, VRING_KICK = range(7, 13)
VRING_CALL, VRING_ERR, GET_PROTOCOL, SET_PROTOCOL, GET_QUEUE_NUM, VRING_ENABLE = range(13, 19)
BACKEND_REQ_FD, GET_CONFIG, SET_CONFIG, GET_INFLIGHT, SET_INFLIGHT = 21, 24, 25, 31, 32
RESET_DEVICE, GET_SLOTS, ADD_REGION, REMOVE_REGION, SET_STATUS, GET_STATUS = 34, 36, 37, 38, 39, 40
NEED_REPLY, LATE, FAILS = 9, 0x40, 0x80


def vhost(number, layout="", *values, files=0, flag=NEED_REPLY, control=0, size=None):
    """A byte for the entry point (descriptors, and whether the action fails), and a message."""
    payload = struct.pack("<" + layout, *values)
    size = len(payload) if size is None else size
    return bytes([files | control]) + struct.pack("<III", number, flag, size) + payload


def vhost_start(queue=0, size=16, features=0x5_7000_7E66, start=0x10000, base=0):
    """The messages from the choice of features to the start of a queue in 64 KiB of memory."""
    return (vhost(SET_PROTOCOL, "Q", 0x1B22B) + vhost(SET_FEATURES, "Q", features)
            + vhost(SET_MEM_TABLE, "IIQQQQ", 1, 0, 0, 0x10000, 0x10000, 0, files=1)
            + vhost(VRING_NUM, "II", queue, size) + vhost(VRING_BASE, "II", queue, base)
            + vhost(VRING_ADDR, "IIQQQQ", queue, 0, start, start + 0x1000, start + 0x2000, 0)
            + vhost(VRING_CALL, "Q", queue, files=1) + vhost(VRING_KICK, "Q", queue, files=1))


SPLIT = 0x1_7000_7E66
REGION_ONE, REGION_TWO = (0, 0, 4096, 0x7000, 0), (0, 4096, 4096, 0x9000, 4096)
VHOST_MESSAGE = {
    "questions": b"".join(map(vhost, (GET_FEATURES, GET_PROTOCOL, GET_QUEUE_NUM, SET_OWNER,
                                      RESET_OWNER))),
    "start-split": vhost_start(features=SPLIT),
    "start-packed": vhost_start(size=24, base=0x80018002),
    "start-legacy": vhost_start(features=0),
    "start-outside": vhost_start(features=SPLIT, start=0x1F000),
    "start-odd-size": vhost_start(size=24, features=SPLIT),
    "start-twice": vhost_start(features=SPLIT) + vhost(VRING_KICK, "Q", 0, files=1),
    "start-early": vhost(VRING_KICK, "Q", 0, files=1),
    "stop-start": vhost_start(features=SPLIT) + vhost(GET_VRING_BASE, "II", 0, 0)
    + vhost(VRING_KICK, "Q", 0, files=1),
    "two-queues": vhost_start(features=SPLIT) + vhost_start(queue=1, features=SPLIT, start=0x14000),
    "change-running": vhost_start(features=SPLIT) + vhost(VRING_NUM, "II", 0, 8)
    + vhost(VRING_CALL, "Q", 0x100) + vhost(VRING_ERR, "Q", 0, files=1)
    + vhost(VRING_ENABLE, "II", 0, 1) + vhost(SET_FEATURES, "Q", SPLIT & ~64),
    "poll": vhost_start(features=SPLIT) + vhost(VRING_KICK, "Q", 0x101),
    "log": vhost_start(features=SPLIT) + vhost(SET_FEATURES, "Q", SPLIT | 1 << 26)
    + vhost(VRING_ADDR, "IIQQQQ", 0, 1, 0x10000, 0x11000, 0x12000, 0x1000)
    + vhost(SET_LOG_BASE, "QQ", 4096, 0, files=1) + vhost(SET_LOG_FD, files=1),
    "regions": vhost(SET_PROTOCOL, "Q", 0x8008) + vhost(GET_SLOTS)
    + vhost(ADD_REGION, "QQQQQ", *REGION_ONE, files=1)
    + vhost(ADD_REGION, "QQQQQ", *REGION_TWO, files=1)
    + vhost(REMOVE_REGION, "QQQQQ", *REGION_ONE) + vhost(REMOVE_REGION, "QQQQQ", *REGION_ONE),
    "regions-overlap": vhost(SET_PROTOCOL, "Q", 0x8008)
    + vhost(ADD_REGION, "QQQQQ", 0, 0, 8192, 0, 0, files=1)
    + vhost(ADD_REGION, "QQQQQ", 0, 4096, 4096, 1 << 63, 0, files=1)
    + vhost(ADD_REGION, "QQQQQ", 0, 1 << 63, 2**63, 4096, 0, files=1),
    "region-last": vhost(SET_PROTOCOL, "Q", 0x8008)
    + vhost(ADD_REGION, "QQQQQ", 0, 2**64 - 1, 1, 2**64 - 1, 0, files=1)
    + vhost(ADD_REGION, "QQQQQ", 0, 2**64 - 1, 2, 0, 0, files=1),
    "table-two": vhost(SET_MEM_TABLE, "II" + 8 * "Q", 2, 0, *REGION_ONE[1:], *REGION_TWO[1:],
                       files=2),
    "table-lying": vhost(SET_MEM_TABLE, "IIQQQQ", 0xFFFFFFFF, 0, 0, 1, 0, 0, files=1),
    "table-empty": vhost_start(features=SPLIT) + vhost(SET_MEM_TABLE, "II", 0, 0),
    "config": vhost(SET_PROTOCOL, "Q", 0x208) + vhost(SET_FEATURES, "Q", 1 << 11)
    + vhost(GET_CONFIG, "III60s", 0, 60, 0, b"") + vhost(GET_CONFIG, "III", 255, 1, 1)
    + vhost(SET_CONFIG, "IIIB", 32, 1, 0, 1) + vhost(SET_CONFIG, "IIIB", 0, 1, 1, 1)
    + vhost(GET_CONFIG, "III", 0, 0xFFFFFFFF, 0),
    "inflight": vhost(SET_PROTOCOL, "Q", 0x1008)
    + vhost(GET_INFLIGHT, "QQHH", 0, 0, 2, 128) + vhost(GET_INFLIGHT, "QQHHI", 0, 0, 2, 128, 0)
    + vhost(SET_INFLIGHT, "QQHHI", 8192, 0, 2, 128, 0, files=1)
    + vhost(SET_INFLIGHT, "QQHH", 1, 2**64 - 1, 1, 1, files=1)
    + vhost(GET_INFLIGHT, "QQHH", 0, 0, 0, 0),
    "inflight-start": vhost(SET_PROTOCOL, "Q", 0x1008)
    + vhost(SET_INFLIGHT, "QQHH", 128 * 64, 0, 2, 128, files=1) + vhost_start(features=SPLIT),
    "inflight-small": vhost(SET_PROTOCOL, "Q", 0x1008)
    + vhost(SET_INFLIGHT, "QQHH", 128 * 64, 0, 2, 8, files=1) + vhost_start(features=SPLIT),
    "inflight-packed": vhost(SET_PROTOCOL, "Q", 0x1008)
    + vhost(SET_INFLIGHT, "QQHH", 640, 0, 2, 16, files=1) + vhost_start(size=16),
    "inflight-short": vhost(SET_PROTOCOL, "Q", 0x1008)
    + vhost(SET_INFLIGHT, "QQHH", 639, 0, 2, 16, files=1),
    "reset": vhost_start(features=SPLIT) + vhost(RESET_DEVICE) + vhost(GET_VRING_BASE, "II", 0, 0),
    "reset-owner": vhost_start(features=SPLIT) + vhost(VRING_ENABLE, "II", 0, 0)
    + vhost(RESET_OWNER) + vhost(VRING_ENABLE, "II", 0, 0) + vhost_start(features=SPLIT),
    "status": vhost_start(features=SPLIT) + vhost(SET_STATUS, "Q", 15) + vhost(GET_STATUS)
    + vhost(SET_STATUS, "Q", 0) + vhost(SET_STATUS, "Q", 256),
    "channel": vhost(BACKEND_REQ_FD, files=1),
    "fails": vhost(SET_PROTOCOL, "Q", 0x9008)
    + vhost(ADD_REGION, "QQQQQ", *REGION_ONE, files=1, control=FAILS)
    + vhost(GET_INFLIGHT, "QQHH", 0, 0, 1, 1, control=FAILS) + vhost(VRING_NUM, "II", 0, 8),
    "late-files": vhost(ADD_REGION, "QQQQQ", *REGION_ONE, files=1, control=LATE)
    + vhost(VRING_CALL, "Q", 0, files=1, control=LATE),
    "table-longest": vhost(SET_MEM_TABLE, "II" + 128 * "Q", 32, 0,
                           *(field for at in range(32) for field in (at, 1, at, at)), files=32),
    "too-many-files": vhost(SET_OWNER, files=33),
    "no-reply": vhost(SET_OWNER, flag=1) + vhost(VRING_NUM, "II", 9, 1, flag=1),
    "unknown": vhost(SET_PROTOCOL, "Q", 8) + vhost(22) + vhost(0xFFFFFFFF, flag=1),
    "version": vhost(SET_OWNER, flag=2),
    "reply": vhost(SET_OWNER, flag=5),
    "long": vhost(GET_FEATURES, size=0xFFFFFFFF),
    "half-payload": vhost(VRING_NUM, "I", 0, size=8),
    "half-header": vhost(GET_FEATURES)[:7],
    "empty": b"",
}


EVENTS, TABLES, READ_ONLY = 1, 2, 4
D_NEXT, D_WRITE, D_TABLE = 1, 2, 4
BLK_IN, BLK_OUT, BLK_FLUSH, BLK_ID, BLK_DISCARD, BLK_ZEROES = 0, 1, 4, 8, 11, 13


def descriptor(address, length, flag=0, following=0):
    return struct.pack("<QIHH", address, length, flag, following)


def blk(kind, sector=0):
    return struct.pack("<IIQ", kind, 0, sector)


def blk_range(sector, sectors, flag=0):
    return struct.pack("<QII", sector, sectors, flag)


def vhost_ring(descriptors, heads=(0,), memory=None, features=TABLES, border=31, base=0,
               index=None):
    """Four choices of the entry point, and 4 KiB of memory with a ring of four entries."""
    guest = bytearray(4096)
    parts = {16 * n: part for n, part in enumerate(descriptors)}
    index = base + len(heads) if index is None else index
    parts[64] = struct.pack("<HH", 0, index & 0xFFFF)
    parts |= {68 + 2 * ((base + n) % 4): struct.pack("<H", head) for n, head in enumerate(heads)}
    for address, part in (parts | (memory or {})).items():
        guest[address:address + len(part)] = part
    return struct.pack("<BBH", features, border << 3 | 2, base) + guest


def blk_chain(kind, sector, *data):
    """Descriptors of a header at 512, then data, then a status at 640."""
    parts = [(512, 16, 0), *data, (640, 1, D_WRITE)]
    last = len(parts) - 1
    return {"descriptors": [descriptor(address, length, flag | (D_NEXT if n < last else 0), n + 1)
                            for n, (address, length, flag) in enumerate(parts)],
            "memory": {512: blk(kind, sector)}}


def blk_table(kind, sector, *data):
    """The same in an indirect table at 256."""
    chain = blk_chain(kind, sector, *data)
    table = b"".join(chain["descriptors"])
    return {"descriptors": [descriptor(256, len(table), D_TABLE)],
            "memory": chain["memory"] | {256: table}}


ZEROES = blk_range(0, 1) + blk_range(8, 16, 1)
VHOST_RING = {
    "read": vhost_ring(**blk_chain(BLK_IN, 3, (1024, 512, D_WRITE))),
    "write": vhost_ring(**blk_chain(BLK_OUT, 3, (1024, 512, 0))),
    "write-read-only": vhost_ring(**blk_chain(BLK_OUT, 3, (1024, 512, 0)), features=READ_ONLY),
    "flush": vhost_ring(**blk_chain(BLK_FLUSH, 0)),
    "name": vhost_ring(**blk_chain(BLK_ID, 0, (1024, 20, D_WRITE))),
    "unknown": vhost_ring(**blk_chain(99, 0)),
    "beyond": vhost_ring(**blk_chain(BLK_IN, 1 << 20, (1024, 512, D_WRITE))),
    "table": vhost_ring(**blk_table(BLK_IN, 0, (1024, 512, D_WRITE), (2048, 512, D_WRITE))),
    "table-events": vhost_ring(**blk_table(BLK_IN, 0, (1024, 512, D_WRITE)), features=3),
    "table-crosses": vhost_ring(**blk_table(BLK_OUT, 0, (256, 3584, 0)), border=12),
    "table-in-table": vhost_ring([descriptor(0, 16, D_TABLE)]),
    "table-odd": vhost_ring([descriptor(256, 17, D_TABLE)]),
    "table-not-negotiated": vhost_ring([descriptor(256, 16, D_TABLE)], features=0),
    "discard": vhost_ring(**blk_chain(BLK_DISCARD, 0, (528, 16, 0))),
    "loop": vhost_ring([descriptor(512, 16, D_NEXT, 0)]),
    "outside": vhost_ring([descriptor(4095, 2)]),
    "wraps": vhost_ring([descriptor(2**64 - 1, 2)]),
    "read-after-write": vhost_ring([descriptor(512, 1, 3, 1), descriptor(512, 1)]),
    "no-status": vhost_ring([descriptor(512, 16)]),
    "head-twice": vhost_ring([descriptor(640, 1, D_WRITE)], heads=(0, 0)),
    "head-outside": vhost_ring([], heads=(4,)),
    "ahead": vhost_ring([], index=5),
    "base-wraps": vhost_ring([descriptor(640 + n, 1, D_WRITE) for n in range(4)],
                             heads=(3, 1, 2), base=0xFFFE, features=EVENTS),
    "status-in-ring": vhost_ring([descriptor(n, 1, D_WRITE) for n in (66, 76, 78, 16)],
                                 heads=(0, 1, 2, 3)),
    "short": bytes(20),
    "empty": b"",
}
for name, kind in ("zeroes", BLK_ZEROES), ("discard-unmap", BLK_DISCARD):
    CHAIN = blk_chain(kind, 0, (528, 32, 0))
    VHOST_RING[name] = vhost_ring(CHAIN["descriptors"], memory=CHAIN["memory"] | {528: ZEROES})


SIMPLE, STRUCTURED, EXTENDED = 0, 2, 4


def transmission_inputs():
    """Each stream in its reply style."""
    for name, data in TRANSMISSION.items():
        style = EXTENDED if name.startswith("extended") else STRUCTURED
        yield name, struct.pack(">BB", style, PIECES) + data
    yield "simple-read", struct.pack(">BB", SIMPLE, PIECES) + TRANSMISSION["read"]
    yield "simple-write", struct.pack(">BB", SIMPLE, PIECES) + TRANSMISSION["write"]
    yield "aligned-export", struct.pack(">BB", STRUCTURED + 1, PIECES) + TRANSMISSION["unaligned"]
    yield "wrong-style", struct.pack(">BB", STRUCTURED, PIECES) + TRANSMISSION["extended-read"]


def vhost_inputs():
    """Each stream with all features offered; some with fewer."""
    inputs = {name: struct.pack(">BB", 0, PIECES) + data for name, data in VHOST_MESSAGE.items()}
    for name, choice in ("start-split", 2), ("start-legacy", 3), ("no-reply", 3):
        inputs[f"few-{name}"] = struct.pack(">BB", choice, PIECES) + VHOST_MESSAGE[name]
    return inputs


def main():
    handshake = {name: handshake_input(data) for name, data in HANDSHAKE.items()}
    handshake |= {name: handshake_input(*parts) for name, parts in TLS_HANDSHAKE.items()}
    targets = {"nbd_handshake": handshake, "nbd_transmission": dict(transmission_inputs()),
               "stack_file": STACK_FILE, "raid_superblock": RAID_SUPERBLOCK,
               "raid_bitmap": RAID_BITMAP, "raid_ppl": RAID_PPL, "raid_places": RAID_PLACES,
               "dm_table": DM_TABLE, "control_line": CONTROL_LINE,
               "write_log": WRITE_LOG, "certificate": CERTIFICATE,
               "fuse_request": FUSE_REQUEST, "vhost_message": vhost_inputs(),
               "vhost_ring": VHOST_RING}
    for target, inputs in targets.items():
        folder = FOLDER / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in inputs.items():
            (folder / name).write_bytes(data.encode() if isinstance(data, str) else data)


if __name__ == "__main__":
    main()
