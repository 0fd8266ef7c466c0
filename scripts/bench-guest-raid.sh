#!/usr/bin/env bash
# Measures the kernel's RAID-5 beside Drystone's inside a virtual machine, which QEMU emulates.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-guest.sh
export CARGO_TERM_PROGRESS_WHEN=never
cargo build --release --locked -p drystone
export DRYSTONE_BIN="${CARGO_TARGET_DIR:-$PWD/target}/release/drystone"
exec cargo run --locked -p guest-tests --example raid_ratio
