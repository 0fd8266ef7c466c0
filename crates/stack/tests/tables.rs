//! Any table that is shown reads back as the same table, in random stacks of volumes.

use std::path::Path;
use std::sync::Arc;

use drystone_core::Device;
use drystone_core::clock::ManualClock;
use drystone_stack::live::{OpenEnv, open_device, open_table};
use drystone_stack::spec::DeviceSpec;
use drystone_targets::{Volume, VolumeOptions};
use proptest::prelude::*;

/// Devices below every stack, of 2^31 sectors.
const LEAVES: [&str; 3] = ["a", "b.0", "c-d_e"];
const LEAF_SECTORS: u64 = 1 << 31;

/// The parts of a line: which target, how long, numbers for its arguments, and how it is written.
#[derive(Clone, Debug)]
struct Draw {
    target: usize,
    length: u64,
    numbers: [u32; 12],
    spaces: [usize; 4],
}

fn draws() -> impl Strategy<Value = Vec<Draw>> {
    let draw = (0..7usize, 1..5000u64, any::<[u32; 12]>(), any::<[usize; 4]>());
    let draw =
        draw.prop_map(|(target, length, numbers, spaces)| Draw { target, length, numbers, spaces });
    prop::collection::vec(draw, 1..7)
}

/// The devices that a table may name, with their sectors.
type Known = Vec<(String, u64)>;

impl Draw {
    /// A device and an offset from where it has `sectors` sectors.
    fn area(&self, known: &Known, choice: usize, sectors: u64) -> String {
        let choice = self.numbers[choice] as usize;
        let fits: Vec<_> = known.iter().filter(|(_, size)| *size >= sectors).collect();
        let (name, size) = fits[choice % fits.len()];
        // The last place as often as all others.
        let last = size - sectors;
        let offset = if choice.is_multiple_of(2) { last } else { choice as u64 % (last + 1) };
        format!("{name} {offset}")
    }

    /// Length and target, as `drystone table` shows them.
    fn words(&self, known: &Known) -> (u64, String) {
        let n = &self.numbers;
        let area = |choice, sectors| self.area(known, choice, sectors);
        match self.target {
            0 => (self.length, format!("linear {}", area(0, self.length))),
            1 => {
                let (stripes, chunk) = (n[0] as usize % 5 + 1, self.length % 300 + 1);
                let each = chunk * (u64::from(n[1]) % 4 + 1);
                let areas: String =
                    (0..stripes).map(|stripe| format!(" {}", area(2 + stripe, each))).collect();
                (each * stripes as u64, format!("striped {stripes} {chunk}{areas}"))
            }
            2 => (self.length, "zero".to_owned()),
            3 => (self.length, "error".to_owned()),
            4 => {
                let class = |class| format!(" {} {}", area(class, self.length), n[class + 3]);
                let classes: String = (0..n[7] as usize % 3 + 1).map(class).collect();
                (self.length, format!("delay{classes}"))
            }
            // It has no offset, so only leaves have room for it anywhere.
            5 => {
                let log = n[0] as usize % LEAVES.len();
                let device = LEAVES[(log + 1) % LEAVES.len()];
                (self.length, format!("log-writes {device} {}", LEAVES[log]))
            }
            _ => {
                let (up, down) = (n[1] / 2, n[2] / 2 + 1);
                let place = area(0, self.length);
                (self.length, format!("flakey {place} {up} {down} {}", self.features()))
            }
        }
    }

    /// In the order in which they are shown.
    fn features(&self) -> String {
        let n = &self.numbers;
        let mut words = Vec::new();
        if n[3].is_multiple_of(2) {
            words.push("error_reads".to_owned());
        }
        match n[3] / 2 % 3 {
            0 => words.push("drop_writes".to_owned()),
            1 => words.push("error_writes".to_owned()),
            _ => {}
        }
        if n[4].is_multiple_of(2) {
            // Those of writes exclude a fate of writes.
            let way = if n[3] / 2 % 3 == 2 && n[4].is_multiple_of(4) { "w" } else { "r" };
            words.push(format!("corrupt_bio_byte {} {way} {} 0", n[5].max(1), n[6] % 256));
        }
        if n[8].is_multiple_of(2) || words.is_empty() {
            words.push(format!("random_read_corrupt {}", n[9] % 1_000_000_000 + 1));
        }
        if n[8] % 4 < 2 {
            words.push(format!("random_write_corrupt {}", n[10] % 1_000_000_000 + 1));
        }
        let words = words.join(" ");
        format!("{} {words}", words.split(' ').count())
    }

    /// The same line as people may write it.
    fn written(&self, line: &str) -> String {
        let [between, before, after, comment] = self.spaces;
        let blank = |n: usize| [" ", "\t", "   ", " \t "][n % 4];
        let numbered = |(at, word): (usize, &str)| {
            let zeros =
                word.bytes().all(|byte| byte.is_ascii_digit()) && (between >> at).is_multiple_of(5);
            format!("{}{word}", if zeros { "00" } else { "" })
        };
        let words: Vec<_> = line.split(' ').enumerate().map(numbered).collect();
        let words = words.join(blank(between));
        let before = ["", " ", "\n \n", "# 0 8 zero\n\t"][before % 4];
        let after = ["", " ", "\t\r", "  "][after % 4];
        let comment = ["", " # why", "#", ""][comment % 4];
        format!("{before}{words}{after}{comment}\n")
    }
}

/// A table as it is shown, and as it may be written.
fn texts(draws: &[Draw], known: &Known) -> (String, String) {
    let (mut shown, mut written, mut start) = (String::new(), String::new(), 0);
    for draw in draws {
        let (length, words) = draw.words(known);
        let line = format!("{start} {length} {words}");
        written += &draw.written(&line);
        shown += &format!("{line}\n");
        start += length;
    }
    (shown, written)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn a_table_that_is_shown_reads_back(tables in prop::collection::vec(draws(), 1..5)) {
        let at = OpenEnv::new(1, ManualClock::new(1));
        let leaf = |name: &str| {
            let text = format!("null,size={}", LEAF_SECTORS * 512);
            let spec = DeviceSpec::parse(&text, Path::new("")).unwrap();
            open_device(&DeviceSpec { name: name.to_owned(), ..spec }, &at).unwrap()
        };
        let mut devices: Vec<Arc<dyn Device>> = LEAVES.map(leaf).to_vec();
        for (level, draws) in tables.iter().enumerate() {
            let size = |device: &Arc<dyn Device>| device.info().size_bytes / 512;
            let known = devices.iter().map(|device| (device.info().name, size(device))).collect();
            let (shown, written) = texts(draws, &known);
            let find = |name: &str| devices.iter().find(|d| d.info().name == name).cloned();
            let table = open_table(&written, &find, 1).map_err(TestCaseError::fail)?;
            prop_assert_eq!(&table.text(), &shown);
            let again = open_table(&table.text(), &find, 2).map_err(TestCaseError::fail)?;
            prop_assert_eq!(again.text(), shown);
            for sector in [0, 1, table.size_bytes() / 1024, table.size_bytes() / 512 - 1] {
                prop_assert_eq!(again.place(sector), table.place(sector));
            }
            let name = format!("v{level}");
            let volume = Volume::new(&name, VolumeOptions::default(), at.locks.counters());
            volume.load(again);
            volume.resume().unwrap();
            devices.push(Arc::new(volume));
        }
    }
}
