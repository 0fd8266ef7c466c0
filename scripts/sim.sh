#!/usr/bin/env bash
# Builds the simulator, with points inside every call, and puts it beside the release program.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
target="${CARGO_TARGET_DIR:-target}"
RUSTFLAGS="${RUSTFLAGS:-} --cfg drystone_sim" CARGO_TARGET_DIR="$target/points" \
    cargo build --profile sim --locked -p drystone-sim --bin drystone-sim
mkdir -p "$target/release"
install -m 755 "$target/points/sim/drystone-sim" "$target/release/drystone-sim"
say "built $target/release/drystone-sim, which \`drystone sim\` runs"
