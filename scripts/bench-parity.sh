#!/usr/bin/env bash
# Measures parity beside crates that others wrote; the argument is the number of rounds.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}"
cargo build --release --manifest-path benches/parity/Cargo.toml
exec "$CARGO_TARGET_DIR/release/drystone-bench-parity" "$@"
