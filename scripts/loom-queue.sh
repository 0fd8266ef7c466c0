#!/bin/sh
# Model-check the queue: every model must pass, and every mutation of the checked code (an
# ordering weakened, a fence or a re-check dropped) must be caught by the model named with it.
# Usage: scripts/loom-queue.sh [models|mutations]     (default: both)
set -eu
cd "$(dirname "$0")/.."

export RUSTFLAGS="--cfg loom"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"
# Only the crate itself is built anew for a mutation; models are far too slow unoptimised.
export CARGO_PROFILE_DEV_OPT_LEVEL=2

# mutation:model
MUTATIONS="
tag_free:loom_tags_two_contexts
tag_free_fence:loom_tags_two_contexts
tag_wake_fence:loom_tags_three_contexts
tag_unlock_fence:loom_tags_three_contexts
tag_recheck:loom_tags_three_contexts
"
# Seconds for one model. One that takes longer decides nothing, which counts as not caught.
LIMIT=180

# Build the tests with further flags for the crate; prints the program's path.
build() {
    cargo rustc -q -p drystone-queue --lib --profile test --message-format=json -- "$@" |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1
}

models() {
    program=$(build)
    [ -n "$program" ] || { echo "loom-queue: the models do not build" >&2; exit 1; }
    "$program" loom_ --test-threads=1
}

mutations() {
    missed=0
    for pair in $MUTATIONS; do
        mutation=${pair%%:*} model=${pair##*:}
        program=$(build --cfg "drystone_mutate=\"$mutation\"")
        [ -n "$program" ] || { echo "loom-queue: $mutation does not build" >&2; exit 1; }
        "$program" --list "$model" 2>/dev/null | grep -q ': test$' ||
            { echo "loom-queue: no model is named $model" >&2; exit 1; }
        status=0
        timeout "$LIMIT" "$program" "$model" --test-threads=1 >/dev/null 2>&1 || status=$?
        case $status in
            0) echo "NOT CAUGHT: $mutation by $model" ;;
            124) echo "NOT CAUGHT: $mutation by $model in $LIMIT s" ;;
            *) echo "caught: $mutation by $model"; continue ;;
        esac
        missed=1
    done
    return $missed
}

case "${1:-both}" in
    models) models ;;
    mutations) mutations ;;
    both) models && mutations ;;
    *) echo "usage: $0 [models|mutations]" >&2; exit 2 ;;
esac
