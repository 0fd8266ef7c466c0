//! Devices as files, by FUSE over io_uring. The test switches it on for the whole machine, so it is
//! alone in its program: a server of another test might start just when it is switched off, and be
//! refused the ring that was agreed on.

#![forbid(unsafe_code)]

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use system_tests::client::{Mount, demand};
use system_tests::files::{EXERCISE, Files, has_loop};
use system_tests::server::denies_io_uring;
use system_tests::{new_folder, requires, shell, stack};

/// FUSE over io_uring, switched on for the machine until this is dropped.
struct OverRing(String);

const OVER_RING: &str = "/sys/module/fuse/parameters/enable_uring";

impl OverRing {
    /// `None`, after a SKIPPED line, if the kernel has none or this is not root.
    fn switch_on() -> Option<OverRing> {
        let before = fs::read_to_string(OVER_RING);
        let on = before.is_ok() && fs::write(OVER_RING, "Y").is_ok();
        let why = "FUSE over io_uring cannot be switched on (Linux 6.14, by root)";
        if !demand(on, why) {
            return None;
        }
        before.ok().map(OverRing)
    }
}

impl Drop for OverRing {
    fn drop(&mut self) {
        let _ = fs::write(OVER_RING, self.0.trim());
    }
}

/// Requests over io_uring: plain and memory-mapped I/O of any length, many in flight, parts of
/// blocks, and a file system on a loop device whose server is killed.
#[test]
fn requests_come_over_io_uring() {
    if !has_loop() || !requires("mkfs.ext4") || !requires("fio") || denies_io_uring() {
        return;
    }
    let Some(_on) = OverRing::switch_on() else { return };
    let folder = new_folder();
    let mnt = folder.path().join("mnt");
    fs::create_dir(&mnt).expect("a folder");
    let _mount = Mount(mnt);
    let text = stack::file("64MiB") + "fuse = \"DIR/vol.img\"\n";
    let over_ring = |files: &Files| {
        let told = files.server.messages();
        assert!(told.contains("requests come over io_uring"), "{told}");
    };
    let mut files = Files::start_in(&folder, &text);
    let file = files.announced(false);
    over_ring(&files);
    let fio = "for direct in 0 1; do for engine in psync libaio; do fio --name=t --filename=\"$1\" \
               --ioengine=$engine --direct=$direct --rw=randrw --size=64M --io_size=32M \
               --bsrange=512-1m --bs_unaligned=$((1-direct)) --iodepth=64 --verify=crc32c \
               --output=fio.log; done; done; fallocate -p -o 1000 -l 5000 \"$1\"; cmp -n 5000 -i \
               1000:0 \"$1\" /dev/zero; rm -f local-*";
    files.run(fio, &file).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
    let text = text + "fuse_loop = true\n";
    let mut files = Files::start_in(&folder, &text);
    let device = files.announced(true);
    over_ring(&files);
    fs::write(files.server.path("exercise.py"), EXERCISE).expect("a script");
    let work = "mkfs.ext4 -q \"$1\" && mount \"$1\" mnt && /usr/bin/python3 exercise.py mnt/x 2 && \
                head -c 9M /dev/urandom >mnt/kept && sync -f mnt && md5sum mnt/kept >sums";
    files.run(work, &device).ok();
    let mut load = Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "count=300", "conv=fdatasync"])
        .arg(format!("of={}", folder.path().join("mnt/load").display()))
        .stderr(Stdio::null())
        .spawn()
        .expect("dd runs");
    thread::sleep(Duration::from_millis(50));
    files.server.signal("KILL");
    files.server.wait();
    let _ = load.wait();
    shell(folder.path(), "umount mnt || umount -l mnt", &[]).ok();
    let mut files = Files::start_in(&folder, &text);
    let device = files.announced(true);
    over_ring(&files);
    files.run("e2fsck -fp \"$1\" >fsck.log || [ $? -le 1 ]", &device).ok();
    files.run("mount \"$1\" mnt && md5sum -c --quiet sums && umount mnt", &device).ok();
    assert!(files.server.sigterm().success(), "{}", files.server.messages());
}
