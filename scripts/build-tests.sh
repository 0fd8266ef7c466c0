#!/usr/bin/env bash
# Builds the program, all tests and examples, once. The list of the test programs goes to
# target/tests.json, from which scripts/run_tests.py runs them.
set -euo pipefail
cd "$(dirname "$0")/.."
target="${CARGO_TARGET_DIR:-target}"
cargo build --locked -p drystone -p drystone-lab -p drystone-capi
cargo test --locked --workspace --no-run \
    --message-format=json-render-diagnostics >"$target/tests.json.new"
mv "$target/tests.json.new" "$target/tests.json"
