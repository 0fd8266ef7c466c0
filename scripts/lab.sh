#!/usr/bin/env bash
# Builds the laboratory's program beside the release program.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
cargo build --release --locked -p drystone-lab --bin drystone-lab
say "built ${CARGO_TARGET_DIR:-target}/release/drystone-lab, which \`drystone lab\` runs"
