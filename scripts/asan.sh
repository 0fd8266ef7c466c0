#!/usr/bin/env bash
# Runs the system tests against a program that AddressSanitizer watches: reads of freed memory,
# writes past an allocation, leaks. It needs a nightly toolchain.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
target="${CARGO_TARGET_DIR:-$PWD/target}"
triple=$(uname -m)-unknown-linux-gnu
toolchain="${ASAN_TOOLCHAIN:-nightly}"

if ! cargo "+$toolchain" --version >/dev/null 2>&1; then
    missing="no nightly toolchain: rustup toolchain install $toolchain --profile minimal"
    [ "${DRYSTONE_SKIP_MISSING:-}" = 1 ] || die "$missing"
    say "SKIPPED: $missing"
    exit 0
fi
# Optimised a little, because the unoptimised program is too slow under it for the tests' patience.
RUSTFLAGS="-Zsanitizer=address" CARGO_TARGET_DIR="$target/asan" CARGO_PROFILE_DEV_OPT_LEVEL=1 \
    CARGO_PROFILE_DEV_DEBUG=line-tables-only \
    cargo "+$toolchain" build --locked -p drystone --target "$triple"
export DRYSTONE_BIN="$target/asan/$triple/debug/drystone"
export ASAN_OPTIONS="${ASAN_OPTIONS:-detect_leaks=1:halt_on_error=1}"
# Not among them: tests that count or limit memory, descriptors or steps, which the sanitizer
# changes; those that trace the program, or leave a thread of it in a call that does not return,
# where leaks cannot be looked for; those that load the C library instead.
/usr/bin/python3 scripts/run_tests.py "$target/tests.json" system-tests \
    '!system-tests:fuzz_smoke' '!system-tests:embedded' '!system-tests:memory' \
    '!system-tests:descriptors' '!system-tests:lab' '!system-tests:data_threads' \
    -- --skip ten_thousand_volumes_come_and_go --skip fio_verifies_ram_in_a_storm \
    --skip a_path_that_another_server_has_is_refused \
    --skip an_operator_is_answered_where_no_thread_can_be_started \
    --skip a_stripe_cache_takes_what_it_says_and_gives_it_back
