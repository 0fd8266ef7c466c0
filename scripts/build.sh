#!/usr/bin/env bash
# Builds the release program.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
cargo build --release --locked -p drystone
say "built ${CARGO_TARGET_DIR:-target}/release/drystone"
