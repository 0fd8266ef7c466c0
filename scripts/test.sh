#!/usr/bin/env bash
# Runs every check and test that must hold before a change is taken, continues after a failure, and
# ends with a summary. scripts/test-long.sh has slow checks that rarely fail.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
source scripts/steps.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"

# The tests run the program that this builds; debug, so that its assertions are on.
export DRYSTONE_BIN="$target/debug/drystone"
run_tests=(/usr/bin/python3 scripts/run_tests.py "$target/tests.json")

step "build for the tests, lints" scripts/linted.sh scripts/build-tests.sh
# These two search without a pause; the tests of whole programs wait most of the time.
beside "model checks (loom)" scripts/loom.sh
beside "simulator" scripts/sim-test.sh
step "rules (cargo xtask check)" scripts/linted.sh cargo xtask check
step "formatting" cargo fmt --all --check
step "documentation (cargo doc)" scripts/doc.sh
step "the peers' table" /usr/bin/python3 benches/peers/everything.py --self-test
# The simulator's step runs its long tests, optimised.
step "unit tests" "${run_tests[@]}" '*' '!system-tests' '!guest-tests' '!drystone' \
    '!drystone-sim:simulator' '!drystone-sim:crash' '!drystone-sim:disk_and_oracle'
# Tests of whole programs run one program at a time: several at once would disturb their figures.
step "tests of the program" "${run_tests[@]}" --jobs 1 drystone
step "examples in documentation" scripts/linted.sh cargo test --locked --workspace --doc
step "libraries for C and fio" env DRYSTONE_PROFILE=dev scripts/linted.sh scripts/capi.sh
step "system tests" "${run_tests[@]}" --jobs 1 system-tests
# Without io_uring: the others, FUSE among them, run so in test-long.
step "the same, io_uring denied" env DRYSTONE_DENY_IO_URING=1 "${run_tests[@]}" --jobs 1 \
    system-tests:denied system-tests:nbdsh
join "model checks (loom)"
join "simulator"
summary "make test"
