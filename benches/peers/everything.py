#!/usr/bin/env python3
"""Measures Drystone beside all its peers in one table, of one run, on this machine.

Each line is a workload. Its programs take turns, round by round (A B C, A B C, ...), so that drift
of the machine affects all alike. The table has medians and, in brackets, the lowest and the highest
round. The program with the better median wins. Nobody wins if its rounds and those of the next
overlap, or if the two medians are within 3 % of each other.

The report is Markdown on standard output; --json keeps every single sample. `run.py` measures the
parts about servers in more detail. --self-test measures nothing: it checks the choice of the winner
on samples that are made up.
"""
import argparse
import contextlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile

import run

EVEN = 0.03


def busy_seconds():
    """Processor time of the whole machine."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    user, nice, system, _, _, irq, softirq = (int(field) for field in fields[:7])
    return (user + nice + system + irq + softirq) * run.TICK_SECONDS


def overlap(ours, theirs):
    """Tells whether the ranges of two programs' rounds overlap."""
    return min(ours) <= max(theirs) and min(theirs) <= max(ours)


class Row:
    """A workload: the task of its programs, and whether more is better."""

    def __init__(self, title, unit, programs, more_is_better=True):
        self.title, self.unit, self.programs = title, unit, programs
        self.more_is_better = more_is_better
        self.samples = {name: [] for name in programs}

    def turn(self):
        for name, measure in self.programs.items():
            self.samples[name].append(measure())
            print(f"{self.title}, {name}: {self.samples[name][-1]:,.1f} {self.unit}",
                  file=sys.stderr)

    def shown(self, name):
        digits = 0 if self.unit == "IOPS" else 1
        return run.spread(self.samples[name], digits)

    def winner(self):
        middle = {name: run.statistics.median(values) for name, values in self.samples.items()}
        order = sorted(middle, key=middle.get, reverse=self.more_is_better)
        best, rival = order[0], next(name for name in order if name != "drystone")
        verdict = "nobody" if overlap(self.samples[best], self.samples[order[1]]) else best
        own, theirs = middle["drystone"], middle[rival]
        if self.unit != "IOPS":
            return f"{verdict} ({own - theirs:+.1f} {self.unit} against {rival})"
        if abs(middle[best] / middle[order[1]] - 1) < EVEN:
            verdict = "nobody"
        return f"{verdict} (drystone {own / theirs:.2f} x {rival})"

    def line(self):
        rivals = "; ".join(f"{name} {self.shown(name)}"
                           for name in self.programs if name != "drystone")
        return (f"| {self.title} | {self.unit} | {self.shown('drystone')} | {rivals} | "
                f"{self.winner()} |")


