#!/usr/bin/env bash
# Builds the program and serves the embedded default stack, or the stack of the arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh
exec "${CARGO_TARGET_DIR:-target}/release/drystone" "${@:-serve}"
