# Sourced. Installs the clients and tools of the tests and peer benches that are missing.
# shellcheck shell=bash

TEST_PACKAGES=(nbdkit libnbd-bin python3 python3-libnbd qemu-utils qemu-system-common fio
    gnutls-bin openssl util-linux mount procps coreutils fuse3 e2fsprogs xfsprogs btrfs-progs fsmark
    perl-base curl g++ binutils strace valgrind)
TEST_COMMANDS=(nbdkit nbdinfo nbdcopy nbdsh qemu-img qemu-io qemu-storage-daemon fio certtool
    openssl mount umount prlimit kill timeout cmp fusermount3 mkfs.ext4 mkfs.xfs mkfs.btrfs fs_mark
    curl g++ readelf strace valgrind)

# Debian's own Python: other Pythons on PATH do not see python3-libnbd.
have_commands "${TEST_COMMANDS[@]}" && /usr/bin/python3 -c 'import nbd' 2>/dev/null ||
    apt_install "${TEST_PACKAGES[@]}"
export PATH=$PATH:/usr/sbin:/sbin
