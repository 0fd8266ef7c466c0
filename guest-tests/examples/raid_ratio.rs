//! The same fio jobs at the kernel's RAID-5 over RAM disks and at Drystone's over
//! RAM devices, in one boot. `scripts/bench-guest-raid.sh` runs it with a release build.
//!
//! The processor is emulated and has no AVX-512, the kernel's array is used by system calls and
//! Drystone's by NBD over a Unix socket: what is printed is a ratio of this machine, and says nothing
//! of any other.

#![forbid(unsafe_code)]

use guest_tests::{Guest, available};
use serde_json::Value;
use system_tests::{program, requires};

const STACK: &str = r#"
[device.d0]
type = "ram"
size = "64MiB"
[device.d1]
type = "ram"
size = "64MiB"
[device.d2]
type = "ram"
size = "64MiB"
[device.d3]
type = "ram"
size = "64MiB"
[device.array]
type = "raid5"
members = ["d0", "d1", "d2", "d3"]
chunk = "64KiB"
[export.array]
device = "array"
nbd = "unix:/run/array.sock"
"#;

/// Name of a job, and its options. A row of the array is 192 KiB.
const JOBS: [(&str, &str); 5] = [
    ("4 KiB random writes, 1", "--rw=randwrite --bs=4k --iodepth=1"),
    ("4 KiB random writes, 32", "--rw=randwrite --bs=4k --iodepth=32"),
    ("64 KiB writes in order, 8", "--rw=write --bs=64k --iodepth=8"),
    ("whole rows in order, 8", "--rw=write --bs=192k --iodepth=8"),
    ("4 KiB random reads, 32", "--rw=randread --bs=4k --iodepth=32"),
];
/// Each job is run so often, at both in turn.
const ROUNDS: usize = 3;

/// I/Os a second of a job.
fn iops(guest: &mut Guest, target: &str, options: &str) -> f64 {
    let text = guest.run(&format!(
        "fio --name=job --thread --size=180M --time_based --runtime=4 --ramp_time=1 --randseed=1 \
         --output-format=json {target} {options}"
    ));
    let text = text.ok();
    let report: Value = serde_json::from_str(&text[text.find('{').expect("JSON")..]).expect("JSON");
    let job = &report["jobs"][0];
    assert_eq!(job["error"], 0, "{job:#}");
    let of = |way: &str| job[way]["iops"].as_f64().expect("a number");
    of("read") + of("write")
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

fn main() {
    if !available() || !requires("mdadm") || !requires("fio") {
        return;
    }
    let builder = Guest::builder().memory_mib(2048).program("mdadm").program("fio");
    let mut guest = builder.program(program()).start();
    guest.run_with_input("cat > /run/stack.toml", STACK.as_bytes()).ok();
    let make = "modprobe brd rd_nr=4 rd_size=65536 && modprobe raid456 && mkdir -p /run/mdadm && \
                MDADM_NO_UDEV=1 mdadm --create /dev/md0 --run --assume-clean -l 5 -n 4 -c 64 \
                -b none /dev/ram0 /dev/ram1 /dev/ram2 /dev/ram3 2>&1";
    guest.run(make).ok();
    let serve = "drystone serve /run/stack.toml </dev/null >/run/log 2>&1 & n=0; \
                 until test -S /run/array.sock; do sleep 0.1; n=$((n+1)); \
                 if test $n = 100; then cat /run/log >&2; exit 1; fi; done";
    guest.run(serve).ok();
    let kernel = "--ioengine=libaio --direct=1 --filename=/dev/md0";
    let ours = "--ioengine=nbd --uri=nbd+unix:///array?socket=/run/array.sock";
    println!(
        "job | kernel, IOPS | Drystone, IOPS | ratio (medians of {ROUNDS}, lowest to highest)"
    );
    for (name, options) in JOBS {
        let (mut theirs, mut own) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            theirs.push(iops(&mut guest, kernel, options));
            own.push(iops(&mut guest, ours, options));
        }
        let mut ratios: Vec<f64> =
            own.iter().zip(&theirs).map(|(own, kernel)| own / kernel).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ROUNDS - 1]);
        let (kernel, own) = (median(theirs), median(own));
        println!("{name} | {kernel:.0} | {own:.0} | {:.2} ({least:.2} to {most:.2})", own / kernel);
    }
    println!(
        "an emulated processor without AVX-512; the kernel's array by libaio on a block device, \
         Drystone's by NBD on a Unix socket, whose client and server share the same two processors"
    );
    guest.power_off().expect("it goes off");
}
