#!/usr/bin/env python3
"""Counts the instructions of an I/O on the null device by stage, and prints Markdown.

Usage: stages.py PROGRAM [--check FILE]

Callgrind counts them: random reads of 512 bytes, 32 in flight, batches of 32, statistics on, one
thread. The last column divides the processor time of the same program without callgrind, run right
after it, by instructions. Instructions do not cost the same, so that column is a guide and no
measurement. With --check the sum is compared with the figure in FILE; more than 2 % above it is a
failure.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

# All I/Os of a batch end in its call, so each call submits a full batch.
BATCH = 32
LOAD = ["bench", "--device", "null", "--bs", "512", "--depth", str(BATCH), "--batch", str(BATCH)]

# The first match counts: a stage, a pattern of the function, a pattern of the instruction's file.
STAGES = [
    ("the bench's own loop: random sectors, idle list, counts", r"Lane::|drystone_bench::", r""),
    ("begin a call: the context's gate, plug, one link",
     r"Context::submit|ContextCore::submit|drop_in_place.*Call", r""),
    ("take completions: mailbox, ring, list of done",
     r"Context::reap|ContextCore::(reap|process_pending)|Context::wait", r""),
    ("clock: one reading a batch, its age", r"", r"clock\.rs|vdso|linux-vdso"),
    ("check a bio against limits and size",
     r"issue_bios", r"check\.rs|setup\.rs|units\.rs|op\.rs|limits\.rs"),
    ("take it from its list, look at its neighbour", r"issue_bios", r"list\.rs|inline\.rs"),
    ("the driver", r"", r"drivers/"),
    ("count it: statistics, one run of equal ones",
     r"", r"complete\.rs|in_flight\.rs|stats\.rs|histogram\.rs"),
    ("end it: status, list of done", r"end_bio", r""),
    ("end it: status, list of done", r"issue_bios", r"env\.rs|bio\.rs|status\.rs"),
    ("tags: one for the batch", r"", r"tags\.rs|tag_line\.rs"),
    ("settle the batch: scheduler, flush, plug, busy time", r"RequestChannel|drystone_queue", r""),
    ("settle the batch: scheduler, flush, plug, busy time", r"drystone_core", r""),
]
REST = "the rest: start, end, output"


def named(text, names):
    """Resolves a name that callgrind writes once and then refers to by number."""
    number, name = re.match(r"\((\d+)\)(?: (.*))?", text).groups()
    if name:
        names[number] = name
    return names[number]


def costs(path):
    """Returns instructions by (function, file), and the calls of each function."""
    files, functions = {}, {}
    cost, calls = collections.Counter(), collections.Counter()
    file = function = callee = None
    is_call = False
    for line in open(path):
        key, _, rest = line.rstrip("\n").partition("=")
        if key in ("fl", "fi", "fe"):
            file = named(rest, files)
        elif key == "fn":
            function = named(rest, functions)
        elif key in ("cfi", "cfl"):
            named(rest, files)
        elif key == "cfn":
            callee = named(rest, functions)
        elif key == "calls":
            calls[callee] += int(rest.split()[0])
            is_call = True
        elif line[0] in "0123456789+-*":
            if not is_call:
                cost[function, file] += int(line.split()[1])
            is_call = False
    return cost, calls


def stage_of(function, file):
    for stage, functions, files in STAGES:
        if re.search(functions, function) and re.search(files, file):
            return stage
    return REST


def counted(program):
    """Returns instructions by stage, and the number of I/Os."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, *LOAD]
        subprocess.run([*command, "--runtime", "2s"], check=True, capture_output=True)
        cost, calls = costs(out)
    batches = next(count for name, count in calls.items() if name.endswith("::issue_bios"))
    ios = BATCH * batches
    stages = collections.Counter()
    for (function, file), instructions in cost.items():
        stages[stage_of(function, file)] += instructions
    return stages, ios


def check(total, path):
    """Fails if `total` is more than 2 % above the committed figure."""
    text = pathlib.Path(path).read_text()
    most = float(re.search(r"^([\d.]+)", text, re.M).group(1))
    print(f"instructions an I/O: {total:.1f}, committed: {most}")
    if total > 1.02 * most:
        sys.exit(f"more than 2 % above the figure in {path}: make it cheaper, or commit the new "
                 "figure with its reason")
    if total < 0.98 * most:
        print(f"more than 2 % below: commit the new figure to {path}")


def nanoseconds(program):
    """Processor time an I/O without callgrind."""
    command = [program, *LOAD, "--runtime", "3s"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(re.search(r"([\d.]+)ns CPU", text).group(1))


def main():
    program = sys.argv[1]
    stages, ios = counted(program)
    total = sum(count for stage, count in stages.items() if stage != REST)
    if sys.argv[2:3] == ["--check"]:
        check(total / ios, sys.argv[3])
        return
    ns = nanoseconds(program)
    print("| stage | instructions an I/O | share | of the ns |\n|---|---|---|---|")
    for stage in dict.fromkeys(stage for stage, *_ in STAGES):
        share = stages[stage] / total
        print(f"| {stage} | {stages[stage] / ios:.1f} | {100 * share:.0f} % | {ns * share:.2f} |")
    print(f"| all | {total / ios:.1f} | 100 % | {ns:.2f} |\n")
    left_out = stages[REST] / sum(stages.values())
    print(json.dumps({"ios": ios, "left_out": left_out}), file=sys.stderr)


if __name__ == "__main__":
    main()
