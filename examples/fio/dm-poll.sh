#!/usr/bin/env bash
# Runs the loads of "dm: support IO polling" (dm-devel, 20 February 2021). The mail gives the
# options of its fio jobs in brackets: "ioengine=io_uring, iodepth=128, numjobs=1, rw=randread,
# sqthread_poll=0 direct=1, bs=4k". This script uses them with --ioengine changed, and --stack,
# --filename, --thread and a run time added. The mail's iopoll=1 is fio's --hipri. The disks are
# null devices; docs/lab/dm-poll.md has the cost of a disk's interrupt. RUNTIME: seconds of each of
# the six runs. Further arguments go to fio.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ENGINE=${DRYSTONE_FIO:-$HERE/../../target/release/libdrystone_fio.so}
[ -e "$ENGINE" ] || { echo "$ENGINE does not exist: run \`make capi\`" >&2; exit 1; }

# run TITLE DEVICE JOBS BYTES [fio's options]
run() {
    local title=$1 device=$2 jobs=$3 bs=$4
    shift 4
    fio --name="$title" --ioengine=external:"$ENGINE" --stack="$HERE/dm-poll.toml" \
        --filename="$device" \
        --iodepth=128 --numjobs="$jobs" --rw=randread --sqthread_poll=0 --direct=1 --bs="$bs" \
        --thread --group_reporting --time_based --runtime="${RUNTIME:-10}" "$@"
}

for poll in "" --hipri; do
    how=${poll:+polled}
    run "linear-1-${how:-irq}" linear 1 4k $poll "$@"
    run "linear-3-${how:-irq}" linear 3 4k $poll "$@"
    run "striped-3-${how:-irq}" striped 3 12k $poll "$@"
done
