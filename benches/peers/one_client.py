#!/usr/bin/env python3
"""Measures Drystone's NBD server beside its peers with one client, on this machine.

One client with one request in flight is what most people try first. The rows: one request in
flight, sixteen, and requests of 1 MiB, on memory, on a file by the page cache, and on a file by
direct I/O; TLS with one and with four clients; nbdcopy. Programs take turns, round by round, as in
`run.py`. Where the system puts client and server decides on more than the server does; --core puts
both on one core.

The report is Markdown on standard output: rate, processor time of the server for each I/O or MiB,
99th percentile of the latency, and the ratios to the better peer. --json keeps every sample.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import run

# The rate beside the better peer that a row is meant to have: the first word that its name holds.
GOALS = {"TLS": 1.2, "4 KiB": 1.2, "1 MiB": 1.1, "nbdcopy": 1.1}
SIZE = f"{run.DEVICE_MIB}MiB"


class TlsServer(run.Server):
    """A peer that listens on a TCP port of this machine, and takes clients with TLS only."""

    def __init__(self, name, folder, command, port):
        super().__init__(name, folder, command)
        self.port, self.uri = port, f"nbds://localhost:{port}/vol"

    def is_ready(self):
        return not subprocess.run(["nbdinfo", "--can", "read", self.uri],
                                  capture_output=True).returncode


def drystone(options, folder, name, device, export):
    stack = pathlib.Path(folder, f"{name}.toml")
    stack.write_text(f"[device.d]\n{device}\n[export.vol]\ndevice = \"d\"\n{export}\n")
    return [options.drystone, "serve", str(stack), "--control", f"{folder}/{name}.control"]


def on_socket(folder):
    return f'nbd = ["unix:{folder}/drystone.sock"]'


def qsd(*blockdev):
    return ["qemu-storage-daemon", "--nbd-server", "addr.type=unix,addr.path=SOCKET",
            "--blockdev", ",".join(blockdev),
            "--export", "type=nbd,id=e,node-name=d,name=vol,writable=on"]


def on_memory(options, folder):
    """Memory: of the server itself, or a file on a tmpfs."""
    ram = f'type = "ram"\nsize = "{SIZE}"'
    image = new_file(f"{folder}/qsd.img")
    return [
        run.Server("drystone", folder,
                   drystone(options, folder, "memory", ram, on_socket(folder))),
        run.Server("nbdkit", folder, ["nbdkit", "-f", "-U", "SOCKET", "-t",
                                      str(options.nbdkit_threads), "memory",
                                      f"{run.DEVICE_MIB}M"]),
        run.Server("qsd", folder,
                   qsd("driver=file,node-name=d", f"filename={image}", "aio=io_uring")),
    ]


def on_file(options, folder, direct):
    """A file of the disk's file system, by the page cache or not."""
    disk = pathlib.Path(options.disk)
    own, theirs, third = (new_file(disk / f"{name}.img") for name in ("drystone", "nbdkit", "qsd"))
    device = (f'type = "file"\npath = "{own}"\nsize = "{SIZE}"\n'
              f'direct = {"true" if direct else "false"}')
    cache = "cache.direct=on" if direct else "cache.direct=off"
    peers = [
        run.Server("drystone", folder, drystone(options, folder, "file", device,
                                                on_socket(folder))),
        run.Server("qsd", folder, qsd("driver=file,node-name=d", f"filename={third}",
                                      "aio=io_uring", cache)),
    ]
    if not direct:  # nbdkit's file plugin has no direct I/O
        peers.insert(1, run.Server("nbdkit", folder, [
            "nbdkit", "-f", "-U", "SOCKET", "-t", str(options.nbdkit_threads), "file",
            str(theirs)]))
    return peers


