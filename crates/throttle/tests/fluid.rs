//! Random trees, limits, loads and changes in simulated time, against a fluid that runs through
//! pipes: rates, bounds, fairness, and that every bio ends once.

mod common;
#[path = "common/oracle.rs"]
mod oracle;

use common::*;
use drystone_core::{Bio, Op, Status};
use drystone_throttle::{Change, SLICE_NS};
use oracle::{Pipe, is_below, rates};
use proptest::prelude::*;
use std::collections::BTreeSet;

const CONTEXTS: usize = 3;
/// Bios that each group keeps in flight.
const DEPTH: usize = 12;
const STEP: u64 = MS;
const EPOCH: u64 = 36 * SECOND;
/// Not looked at after a change: what was owed at the former limit, of which it was up to a hundred
/// times as much, is paid at the new one.
const PAID: u64 = 6 * SECOND;

/// Limits and sizes.
#[derive(Clone, Copy, Debug)]
struct Ranges {
    bps: (u64, u64),
    iops: (u64, u64),
    /// Powers of two of 4 KiB.
    sizes: u32,
    /// How far rates may be from those of the fluid.
    rough: f64,
}

/// A bio that waits for others' I/Os at a limit that they share may be late by a slice, and loses
/// time beyond that. Here the I/Os of all that compete together are not worth much more.
const MODERATE: Ranges =
    Ranges { bps: (2 * MIB, 16 * MIB), iops: (40, 800), sizes: 4, rough: 0.01 };
/// Here one I/O may take seconds.
const WILD: Ranges = Ranges { bps: (64 * KIB, 8 * MIB), iops: (1, 800), sizes: 8, rough: 0.5 };

fn limit((least, most): (u64, u64)) -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 3 => (least..most).prop_map(Some)]
}

/// A group: its parent among those before it, its limits, and the size of its I/Os.
fn pipe(of: Ranges) -> impl Strategy<Value = (prop::sample::Index, Pipe)> {
    let size = prop_oneof![1 => Just(None), 4 => (0..of.sizes).prop_map(|n| Some(4096u64 << n))];
    (any::<prop::sample::Index>(), limit(of.bps), limit(of.iops), size)
        .prop_map(|(parent, bps, iops, size)| (parent, Pipe { parent: None, bps, iops, size }))
}

/// Trees under a top that is limited, so that every rate is finite.
fn tree(of: Ranges) -> impl Strategy<Value = Vec<Pipe>> {
    (prop::collection::vec(pipe(of), 1..8), 100u64..1000).prop_map(|(made, most)| {
        let mut pipes: Vec<Pipe> = Vec::new();
        for (parent, mut pipe) in made {
            match pipes.len() {
                0 => pipe.iops = Some(most),
                n => pipe.parent = Some(parent.index(n)),
            }
            pipes.push(pipe);
        }
        pipes
    })
}

/// New limits for one of the groups.
fn change(of: Ranges) -> impl Strategy<Value = NewLimits> {
    (any::<prop::sample::Index>(), limit(of.bps), limit(of.iops))
}

type NewLimits = (prop::sample::Index, Option<u64>, Option<u64>);

struct Run {
    bench: Bench,
    op: Op,
    paths: Vec<String>,
    ids: Vec<u32>,
    submitted: u64,
}

impl Run {
    fn new(pipes: &[Pipe], op: Op) -> Self {
        let bench = Bench::new(CONTEXTS);
        let mut run = Run { bench, op, paths: Vec::new(), ids: Vec::new(), submitted: 0 };
        for (at, pipe) in pipes.iter().enumerate() {
            let parent = pipe.parent.map_or(String::new(), |at| format!("{}/", run.paths[at]));
            let path = format!("{parent}g{at}");
            run.ids.push(run.bench.group(&path));
            run.paths.push(path);
            run.set(at, pipe);
        }
        run
    }

    fn set(&mut self, at: usize, pipe: &Pipe) {
        let change = match self.op {
            Op::Read => {
                Change { rbps: Some(pipe.bps), riops: Some(pipe.iops), ..Change::default() }
            }
            _ => Change { wbps: Some(pipe.bps), wiops: Some(pipe.iops), ..Change::default() },
        };
        self.bench.set(&self.paths[at], change);
    }

    fn submit(&mut self, context: usize, at: usize, size: u64) {
        self.submitted += 1;
        let bio = bio(self.op, self.ids[at], size, self.submitted);
        self.bench.submit(context, bio);
    }

    /// Keep all queues full for an epoch.
    fn go_on(&mut self, pipes: &[Pipe]) {
        for _ in 0..EPOCH / STEP {
            self.bench.clock.advance(STEP);
            for (context, ended) in self.bench.look() {
                self.again(context, ended, pipes);
            }
        }
    }

