//! The simulator itself: seeds that must pass, what they must have met, and mistakes that they must
//! find. Only in builds that have points inside calls: `make sim-test`.
#![cfg(drystone_sim)]

use drystone_sim::MISTAKES;
use drystone_sim::counts::Counts;
use drystone_sim::runner::{self, Order, SCENARIOS, Scenario, scenario};

/// Seeds that are run each time, from 1 on.
const FIXED: u64 = 300;
/// Seeds within which a mistake must be found.
const FOUND_WITHIN: u64 = 600;

/// Seeds that once failed by a fault of the product, with the change that cured it. Their runs have
/// changed with the simulator since; each fault can be made again by its mistake or is held by a
/// test of its own.
const ONCE_FAILED: [(u64, &str); 4] = [
    (42, "core: the part of a part has its memory noted in itself"),
    (76, "core: a plug holds only what its owner submits"),
    (356, "targets: who waits for a log watches the context that writes it"),
    (467, "targets: who waits for a log watches the context that writes it"),
];

/// The events that the fixed seeds of `mixed` must have met, each at least so often.
const MET: [(&str, u64); 64] = [
    ("read succeeded", 10_000),
    ("write succeeded", 10_000),
    ("flush succeeded", 1_000),
    ("discard succeeded", 100),
    ("write zeroes succeeded", 100),
    ("I/O", 100_000),
    ("read", 10_000),
    ("write", 10_000),
    ("flush", 1_000),
    ("discard", 100),
    ("write zeroes", 100),
    ("FUA", 100),
    ("PREFLUSH", 100),
    ("NOWAIT", 100),
    ("POLLED", 100),
    ("NOUNMAP", 100),
    ("on leaf", 100),
    ("on linear", 100),
    ("on striped", 100),
    ("on stacked", 100),
    ("on moving", 100),
    ("on delay", 100),
    ("on flakey", 100),
    ("on zero", 100),
    ("on error", 100),
    ("on log-writes", 100),
    ("scheduler none", 100),
    ("scheduler mq-deadline", 100),
    ("reload", 100),
    ("suspend", 10),
    ("move", 10),
    ("growth", 5),
    ("reopen after a failed flush", 5),
    ("create", 10),
    ("remove", 10),
    ("limit", 10),
    ("group created", 5),
    ("group removed", 5),
    ("poll mode", 10),
    ("set queue/scheduler", 10),
    ("set queue/nr_requests", 10),
    ("set queue/hw_queues", 10),
    ("set queue/nomerges", 10),
    ("set queue/max_sectors_kb", 10),
    ("set queue/io_timeout", 10),
    ("set queue/io_poll", 10),
    ("context dropped", 100),
    ("power cut", 300),
    ("kill", 20),
    ("compared after a start", 1_000),
    ("disk: cut_lost", 100),
    ("disk: cut_kept", 100),
    ("disk: read_errors", 10),
    ("disk: write_errors", 10),
    ("disk: flush_errors", 5),
    ("disk: bad_reads", 5),
    ("disk: bad_writes", 5),
    ("disk: stalls", 5),
    ("disk: shorts", 10),
    ("disk: interrupted", 100),
    ("disk: again", 10),
    ("disk: no_space", 2),
    ("disk: vanishes", 2),
    ("disk: lies", 100),
];

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// All is well with so many seeds; what they met.
fn passes(scenario: &Scenario, first: u64, count: u64) -> Counts {
    let seeds = runner::seeds(first, count);
    let summary = runner::run(scenario, None, threads(), seeds, |_| ());
    if let Some((seed, outcome)) = summary.failed {
        let why = outcome.failure.map(|why| why.to_string()).unwrap_or_default();
        let name = scenario.name;
        panic!("drystone sim --scenario {name} --seed {seed}\n{why}");
    }
    assert_eq!(summary.seeds, count);
    summary.counts
}

#[test]
fn the_fixed_seeds_pass_and_meet_everything() {
    let mut counts = passes(&SCENARIOS[0], 1, FIXED);
    for (seed, _) in ONCE_FAILED {
        counts.add_all(&passes(&SCENARIOS[0], seed, 1));
    }
    for (name, count) in counts.iter() {
        println!("{count:>12}  {name}");
    }
    let missed = MET.iter().filter(|(name, least)| counts.get(name) < *least);
    let missed: Vec<_> = missed.map(|(name, _)| (name, counts.get(name))).collect();
    assert!(missed.is_empty(), "met too rarely: {missed:?}");
}

