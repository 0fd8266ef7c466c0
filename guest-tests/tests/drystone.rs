//! The program on devices that the host lacks.

#![forbid(unsafe_code)]

use std::fs;

use guest_tests::{Disk, Guest, available};
use serde_json::Value;
use system_tests::program;

const DISK_BYTES: u64 = 64 << 20;

/// Reads of an NVMe disk that has poll queues, through io_uring: by interrupts, and polled, for
/// which the disk sends none (`IORING_SETUP_IOPOLL`).
#[test]
fn bench_reads_an_nvme_disk_with_poll_queues() {
    if !available() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let image = folder.path().join("disk");
    fs::File::create(&image).expect("an image").set_len(DISK_BYTES).expect("an image");
    let mut guest = Guest::builder()
        .kernel_args("nvme.poll_queues=2")
        .disk("fast", Disk::nvme(&image))
        .program(program())
        .start();
    guest.run("test $(readlink /dev/disk/fast) = ../nvme0n1").ok();
    assert_eq!(guest.run("cat /sys/block/nvme0n1/queue/io_poll").ok(), "1\n");
    let by_interrupt = bench(&mut guest, "");
    assert!(by_interrupt > 0);
    assert_eq!(bench(&mut guest, "--poll"), 0, "interrupts while all is polled");
}

/// Interrupts of the disk's I/O queues during a run of the bench.
fn bench(guest: &mut Guest, options: &str) -> u64 {
    let (sectors, interrupts) = (sectors_read(guest), io_interrupts(guest));
    let command = format!(
        "drystone bench --device file,path=/dev/nvme0n1,direct=true,engine=io_uring --bs 4k \
         --depth 8 --warmup 0 --runtime 1s --json /tmp/report {options} >&2 && cat /tmp/report"
    );
    let report: Value = serde_json::from_str(&guest.run(&command).ok()).expect("JSON");
    assert_eq!(report["configuration"]["engine"], "io_uring");
    assert_eq!(report["configuration"]["size_bytes"], DISK_BYTES);
    // The kernel's own count of the sectors that the disk delivered.
    let ios = report["ios"].as_u64().expect("a number");
    let sectors = sectors_read(guest) - sectors;
    assert!(ios > 0 && sectors >= ios * 8, "{ios} reads of 8 sectors, but {sectors} sectors read");
    io_interrupts(guest) - interrupts
}

/// Interrupts so far of the disk's I/O queues: all of its but the admin queue's, number 0.
fn io_interrupts(guest: &mut Guest) -> u64 {
    let text = guest.run("grep 'nvme0q[1-9]' /proc/interrupts").ok();
    let counts = |line: &str| -> u64 {
        line.split_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok()).sum()
    };
    text.lines().map(counts).sum()
}

/// Sectors that the disk has read since the boot: the third field of its `stat`.
fn sectors_read(guest: &mut Guest) -> u64 {
    let stat = guest.run("cat /sys/block/nvme0n1/stat").ok();
    stat.split_whitespace().nth(2).expect("a field").parse().expect("a number")
}