    fn again(&mut self, context: usize, mut bio: Box<Bio>, pipes: &[Pipe]) {
        let at = self.ids.iter().position(|id| *id == bio.group).unwrap();
        assert_eq!(bio.status, Status::Ok);
        assert_eq!(Some(bio.bytes), pipes[at].size);
        self.submitted += 1;
        bio.user_data = self.submitted;
        self.bench.submit(context, bio);
    }
}

/// In no window may more than limit times it and the slice, and one I/O, pass.
fn assert_bound(seen: &[Seen], run: &Run, pipes: &[Pipe], of: usize) {
    let below = |seen: &&Seen| {
        let at = run.ids.iter().position(|id| *id == seen.group).unwrap();
        is_below(pipes, at, of)
    };
    let ios: Vec<Seen> = seen.iter().filter(below).copied().collect();
    let check = |limit: Option<u64>, what: fn(&Seen) -> u64| {
        let Some(limit) = limit else { return };
        let largest = ios.iter().map(what).max().unwrap_or(0) as f64;
        let per_ns = limit as f64 / SECOND as f64;
        // The most that any window had beyond its time, by the best beginning so far.
        let (mut sum, mut least) = (0.0, f64::INFINITY);
        for io in &ios {
            let time = io.at as f64 * per_ns;
            least = f64::min(least, sum - time);
            sum += what(io) as f64;
            let beyond = sum - time - least;
            let most = per_ns * SLICE_NS as f64 + largest + 1e-3;
            assert!(beyond <= most, "{beyond} beyond a limit of {limit}, not {most}");
        }
    };
    check(pipes[of].bps, |seen| seen.bytes);
    check(pipes[of].iops, |_| 1);
}

/// The rates of the last epoch, but for its beginning, are those of the fluid.
fn assert_rates(seen: &[Seen], run: &Run, pipes: &[Pipe], since: u64, rough: f64) {
    let expected = rates(pipes);
    let time = (EPOCH - PAID) as f64 / SECOND as f64;
    for (at, expected) in expected.iter().enumerate() {
        let mine = |seen: &&Seen| seen.group == run.ids[at] && seen.at >= since + PAID;
        let got = seen.iter().filter(mine).count() as f64;
        let expected = expected * time;
        // An I/O more or less of each competitor, in I/Os of this group.
        let size = |pipe: &Pipe| pipe.size.unwrap_or(0) as f64;
        let one = |other: &Pipe| f64::max(size(other) / size(&pipes[at]), 1.0);
        let most = expected * rough + pipes.iter().map(one).sum::<f64>();
        // Far from it somebody gets more than of a fluid; nobody may get next to nothing.
        let beyond = if rough < 0.1 { (got - expected).abs() } else { expected - got };
        assert!(beyond <= most, "group {at} had {got} I/Os, not {expected}: {pipes:?}");
    }
}

fn check(of: Ranges, mut pipes: Vec<Pipe>, changes: Vec<NewLimits>, op: Op) {
    let mut run = Run::new(&pipes, op);
    for (at, pipe) in pipes.clone().iter().enumerate() {
        let Some(size) = pipe.size else { continue };
        (0..DEPTH).for_each(|n| run.submit((n + at) % CONTEXTS, at, size));
    }
    let mut since = 0;
    for round in 0..=changes.len() {
        run.go_on(&pipes);
        let seen = run.bench.seen();
        assert_rates(&seen, &run, &pipes, since, of.rough);
        let recent: Vec<Seen> = seen.into_iter().filter(|seen| seen.at > since + PAID).collect();
        (0..pipes.len()).for_each(|of| assert_bound(&recent, &run, &pipes, of));
        since += EPOCH;
        if let Some((at, bps, iops)) = changes.get(round) {
            let at = at.index(pipes.len());
            (pipes[at].bps, pipes[at].iops) =
                (*bps, if at == 0 { iops.or(Some(100)) } else { *iops });
            run.set(at, &pipes[at].clone());
        }
    }
    // Without limits all goes, once.
    let free = |pipe: &Pipe| Pipe { bps: None, iops: None, ..pipe.clone() };
    (0..pipes.len()).for_each(|at| run.set(at, &free(&pipes[at])));
    run.bench.look();
    run.bench.look();
    let ended: BTreeSet<u64> = run.bench.ended.iter().map(|(user_data, _)| *user_data).collect();
    assert_eq!(run.bench.ended.len() as u64, run.submitted, "every bio ends once");
    assert_eq!(ended.len() as u64, run.submitted);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5, ..ProptestConfig::default() })]

    #[test]
    fn rates_are_those_of_a_fluid(
        pipes in tree(MODERATE),
        changes in prop::collection::vec(change(MODERATE), 0..3),
        writes: bool,
    ) {
        check(MODERATE, pipes, changes, if writes { Op::Write } else { Op::Read });
    }

    #[test]
    fn nobody_starves_and_no_bound_is_broken(
        pipes in tree(WILD), changes in prop::collection::vec(change(WILD), 0..3), writes: bool,
    ) {
        check(WILD, pipes, changes, if writes { Op::Write } else { Op::Read });
    }
}
