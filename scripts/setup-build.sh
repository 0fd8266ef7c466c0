# Sourced. Installs what the build needs and lacks.
# shellcheck shell=bash

source scripts/common.sh
have_commands gcc ld make pkg-config && [ -e /usr/include/stdlib.h ] ||
    apt_install gcc libc6-dev make curl ca-certificates pkg-config
source scripts/toolchain.sh
