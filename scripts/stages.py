#!/usr/bin/env python3
"""Counts the instructions of an I/O on the null device by stage, with callgrind; prints Markdown.

The argument is the program. The load is random reads of 512 bytes, 32 in flight, batches of 32,
statistics on, one thread. The last column divides the processor time of the same program without
callgrind, run right after it, by instructions. Instructions do not cost the same, so that column is
a guide and no measurement.
"""
import collections
import json
import re
import subprocess
import sys
import tempfile

LOAD = ["bench", "--device", "null", "--bs", "512", "--depth", "32", "--batch", "32"]

# The first match counts: a stage, a pattern of the function, a pattern of the instruction's file.
STAGES = [
    ("the bench's own loop: random sectors, idle list, counts", r"Lane::|lab::engine", r""),
    ("begin a call: the context's gate, plug, one link", r"Context::submit|ContextCore::submit|drop_in_place.*Call", r""),
    ("take completions: mailbox, ring, list of done", r"Context::reap|ContextCore::(reap|process_pending)|Context::wait", r""),
    ("clock: one reading a batch, its age", r"", r"clock\.rs|vdso|linux-vdso"),
    ("check a bio against limits and size", r"issue_bios", r"check\.rs|units\.rs|op\.rs|limits\.rs"),
    ("take it from its list, look at its neighbour", r"issue_bios", r"list\.rs|at_once\.rs"),
    ("the driver", r"", r"drivers/"),
    ("count it: statistics, one run of equal ones", r"", r"complete\.rs|stats\.rs|histogram\.rs"),
    ("end it: status, list of done", r"end_bio", r""),
    ("end it: status, list of done", r"issue_bios", r"env\.rs|bio\.rs|status\.rs"),
    ("tags: one for the batch", r"", r"tags\.rs"),
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


def main():
    program = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/callgrind"
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, *LOAD]
        subprocess.run([*command, "--runtime", "2s"], check=True, capture_output=True)
        cost, calls = costs(out)
    text = subprocess.run([program, *LOAD, "--runtime", "3s"], check=True, capture_output=True, text=True).stdout
    ns = float(re.search(r"([\d.]+)ns CPU", text).group(1))
    ios = next(count for name, count in calls.items() if name.endswith("Env::end_bio"))
    stages = collections.Counter()
    for (function, file), instructions in cost.items():
        stages[stage_of(function, file)] += instructions
    total = sum(count for stage, count in stages.items() if stage != REST)
    print("| stage | instructions an I/O | share | of the ns |\n|---|---|---|---|")
    for stage in dict.fromkeys(stage for stage, *_ in STAGES):
        count = stages[stage]
        print(f"| {stage} | {count / ios:.1f} | {100 * count / total:.0f} % | {ns * count / total:.2f} |")
    print(f"| all | {total / ios:.1f} | 100 % | {ns:.2f} |\n")
    print(json.dumps({"ios": ios, "left_out": stages[REST] / sum(cost.values())}), file=sys.stderr)


if __name__ == "__main__":
    main()
