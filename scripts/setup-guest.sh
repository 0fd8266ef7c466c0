# Sourced after common.sh. Installs QEMU, the tools that unpack a kernel's package, and the programs
# that guests get from the host. The tests fetch the kernel themselves, and do not install it.
# shellcheck shell=bash

GUEST_PACKAGES=(qemu-system-x86 zstd xz-utils dmsetup mdadm util-linux coreutils)
GUEST_COMMANDS=(qemu-system-x86_64 zstd xz dmsetup mdadm setpriv sha256sum)

have_commands "${GUEST_COMMANDS[@]}" || apt_install "${GUEST_PACKAGES[@]}"
# The first fetch of a kernel needs a fresh index: an old one names versions that are gone. A
# failure here matters only if the fetch fails too.
if ! compgen -G "${XDG_CACHE_HOME:-${HOME:-}/.cache}/drystone/guest/packages/*.deb" >/dev/null; then
    (as_root apt-get -qq update </dev/null) || say "warning: apt's index may be old"
fi
export PATH=$PATH:/usr/sbin:/sbin
