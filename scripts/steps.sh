# Sourced. Runs steps, continues after a failure, and prints a summary. `step` runs one and waits
# for it. `beside` starts one that uses what the following steps leave of the processors.
# shellcheck shell=bash

export CARGO_TERM_PROGRESS_WHEN=never
SUMMARY=()
FAILED=0
CPU_TOTAL=0
# Steps that run beside others: for each its process and the file of its output.
declare -A BESIDE=()

# Seconds that a step may take: several times its duration on two slow cores.
STEP_LIMIT=${STEP_LIMIT:-1200}

# cpu_seconds: processor time of the processes that this shell has waited for, and of theirs.
cpu_seconds() { awk '{ print int(($16 + $17) / 100) }' "/proc/$BASHPID/stat"; }

# step NAME COMMAND...: runs a step and records its result. A step that hangs is killed, and fails.
step() {
    local name=$1 started=$SECONDS status=0 cpu
    shift
    say "== $name"
    cpu=$(mktemp)
    # In a shell of its own, which does not wait for the steps beside it.
    (
        timeout --kill-after=10 "$STEP_LIMIT" "$@" </dev/null || status=$?
        cpu_seconds >"$cpu"
        exit "$status"
    ) || status=$?
    record "$name" "$status" $((SECONDS - started)) "$(cat "$cpu")"
    rm -f "$cpu"
}

# record NAME STATUS SECONDS CPU_SECONDS
record() {
    local outcome=ok
    case $2 in
        0) ;;
        124 | 137) outcome="HUNG" FAILED=$((FAILED + 1)); say "$1: not done in its time" ;;
        *) outcome=FAILED FAILED=$((FAILED + 1)) ;;
    esac
    SUMMARY+=("$(printf '%-28s %-7s %4d s %5d s' "$1" "$outcome" "$3" "$4")")
    CPU_TOTAL=$((CPU_TOTAL + $4))
}

# beside NAME COMMAND...: starts a step at the lowest priority; `join` waits for it.
beside() {
    local name=$1 output
    shift
    output=$(mktemp)
    say "== $name: started beside the next steps"
    setsid scripts/beside.sh "$output" $((2 * STEP_LIMIT)) "$@" </dev/null >/dev/null 2>&1 &
    BESIDE[$name]="$! $output"
    trap end_beside EXIT
}

# join NAME: waits for a step that `beside` started, prints its output and records its result.
join() {
    local name=$1 process output status=137 seconds=0 cpu=0
    read -r process output <<<"${BESIDE[$name]}"
    wait "$process" 2>/dev/null || true
    unset "BESIDE[$name]"
    say "== $name: its output"
    cat "$output"
    [ ! -e "$output.end" ] || read -r status seconds cpu <"$output.end"
    rm -f "$output" "$output.end"
    record "$name" "$status" "$seconds" "$cpu"
}

# end_beside: ends the steps that nobody joined.
end_beside() {
    local process output name
    for name in "${!BESIDE[@]}"; do
        read -r process output <<<"${BESIDE[$name]}"
        kill "$process" 2>/dev/null || true
        rm -f "$output" "$output.end"
    done
}

# summary NAME: prints the result of each step, and ends the script.
summary() {
    say "== summary of $1: seconds that passed, and of processor time"
    printf '%s\n' "${SUMMARY[@]}"
    printf '%-28s %-7s %4d s %5d s\n' "all" "" "$SECONDS" "$CPU_TOTAL"
    if [ "$FAILED" -gt 0 ]; then
        echo "$1: $FAILED of ${#SUMMARY[@]} steps FAILED"
        exit 1
    fi
    echo "$1: all ${#SUMMARY[@]} steps passed"
}
