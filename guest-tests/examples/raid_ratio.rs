//! Runs the same fio jobs on the kernel's RAID-5 over RAM disks and on Drystone's over RAM devices,
//! in one boot. `scripts/bench-guest-raid.sh` runs it with a release build.
//!
//! The processor is emulated and has no AVX-512. System calls reach the kernel's array, NBD over a
//! Unix socket reaches Drystone's. So the output is a ratio for this machine, and says nothing of
//! any other.

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

/// The measure of the guest's clocks.
#[derive(Clone, Copy)]
enum Measure {
    /// Time, on two processors.
    Time,
    /// Instructions of its one processor, as nanoseconds: of fio, the kernel and the server
    /// together.
    Instructions,
}

impl Measure {
    const ALL: [Measure; 2] = [Measure::Time, Measure::Instructions];

    fn unit(self) -> &'static str {
        match self {
            Measure::Time => "IOPS",
            Measure::Instructions => "instructions an I/O",
        }
    }

    /// A run's length, s, after as much of a second for warming up.
    fn seconds(self) -> (u32, u32) {
        match self {
            Measure::Time => (4, 1),
            Measure::Instructions => (1, 0),
        }
    }

    fn figure(self, iops: f64) -> f64 {
        match self {
            Measure::Time => iops,
            Measure::Instructions => 1e9 / iops,
        }
    }

    /// A machine of this kind with both arrays, whose memory is zeroes.
    fn boot(self) -> Guest {
        let builder = Guest::builder().memory_mib(2048).program("mdadm").program("fio");
        let builder = builder.program(program());
        let mut guest = match self {
            Measure::Time => builder.start(),
            Measure::Instructions => builder.counting_instructions().start(),
        };
        guest.run_with_input("cat > /run/stack.toml", STACK.as_bytes()).ok();
        guest.run(MAKE).ok();
        guest.run(SERVE).ok();
        guest
    }
}

const MAKE: &str = "modprobe brd rd_nr=4 rd_size=65536 && modprobe raid456 && mkdir -p /run/mdadm \
    && MDADM_NO_UDEV=1 mdadm --create /dev/md0 --run --assume-clean -l 5 -n 4 -c 64 -b none \
    /dev/ram0 /dev/ram1 /dev/ram2 /dev/ram3 2>&1";

const SERVE: &str = "drystone serve /run/stack.toml </dev/null >/run/log 2>&1 & n=0; until test -S \
    /run/array.sock; do sleep 0.1; n=$((n+1)); if test $n = 100; then cat /run/log >&2; exit 1; \
    fi; done";

const KERNEL: &str = "--ioengine=libaio --direct=1 --filename=/dev/md0";
const OURS: &str = "--ioengine=nbd --uri=nbd+unix:///array?socket=/run/array.sock";

/// I/Os a second of the guest, of a job.
fn iops(guest: &mut Guest, target: &str, options: &str, (run, ramp): (u32, u32)) -> f64 {
    let text = guest.run(&format!(
        "fio --name=job --thread --size=180M --time_based --runtime={run} --ramp_time={ramp} \
         --randseed=1 --output-format=json {target} {options}"
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

/// Measures all jobs in one boot, and prints a table.
fn compare(measure: Measure) {
    let mut guest = measure.boot();
    let unit = measure.unit();
    println!("| job | kernel, {unit} | Drystone, {unit} | ratio (lowest to highest of {ROUNDS}) |");
    println!("|---|---|---|---|");
    for (name, options) in JOBS {
        let (mut theirs, mut own) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let mut figure =
                |target| measure.figure(iops(&mut guest, target, options, measure.seconds()));
            theirs.push(figure(KERNEL));
            own.push(figure(OURS));
        }
        let mut ratios: Vec<f64> =
            own.iter().zip(&theirs).map(|(own, kernel)| own / kernel).collect();
        ratios.sort_by(f64::total_cmp);
        let (least, most) = (ratios[0], ratios[ROUNDS - 1]);
        let (kernel, own) = (median(theirs), median(own));
        let ratio = own / kernel;
        println!("| {name} | {kernel:.0} | {own:.0} | {ratio:.2} ({least:.2} to {most:.2}) |");
    }
    println!();
    guest.power_off().expect("it goes off");
}

fn main() {
    if !available() || !requires("mdadm") || !requires("fio") {
        return;
    }
    Measure::ALL.into_iter().for_each(compare);
    println!(
        "An emulated processor without AVX-512; the kernel's array by libaio on a block device, \
         Drystone's by NBD on a Unix socket, whose client and server share the guest's processors. \
         Instructions are those of the whole guest, fio's and the kernel's parts included."
    );
}
