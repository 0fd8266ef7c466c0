#!/usr/bin/env bash
# Runs the tests of modules with `unsafe` under Miri. Miri finds invalid references (Stacked
# Borrows), reads of freed or uninitialised memory, and data races. It knows no io_uring and little
# of the kernel, so the list has only tests that need neither. The C library is not among them: its
# calls need open stacks, whose contexts use rings of the kernel or sleep in it. It takes minutes.
#
# Usage: scripts/miri.sh [WORDS OF CARGO MIRI TEST]     (default: the list at the end)
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/common.sh

# Not every nightly has Miri; this one does.
export RUSTUP_TOOLCHAIN="${MIRI_TOOLCHAIN:-nightly-2026-05-20}"
if ! cargo miri --version >/dev/null 2>&1; then
    install=(rustup toolchain install "$RUSTUP_TOOLCHAIN" --profile minimal -c miri -c rust-src)
    if ! env -u RUSTUP_TOOLCHAIN "${install[@]}" --no-self-update >/dev/null 2>&1 </dev/null; then
        missing="Miri is missing: ${install[*]}"
        [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
        say "SKIPPED: $missing"
        exit 0
    fi
fi
# The code passes addresses as numbers to the kernel and to other contexts, and reads real clocks.
export MIRIFLAGS="${MIRIFLAGS:--Zmiri-permissive-provenance -Zmiri-disable-isolation}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri"

if [ $# -gt 0 ]; then
    exec cargo miri test --locked "$@"
fi
# Looks where the allocator of the system puts buffers; Miri has its own.
SKIP="--skip a_buffer_takes_no_more_than_is_said"
# A package, and words: tests whose names contain one of them run.
while read -r package words; do
    say "miri: $package: $words"
    # shellcheck disable=SC2086
    cargo miri test --locked -q -p "$package" --lib -- $words $SKIP
done <<'LIST'
drystone-core     buf:: list:: shared_list:: mailbox:: gate:: range_lock:: sync::cells::
drystone-raid     stable_memory_of_a_whole_stripe
drystone-exports  fuse::server::ring::
LIST
