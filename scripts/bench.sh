#!/usr/bin/env bash
# Measures this machine. Each item is one run of `drystone bench`; its JSON goes to target/bench/.
# With a word as argument, runs only the items whose name holds it.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
ONLY=${1:-}
RESULTS=${CARGO_TARGET_DIR:-target}/bench
ROUNDS=${ROUNDS:-5}
mkdir -p "$RESULTS"
cargo build --release --locked -p drystone

# item NAME ARGUMENTS...: repeats one configuration ROUNDS times; spread shows in the files.
item() {
    local name=$1 round
    shift
    [[ $name == *"$ONLY"* ]] || return 0
    for ((round = 1; round <= ROUNDS; round++)); do
        say "== $name, round $round of $ROUNDS"
        "${CARGO_TARGET_DIR:-target}/release/drystone" bench \
            --json "$RESULTS/$name.$round.json" "$@" </dev/null
    done
}

item null-1 --device null --threads 1 --depth 32 --batch 32 --bs 512 --rw randread --runtime 5s
item null-2 --device null --threads 2 --depth 32 --batch 32 --bs 512 --rw randread --runtime 5s
item ram-1 --device ram,size=1GiB --threads 1 --depth 32 --bs 4KiB --rw randread --runtime 5s

/usr/bin/env python3 scripts/bench-summary.py "$RESULTS"
