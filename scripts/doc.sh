#!/usr/bin/env bash
# Builds the documentation of all crates. A warning, such as a dead link, is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" \
    cargo doc --locked --workspace --no-deps "$@"