def with_tls(options, folder):
    """Memory, encrypted on its way. Certificates lie where libnbd looks for them by itself."""
    pki = make_certificates(folder)
    keys = f'cert = "{pki}/server-cert.pem", key = "{pki}/server-key.pem"'
    export = f'nbd = ["tcp:127.0.0.1:{options.port}"]\ntls = {{ mode = "required", {keys} }}'
    ram = f'type = "ram"\nsize = "{SIZE}"'
    return [
        TlsServer("drystone", folder, drystone(options, folder, "tls", ram, export),
                  options.port),
        TlsServer("nbdkit", folder, [
            "nbdkit", "-f", "-i", "127.0.0.1", "-p", str(options.port + 1), "--tls=require",
            f"--tls-certificates={pki}", "-t", str(options.nbdkit_threads), "memory",
            f"{run.DEVICE_MIB}M"], options.port + 1),
    ]


def make_certificates(folder):
    """An authority and a server's certificate; the authority also where clients look for it."""
    pki = pathlib.Path(folder, "pki")
    pki.mkdir()
    new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    signed = "-CA ca-cert.pem -CAkey ca-key.pem -addext basicConstraints=critical,CA:FALSE"
    names = "-addext subjectAltName=DNS:localhost"
    for words in (f"{new} -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem",
                  f"{new} {signed} {names} -subj /CN=localhost -keyout server-key.pem "
                  "-out server-cert.pem"):
        subprocess.run(words.split(), cwd=pki, check=True, capture_output=True)
    home = pathlib.Path(folder, "home", ".pki", "libnbd")
    home.mkdir(parents=True)
    shutil.copy(pki / "ca-cert.pem", home)
    os.environ["HOME"] = f"{folder}/home"
    return pki


def new_file(path):
    with open(path, "wb") as file:
        file.truncate(run.DEVICE_MIB << 20)
    return path


def fio_row(title, rw, bs, depth, jobs=1):
    def sample(server, options):
        before = server.cpu_seconds()
        command = ["fio", "--name=one", "--ioengine=nbd", f"--uri={server.uri}", f"--rw={rw}",
                   f"--bs={bs}", f"--iodepth={depth}", f"--numjobs={jobs}",
                   f"--size={run.DEVICE_MIB}M", "--time_based", f"--runtime={options.runtime}",
                   "--norandommap", "--randrepeat=0", "--group_reporting",
                   "--output-format=json"]
        text = run.checked(command)
        cpu = server.cpu_seconds() - before
        job = json.loads(text[text.index("{"):])["jobs"][0]
        side = job["read" if "read" in rw else "write"]
        return {"rate": side["iops"], "cpu_ns": cpu * 1e9 / max(1, side["total_ios"]),
                "p99_us": side["clat_ns"]["percentile"]["99.000000"] / 1000}
    return title, sample


def copy_row(title, reads):
    """nbdcopy of 4 GiB: the device four times, so that the clock of the processor time counts."""
    def sample(server, options):
        ends = (server.uri, "null:") if reads else (options.source, server.uri)
        before, started = server.cpu_seconds(), time.monotonic()
        for _ in range(4):
            run.checked(["nbdcopy", "--", *ends])
        mib = 4 * run.DEVICE_MIB
        wall, cpu = time.monotonic() - started, server.cpu_seconds() - before
        return {"rate": mib / wall, "cpu_ns": cpu * 1e9 / mib, "p99_us": 0.0}
    return title, sample


def small(where):
    return [fio_row(f"{where}, 4 KiB {rw}, depth {depth}", rw, "4k", depth)
            for depth in (1, 16) for rw in ("randread", "randwrite")]


def large(where):
    return [fio_row(f"{where}, 1 MiB {rw}, depth 4", rw, "1m", 4) for rw in ("read", "write")]


def copies(where):
    return [copy_row(f"{where}, nbdcopy {way}", way == "read") for way in ("read", "write")]


def encrypted():
    return [fio_row(f"TLS, {size} {rw}, {jobs} job{'s' * (jobs > 1)}", rw, bs, depth, jobs)
            for jobs in (1, 4)
            for size, bs, depth in (("4 KiB", "4k", 16), ("1 MiB", "1m", 4))
            for rw in ("randread", "randwrite")]


GROUPS = {
    "memory": (on_memory, lambda: small("RAM") + large("RAM") + copies("RAM")),
    "buffered": (lambda options, folder: on_file(options, folder, False),
                 lambda: small("buffered") + large("buffered") + copies("buffered")),
    "direct": (lambda options, folder: on_file(options, folder, True),
               lambda: small("direct")),
    "tls": (with_tls, encrypted),
}


