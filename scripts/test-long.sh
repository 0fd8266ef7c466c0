#!/usr/bin/env bash
# Runs slow checks that rarely fail, with the test programs that it builds, as `make test` does.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
source scripts/steps.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"
export DRYSTONE_BIN="$target/debug/drystone"
run_tests=(/usr/bin/python3 scripts/run_tests.py "$target/tests.json")

step "build for the tests, lints" scripts/linted.sh scripts/build-tests.sh
step "libraries for C and fio" env DRYSTONE_PROFILE=dev scripts/linted.sh scripts/capi.sh
step "models of the lab (loom)" scripts/loom.sh both drystone-lab
step "models of more steps (loom)" env DRYSTONE_LONG=1 scripts/loom.sh both drystone-raid
step "system tests, no io_uring" env DRYSTONE_DENY_IO_URING=1 DRYSTONE_LONG=1 \
    "${run_tests[@]}" --jobs 1 system-tests \
    '!system-tests:denied' '!system-tests:nbdsh'
# Prints SKIPPED where the nightly toolchain has no Miri.
step "memory rules (Miri)" env DRYSTONE_SKIP_MISSING=1 scripts/miri.sh
step "instructions an I/O" scripts/instructions.sh
step "addresses (ASan)" env DRYSTONE_SKIP_MISSING=1 scripts/asan.sh
step "spelling (typos)" env DRYSTONE_SKIP_MISSING=1 scripts/typos.sh
step "dependencies (cargo-deny)" env DRYSTONE_SKIP_MISSING=1 scripts/deny.sh
summary "make test-long"
