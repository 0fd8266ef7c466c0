//! Measures arrays on RAM disks: the cost of I/O, beside the cost of its parts.
//!
//! Prints Markdown; every round goes to the file of `--json`. The variants take turns, so that
//! other load of the machine affects all alike. The report has median, least and greatest.
//! Arguments: `--rounds N` (7), `--ms MILLISECONDS` of a sample (150), `--only WORD` (variants
//! whose names contain it), `--json FILE`.

#[path = "../../../crates/drystone/src/alloc.rs"]
mod alloc;
mod devices;
mod floor;
mod load;
mod report;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use devices::{CHUNK_SECTORS, MEMBER_BYTES, Spec, Subject};
use drystone_core::clock::SystemClock;
use drystone_core::{ContextSet, SECTOR_SIZE};
use drystone_raid::array::CACHE_STRIPES_DEFAULT;
use drystone_raid::layout::Level;
use drystone_raid::metadata::create::Policy;
use floor::{Floor, Rows};
use load::{Load, Pattern, Sample};
use report::Samples;

const PLAIN: Spec = Spec {
    name: "RAID-5",
    level: Level::Raid5,
    disks: 4,
    chunk_sectors: CHUNK_SECTORS,
    policy: Policy::Resync,
    cache_stripes: CACHE_STRIPES_DEFAULT,
    is_null: false,
    is_degraded: false,
};

const NULL: Spec = Spec { name: "RAID-5 on null devices", is_null: true, ..PLAIN };

const SMALL: Spec = Spec { name: "RAID-5, chunks of 4 KiB", chunk_sectors: 8, ..PLAIN };

const SIX: Spec = Spec { name: "RAID-6", level: Level::Raid6, disks: 6, ..PLAIN };

/// Writers' buffers of full stripes.
const DEPTH: usize = 32;

/// Something that is measured.
struct Variant<'a> {
    name: String,
    run: Box<dyn FnMut(Duration) -> Sample + 'a>,
}

/// The command line's options.
struct Options {
    rounds: usize,
    time: Duration,
    only: String,
    json: Option<String>,
}

fn options() -> Result<Options, String> {
    let mut options =
        Options { rounds: 7, time: Duration::from_millis(150), only: String::new(), json: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{name} takes a value"))?;
        let number = || {
            let number: Option<u32> = value.parse().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("{name}: `{value}` is no number from 1"))
        };
        match name.as_str() {
            "--rounds" => options.rounds = number()? as usize,
            "--ms" => options.time = Duration::from_millis(number()?.into()),
            "--only" => options.only = value,
            "--json" => options.json = Some(value),
            _ => return Err(format!("`{name}`: there is --rounds, --ms, --only and --json")),
        }
    }
    Ok(options)
}

/// The devices that variants use.
struct Devices {
    set: Arc<ContextSet>,
    arrays: Vec<(Spec, Subject)>,
    /// The devices to compare an array's reads with.
    striped: Vec<(&'static str, Subject)>,
}

impl Devices {
    /// Those that variants need whose names hold `only`.
    fn new(only: &str) -> Self {
        let set = ContextSet::new(SystemClock::new());
        let specs = [
            NULL,
            PLAIN,
            Spec { name: "RAID-5 with bitmap", policy: Policy::Bitmap, ..PLAIN },
            Spec { name: "RAID-5 with PPL", policy: Policy::Ppl, ..PLAIN },
            Spec { name: "RAID-5, degraded", is_degraded: true, ..PLAIN },
            SMALL,
            SIX,
            Spec { name: "RAID-6, degraded", is_degraded: true, ..SIX },
        ];
        let is_needed = |spec: &Spec| {
            let named = |(name, _): &(String, Load)| of(spec, name).contains(only);
            [PLAIN.name, NULL.name].contains(&spec.name) || loads(spec).iter().any(named)
        };
        let specs = specs.into_iter().filter(is_needed);
        let arrays: Vec<_> = specs.map(|spec| (spec, devices::array(&set, &spec))).collect();
        arrays.iter().for_each(|(_, array)| load::fill(&set, &array.device));
        let striped = vec![
            ("striped on null devices", devices::striped(&arrays[0].1)),
            ("striped", devices::striped(&arrays[1].1)),
        ];
        Devices { set, arrays, striped }
    }

