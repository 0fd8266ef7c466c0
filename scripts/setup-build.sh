# Sourced. Installs what the build needs and lacks, and says how tests are built.
# shellcheck shell=bash

source scripts/common.sh
have_commands gcc ld make pkg-config && [ -e /usr/include/stdlib.h ] ||
    apt_install gcc libc6-dev make curl ca-certificates pkg-config
source scripts/toolchain.sh
# A fresh clone builds everything once: incremental builds would cost time and save none.
[ -d "${CARGO_TARGET_DIR:-target}/debug/incremental" ] || export CARGO_INCREMENTAL=0
