#!/usr/bin/env bash
# Builds the library for C, libdrystone.so.1, and fio's engine, libdrystone_fio.so, into
# target/release, or into the folder of another profile (DRYSTONE_PROFILE=dev).
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup-build.sh
have_commands curl gcc make || apt_install curl gcc make libc6-dev ca-certificates

PROFILE=${DRYSTONE_PROFILE:-release}
TARGET=${CARGO_TARGET_DIR:-$PWD/target}
OUT=$TARGET/$([ "$PROFILE" = dev ] && echo debug || echo "$PROFILE")

# The fio of Debian 12. Its headers are used to build the engine; nothing of it is shipped.
FIO=fio-3.33
FIO_URL=http://deb.debian.org/debian/pool/main/f/fio/fio_3.33.orig.tar.gz
FIO_SHA256=d2410e13e0f379d061d077cc5ae325835bb7c6186aa7bafc1df954cbc9b014fc
HEADERS=$TARGET/capi/$FIO

# Puts fio's headers into the target folder, all or none.
fetch_headers() {
    [ -e "$HEADERS/config-host.h" ] && return
    local work=$TARGET/capi/new.$$
    rm -rf "$TARGET"/capi/new.* "$HEADERS"
    mkdir -p "$work"
    curl --fail --silent --show-error --location --connect-timeout 10 --max-time 120 --retry 2 \
        --output "$work/fio.tar.gz" "$FIO_URL" ||
        die "fio's headers cannot be downloaded from $FIO_URL, and its engine needs them"
    echo "$FIO_SHA256  $work/fio.tar.gz" | sha256sum --check --quiet ||
        die "what $FIO_URL gives is not the fio that the engine was written for"
    tar -xzf "$work/fio.tar.gz" -C "$work"
    (cd "$work/$FIO" && ./configure >configure.log 2>&1) ||
        die "fio's ./configure failed: see $work/$FIO/configure.log"
    mv "$work/$FIO" "$HEADERS"
    rm -rf "$work"
}

# For tests, with the packages of build-tests.sh: what others ask of a dependency decides how it is
# built, so that alone the library would be built a second time.
packages=(-p drystone-capi)
[ "$PROFILE" != dev ] || packages+=(-p drystone -p drystone-lab)
cargo build --locked --profile "$PROFILE" "${packages[@]}"
cp -f "$OUT/libdrystone_capi.so" "$OUT/libdrystone.so.1.new"
mv -f "$OUT/libdrystone.so.1.new" "$OUT/libdrystone.so.1"
ln -sf libdrystone.so.1 "$OUT/libdrystone.so"
fetch_headers
# -isystem hides warnings of fio's own headers. Neither library is ever unloaded: they have threads.
gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared -D_GNU_SOURCE \
    -include "$HEADERS/config-host.h" -isystem "$HEADERS" -I crates/capi/include \
    fio/engine.c fio/stacks.c \
    -Wl,-z,nodelete -Wl,-rpath,'$ORIGIN' -L "$OUT" -ldrystone -lpthread -ldl \
    -o "$OUT/libdrystone_fio.so.new"
mv -f "$OUT/libdrystone_fio.so.new" "$OUT/libdrystone_fio.so"
say "built $OUT/libdrystone.so.1 and $OUT/libdrystone_fio.so"
