#!/usr/bin/env python3
"""Measures drystone's NBD server beside nbdkit and qemu-storage-daemon, in one run on this machine.

All servers run at once, idle except the measured one. Each workload goes round all of them
(A B C D, A B C D, ...), so that drift of the machine affects all alike. The report has the median
over the rounds and the range, for the client's IOPS and for the server's CPU time an I/O (all its
threads, from /proc/PID/stat). Where fio's client is the limit, only the second figure
distinguishes servers.

The report is Markdown on standard output; --json keeps every single sample.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
DEVICE_MIB = 1024


class Server:
    """A peer: its command line, and the socket that it listens on."""

    def __init__(self, name, folder, command, compares=True):
        self.name = name
        self.socket = f"{folder}/{name.replace(' ', '-')}.sock"
        self.uri = f"nbd+unix:///vol?socket={self.socket}"
        self.command = [word.replace("SOCKET", self.socket) for word in command]
        self.compares = compares  # whether it holds data, so that it counts as "the better peer"
        self.process = None

    def start(self, folder):
        with open(f"{folder}/{self.name.replace(' ', '-')}.log", "wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, cwd=folder)
        deadline = time.monotonic() + 30
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(
                    f"{self.name} does not start: {pathlib.Path(log.name).read_text()}")
            time.sleep(0.05)

    def is_ready(self):
        return os.path.exists(self.socket)

    def fio_options(self):
        return ["--ioengine=nbd", f"--uri={self.uri}", "--iodepth=16"]

    def cpu_seconds(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text()
        fields = text.rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_SECONDS

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class FileServer(Server):
    """A peer whose device appears as a file, FILE in its command."""

    def __init__(self, name, folder, command, compares=True):
        super().__init__(name, folder, command, compares)
        self.file = f"{folder}/{name.replace(' ', '-')}.file"
        open(self.file, "wb").close()
        self.command = [word.replace("FILE", self.file) for word in self.command]

    def is_ready(self):
        return os.stat(self.file).st_size == DEVICE_MIB << 20

    def fio_options(self):
        return ["--ioengine=psync", "--direct=1", f"--filename={self.file}"]


def file_servers(options, folder):
    """A device in memory as a file by FUSE."""
    stack = pathlib.Path(folder, "files.toml")
    stack.write_text(f'[device.mem]\ntype = "ram"\nsize = "{DEVICE_MIB}MiB"\n\n'
                     f'[export.vol]\ndevice = "mem"\nfuse = "{folder}/drystone.file"\n')
    image = f"{folder}/qsd.img"
    with open(image, "wb") as file:
        file.truncate(DEVICE_MIB << 20)
    return [
        FileServer("drystone", folder, [options.drystone, "serve", str(stack), "--control",
                                        f"{folder}/drystone.control"]),
        FileServer("qsd tmpfs", folder, [
            "qemu-storage-daemon", "--blockdev",
            f"driver=file,node-name=d,filename={image},aio={options.qsd_aio}",
            "--export", "type=fuse,id=e,node-name=d,mountpoint=FILE,writable=on"]),
    ]


def servers(options, folder):
    """The peers, each set up for speed as its own users would."""
    stack = pathlib.Path(folder, "peers.toml")
    stack.write_text(f'[device.mem]\ntype = "ram"\nsize = "{DEVICE_MIB}MiB"\n\n'
                     f'[export.vol]\ndevice = "mem"\nnbd = ["unix:{folder}/drystone.sock"]\n')
    image = f"{folder}/qsd.img"
    with open(image, "wb") as file:
        file.truncate(DEVICE_MIB << 20)
    # The export has no iothread of its own. With one, version 7.2 aborts by an assertion when a
    # client leaves. One thread serves the export in either case.
    daemon = ["qemu-storage-daemon", "--nbd-server", "addr.type=unix,addr.path=SOCKET"]
    export = ["--export", "type=nbd,id=e,node-name=d,name=vol,writable=on"]
    file = ["--blockdev", f"driver=file,node-name=d,filename={image},aio={options.qsd_aio}"]
    null = ["--blockdev", f"driver=null-co,node-name=d,size={DEVICE_MIB << 20},read-zeroes=off"]
    return [
        Server("drystone", folder, [options.drystone, "serve", str(stack), "--control",
                                    f"{folder}/drystone.control"]),
        Server("nbdkit memory", folder, ["nbdkit", "-f", "-U", "SOCKET", "-t",
                                         str(options.nbdkit_threads), "memory", f"{DEVICE_MIB}M"]),
        Server("qsd tmpfs", folder, daemon + file + export),
        Server("qsd null-co", folder, daemon + null + export, compares=False),
    ]


def throttled(options, folder):
    """The cost of a limit too high to bind: servers on null devices, without and with it."""
    size = f"size={DEVICE_MIB << 20},read-zeroes=off"
    null = ["--blockdev", f"driver=null-co,node-name=d,{size}"]
    group = ["--object", "throttle-group,id=g,limits.iops-total=1000000000,"
                         "limits.bps-total=1000000000000",
             "--blockdev", "driver=throttle,node-name=t,throttle-group=g,file=d"]

    def daemon(node):
        return ["qemu-storage-daemon", "--nbd-server", "addr.type=unix,addr.path=SOCKET", *null,
                *(group if node == "t" else []),
                "--export", f"type=nbd,id=e,node-name={node},name=vol,writable=on"]

    def drystone(name, group):
        stack = pathlib.Path(folder, f"{name}.toml")
        stack.write_text(f'[device.d]\ntype = "null"\nsize = "{DEVICE_MIB}MiB"\n\n{group}'
                         f'[export.vol]\ndevice = "d"\nnbd = ["unix:{folder}/{name}.sock"]\n'
                         + ('group = "g"\n' if group else ""))
        return [options.drystone, "serve", str(stack), "--control", f"{folder}/{name}.control"]

    limits = "rbps=1T wbps=1T riops=1000000000 wiops=1000000000"
    return [
        Server("drystone", folder, drystone("drystone", "")),
        Server("drystone throttled", folder,
               drystone("drystone-throttled", f'[group.g]\nio.max = "d {limits}"\n\n')),
        Server("qsd", folder, daemon("d")),
        Server("qsd throttled", folder, daemon("t")),
    ]


def tax(samples, workloads):
    """The cost of the limit, round by round: this program's and the other's."""
    lines = []
    for title, *_ in workloads:
        for name in ("drystone", "qsd"):
            pairs = list(zip(samples[title, name], samples[title, f"{name} throttled"]))
            cpu = spread([b["cpu_ns"] - a["cpu_ns"] for a, b in pairs])
            rate = spread([b["rate"] / a["rate"] for a, b in pairs], 3)
            lines.append(f"- {title}, {name}: {cpu} ns of CPU an I/O more, {rate} times the rate.")
    return "\n".join(lines)


def fio(server, options, rw, jobs):
    """Runs fio; returns the I/Os a second, the I/Os in all, and the mean latency."""
    command = ["fio", "--name=peer", *server.fio_options(), f"--rw={rw}",
               "--bs=4k", f"--numjobs={jobs}", f"--size={DEVICE_MIB}M",
               "--time_based", f"--runtime={options.runtime}",
               "--norandommap", "--randrepeat=0", "--group_reporting", "--output-format=json"]
    text = checked(command)
    job = json.loads(text[text.index("{"):])["jobs"][0]
    side = job["read" if "read" in rw else "write"]
    return {"iops": side["iops"], "ios": side["total_ios"],
            "latency_us": side["clat_ns"]["mean"] / 1000}


def random_sample(server, options, rw, jobs):
    before = server.cpu_seconds()
    sample = fio(server, options, rw, jobs)
    cpu = server.cpu_seconds() - before
    return {"rate": sample["iops"], "cpu_ns": cpu * 1e9 / max(1, sample["ios"]),
            "latency_us": sample["latency_us"]}


def copy_sample(server, options, rw, _jobs):
    source, target = (server.uri, "null:") if rw == "read" else (options.source, server.uri)
    before, started = server.cpu_seconds(), time.monotonic()
    checked(["nbdcopy", "--connections=4", "--", source, target])
    wall = time.monotonic() - started
    cpu = server.cpu_seconds() - before
    return {"rate": DEVICE_MIB / wall, "cpu_ns": cpu * 1e9 / DEVICE_MIB}


def checked(command):
    result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout


def measure(peers, options, workloads):
    """Runs every workload on every peer, interleaved; returns samples by (workload, peer)."""
    samples = {}
    for title, function, rw, jobs in workloads:
        for turn in range(options.rounds):
            for peer in peers:
                sample = function(peer, options, rw, jobs)
                samples.setdefault((title, peer.name), []).append(sample)
                print(f"{title}, round {turn + 1} of {options.rounds}, {peer.name}: "
                      f"{sample['rate']:,.0f}", file=sys.stderr)
    return samples


def spread(values, digits=0):
    middle, low, high = (f"{value:,.{digits}f}" for value in
                         (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def median(samples, key):
    return statistics.median(sample[key] for sample in samples)


def table(peers, samples, workloads, unit, cpu_unit):
    """A table: a row for each workload and peer, drystone's ratio to the better data peer."""
    lines = [f"| workload | server | {unit} | server CPU, {cpu_unit} | against drystone |",
             "|---|---|---|---|---|"]
    for title, *_ in workloads:
        own = samples[title, peers[0].name]
        for peer in peers:
            theirs = samples[title, peer.name]
            ratio = "" if peer is peers[0] else verdict(own, theirs)
            lines.append(f"| {title} | {peer.name} | {spread([s['rate'] for s in theirs])} | "
                         f"{spread([s['cpu_ns'] for s in theirs])} | {ratio} |")
    return "\n".join(lines)