def measure(options, folder, group):
    """All samples of a group, by row and server."""
    make_servers, make_rows = GROUPS[group]
    rows = [row for row in make_rows() if options.only in row[0]]
    if not rows:
        return {}
    folder = f"{folder}/{group}"  # a socket of another group would be in the way
    os.mkdir(folder)
    servers = make_servers(options, folder)
    try:
        for server in servers:
            server.start(folder)
            run.checked(["nbdcopy", "--", options.source, server.uri])
        samples = {title: {server.name: [] for server in servers} for title, _ in rows}
        for title, take in rows:
            for _ in range(options.rounds):
                for server in servers:
                    samples[title][server.name].append(take(server, options))
                    print(f"{title}, {server.name}: {samples[title][server.name][-1]}",
                          file=sys.stderr)
        return samples
    finally:
        for server in servers:
            server.stop()


def line(title, by_server):
    """A row of the report: Drystone, the better peer, and their ratios, round by round."""
    def middle(name, key="rate"):
        return statistics.median(sample[key] for sample in by_server[name])

    best = max((name for name in by_server if name != "drystone"), key=middle)
    ours, theirs = by_server["drystone"], by_server[best]
    ratios = {key: [a[key] / b[key] for a, b in zip(ours, theirs) if b[key]]
              for key in ("rate", "cpu_ns", "p99_us")}
    goal = next(goal for word, goal in GOALS.items() if word in title)
    rate = statistics.median(ratios["rate"])
    verdict = "loss" if rate < 0.97 else "short" if rate < goal else "goal"
    shown = [run.spread(ratios[key], 2) if ratios[key] else "" for key in ratios]
    own, other = (f"{run.spread([s['rate'] for s in of])}" for of in (ours, theirs))
    return f"| {title} | {own} | {best} {other} | {' | '.join(shown)} | {verdict} |"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drystone", default="target/release/drystone", help="the program")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each row (5)")
    parser.add_argument("--runtime", type=int, default=3, help="seconds of each fio run (3)")
    parser.add_argument("--group", choices=sorted(GROUPS), action="append",
                        help="only this group of rows; may be given more than once")
    parser.add_argument("--only", default="", help="only rows whose name holds this word")
    parser.add_argument("--core", type=int, help="bind clients and servers to this core")
    parser.add_argument("--disk", default="/var/tmp", help="folder for files (/var/tmp)")
    parser.add_argument("--port", type=int, default=21809, help="first of two TCP ports (21809)")
    parser.add_argument("--nbdkit-threads", type=int, default=16, help="threads a connection (16)")
    parser.add_argument("--json", help="file for all samples")
    options = parser.parse_args()
    options.qsd_aio = "io_uring"
    options.drystone = str(pathlib.Path(options.drystone).resolve())
    needed = ("nbdkit", "qemu-storage-daemon", "fio", "nbdcopy", "nbdinfo", "openssl",
              options.drystone)
    missing = [tool for tool in needed if not shutil.which(tool)]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}")
    return options


def main():
    options = arguments()
    samples = {}
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})  # what it starts inherits that
    # /dev/shm is a tmpfs: no disk is involved, but for the rows of files.
    with tempfile.TemporaryDirectory(prefix="drystone-one-", dir="/dev/shm") as folder, \
            tempfile.TemporaryDirectory(prefix="drystone-one-", dir=options.disk) as disk:
        options.source, options.disk = f"{folder}/source.img", disk
        run.checked(["dd", "if=/dev/urandom", f"of={options.source}", "bs=1M",
                     f"count={run.DEVICE_MIB}", "status=none"])
        for group in options.group or GROUPS:
            samples |= measure(options, folder, group)
    print(run.machine(options) + "\n")
    print("| workload | drystone | best peer | rate | CPU | p99 | |\n|---|---|---|---|---|---|---|")
    print("\n".join(line(title, by_server) for title, by_server in samples.items()))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(samples, indent=1) + "\n")


if __name__ == "__main__":
    main()
