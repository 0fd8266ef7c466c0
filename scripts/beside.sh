#!/usr/bin/env bash
# Runs a command at the lowest priority, with a limit of its time. Its output goes to OUTPUT, and in
# the end its status, seconds and processor seconds to OUTPUT.end. It is meant to run in a session
# of its own, because the kernel schedules sessions before processes: the session gets the priority
# too.
#
# Usage: setsid scripts/beside.sh OUTPUT SECONDS COMMAND...
set -euo pipefail
output=$1 limit=$2 status=0
shift 2
echo 19 2>/dev/null >/proc/self/autogroup || true
nice -n 19 timeout --kill-after=10 "$limit" "$@" >"$output" 2>&1 &
command=$!
# timeout passes the signal on to what it has started.
trap 'kill "$command"; exit 1' TERM INT
wait "$command" || status=$?
echo "$status $SECONDS $(awk '{ print int(($16 + $17) / 100) }' "/proc/$$/stat")" >"$output.end"