    fn variants(&self) -> Vec<Variant<'_>> {
        let mut variants: Vec<_> =
            self.arrays.iter().flat_map(|(spec, array)| self.of_array(spec, array)).collect();
        for (name, striped) in &self.striped {
            let reads = random(Pattern::RandomRead).into_iter();
            let reads =
                reads.map(|(load, of)| self.variant(&format!("{name}, {load}"), striped, of));
            variants.extend(reads);
        }
        for (spec, _) in &self.arrays {
            for is_stable in [false, true].into_iter().filter(|_| has_floor(spec)) {
                let mut floor = None;
                let rows = rows(spec, is_stable);
                let run =
                    Box::new(move |time| floor.get_or_insert_with(|| Floor::new(rows)).run(time));
                variants.push(Variant { name: of(spec, floor_name(is_stable)), run });
            }
        }
        variants
    }

    fn variant<'a>(&'a self, name: &str, on: &'a Subject, load: Load) -> Variant<'a> {
        let run = Box::new(move |time| load::run(&self.set, on, &load, time));
        Variant { name: name.to_owned(), run }
    }

    fn of_array<'a>(&'a self, spec: &Spec, array: &'a Subject) -> Vec<Variant<'a>> {
        let variant = |(name, load): (String, Load)| self.variant(&of(spec, &name), array, load);
        loads(spec).into_iter().map(variant).collect()
    }
}

/// The name of a load on an array.
fn of(spec: &Spec, load: &str) -> String {
    format!("{}, {load}", spec.name)
}

fn loads(spec: &Spec) -> Vec<(String, Load)> {
    match spec {
        Spec { is_degraded: true, .. } => random(Pattern::RandomRead).into(),
        Spec { chunk_sectors: CHUNK_SECTORS, .. } => whole(spec),
        _ => full(spec),
    }
}

/// Its writes of whole rows stand beside what they cannot do without.
fn has_floor(spec: &Spec) -> bool {
    [PLAIN.name, SMALL.name, SIX.name].contains(&spec.name)
}

fn floor_name(is_stable: bool) -> &'static str {
    match is_stable {
        true => "stable memory: parity and the members' copies alone",
        false => "a copy, parity and the members' copies alone",
    }
}

fn rows(spec: &Spec, is_stable: bool) -> Rows {
    let parity = spec.parity_disks() as usize;
    Rows {
        data: spec.disks as usize - parity,
        parity,
        chunk_bytes: (spec.chunk_sectors * SECTOR_SIZE) as usize,
        member_bytes: MEMBER_BYTES,
        depth: DEPTH,
        is_stable,
    }
}

fn one(pattern: Pattern, bytes: u64, depth: usize) -> Load {
    Load { pattern, bytes, depth, contexts: 1, threads: 1, is_stable: false }
}

fn random(pattern: Pattern) -> [(String, Load); 2] {
    let what = if pattern == Pattern::RandomRead { "reads" } else { "writes" };
    [1, DEPTH]
        .map(|depth| (format!("4 KiB random {what}, depth {depth}"), one(pattern, 4096, depth)))
}

/// Writes of whole rows.
fn full(spec: &Spec) -> Vec<(String, Load)> {
    let bytes = u64::from(spec.disks - spec.parity_disks()) * spec.chunk_sectors * SECTOR_SIZE;
    let load = |(is_stable, depth)| {
        let name = if is_stable { "full stripes of stable memory" } else { "full stripes" };
        let load = Load { is_stable, ..one(Pattern::Write, bytes, depth) };
        (format!("{name}, depth {depth}"), load)
    };
    [(false, 1), (false, DEPTH), (true, 1), (true, DEPTH)].into_iter().map(load).collect()
}

