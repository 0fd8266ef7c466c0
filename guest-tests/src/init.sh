#!/bin/busybox sh
# The first process of a guest. It prepares a small system, then runs the test's scripts, which come
# over a port of virtio-serial, until the test hangs up. Its own output goes to the console.
#
#   test:   SCRIPT_BYTES INPUT_BYTES newline, the script, its standard input
#   guest:  STATUS STDOUT_BYTES STDERR_BYTES newline, its standard output, its standard error
#
# The guest speaks first: an answer without output says that it is up. The lengths make delimiters
# unnecessary, so the streams may hold any bytes.

busybox=/bin/busybox
$busybox mount -t proc proc /proc
$busybox --install -s /bin
export PATH=/bin:/sbin HOME=/ LC_ALL=C DM_DISABLE_UDEV=1
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
ln -s /proc/self/fd /dev/fd
for name in stdin:0 stdout:1 stderr:2; do ln -s "/proc/self/fd/${name#*:}" "/dev/${name%:*}"; done
mkdir -p /dev/disk

# Links /dev/disk/NAME for all disks, where NAME is the disk's serial number.
name_disks() {
    for file in /sys/block/*/serial /sys/block/*/device/serial; do
        [ -r "$file" ] || continue
        disk=${file#/sys/block/}
        name=
        read -r name <"$file"
        [ -z "$name" ] || ln -sf "../${disk%%/*}" "/dev/disk/$name"
    done
}

# Lists the disks of the test, one name in a line. Drivers probe for disks meanwhile.
while read -r name; do
    modprobe virtio_blk
    until [ -e "/dev/disk/$name" ]; do
        name_disks
        [ -e "/dev/disk/$name" ] || sleep 0.05
    done
done </etc/disks

# The port can be opened only once, so all input and output uses this descriptor.
until port=$(grep -l '^drystone$' /sys/class/virtio-ports/*/name); do sleep 0.05; done
port=${port%/name}
exec 3<>"/dev/${port##*/}"

# Reads exactly that many bytes from the test.
take() {
    [ "$1" = 0 ] || dd bs="$1" count=1 iflag=fullblock status=none <&3
}

size() {
    stat -c %s "$1"
}

echo "0 0 0" >&3
while read -r script_bytes input_bytes <&3; do
    take "$script_bytes" >/run/script
    take "$input_bytes" >/run/input
    cd /
    sh /run/script </run/input >/run/stdout 2>/run/stderr 3>&-
    status=$?
    { echo "$status $(size /run/stdout) $(size /run/stderr)" && cat /run/stdout /run/stderr; } >&3
done

echo "the test has hung up"
sync
poweroff -f