def verdict(own, theirs):
    rate = median(own, "rate") / max(1e-9, median(theirs, "rate"))
    cpu = median(own, "cpu_ns") / max(1e-9, median(theirs, "cpu_ns"))
    return f"drystone {rate:.2f} x the rate, {cpu:.2f} x the CPU"


def summary(peers, samples, workloads):
    """Compares drystone with the better peer that holds data, for each workload."""
    lines = []
    for title, *_ in workloads:
        rivals = [peer for peer in peers[1:] if peer.compares]
        best = max(rivals, key=lambda peer: median(samples[title, peer.name], "rate"))
        own = samples[title, peers[0].name]
        lines.append(f"- {title}: the better is {best.name}; "
                     f"{verdict(own, samples[title, best.name])}.")
    return "\n".join(lines)


def version(*command):
    result = subprocess.run(command, capture_output=True, text=True)
    return (result.stdout or result.stderr).strip().splitlines()[0]


def machine(options):
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in info.splitlines()
                  if line.startswith("model name")), platform.machine())
    versions = [version(options.drystone, "--version"), version("nbdkit", "--version"),
                version("qemu-storage-daemon", "--version"), version("fio", "--version"),
                version("nbdcopy", "--version")]
    return (f"{datetime.date.today()}, {os.cpu_count()} processors ({model}), "
            f"Linux {platform.release()}; " + ", ".join(versions) +
            f". {options.rounds} rounds, {options.runtime} s each; "
            f"qsd with aio={options.qsd_aio}, nbdkit with {options.nbdkit_threads} threads. "
            "Median, and in brackets the lowest and highest round.")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drystone", default="target/release/drystone", help="the program")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload (5)")
    parser.add_argument("--runtime", type=int, default=5, help="seconds of each fio run (5)")
    parser.add_argument("--jobs", help="numbers of fio jobs (1,4,16; of files 1,8)")
    parser.add_argument("--quick", action="store_true",
                        help="2 rounds of 1 s, to see that it works")
    parser.add_argument("--qsd-aio", default="io_uring", choices=["io_uring", "threads"])
    parser.add_argument("--nbdkit-threads", type=int, default=16, help="threads a connection (16)")
    parser.add_argument("--throttle", action="store_true",
                        help="instead of that: what a limit too high to bind costs on null devices")
    parser.add_argument("--files", action="store_true",
                        help="instead of that: files by FUSE, beside qemu-storage-daemon's")
    parser.add_argument("--only", default="", help="only workloads whose name holds this word")
    parser.add_argument("--json", help="file for all samples")
    options = parser.parse_args()
    options.jobs = options.jobs or ("1,8" if options.files else "1,4,16")
    if options.quick:
        options.rounds, options.runtime = 2, 1
    options.drystone = str(pathlib.Path(options.drystone).resolve())
    missing = [tool for tool in ("nbdkit", "qemu-storage-daemon", "fio", "nbdcopy",
                                 options.drystone) if not shutil.which(tool)]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}")
    return options


