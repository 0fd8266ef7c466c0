#!/usr/bin/env bash
# Runs the tests with real clients; further arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
# All files of tests except the fuzz smoke run, which is a step of its own.
TARGETS=(--lib)
for file in system-tests/tests/*.rs system-tests/tests/*/main.rs; do
    name=$(basename "${file%/main.rs}" .rs)
    [ "$name" = fuzz_smoke ] || TARGETS+=(--test "$name")
done
cargo test --locked -p system-tests --no-fail-fast "${TARGETS[@]}" "$@"