#[test]
fn each_seed_does_its_share() {
    runner::quiet_panics();
    for seed in 1..=20 {
        let outcome = (SCENARIOS[0].run)(&Order { seed, ..Order::default() });
        let counts = &outcome.counts;
        assert!(outcome.failure.is_none(), "seed {seed}: {:?}", outcome.failure);
        assert!(outcome.ios >= 2000, "seed {seed}: {} I/Os", outcome.ios);
        assert!(outcome.contexts >= 4);
        assert!(counts.get("reload") + counts.get("reload refused") > 0, "seed {seed}");
        assert!(counts.get("power cut") > 0 && counts.get("start") > 1, "seed {seed}");
        assert!(counts.get("faults begin") > 0, "seed {seed}");
    }
}

#[test]
fn other_scenarios_pass_their_fixed_seeds() {
    for scenario in &SCENARIOS[1..] {
        let (first, count) = seeds_of(scenario);
        let counts = passes(scenario, first, count);
        let met = match scenario.name {
            "raid" => &MET_BY_ARRAYS[..],
            "raid-crash" => &MET_BY_CRASHES[..],
            "raid-metadata" => &MET_BY_EDITS[..],
            "bad-sectors" => &MET_BY_BAD_SECTORS[..],
            "shrinks" => &MET_BY_CUTS[..],
            "nbd" => &MET_BY_CLIENTS[..],
            _ => &[],
        };
        let missed: Vec<_> = met.iter().filter(|name| counts.get(name) == 0).collect();
        assert!(missed.is_empty(), "not met: {missed:?}");
    }
}

/// The first of the fixed seeds of another scenario than `mixed`, and their number: they meet what
/// they must. Of arrays, which take longest, they are the range that does so in the least time.
fn seeds_of(scenario: &Scenario) -> (u64, u64) {
    match scenario.name {
        "raid" => (101, 100),
        "raid-crash" => (16, 18),
        "raid-metadata" => (1, 40),
        "crash" => (1, 15),
        _ => (1, 60),
    }
}

/// A seed of this scenario takes as long as so many of others: each restart synchronises and checks
/// an array.
fn share(scenario: &Scenario) -> u64 {
    if scenario.name == "raid-crash" { 10 } else { 1 }
}

/// The events that the fixed seeds of `raid` must have met.
const MET_BY_ARRAYS: [&str; 31] = [
    "on an array",
    "power cut",
    "kill",
    "array: fail",
    "array: remove",
    "array: add",
    "array: replace",
    "array: check",
    "array: check asked",
    "array: repair asked",
    "array: frozen",
    "array: cache resized",
    "array: forced",
    "array: compared without members",
    "array: read errors",
    "array: write errors",
    "array: flush errors",
    "array: bad to read",
    "array: bad to write",
    "array: writes fail",
    "array: a disk fails",
    "array: a disk vanishes",
    "array: read errors of a source in a rebuild",
    "array: write errors of the target in a rebuild",
    "array: stopped",
    "array: stopped in a rebuild",
    "array: started in a recovery",
    "array: started beside an old member",
    "array: waited for room",
    "disk: no_space",
    "context dropped",
];

/// Ways of writing a stripe, and what happens to members beside writes, at whose moments the fixed
/// seeds of `raid-crash` must have cut the power; and what they must have found on the disks then.
const MET_BY_CRASHES: [&str; 15] = [
    "stripe: read-modify-write",
    "stripe: reconstruct-write",
    "stripe: full write",
    "stripe: bitmap",
    "stripe: partial parity log",
    "crash: restart, a member failed beside writes",
    "crash: restart, a member was away beside writes",
    "crash: restart, a member came back beside writes",
    "crash: restart, a new member came beside writes",
    "crash: restart, a member was replaced beside writes",
    "crash: restart, checked beside writes",
    "crash: restart, repaired beside writes",
    "array: started beside an old member",
    "array: started in a recovery",
    "array: started in a recovery by bitmap",
];

