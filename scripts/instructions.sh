#!/usr/bin/env bash
# Counts the release program's instructions an I/O on the null device, and fails if they are more
# than 2 % above the committed figure, benches/instructions.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
have_commands valgrind python3 || apt_install valgrind python3
scripts/build.sh
/usr/bin/python3 scripts/stages.py "${CARGO_TARGET_DIR:-target}/release/drystone" \
    --check benches/instructions.txt
