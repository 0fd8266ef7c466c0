#!/usr/bin/env bash
# Measures this machine: builds the programs, then runs scripts/bench.py with all arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
cargo build --release --locked -p drystone
cargo build --release --locked -p drystone-drivers --example memcpy
exec /usr/bin/env python3 scripts/bench.py "$@"
