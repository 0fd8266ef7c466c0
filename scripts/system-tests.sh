#!/usr/bin/env bash
# Runs the tests with real clients; further arguments go to `cargo test`.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo test --locked -p system-tests --no-fail-fast "$@"
