#!/usr/bin/env python3
"""Measures the block layer on this machine: each figure beside its comparison, in one run.

The variants of a comparison take turns (A B A B ...), for at least five rounds. The report has the
median and the range, as Markdown on standard output; all samples go to target/bench/bench.json.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile

TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"))
DRYSTONE = TARGET / "release/drystone"
MEMCPY = TARGET / "release/examples/memcpy"
COUNTS = ["clock_reads_per_io", "lock_acquisitions_per_io", "allocations_per_io"]


def drystone(options, *arguments, cpus=None):
    """Starts one `drystone bench`; call the result to wait for its figures."""
    result = tempfile.NamedTemporaryFile(suffix=".json")
    command = [str(DRYSTONE), "bench", "--json", result.name, "--warmup", "500ms",
               "--runtime", options.runtime, *arguments]
    command += ["--cpus", cpus] if cpus else []
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)

    def wait():
        if process.wait() != 0:
            raise SystemExit(f"failed: {' '.join(command)}")
        return json.loads(pathlib.Path(result.name).read_text())

    return wait


def fio(options, path, *arguments):
    seconds = max(1, int(float(options.runtime.rstrip("s"))))
    command = ["fio", "--name=bench", f"--filename={path}", "--ioengine=io_uring", "--rw=randread",
               "--bs=4k", "--iodepth=32",
                "--time_based", f"--runtime={seconds}", "--ramp_time=500ms",
               "--output-format=json", "--norandommap", "--gtod_reduce=1", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    job = json.loads(done.stdout)["jobs"][0]
    cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["read"]["runtime"] * 1e6
    return {"iops": job["read"]["iops"], "cpu_ns_per_io": cpu / max(1, job["read"]["total_ios"])}


def both_processes(options):
    """Two single-thread processes at once, one on each of the first two cores."""
    runs = [drystone(options, "--device", "null", cpus=str(cpu)) for cpu in (0, 1)]
    results = [run() for run in runs]
    return {"iops": sum(r["iops"] for r in results),
            "cpu_ns_per_io": statistics.mean(r["cpu_ns_per_io"] for r in results)}


def interleave(options, title, variants):
    """Runs the variants in turns and prints their table; returns the medians of the IOPS."""
    samples = {name: [] for name, _ in variants}
    for round_number in range(options.rounds):
        for name, run in variants:
            print(f"{title}: {name}, round {round_number + 1} of {options.rounds}", file=sys.stderr)
            samples[name].append(run())
    print(f"\n### {title}\n")
    print("| variant | IOPS | CPU ns an I/O | clock reads, locks, allocations an I/O |")
    print("|---|---|---|---|")
    for name, runs in samples.items():
        print(f"| {name} | {spread(runs, 'iops', '{:,.0f}')} | "
              f"{spread(runs, 'cpu_ns_per_io', '{:.2f}')} "
              f"| {counts(runs[-1])} |")
    return samples


def spread(runs, key, form):
    values = sorted(run[key] for run in runs)
    median = form.format(statistics.median(values))
    return f"{median} ({form.format(values[0])} to {form.format(values[-1])})"


def counts(run):
    return ", ".join(f"{run[key]:.4g}" for key in COUNTS) if COUNTS[0] in run else "not counted"


def ratio(samples, one, other, key="iops"):
    """Median and range of the ratio of two variants, round by round."""
    ratios = sorted(a[key] / b[key] for a, b in zip(samples[one], samples[other]))
    return f"{statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"


def null(options):
    one = ["--device", "null", "--threads", "1"]
    two = ["--device", "null,submit_queues=2", "--threads", "2"]
    samples = interleave(options, "null, 512 B random reads, depth 32, statistics on", [
        ("1 thread", lambda: drystone(options, *one, cpus="0")()),
        ("2 threads on 2 cores", lambda: drystone(options, *two, cpus="0,1")()),
        ("2 processes on 2 cores", lambda: both_processes(options)),
    ])
    print(f"\n2 threads to 1: {ratio(samples, '2 threads on 2 cores', '1 thread')}; "
          "2 threads to 2 processes: "
          f"{ratio(samples, '2 threads on 2 cores', '2 processes on 2 cores')}")
    return samples


VOLUMES = """
[device.bare]
type = "null"
[device.m]
type = "null"
[device.linear]
table = "0 393216 linear m 0"
[device.n0]
type = "null"
[device.n1]
type = "null"
[device.n2]
type = "null"
[device.stripe]
table = "0 393216 striped 3 8 n0 0 n1 0 n2 0"
"""


def volumes(options):
    """Measures the cost that a volume adds to null devices."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as stack:
        stack.write(VOLUMES)
        stack.flush()

        def on(name, size):
            arguments = ["--stack", stack.name, "--name", name, "--bs", size]
            return lambda: drystone(options, *arguments, cpus="0")()

        samples = interleave(options, "volumes over null, random reads, depth 32", [
            ("bare, 4 KiB", on("bare", "4KiB")),
            ("linear, 4 KiB", on("linear", "4KiB")),
            ("stripe of three, chunks of 4 KiB, 4 KiB", on("stripe", "4KiB")),
            ("stripe of three, chunks of 4 KiB, 12 KiB over all", on("stripe", "12KiB")),
        ])
    bare, *volumes = samples
    for name in volumes[:2]:
        more = sorted(a["cpu_ns_per_io"] - b["cpu_ns_per_io"]
                      for a, b in zip(samples[name], samples[bare]))
        print(f"\n{name}: {statistics.median(more):.1f} ns ({more[0]:.1f} to {more[-1]:.1f}) "
              "beyond the bare device")
    return samples