def fio(options, words, fill=()):
    """Runs fio; returns the I/Os a second of its job, and the processor time of fio an I/O, ns.

    With `fill` a job of these words writes everything before: a read of memory that was never
    written finds one page of zeroes."""
    first = ["--name=fill", *fill, "--rw=write", "--bs=1M", "--name=peer", "--stonewall",
             "--new_group",
             "--ramp_time=1"]
    command = ["fio", "--thread", "--group_reporting", "--output-format=json",
               *(first if fill else ["--name=peer"]), "--time_based", "--norandommap",
                "--randrepeat=0",
               f"--runtime={options.runtime}", *words]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = run.checked(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    job = json.loads(text[text.index("{"):])["jobs"][-1]
    ios = job["read"]["total_ios"] + job["write"]["total_ios"]
    return {"iops": job["read"]["iops"] + job["write"]["iops"],
            "cpu_ns": cpu * 1e9 / max(1, ios), "ios": ios}


def in_process(options, folder):
    """The layer in fio's own process, beside fio's own engines."""
    stack = pathlib.Path(folder, "process.toml")
    stack.write_text('[device.null]\ntype = "null"\nsize = "1GiB"\nirqmode = "none"\n\n'
                     f'[device.ram]\ntype = "ram"\nsize = "{run.DEVICE_MIB}MiB"\n')
    memory = f"{folder}/mmap.img"
    run.checked(["dd", "if=/dev/zero", f"of={memory}", "bs=1M", f"count={run.DEVICE_MIB}",
                 "status=none"])
    ours = [f"--ioengine=external:{options.engine}", f"--stack={stack}"]

    def job(words, jobs, bs, fill=False):
        depth = ["--iodepth=32", "--iodepth_batch_submit=32", "--iodepth_batch_complete_min=32",
                 "--gtod_reduce=1", "--rw=randread", f"--bs={bs}", f"--numjobs={jobs}"]
        return lambda: fio(options, words + depth, words if fill else ())["iops"]

    rows = []
    for jobs in (1, 2):
        threads = f"{jobs} thread{'s' * (jobs > 1)}"
        rows.append(Row(f"in process: null, 512 B random reads, {threads}", "IOPS", {
            "drystone": job(ours + ["--filename=null"], jobs, 512),
            "fio's null engine": job(["--ioengine=null", "--size=1G"], jobs, 512)}))
        rows.append(Row(f"in process: RAM, 4 KiB random reads, {threads}", "IOPS", {
            "drystone": job(ours + ["--filename=ram"], jobs, 4096, fill=True),
            "fio's mmap engine on tmpfs":
                job(["--ioengine=mmap", f"--filename={memory}"], jobs, 4096, fill=True)}))
    return rows


def served(options, servers, way, jobs):
    rows = []
    for rw in ("randread", "randwrite"):
        for number in jobs:
            title = f"{way}: 4 KiB {rw}, {number} job{'s' * (number > 1)}"
            programs = {server.name:
                        lambda s=server, rw=rw, n=number: run.fio(s, options, rw, n)["iops"]
                        for server in servers}
            rows.append(Row(title, "IOPS", programs))
    return rows


def nbd(options, folder):
    peers = [server for server in run.servers(options, folder) if server.compares]
    image = f"{folder}/qemu-nbd.img"
    with open(image, "wb") as file:
        file.truncate(run.DEVICE_MIB << 20)
    peers.append(run.Server("qemu-nbd tmpfs", folder, [
        "qemu-nbd", "--socket", "SOCKET", "--export-name=vol", "--format=raw",
        "--persistent", "--shared=0",
        f"--aio={options.qsd_aio}", image]))
    return peers


def throttle_tax(options, servers):
    """Processor time of the server for a limit that is too high to bind."""
    pairs = [("drystone", servers[0], servers[1]), ("qemu-storage-daemon", servers[2], servers[3])]

    def tax(without, limited):
        costs = [run.random_sample(server, options, "randread", 4)["cpu_ns"]
                 for server in (without, limited)]
        return costs[1] - costs[0]

    programs = {name: lambda a=a, b=b: tax(a, b) for name, a, b in pairs}
    return [Row("throttle tax: NBD, null devices, 4 jobs", "ns an I/O", programs,
                more_is_better=False)]


@contextlib.contextmanager
def loop_device(path):
    device = run.checked(["losetup", "--find", "--show", path]).strip()
    try:
        yield device
    finally:
        run.checked(["losetup", "--detach", device])


def scheduler_tax(options, folder, device):
    """Processor time for mq-deadline: the kernel's on a loop device, ours on the same file."""
    job = ["--rw=randread", "--bs=4k", "--iodepth=4", "--iodepth_batch_submit=4",
           "--iodepth_batch_complete_min=4",
           "--numjobs=2", "--direct=1", f"--size={run.DEVICE_MIB}M"]
    scheduler = pathlib.Path("/sys/block", pathlib.Path(device).name, "queue/scheduler")

    def cost(words):
        before = busy_seconds()
        sample = fio(options, job + words)
        return (busy_seconds() - before) * 1e9 / max(1, sample["ios"])

    def kernel():
        costs = []
        for name in ("none", "mq-deadline"):
            scheduler.write_text(name)
            costs.append(cost(["--ioengine=io_uring", f"--filename={device}"]))
        return costs[1] - costs[0]

    def drystone():
        costs = []
        for queue in ('scheduler = "none"', 'scheduler = "mq-deadline", straight = false'):
            stack = pathlib.Path(folder, "scheduler.toml")
            stack.write_text(f'[device.d]\ntype = "file"\npath = "{folder}/loop.img"\n'
                             f'queue = {{ {queue} }}\n')
            costs.append(cost([f"--ioengine=external:{options.engine}", f"--stack={stack}",
                               "--filename=d"]))
        return costs[1] - costs[0]

    programs = {"drystone": drystone, "the kernel's, on a loop device": kernel}
    return [Row("scheduler tax: mq-deadline over none, file on tmpfs, 2 jobs", "ns an I/O",
                programs, more_is_better=False)]


def measure(rows, options):
    rows = [row for row in rows if options.only in row.title]
    for row in rows:
        for _ in range(options.rounds):
            row.turn()
    return rows


def with_servers(servers, folder, options, make_rows, fill=None):
    """Rows of servers that all run at the same time."""
    try:
        for server in servers:
            server.start(folder)
            if fill:
                fill(server)
        return measure(make_rows(servers), options)
    finally:
        for server in servers:
            server.stop()


def all_rows(options, folder):
    source = f"{folder}/source.img"
    run.checked(["dd", "if=/dev/urandom", f"of={source}", "bs=1M", f"count={run.DEVICE_MIB}",
                 "status=none"])
    rows = measure(in_process(options, folder), options)

    def fill_file(server):
        run.checked(["dd", f"if={source}", f"of={server.file}", "bs=1M", "oflag=direct",
                     "conv=notrunc"])

    rows += with_servers(nbd(options, folder), folder, options,
                         lambda servers: served(options, servers, "NBD", (1, 4, 16)),
                         lambda server: run.checked(["nbdcopy", "--", source, server.uri]))
    rows += with_servers(run.file_servers(options, folder), folder, options,
                         lambda servers: served(options, servers, "FUSE", (1, 8)), fill_file)
    rows += with_servers(run.throttled(options, folder), folder, options,
                         lambda servers: throttle_tax(options, servers))
    if os.geteuid() == 0 and os.path.exists("/dev/loop-control"):
        shutil.copy(source, f"{folder}/loop.img")
        with loop_device(f"{folder}/loop.img") as device:
            rows += measure(scheduler_tax(options, folder, device), options)
    else:
        print("SKIPPED: the scheduler's tax needs root and loop devices", file=sys.stderr)
    return rows


def self_test():
    """Checks `Row.winner` on made-up samples; a wrong answer ends the program."""
    iops, tax = ("IOPS", True), ("ns an I/O", False)
    cases = [
        (iops, {"drystone": [90, 100, 110], "a": [40, 50, 60]}, "drystone (drystone 2.00 x a)"),
        (iops, {"drystone": [40, 50, 60], "a": [90, 100, 110]}, "a (drystone 0.50 x a)"),
        # One slow round of the better program is as slow as the other's best, or slower.
        (iops, {"drystone": [60, 100, 110], "a": [40, 50, 60]}, "nobody (drystone 2.00 x a)"),
        (iops, {"drystone": [10, 100, 110], "a": [40, 50, 60]}, "nobody (drystone 2.00 x a)"),
        (iops, {"drystone": [61, 100, 110], "a": [40, 50, 60]}, "drystone (drystone 2.00 x a)"),
        # The first two places go to others; drystone is a distant third.
        (iops, {"drystone": [10, 10, 10], "a": [90, 100, 110], "b": [80, 95, 99]},
         "nobody (drystone 0.10 x a)"),
        (iops, {"drystone": [10, 10, 10], "a": [90, 100, 110], "b": [70, 75, 80]},
         "a (drystone 0.10 x a)"),
        # The third program overlaps, and does not matter.
        (iops, {"drystone": [90, 100, 110], "a": [40, 50, 60], "b": [1, 2, 95]},
         "drystone (drystone 2.00 x a)"),
        # Disjoint ranges, but medians within 3 %.
        (iops, {"drystone": [102, 102, 102], "a": [100, 100, 100]}, "nobody (drystone 1.02 x a)"),
        (tax, {"drystone": [1, 2, 3], "a": [8, 9, 10]}, "drystone (-7.0 ns an I/O against a)"),
        (tax, {"drystone": [1, 2, 8], "a": [8, 9, 10]}, "nobody (-7.0 ns an I/O against a)"),
        (tax, {"drystone": [8, 9, 10], "a": [-3, -2, -1]}, "a (+11.0 ns an I/O against a)"),
    ]
    for (unit, more_is_better), samples, expected in cases:
        row = Row("made up", unit, dict.fromkeys(samples), more_is_better)
        row.samples = samples
        if row.winner() != expected:
            raise SystemExit(f"{samples}: `{row.winner()}` should be `{expected}`")
    print(f"{len(cases)} rows have the right winner")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--drystone", default="target/release/drystone", help="the program")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each workload (5)")
    parser.add_argument("--runtime", type=int, default=3, help="seconds of each fio run (3)")
    parser.add_argument("--quick", action="store_true", help="1 round of 1 s, to see that it works")
    parser.add_argument("--qsd-aio", default="io_uring", choices=["io_uring", "threads"])
    parser.add_argument("--nbdkit-threads", type=int, default=16, help="threads a connection (16)")
    parser.add_argument("--only", default="", help="only workloads whose name holds this word")
    parser.add_argument("--json", help="file for all samples")
    parser.add_argument("--self-test", action="store_true",
                        help="only check who wins on made-up samples")
    options = parser.parse_args()
    if options.self_test:
        return options
    if options.quick:
        options.rounds, options.runtime = 1, 1
    options.drystone = str(pathlib.Path(options.drystone).resolve())
    options.engine = str(pathlib.Path(options.drystone).with_name("libdrystone_fio.so"))
    needed = ("nbdkit", "qemu-storage-daemon", "qemu-nbd", "fio", "nbdcopy", options.drystone)
    missing = [tool for tool in needed if not shutil.which(tool)]
    missing += [] if os.path.exists(options.engine) else [options.engine]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}")
    return options


def main():
    options = arguments()
    if options.self_test:
        return self_test()
    # /dev/shm is a tmpfs: no disk is involved.
    with tempfile.TemporaryDirectory(prefix="drystone-peers-", dir="/dev/shm") as folder:
        rows = all_rows(options, folder)
    versions = f"qemu-nbd {run.version('qemu-nbd', '--version').split()[1]}"
    print(f"{run.machine(options)} {versions}.\n")
    print("| workload | unit | drystone | peers | who wins |\n|---|---|---|---|---|")
    print("\n".join(row.line() for row in rows))
    if options.json:
        records = [{"workload": row.title, "unit": row.unit, "samples": row.samples}
                   for row in rows]
        pathlib.Path(options.json).write_text(json.dumps(records, indent=1) + "\n")


if __name__ == "__main__":
    main()
