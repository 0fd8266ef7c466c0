#!/usr/bin/env python3
"""Prints the runs in a folder of `drystone bench --json` files as one Markdown table.

Files are named ITEM.ROUND.json. Columns show the median over the rounds and, in brackets, the
lowest and highest round.
"""
import json
import pathlib
import statistics
import sys

COLUMNS = [("iops", "IOPS", 0), ("cpu_ns_per_io", "CPU ns/IO", 1),
           ("clock_reads_per_io", "clock/IO", 3), ("lock_acquisitions_per_io", "locks/IO", 3),
           ("allocations_per_io", "allocs/IO", 3)]


def cell(runs, key, digits):
    values = [run[key] for run in runs if run.get(key) is not None]
    if not values:
        return "-"
    middle, low, high = (f"{value:,.{digits}f}" for value in
                         (statistics.median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


def main(folder):
    items = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        items.setdefault(path.name.rsplit(".", 2)[0], []).append(json.loads(path.read_text()))
    print("| item | rounds | " + " | ".join(title for _, title, _ in COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 2) + "|")
    for name, runs in items.items():
        cells = [cell(runs, key, digits) for key, _, digits in COLUMNS]
        print(f"| {name} | {len(runs)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main(sys.argv[1])
