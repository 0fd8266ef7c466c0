#!/usr/bin/env bash
# Runs the tests of modules with `unsafe` under Miri, which finds references that outlive their right
# (Stacked Borrows), reads of freed or uninitialised memory, and data races. It knows no io_uring and
# little of the kernel, so these are the tests that need neither. It is slow: minutes. The C library is not
# among them: its calls need open stacks, whose contexts have rings of the kernel or sleep in it.
#
# Usage: scripts/miri.sh [WORDS OF CARGO MIRI TEST]     (default: all that is listed here)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

export RUSTUP_TOOLCHAIN="${MIRI_TOOLCHAIN:-nightly}"
if ! cargo miri --version >/dev/null 2>&1; then
    missing="Miri is not there: rustup toolchain install $RUSTUP_TOOLCHAIN --component miri,rust-src"
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
    say "SKIPPED: $missing"
    exit 0
fi
# Addresses go to the kernel and to other contexts as numbers, and some clocks are the machine's.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-permissive-provenance -Zmiri-disable-isolation}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"

if [ $# -gt 0 ]; then
    exec cargo miri test --locked "$@"
fi
# Package, and tests whose names contain one of the words.
while read -r package words; do
    say "miri: $package: $words"
    # shellcheck disable=SC2086
    cargo miri test --locked -q -p "$package" --lib -- $words
done <<'LIST'
drystone-core     buf:: list:: shared_list:: mailbox:: gate:: range_lock:: sync::cells::
drystone-raid     stable_memory_of_a_whole_stripe
drystone-exports  fuse::server::ring::
LIST
