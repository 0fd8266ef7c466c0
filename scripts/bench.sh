#!/usr/bin/env bash
# Measures this machine: builds what is measured, then runs scripts/bench.py with the arguments given.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
cargo build --release --locked -p drystone
cargo build --release --locked -p drystone-drivers --example memcpy
exec /usr/bin/env python3 scripts/bench.py "$@"
