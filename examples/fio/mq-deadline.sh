#!/usr/bin/env bash
# Runs the command line of "block/mq-deadline: use separate insertion lists" (linux-block, 23
# January 2024), with only --ioengine and --filename changed, and --stack added. RUNTIME: seconds.
# Further arguments go to fio.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ENGINE=${DRYSTONE_FIO:-$HERE/../../target/release/libdrystone_fio.so}
[ -e "$ENGINE" ] || { echo "$ENGINE does not exist: run \`make capi\`" >&2; exit 1; }

DEV=null_blk
fio --bs=512 --group_reporting=1 --gtod_reduce=1 --invalidate=1 \
    --ioengine=external:"$ENGINE" --stack="$HERE/mq-deadline.toml" \
    --norandommap --runtime="${RUNTIME:-60}" --rw=randread \
    --thread --time_based=1 --buffered=0 --fixedbufs=1 --numjobs=32 \
    --iodepth=4 --iodepth_batch_submit=4 --iodepth_batch_complete=4 \
    --name=scaletest --filename=$DEV "$@"