def main():
    options = arguments()
    jobs = [int(number) for number in options.jobs.split(",")]
    random = [(f"{rw} 4 KiB, {n} job{'s' * (n > 1)}", random_sample, rw, n)
              for rw in ("randread", "randwrite") for n in jobs]
    copies = [(f"nbdcopy {rw}", copy_sample, rw, 4) for rw in ("read", "write")]
    random, copies = ([item for item in items if options.only in item[0]]
                      for items in (random, copies))
    # /dev/shm is a tmpfs: no disk is involved.
    with tempfile.TemporaryDirectory(prefix="drystone-peers-", dir="/dev/shm") as folder:
        options.source = f"{folder}/source.img"
        checked(["dd", "if=/dev/urandom", f"of={options.source}", "bs=1M", f"count={DEVICE_MIB}",
                 "status=none"])
        shape = throttled if options.throttle else file_servers if options.files else servers
        peers = shape(options, folder)
        try:
            for peer in peers:
                peer.start(folder)
            if options.throttle:
                samples = measure(peers, options, random)
                print(machine(options) + "\n\n" + table(peers, samples, random, "IOPS", "ns an I/O")
                      + "\n\n" + tax(samples, random))
                return
            for peer in peers:  # reads of memory that was never written are too fast
                checked(["dd", f"if={options.source}", f"of={peer.file}", "bs=1M", "oflag=direct",
                         "conv=notrunc"] if options.files
                        else ["nbdcopy", "--", options.source, peer.uri])
            copies = [] if options.files else copies
            samples = measure(peers, options, random + copies)
            print(machine(options) + "\n")
            if random:
                print(table(peers, samples, random, "IOPS", "ns an I/O") + "\n")
            if copies:
                print(table(peers, samples, copies, "MiB/s", "ns a MiB") + "\n")
            print(summary(peers, samples, random + copies))
            if options.json:
                records = [{"workload": workload, "server": server, "samples": values}
                           for (workload, server), values in samples.items()]
                pathlib.Path(options.json).write_text(json.dumps(records, indent=1) + "\n")
        finally:
            for peer in peers:
                peer.stop()


if __name__ == "__main__":
    main()
