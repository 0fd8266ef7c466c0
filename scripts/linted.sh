#!/usr/bin/env bash
# Runs a command whose calls of cargo check all lints, and fail if one finds something. Clippy
# compiles as rustc does, so that nothing is compiled a second time for the lints.
# Usage: scripts/linted.sh COMMAND...
set -euo pipefail
cd "$(dirname "$0")/.."
# As `cargo clippy -- -D warnings` passes the words on.
exec env CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__" \
    RUSTC_WORKSPACE_WRAPPER=clippy-driver "$@"
