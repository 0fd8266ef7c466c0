#!/usr/bin/env bash
# Fuzzes one target for a time: scripts/fuzz.sh TARGET [SECONDS]. Needs nightly and cargo-fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."
TARGET=${1:?usage: scripts/fuzz.sh nbd_handshake|nbd_transmission|stack_file [SECONDS]}
exec cargo +nightly fuzz run "$TARGET" "fuzz/corpus/$TARGET" -- -max_total_time="${2:-60}" -rss_limit_mb=2048