def ram(options):
    seconds = options.runtime.rstrip("s")

    def baseline():
        done = subprocess.run([str(MEMCPY), seconds], check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    device = ["--device", "ram,size=1GiB", "--bs", "4KiB", "--fill"]
    samples = interleave(options, "RAM, 4 KiB random reads of 1 GiB, written before", [
        ("drystone", lambda: drystone(options, *device)()),
        ("memcpy loop", baseline),
    ])
    print("\nCPU an I/O, drystone to memcpy: "
          f"{ratio(samples, 'drystone', 'memcpy loop', 'cpu_ns_per_io')}")
    return samples


def file(options, title, folder):
    path = pathlib.Path(folder) / f"drystone-bench-{os.getpid()}.img"
    try:
        with open(path, "wb") as image:
            for _ in range(1024):
                image.write(os.urandom(1 << 20))
            os.fsync(image.fileno())
        device = ["--device", f"file,path={path}", "--bs", "4KiB"]
        # Up to 32 at once, and a wait only for the first: fio's fastest mode here.
        batches = ["--batch", "32", "--batch-complete", "1"]
        tuned = ["--fixedbufs=1", "--registerfiles=1", "--iodepth_batch_submit=32",
                 "--iodepth_batch_complete_max=32"]
        direct = [] if folder.startswith("/dev/shm") else ["--direct=1"]
        samples = interleave(options, f"file on {title}, 4 KiB random reads of 1 GiB, depth 32", [
            ("drystone, one by one", lambda: drystone(options, *device, "--batch", "1")()),
            ("fio io_uring, one by one", lambda: fio(options, path, *direct)),
            ("drystone, up to 32 at once", lambda: drystone(options, *device, *batches)()),
            ("fio io_uring, up to 32 at once, registered",
             lambda: fio(options, path, *direct, *tuned)),
        ])
        names = list(samples)
        print(f"\ndrystone to fio one by one: {ratio(samples, *names[0:2])}; "
              f"in batches: {ratio(samples, *names[2:4])}")
        return samples
    finally:
        path.unlink(missing_ok=True)


def machine():
    model = next((line.split(":")[1].strip()
                  for line in open("/proc/cpuinfo") if "model name" in line), "?")
    versions = [subprocess.run(command, capture_output=True,
                               text=True).stdout.strip().splitlines()[0]
                for command in ([str(DRYSTONE), "--version"], ["fio", "--version"])]
    return (f"{model}, {os.cpu_count()} cores, Linux {platform.release()}; {', '.join(versions)}; "
            f"{datetime.date.today()}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="null, volumes, ram, tmpfs, disk; default: all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runtime", default="3s", help="seconds of each sample, as 3s")
    parser.add_argument("--quick", action="store_true",
                        help="one short round, to see that it works")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.runtime = 1, "1s"
    items = {
        "null": lambda: null(options),
        "volumes": lambda: volumes(options),
        "ram": lambda: ram(options),
        "tmpfs": lambda: file(options, "tmpfs", "/dev/shm"),
        "disk": lambda: file(options, "disk", str(TARGET)),
    }
    if not shutil.which("fio"):
        print("SKIPPED: tmpfs, disk: fio is not installed", file=sys.stderr)
        items = {name: item for name, item in items.items() if name in ("null", "volumes", "ram")}
    chosen = {name: item for name, item in items.items()
              if not options.only or name in options.only}
    print(f"{machine()}\n\n{options.rounds} rounds of {options.runtime}; "
          "median (least to greatest)")
    results = {name: item() for name, item in chosen.items()}
    folder = TARGET / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "bench.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
