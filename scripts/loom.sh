#!/usr/bin/env bash
# Model-checks the lock-free code with loom: every model (a test named loom_*) must pass, and every
# mutation of the checked code (an ordering weakened, a fence or a re-check dropped) must be caught
# by the model named with it.
# Usage: scripts/loom.sh [models|mutations|both] [PACKAGE]
# Default: both, of all packages but drystone-lab, whose two models take long to build; those are in
# `make test-long`. With DRYSTONE_LONG set, a model of drystone-raid has one preemption more.
set -euo pipefail
cd "$(dirname "$0")/.."

# package mutation model
MUTATIONS="
drystone-core  mailbox_push        loom_mailbox
drystone-core  shared_list_add     loom_shared_list
drystone-core  gate_light_fence    loom_gate
drystone-core  gate_heavy_fence    loom_gate
drystone-core  gate_enter_fence    loom_gate
drystone-core  gate_claim_fence    loom_gate
drystone-core  gate_request_recheck  loom_gate
drystone-core  gate_visit_recheck  loom_gate
drystone-core  gate_mark_late      loom_gate_mark
drystone-core  gate_mark_once      loom_gate_mark
drystone-core  gate_mark_release   loom_gate_mark
drystone-core  park_fence          loom_park_misses
drystone-core  park_send_fence     loom_park_misses
drystone-core  park_watch_fence    loom_park_watched
drystone-core  park_awake_fence    loom_park_news
drystone-core  park_recheck_fence     loom_park_news
drystone-core  deliver_fence       loom_deliver
drystone-core  deliver_leave_fence loom_deliver
drystone-core  wake_order          loom_wake_ends_a_wait
drystone-core  wake_release        loom_wake_ends_a_wait
drystone-core  wake_store          loom_wake_ends_waits_of_two
drystone-core  pending_clear       loom_pending
drystone-core  handover_tell       loom_handover
drystone-core  handover_done       loom_handover
drystone-core  look_before_clear   loom_pending_wakes_for_every_job_done
drystone-core  quiesced_in_flight     loom_quiesced
drystone-core  quiesced_epoch         loom_quiesced
drystone-core  turn_publish_fence  loom_turn
drystone-core  turn_leave_fence    loom_turn
drystone-core  turn_recheck        loom_turn
drystone-core  turn_want           loom_turn_a_recheck
drystone-core  turn_want_order     loom_turn_of_two_rechecks
drystone-core  failure_claimed_twice loom_failures
drystone-core  range_shared_fence loom_range_lock
drystone-core  range_exclusive_fence loom_range_lock
drystone-core  range_unlock_fence loom_range_lock
drystone-core  range_end_order    loom_range_lock
drystone-queue tag_free            loom_tags_two_contexts
drystone-queue tag_free_fence      loom_tags_two_contexts
drystone-queue tag_wake_fence      loom_tags_three_contexts
drystone-queue tag_unlock_fence    loom_tags_three_contexts
drystone-queue tag_recheck         loom_tags_three_contexts
drystone-queue hctx_fence          loom_hctx
drystone-queue hctx_recheck        loom_hctx
drystone-throttle budget_lease_bound   loom_throttle_leases
drystone-throttle halves_write_fence   loom_throttle_halves
drystone-throttle halves_read_fence    loom_throttle_halves
drystone-throttle halves_sequence      loom_throttle_halves
drystone-throttle lane_closed          loom_throttle_limit_lifted
drystone-throttle lane_epoch           loom_throttle_group_removed
drystone-throttle lane_parked          loom_throttle_limit_lifted
drystone-drivers length_clear      loom_length_of_a_queue_with_a_mark
drystone-drivers length_look_late  loom_length_of_a_queue_with_a_mark
drystone-drivers length_marks_last loom_length_of_a_queue_with_a_mark
drystone-drivers length_in_flight  loom_length_of_a_queue_with_a_mark
drystone-drivers length_leave      loom_length_of_a_queue_with
drystone-drivers length_doubt      loom_length_of_a_file_opened_again
drystone-drivers length_left_unseen loom_length_of_a_file_opened_again
drystone-drivers read_beside_cut   loom_length_of_a_queue_with
drystone-exports ring_enable_fence      loom_ring_kicks
drystone-exports ring_enable_look_first loom_ring_kicks
drystone-exports ring_available_order   loom_ring_kicks
drystone-exports ring_publish_fence     loom_ring_calls
drystone-exports ring_publish_look_first loom_ring_calls
drystone-exports ring_used_order        loom_ring_calls
drystone-raid bitmap_set           loom_bitmap_sets
drystone-raid bitmap_used          loom_bitmap_clears
drystone-raid bitmap_look          loom_bitmap_clears
drystone-raid stripe_wake          loom_stripe_waiters
drystone-lab stripe_chain           loom_stripes_sharded
drystone-lab stripe_look_first      loom_stripes_before
"
# Seconds for one search. A timeout proves nothing, so it counts as a failure.
LIMIT=600
# The models that take longest start first.
LONGEST="passes .*(waiters_one_each|turn_of_two_rechecks|range_lock)"

export RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom"

fail() { echo "loom: $*" >&2; exit 1; }

# build PACKAGE...: builds the tests of packages; prints the name of each library and its program.
build() {
    cargo test -q --locked --profile loom --no-run --lib --message-format=json "${@/#/--package=}" |
        sed -n 's/.*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}

# has_tests PROGRAM NAME: whether a test's name contains NAME. It uses no pipe: a reader that stops
# early would make the writer fail.
has_tests() {
    local list
    list=$("$1" --list "$2" 2>/dev/null) && [[ $list == *": test"* ]]
}

# names PROGRAM: the models in a program.
names() {
    "$1" --list loom_ 2>/dev/null | sed -n 's/^\(loom_[^ ]*\|.*::loom_[^ ]*\): test$/\1/p'
}

# passes MODEL PROGRAM
passes() {
    local output
    if output=$(DRYSTONE_MUTATE='' timeout "$LIMIT" "$2" --exact "$1" --test-threads=1 2>&1); then
        echo "passed: $1"
    else
        printf '%s\nFAILED: %s\n' "$output" "$1"
        return 1
    fi
}

# caught MUTATION MODEL PROGRAM
caught() {
    local status=0
    has_tests "$3" "$2" || { echo "no model is named $2"; return 1; }
    DRYSTONE_MUTATE=$1 timeout "$LIMIT" "$3" "$2" --test-threads=1 >/dev/null 2>&1 || status=$?
    case $status in
        0) echo "NOT CAUGHT: $1 by $2"; return 1 ;;
        124) echo "NOT CAUGHT: $1 by $2 in $LIMIT s"; return 1 ;;
        *) echo "caught: $1 by $2" ;;
    esac
}
export -f has_tests passes caught
export LIMIT

# searches PACKAGE PROGRAM: a line for each model and each mutation.
searches() {
    local found
    found=$(names "$2")
    [ -n "$found" ] || fail "$1 has no models"
    [ "$what" = mutations ] || while read -r model; do echo passes "$model" "$2"; done <<<"$found"
    [ "$what" = models ] ||
        awk -v package="$1" -v program="$2" \
            '$1 == package { print "caught", $2, $3, program }' <<<"$MUTATIONS"
}

what=${1:-both} only=${2:-} list=""
mapfile -t packages < <(awk -v only="$only" 'NF {
    if (only == "" ? $1 != "drystone-lab" : $1 == only) print $1
}' <<<"$MUTATIONS" | uniq)
[ "${#packages[@]}" -gt 0 ] || fail "no package is named $only"
programs=$(build "${packages[@]}")
for package in "${packages[@]}"; do
    program=$(awk -v name="${package//-/_}" '$1 == name { print $2 }' <<<"$programs")
    [ -n "$program" ] || fail "the models of $package do not build"
    list+=$(searches "$package" "$program")$'\n'
done
# A search has one thread, so as many run at a time as there are processors, and the longest first.
grep -E "$LONGEST" <<<"$list" >"$CARGO_TARGET_DIR/searches" || true
grep -vE "$LONGEST|^$" <<<"$list" >>"$CARGO_TARGET_DIR/searches" || true
# shellcheck disable=SC2016
xargs -P "$(nproc)" -L 1 bash -c '"$@"' searches <"$CARGO_TARGET_DIR/searches" ||
    fail "a search failed: see above"
echo "loom: all of $(wc -l <"$CARGO_TARGET_DIR/searches") searches passed"
