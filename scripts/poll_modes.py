#!/usr/bin/env python3
"""Measures adaptive polling beside interrupts: latencies at 1, 30 and 100 % load.

Runs of the two modes take turns. 100 % is the rate of one thread of the depth without a limit; the
other loads are fractions of that. Prints the median and 99th percentile of the latencies, as
medians over the runs with least and most, and the ratio of adaptive to interrupt.

    scripts/poll_modes.py [--drystone PATH] [--runs 10] [--runtime 1] [--dir FOLDER]
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile

STACK = """
[device.null10]
type = "null"
irqmode = "thread"
latency = { p50 = "10us", p90 = "12us", p99 = "30us", "p99.9" = "60us", max = "100us" }
queue = { io_poll = true }

[device.null80]
type = "null"
irqmode = "thread"
latency = { p50 = "80us", p90 = "96us", p99 = "240us", "p99.9" = "480us", max = "800us" }
queue = { io_poll = true }

[device.file]
type = "file"
path = "poll.img"
size = "64MiB"
direct = "auto"
"""
MODES = ["interrupt", "adaptive"]


def bench(args, folder, device, depth, mode, rate):
    out = os.path.join(folder, "out.json")
    words = [args.drystone, "bench", "--stack", os.path.join(folder, "s.toml"), "--name", device]
    words += ["--bs", "4k", "--depth", str(depth), "--batch", "1", "--runtime", f"{args.runtime}s"]
    words += ["--warmup", "0.3s", "--poll-mode", mode, "--json", out, "--cpus", str(args.submit)]
    if rate:
        words += ["--rate", str(max(1, int(rate)))]
    # The device is opened, and so its I/O completed, on a core of its own.
    pin = ["taskset", "-c", str(args.device)] if args.device is not None else []
    subprocess.run(pin + words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(out) as file:
        return json.load(file)


def spread(values):
    return f"{statistics.median(values):.0f} [{min(values):.0f} .. {max(values):.0f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--drystone", default="target/release/drystone")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--runtime", type=float, default=1)
    parser.add_argument("--dir", default=None, help="where the file lies")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    args.submit, args.device = cores[0], (cores[-1] if len(cores) > 1 else None)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        with open(os.path.join(folder, "s.toml"), "w") as file:
            file.write(STACK)
        subprocess.run([args.drystone, "bench", "--stack", os.path.join(folder, "s.toml"),
                        "--name", "file", "--bs", "64k",
                        "--runtime", "0.1s", "--warmup", "0.1s", "--fill"],
                       check=True, stdout=subprocess.DEVNULL)
        print(f"{len(cores)} cores, threads that submit on {args.submit}, the device on "
              f"{args.device}; {args.runs} runs of {args.runtime} s, in turns")
        for device in ["null10", "null80", "file"]:
            for depth in [1, 8]:
                full = [bench(args, folder, device, depth, "interrupt", None)["iops"]
                        for _ in range(3)]
                measure(args, folder, device, depth, statistics.median(full))


def measure(args, folder, device, depth, full):
    for load in [1, 30, 100]:
        rate = None if load == 100 else full * load / 100
        figures = {mode: [] for mode in MODES}
        for _ in range(args.runs):
            for mode in MODES:
                figures[mode].append(bench(args, folder, device, depth, mode, rate))
        line = f"{device} depth {depth} load {load:3} %:"
        for key in ["p50", "p99"]:
            of = {mode: [f["latency_ns"][key] for f in figures[mode]] for mode in MODES}
            ratio = statistics.median(of["adaptive"]) / statistics.median(of["interrupt"])
            line += (f"  {key} {spread(of['interrupt'])} -> {spread(of['adaptive'])} ns "
                     f"({(ratio - 1) * 100:+.0f} %)")
        cpu = {mode: statistics.median(f["cpu_ns_per_io"] for f in figures[mode]) for mode in MODES}
        iops = {mode: statistics.median(f["iops"] for f in figures[mode]) for mode in MODES}
        line += (f"  IOPS {iops['interrupt']:.0f} -> {iops['adaptive']:.0f}, "
                 f"CPU {cpu['interrupt']:.0f} -> {cpu['adaptive']:.0f} ns/IO")
        print(line, flush=True)


if __name__ == "__main__":
    main()
