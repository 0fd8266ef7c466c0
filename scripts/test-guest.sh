#!/usr/bin/env bash
# Runs the tests inside a virtual machine, which QEMU emulates; arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-guest.sh
export CARGO_TERM_PROGRESS_WHEN=never
# A debug build, as for the other tests: on an emulated processor a release build is hardly faster.
# What `make test` has built is used.
scripts/linted.sh cargo build --locked -p drystone -p drystone-lab -p drystone-capi
export DRYSTONE_BIN="${CARGO_TARGET_DIR:-$PWD/target}/debug/drystone"
if ! scripts/linted.sh cargo test --locked -p guest-tests --no-fail-fast "$@" </dev/null; then
    echo "make test-guest: FAILED"
    exit 1
fi
echo "make test-guest: all tests passed"
