# Sourced. Runs steps one after the other, continues after a failure, and prints a summary.
# shellcheck shell=bash

export CARGO_TERM_PROGRESS_WHEN=never
SUMMARY=()
FAILED=0

# Seconds that a step may take: several times its duration on two slow cores.
STEP_LIMIT=${STEP_LIMIT:-1200}

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

# summary NAME: prints the result of each step, and ends the script.
summary() {
    say "== summary of $1"
    printf '%s\n' "${SUMMARY[@]}"
    printf '%-28s %-7s %4d s\n' "all" "" "$SECONDS"
    if [ "$FAILED" -gt 0 ]; then
        echo "$1: $FAILED of ${#SUMMARY[@]} steps FAILED"
        exit 1
    fi
    echo "$1: all ${#SUMMARY[@]} steps passed"
}
