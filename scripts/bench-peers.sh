#!/usr/bin/env bash
# Measures drystone beside nbdkit and qemu-storage-daemon; arguments go to benches/peers/run.py.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
cargo build --release --locked -p drystone
exec /usr/bin/python3 benches/peers/run.py \
    --drystone "${CARGO_TARGET_DIR:-target}/release/drystone" "$@"