/// The events that the fixed seeds of `raid-metadata` must have met.
const MET_BY_EDITS: [&str; 12] = [
    "edited: started",
    "edited: refused",
    "edited: a member left out",
    "edited: an older copy",
    "edited: a wrong checksum",
    "edited: no superblock",
    "edited: a bitmap that disagrees",
    "edited: the role of another",
    "edited: another age",
    "edited: another size or shape",
    "edited: other places or features",
    "edited: disks change places",
];

/// The events that the fixed seeds of `bad-sectors` must have met.
const MET_BY_BAD_SECTORS: [&str; 5] =
    ["on leaf", "on delay", "disk: bad_reads", "disk: bad_writes", "failed"];

/// The events that the fixed seeds of `nbd` must have met.
const MET_BY_CLIENTS: [&str; 3] = ["nbd: session", "nbd: part of a block", "net: piped"];

/// The events that the fixed seeds of `shrinks` must have met.
const MET_BY_CUTS: [&str; 7] = [
    "on leaf",
    "on delay",
    "on an array",
    "a file is cut off",
    "array: a member's file is cut off",
    "array: a member failed that was cut off",
    "disk: past_end",
];

/// The proof that the simulator can find anything at all.
#[test]
fn every_mistake_is_found() {
    runner::quiet_panics();
    for mistake in MISTAKES {
        for name in mistake.scenarios {
            let scenario = scenario(name).expect("its scenario");
            let within = FOUND_WITHIN / share(scenario);
            let seeds = runner::seeds(searched_from(mistake.name, name), within);
            let found = runner::run(scenario, Some(mistake.name), threads(), seeds, |_| ());
            let Some((seed, outcome)) = found.failed else {
                panic!("{}: not found within {within} seeds of {name}", mistake.name);
            };
            let why = outcome.failure.map(|why| why.to_string()).unwrap_or_default();
            let why: Vec<_> =
                why.lines().take(2).map(|line| &line[..line.len().min(160)]).collect();
            println!("{}: {name}, seed {seed}: {}", mistake.name, why.join(" ... "));
        }
    }
    assert!(MISTAKES.iter().any(|mistake| mistake.within_a_call));
}

/// The first seed of a search: the one that finds the mistake, where earlier ones take seconds. If
/// it no longer does, the search goes on from there.
fn searched_from(mistake: &str, scenario: &str) -> u64 {
    match (mistake, scenario) {
        ("failure_off_record", "raid") => 31,
        ("failure_off_record", "raid-crash") => 58,
        ("flush_failure_forgotten", "mixed") => 32,
        ("intent_too_late", "raid-crash") => 3,
        ("log_too_late", "raid") => 94,
        ("log_too_late", "raid-crash") => 22,
        ("plug_goes_on", "mixed") => 39,
        ("quiesced_in_flight", "mixed") => 180,
        ("repair_races_writes", "raid") => 68,
        ("short_move_is_all", "nbd") => 342,
        ("take_in_two_steps", "mixed") => 26,
        _ => 1,
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for scenario in &SCENARIOS {
        // A seed of these two takes a second each time.
        let is_slow = ["crash", "raid-crash"].contains(&scenario.name);
        let seeds = if is_slow { &[7][..] } else { &[1, 7, 23] };
        for &seed in seeds {
            let run = |trace| (scenario.run)(&Order { seed, trace, ..Order::default() });
            let (first, traced) = (run(false), run(true));
            assert_eq!(first.digest, traced.digest, "{} {seed}", scenario.name);
            assert_eq!(first.counts, traced.counts, "{} {seed}", scenario.name);
            // Not by assert_eq, which would print both.
            assert!(traced.trace == run(true).trace, "{} {seed}: another trace", scenario.name);
        }
    }
}

/// A failure can be made smaller, and is then still one.
#[test]
fn a_failure_is_made_smaller() {
    runner::quiet_panics();
    let order = Order { seed: 1, mistake: Some("completion_lost"), ..Order::default() };
    let failed = (SCENARIOS[0].run)(&order);
    assert!(failed.failure.is_some());
    let keep = runner::smallest(&SCENARIOS[0], &order, failed.ios);
    println!("{} of {} I/Os", keep.len(), failed.ios);
    assert!(keep.len() < 200, "{} I/Os", keep.len());
    assert!((SCENARIOS[0].run)(&Order { keep: Some(keep), ..order }).failure.is_some());
}
