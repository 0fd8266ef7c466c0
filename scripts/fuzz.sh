#!/usr/bin/env bash
# Fuzzes one target for a time: scripts/fuzz.sh TARGET [SECONDS]. Needs a nightly toolchain
# (RUSTUP_TOOLCHAIN, or else the one named nightly). cargo-fuzz works too but is not needed.
set -euo pipefail
cd "$(dirname "$0")/.."
TARGETS="nbd_handshake nbd_transmission stack_file raid_superblock raid_bitmap raid_ppl raid_places
fuse_request vhost_message vhost_ring dm_table write_log certificate control_line"
TARGET=${1:?usage: scripts/fuzz.sh TARGET [SECONDS], where TARGET is one of: $TARGETS}
TRIPLE=$(uname -m)-unknown-linux-gnu
export RUSTUP_TOOLCHAIN=${RUSTUP_TOOLCHAIN:-nightly} CARGO_TARGET_DIR=$PWD/fuzz/target
# libFuzzer needs from the compiler: counters on edges, a table of them, traced comparisons.
export RUSTFLAGS="--cfg fuzzing -Cdebug-assertions -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares"
cargo build --quiet --release --manifest-path fuzz/Cargo.toml --target "$TRIPLE" --bin "$TARGET"
# New inputs go to a folder of their own: the committed ones are few and chosen.
mkdir -p "fuzz/target/corpus/$TARGET" fuzz/artifacts
exec "$CARGO_TARGET_DIR/$TRIPLE/release/$TARGET" -max_total_time="${2:-60}" -max_len=16384 \
    -timeout=10 -rss_limit_mb=2048 -artifact_prefix="fuzz/artifacts/$TARGET-" \
    "fuzz/target/corpus/$TARGET" "fuzz/corpus/$TARGET"
