#!/usr/bin/env bash
# Runs the load of "block: cache current nsec time in struct blk_plug" (linux-block, 2024). The mail
# gives no command line, but the output of fio's t/io_uring,
# "IOPS=118.79M, BW=58.00GiB/s, IOS/call=31/32":
# 512 B random reads by batches of 32. t/io_uring is a program of its own that takes no engines. The
# options below ask fio for the same as its defaults (depth 128, batches of 32, polled, fixed
# buffers, registered files). fio itself takes some 100 ns an I/O, which t/io_uring does not: for
# the layer's own peak, see `drystone bench`. RUNTIME: seconds. Further arguments go to fio.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ENGINE=${DRYSTONE_FIO:-$HERE/../../target/release/libdrystone_fio.so}
[ -e "$ENGINE" ] || { echo "$ENGINE does not exist: run \`make capi\`" >&2; exit 1; }

fio --name=peak --ioengine=external:"$ENGINE" --stack="$HERE/plug-time.toml" --filename=null_blk \
    --rw=randread --bs=512 --iodepth=128 --iodepth_batch_submit=32 \
    --iodepth_batch_complete_min=32 --iodepth_batch_complete_max=32 \
    --hipri --fixedbufs --registerfiles --norandommap --gtod_reduce=1 \
    --thread --numjobs="$(nproc)" --group_reporting --time_based --runtime="${RUNTIME:-10}" "$@"
