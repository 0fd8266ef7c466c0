#!/usr/bin/env bash
# Runs every check and test, continues after a failure, and ends with a summary.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
export CARGO_TERM_PROGRESS_WHEN=never

SUMMARY=()
FAILED=0

# Seconds that a step may take: several times its duration on two slow cores.
STEP_LIMIT=1200

# step NAME COMMAND...: runs a step and records its result. A step that hangs is killed, and fails.
step() {
    local name=$1 outcome=ok started=$SECONDS status=0
    shift
    say "== $name"
    timeout --kill-after=10 "$STEP_LIMIT" "$@" </dev/null || status=$?
    case $status in
        0) ;;
        124 | 137) outcome="HUNG" FAILED=$((FAILED + 1)); say "$name: not done in $STEP_LIMIT s" ;;
        *) outcome=FAILED FAILED=$((FAILED + 1)) ;;
    esac
    SUMMARY+=("$(printf '%-28s %-7s %4d s' "$name" "$outcome" $((SECONDS - started)))")
}

# The tests run the program that this builds; debug, so that its assertions are on.
export DRYSTONE_BIN="${CARGO_TARGET_DIR:-$PWD/target}/debug/drystone"

step "build for the tests" cargo build --locked -p drystone
step "rules (cargo xtask check)" cargo xtask check
step "formatting" cargo fmt --all --check
step "lints" cargo clippy --locked --workspace --all-targets -- -D warnings
step "the peers' table" /usr/bin/python3 benches/peers/everything.py --self-test
step "unit tests" cargo test --locked --workspace --exclude system-tests \
    --exclude guest-tests --no-fail-fast
step "model checks (loom)" scripts/loom.sh
# Skipped loudly where the nightly toolchain has no Miri.
step "memory rules (Miri)" env DRYSTONE_SKIP_MISSING=1 scripts/miri.sh
step "simulator" scripts/sim-test.sh
step "libraries for C and fio" env DRYSTONE_PROFILE=dev scripts/capi.sh
step "fuzz smoke run" cargo test --locked -p system-tests --test fuzz_smoke
step "system tests" scripts/system-tests.sh
step "the same, io_uring denied" env DRYSTONE_DENY_IO_URING=1 scripts/system-tests.sh

say "== summary"
printf '%s\n' "${SUMMARY[@]}"
if [ "$FAILED" -gt 0 ]; then
    echo "make test: $FAILED of ${#SUMMARY[@]} steps FAILED"
    exit 1
fi
echo "make test: all ${#SUMMARY[@]} steps passed"
