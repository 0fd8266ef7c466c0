# Sourced after common.sh. Makes sure that QEMU is there, with what unpacks a kernel's package and
# what guests carry in. The kernel itself is fetched by the tests, and not installed.
# shellcheck shell=bash

GUEST_PACKAGES=(qemu-system-x86 zstd xz-utils dmsetup mdadm util-linux coreutils)
GUEST_COMMANDS=(qemu-system-x86_64 zstd xz dmsetup mdadm setpriv sha256sum)

have_commands "${GUEST_COMMANDS[@]}" || apt_install "${GUEST_PACKAGES[@]}"
# Before the first kernel is fetched: an old index names versions that are gone. A failure shows
# only if the fetch fails too.
if ! compgen -G "${XDG_CACHE_HOME:-${HOME:-}/.cache}/drystone/guest/packages/*.deb" >/dev/null; then
    (as_root apt-get -qq update </dev/null) || say "warning: apt's index may be old"
fi
export PATH=$PATH:/usr/sbin:/sbin
