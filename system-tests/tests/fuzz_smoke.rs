//! Runs the fuzz targets' functions on stable, without libFuzzer: every committed input, then a
//! fixed number of seeded mutations of them.
//!
//! `DRYSTONE_FUZZ_SEED` and `DRYSTONE_FUZZ_RUNS` change seed and number; a failure prints the seed
//! and the input, so that it can be put into the corpus.

#![forbid(unsafe_code)]

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Mutated inputs for each target: enough to notice a gross fault, not a search.
const RUNS: u64 = 5_000;
/// The same where a run may take long: `make test-long`.
const LONG_RUNS: u64 = 20_000;
/// Inputs do not grow beyond this by mutation: the longest committed one is an eighth of it.
const INPUT_BYTES_MAX: usize = 64 * 1024;
const SEED: u64 = 0x00D5_70E5_EED0_0001;

#[test]
fn nbd_handshake() {
    smoke("nbd_handshake", drystone_exports::nbd::fuzz::fuzz_handshake);
}

#[test]
fn nbd_transmission() {
    smoke("nbd_transmission", drystone_exports::nbd::fuzz::fuzz_transmission);
}

#[test]
fn fuse_request() {
    smoke("fuse_request", drystone_exports::fuse::fuzz::fuzz_request);
}

#[test]
fn vhost_message() {
    smoke("vhost_message", drystone_exports::vhost::fuzz::fuzz_message);
}

#[test]
fn vhost_ring() {
    smoke("vhost_ring", drystone_exports::vhost::fuzz_ring::fuzz_ring);
}

#[test]
fn stack_file() {
    smoke("stack_file", |input| {
        drystone_stack::fuzz_stack_file(input);
    });
}

#[test]
fn raid_superblock() {
    smoke("raid_superblock", drystone_raid::fuzz::fuzz_superblock);
}

#[test]
fn raid_bitmap() {
    smoke("raid_bitmap", drystone_raid::fuzz::fuzz_bitmap);
}

#[test]
fn raid_ppl() {
    smoke("raid_ppl", drystone_raid::fuzz::fuzz_ppl);
}

#[test]
fn raid_places() {
    smoke("raid_places", drystone_raid::fuzz::fuzz_places);
}

#[test]
fn dm_table() {
    smoke("dm_table", |input| {
        drystone_stack::fuzz_table(input);
    });
}

#[test]
fn write_log() {
    smoke("write_log", |input| {
        drystone_targets::fuzz_write_log(input);
    });
}

#[test]
fn certificate() {
    smoke("certificate", drystone_exports::nbd::fuzz::fuzz_certificate);
}

#[test]
fn control_line() {
    smoke("control_line", drystone_stack::control::fuzz_control);
}

/// The run must notice a target that panics, or it proves nothing.
#[test]
fn a_panicking_target_is_noticed() {
    let outcome = catch_unwind(|| {
        smoke("stack_file", |input| assert!(!input.contains(&0x80), "canary"));
    });
    let message = *outcome.expect_err("the canary lives").downcast::<String>().expect("text");
    assert!(message.contains("seed"), "{message}");
}

fn smoke(target: &str, function: impl Fn(&[u8])) {
    let seed = number_from("DRYSTONE_FUZZ_SEED", SEED);
    let is_long = std::env::var_os("DRYSTONE_LONG").is_some();
    let runs = number_from("DRYSTONE_FUZZ_RUNS", if is_long { LONG_RUNS } else { RUNS });
    println!("{target}: seed {seed}, {runs} mutations");
    let corpus = corpus(target);
    for (name, input) in &corpus {
        run(&function, input, &format!("{target}, corpus file {name}, seed {seed}"));
    }
    let mut random = XorShift(seed.max(1));
    for round in 0..runs {
        let input = mutated(&corpus, &mut random);
        run(&function, &input, &format!("{target}, mutation {round}, seed {seed}"));
    }
}

fn run(function: impl Fn(&[u8]), input: &[u8], what: &str) {
    if catch_unwind(AssertUnwindSafe(|| function(input))).is_err() {
        panic!("{what}: panicked on {} bytes: {}", input.len(), input.escape_ascii());
    }
}

/// The committed inputs of a target, in order of name.
fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root");
    let folder = root.join("fuzz/corpus").join(target);
    let mut inputs: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("an entry"))
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            (name, fs::read(entry.path()).expect("a readable input"))
        })
        .collect();
    inputs.sort();
    assert!(inputs.len() > 10, "{}: the corpus is missing", folder.display());
    inputs
}

/// One input, changed in one to eight places.
fn mutated(corpus: &[(String, Vec<u8>)], random: &mut XorShift) -> Vec<u8> {
    let mut input = corpus[random.below(corpus.len())].1.clone();
    for _ in 0..=random.below(8) {
        mutate_once(&mut input, corpus, random);
    }
    input.truncate(INPUT_BYTES_MAX);
    input
}

fn mutate_once(input: &mut Vec<u8>, corpus: &[(String, Vec<u8>)], random: &mut XorShift) {
    let at = random.below(input.len() + 1);
    match random.below(7) {
        0 => input.insert(at, random.next() as u8),
        1 => input.truncate(at),
        2 => input.extend_from_slice(&corpus[random.below(corpus.len())].1),
        3 => {
            let end = at + random.below(input.len() + 1 - at);
            let part = input[at..end].to_vec();
            input.splice(at..at, part);
        }
        4 => write_at(input, at, &INTERESTING[random.below(INTERESTING.len())].to_be_bytes()),
        5 => write_at(input, at, &[random.next() as u8]),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
    }
}

/// Numbers at whose borders lengths and offsets break.
const INTERESTING: [u64; 8] = [
    0,
    1,
    u64::MAX,
    i64::MAX as u64,
    u32::MAX as u64,
    (u32::MAX as u64) << 32,
    0x2560_9513_0000_0000,
    0x4948_4156_454F_5054,
];

/// Overwrites as many bytes as fit.
fn write_at(input: &mut [u8], at: usize, bytes: &[u8]) {
    for (old, new) in input[at..].iter_mut().zip(bytes) {
        *old = *new;
    }
}

fn number_from(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number"))
    })
}

/// Marsaglia's xorshift with shifts 13, 7, 17: repeatable, and good enough to pick places.
struct XorShift(u64);

impl XorShift {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
