# Sourced. Makes sure that everything the build needs is there.
# shellcheck shell=bash

source scripts/common.sh
have_commands gcc ld make pkg-config && [ -e /usr/include/stdlib.h ] ||
    apt_install gcc libc6-dev make curl ca-certificates pkg-config
source scripts/toolchain.sh
