#!/usr/bin/env bash
# Measures arrays on RAM disks beside their parts; arguments as in benches/raid/src/main.rs.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --release --locked -p drystone-bench-raid
mkdir -p "$CARGO_TARGET_DIR/bench"
exec "$CARGO_TARGET_DIR/release/drystone-bench-raid" --json "$CARGO_TARGET_DIR/bench/raid.json" "$@"
