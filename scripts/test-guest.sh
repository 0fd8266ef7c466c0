#!/usr/bin/env bash
# Runs the tests inside a virtual machine, which QEMU emulates; further arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-guest.sh
export CARGO_TERM_PROGRESS_WHEN=never
# The build of the other tests: an emulated processor hardly tells the two apart.
cargo build --locked -p drystone
export DRYSTONE_BIN="${CARGO_TARGET_DIR:-$PWD/target}/debug/drystone"
if ! cargo test --locked -p guest-tests --no-fail-fast "$@" </dev/null; then
    echo "make test-guest: FAILED"
    exit 1
fi
echo "make test-guest: all tests passed"
