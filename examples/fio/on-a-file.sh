#!/usr/bin/env bash
# Runs the command lines of the mails word for word, except the path: on a device of Drystone that
# is a file (docs/files.md), or on its loop device. The script only reads. Usage: on-a-file.sh PATH.
# RUNTIME: seconds of fio.
set -euo pipefail
FILE=${1:?the path of a file or loop device}

# "blk-throttle: lockless bio processing for no throttle rule group", linux-kernel, 18 May 2011.
dd if="$FILE" of=/dev/null bs=4K iflag=direct

# "block/mq-deadline: use separate insertion lists", linux-block, 23 January 2024.
fio --bs=512 --group_reporting=1 --gtod_reduce=1 --invalidate=1 \
    --ioengine=io_uring --norandommap --runtime="${RUNTIME:-60}" --rw=randread \
    --thread --time_based=1 --buffered=0 --fixedbufs=1 --numjobs=32 \
    --iodepth=4 --iodepth_batch_submit=4 --iodepth_batch_complete=4 \
    --name=scaletest --filename="$FILE"

# "dm: support IO polling", dm-devel, 20 February 2021: its options, with a run time. A file of FUSE
# is not polled.
for jobs in 1 3; do
    fio --ioengine=io_uring --iodepth=128 --numjobs=$jobs --rw=randread --sqthread_poll=0 \
        --direct=1 --bs=4k \
        --name=dm --time_based --runtime="${RUNTIME:-60}" --group_reporting --filename="$FILE"
done
