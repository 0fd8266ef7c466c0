#!/usr/bin/env bash
# Runs the tests inside a virtual machine, which QEMU emulates; further arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-guest.sh
export CARGO_TERM_PROGRESS_WHEN=never
# The release build, since an emulated processor is slow enough.
cargo build --release --locked -p drystone
export DRYSTONE_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drystone"
if ! cargo test --locked -p guest-tests --no-fail-fast "$@" </dev/null; then
    echo "make test-guest: FAILED"
    exit 1
fi
echo "make test-guest: all tests passed"
