#!/usr/bin/env bash
# Builds the program and serves the embedded default stack, or whatever is given as arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/build.sh
exec "${CARGO_TARGET_DIR:-target}/release/drystone" "${@:-serve}"
