#!/usr/bin/env bash
# Measures drystone beside its peers, all in one table; arguments go to
# benches/peers/everything.py. With `servers`, `throttle` or `files` as the first argument it
# measures only these, in more detail; further arguments go to benches/peers/run.py. With
# `one-client` it measures what a single client gets (benches/peers/one_client.py), with `fairness`
# what long reads of one client do to short ones of another (benches/peers/fairness.py).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
source scripts/setup-tests.sh
cargo build --release --locked -p drystone
bench=everything.py
case "${1:-}" in
    servers) bench=run.py && shift ;;
    one-client) bench=one_client.py && shift ;;
    fairness) bench=fairness.py && shift ;;
    throttle | files) bench=run.py && part=$1 && shift && set -- "--$part" "$@" ;;
    *) scripts/capi.sh ;;
esac
exec /usr/bin/python3 "benches/peers/$bench" \
    --drystone "${CARGO_TARGET_DIR:-target}/release/drystone" "$@"
