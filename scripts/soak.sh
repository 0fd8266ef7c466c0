#!/usr/bin/env bash
# Runs new seeds of every scenario for MINUTES (30) in all.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/sim.sh
program="${CARGO_TARGET_DIR:-target}/release/drystone-sim"
scenarios=$("$program" --list | awk '/^Mistakes/ { exit } /^  / { print $1 }')
count=$(wc -w <<<"$scenarios")
minutes=$(((${MINUTES:-30} + count - 1) / count))
for scenario in $scenarios; do
    "$program" --scenario "$scenario" --minutes "$minutes"
done