fn whole(spec: &Spec) -> Vec<(String, Load)> {
    let writers = Load { contexts: 16, threads: 2, ..one(Pattern::RandomWrite, 4096, 1) };
    let mut loads = Vec::from(random(Pattern::RandomWrite));
    loads.push(("4 KiB random writes, 32 contexts on 2 threads".to_owned(), writers));
    for depth in [1, DEPTH] {
        let name = format!("64 KiB sequential writes, depth {depth}");
        loads.push((name, one(Pattern::Write, 64 << 10, depth)));
    }
    loads.extend(full(spec));
    loads.extend(random(Pattern::RandomRead));
    loads
}

/// The pairs to compare: a variant, and its reference.
const PAIRS: [(&str, &str); 10] = [
    (
        "RAID-5 on null devices, 4 KiB random reads, depth 1",
        "striped on null devices, 4 KiB random reads, depth 1",
    ),
    (
        "RAID-5 on null devices, 4 KiB random reads, depth 32",
        "striped on null devices, 4 KiB random reads, depth 32",
    ),
    ("RAID-5, full stripes, depth 1", "RAID-5, a copy, parity and the members' copies alone"),
    (
        "RAID-5, full stripes of stable memory, depth 1",
        "RAID-5, stable memory: parity and the members' copies alone",
    ),
    (
        "RAID-5, chunks of 4 KiB, full stripes of stable memory, depth 1",
        "RAID-5, chunks of 4 KiB, stable memory: parity and the members' copies alone",
    ),
    ("RAID-6, full stripes, depth 1", "RAID-6, a copy, parity and the members' copies alone"),
    (
        "RAID-6, full stripes of stable memory, depth 1",
        "RAID-6, stable memory: parity and the members' copies alone",
    ),
    (
        "RAID-5 with PPL, 4 KiB random writes, 32 contexts on 2 threads",
        "RAID-5, 4 KiB random writes, 32 contexts on 2 threads",
    ),
    ("RAID-5, 4 KiB random reads, depth 1", "striped, 4 KiB random reads, depth 1"),
    ("RAID-5, 4 KiB random reads, depth 32", "striped, 4 KiB random reads, depth 32"),
];

/// All variants, in turns.
fn measure(options: &Options) -> Vec<Samples> {
    let devices = Devices::new(&options.only);
    let mut variants = devices.variants();
    variants.retain(|variant| variant.name.contains(&options.only));
    let empty = |variant: &Variant<'_>| Samples { name: variant.name.clone(), samples: Vec::new() };
    let mut all: Vec<_> = variants.iter().map(empty).collect();
    for _ in 0..options.rounds {
        for (variant, samples) in variants.iter_mut().zip(&mut all) {
            samples.samples.push((variant.run)(options.time));
        }
    }
    all
}

fn print(all: &[Samples]) {
    println!("{}", report::HEAD);
    all.iter().for_each(|samples| println!("{}", samples.line()));
    println!();
    let find = |name: &str| all.iter().find(|samples| samples.name == name);
    for (one, beside) in PAIRS {
        if let (Some(one), Some(beside)) = (find(one), find(beside)) {
            println!("{}: {} of {}, by CPU time", one.name, one.cpu_ratio(beside), beside.name);
        }
    }
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(sentence) => {
            eprintln!("drystone-bench-raid: {sentence}");
            return ExitCode::from(2);
        }
    };
    let all = measure(&options);
    print(&all);
    let Some(path) = options.json else { return ExitCode::SUCCESS };
    let rounds = all.iter().map(|samples| (samples.name.clone(), samples.json()));
    let json = serde_json::Value::Object(rounds.collect());
    match std::fs::write(&path, format!("{json:#}\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("drystone-bench-raid: {path} cannot be written: {error}");
            ExitCode::FAILURE
        }
    }
}
