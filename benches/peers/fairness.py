#!/usr/bin/env python3
"""Measures what one client's reads of 1 MiB do to another client's reads of 4 KiB, on this machine.

A client reads 4 KiB at random, one at a time, from memory: alone first, then while another client
reads 1 MiB with four requests in flight, as fast as it can or at a given rate. Programs take turns,
round by round. With as many busy threads as here (two clients, one server) a machine of two cores
is short of cores: its own scheduler makes the first client wait, whichever the server is.

The report is Markdown on standard output: rate and 99th percentile of the first client, and the
ratio of the percentiles with and without the other.
"""
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import one_client
import run

# MiB a second of the client with long reads; 0 is as much as it can.
LOADS = (0, 1000, 200)


def fio(server, options, bs, depth, *more):
    return ["fio", "--name=one", "--ioengine=nbd", f"--uri={server.uri}", "--rw=randread",
            f"--bs={bs}", f"--iodepth={depth}", f"--size={run.DEVICE_MIB}M", "--time_based",
            f"--runtime={options.runtime}", "--norandommap", "--randrepeat=0",
            "--output-format=json", *more]


def short_reads(server, options):
    text = run.checked(fio(server, options, "4k", 1))
    side = json.loads(text[text.index("{"):])["jobs"][0]["read"]
    return {"rate": side["iops"], "p99": side["clat_ns"]["percentile"]["99.000000"] / 1000}


def beside(server, options, mib):
    """The short reads begin a second after the long ones, and end a second before them."""
    command = fio(server, options, "1m", 4, *([f"--rate={mib}m"] if mib else []))
    command[command.index(f"--runtime={options.runtime}")] = f"--runtime={options.runtime + 2}"
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        time.sleep(1)
        sample = short_reads(server, options)
        text = other.communicate()[0]
    long = json.loads(text[text.index("{"):])["jobs"][0]["read"]
    return sample | {"long_mib": long["bw_bytes"] / (1 << 20)}


def line(name, load, samples):
    alone, loaded = samples[name, None], samples[name, load]
    ratio = statistics.median(b["p99"] / a["p99"] for a, b in zip(alone, loaded))
    cells = [name, {0: "as fast as it can"}.get(load, f"{load} MiB/s")]
    for of in (alone, loaded):
        for key in ("rate", "p99"):
            values = sorted(sample[key] for sample in of)
            middle = statistics.median(values)
            cells.append(f"{middle:,.0f} ({values[0]:,.0f} to {values[-1]:,.0f})")
    cells.append(f"{statistics.median(sample['long_mib'] for sample in loaded):,.0f}")
    return "| " + " | ".join(cells + [f"{ratio:.2f}"]) + " |"


def main():
    options = one_client.arguments()
    with tempfile.TemporaryDirectory(prefix="drystone-fair-", dir="/dev/shm") as folder:
        os.mkdir(f"{folder}/memory")
        servers = one_client.on_memory(options, f"{folder}/memory")
        samples = {}
        try:
            for server in servers:
                server.start(f"{folder}/memory")
                run.checked(["nbdcopy", "--", str(filled(folder)), server.uri])
            for _ in range(options.rounds):
                for server in servers:
                    for load in (None, *LOADS):
                        sample = (short_reads(server, options) if load is None
                                  else beside(server, options, load))
                        samples.setdefault((server.name, load), []).append(sample)
        finally:
            for server in servers:
                server.stop()
    print("| server | long reads | alone: IOPS | p99, us | beside: IOPS | p99, us "
          "| long, MiB/s | p99 ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for server in servers:
        for load in LOADS:
            print(line(server.name, load, samples))


def filled(folder):
    path = pathlib.Path(folder, "source.img")
    if not path.exists():
        run.checked(["dd", "if=/dev/urandom", f"of={path}", "bs=1M", f"count={run.DEVICE_MIB}",
                     "status=none"])
    return path


if __name__ == "__main__":
    main()
