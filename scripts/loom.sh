#!/usr/bin/env bash
# Runs the loom models: tests named loom_* in the packages below, built with --cfg loom.
#
# LOOM_MAX_PREEMPTIONS bounds how often one run may take the processor from a running thread. Two
# or three is what loom's own documentation advises; 0 here means an unbounded search.
set -euo pipefail
cd "$(dirname "$0")/.."

PACKAGES=(drystone-core drystone-queue)
# Packages of the list above that hold no model so far. One that gains a model must leave this
# list and one that loses its models fails: nothing is skipped without being named here.
WITHOUT_MODELS=()

export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0
export LOOM_MAX_PREEMPTIONS=${LOOM_MAX_PREEMPTIONS:-3}
[ "$LOOM_MAX_PREEMPTIONS" != 0 ] || unset LOOM_MAX_PREEMPTIONS

is_without_models() { [[ " ${WITHOUT_MODELS[*]} " == *" $1 "* ]]; }

status=0
for package in "${PACKAGES[@]}"; do
    [ -n "$(cargo pkgid -p "$package" 2>/dev/null)" ] || { echo "loom: there is no package $package" >&2; status=1; continue; }
    models=$(cargo test --locked --release -p "$package" --lib -- --list loom_ | grep -c ': test$') || true
    if is_without_models "$package"; then
        [ "$models" = 0 ] || { echo "loom: $package has $models models: take it off WITHOUT_MODELS" >&2; status=1; }
    elif [ "$models" = 0 ]; then
        echo "loom: $package has no model (tests named loom_*)" >&2
        status=1
        continue
    fi
    cargo test --locked --release -p "$package" --lib loom_ || status=1
done
exit $status
