#!/usr/bin/env bash
# Runs the simulator's own tests, in a build that has points inside every call.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
target="${CARGO_TARGET_DIR:-target}"
RUSTFLAGS="${RUSTFLAGS:-} --cfg drystone_sim" CARGO_TARGET_DIR="$target/points" \
    cargo test --profile sim --locked -p drystone-sim --test simulator \
    --test crash --test disk_and_oracle -- \
    --nocapture --test-threads 2
