//! Tests of the simulation: cases computed by hand, and properties that hold for all costs.

use super::super::design::{Act, Costs, Design, Figures, Loser, Ps, Section, Setting};
use super::simulate;

const NS: Ps = 1000;
const COSTS: Costs = Costs {
    line_ps: 50 * NS,
    rest_ps: 100 * NS,
    spin_ps: 1000 * NS,
    yield_ps: 200 * NS,
    switch_ps: 1500 * NS,
    wake_ps: 2000 * NS,
    latency_ps: 5000 * NS,
    slice_ps: 100_000 * NS,
};

const NO_COSTS: Costs = Costs {
    line_ps: 0,
    rest_ps: 10 * NS,
    spin_ps: 10 * NS,
    yield_ps: 10 * NS,
    switch_ps: 0,
    wake_ps: 0,
    latency_ps: 0,
    slice_ps: 2000 * NS,
};

fn setting(cores: usize, threads: usize) -> Setting {
    let time_ps = 300_000 * NS;
    Setting { cores, threads, batch: 4, time_ps, had: 1.0, jitter: 0.5, seed: 1 }
}

fn short(cores: usize, threads: usize) -> Setting {
    Setting { time_ps: 150_000 * NS, ..setting(cores, threads) }
}

/// A setting without random spread.
fn exact(cores: usize, threads: usize) -> Setting {
    Setting { jitter: 0.0, ..setting(cores, threads) }
}

fn section(act: Act, loser: Loser) -> Section {
    Section { lock: 0, times: 1, act, loser, hold_ps: 100 * NS, lines: 0 }
}

fn design(sections: &[Section]) -> Design {
    Design { outside_ps: 300 * NS, run_ps: 25 * NS, sections: sections.to_vec(), foreign_lines: 2 }
}

fn locked(loser: Loser) -> Design {
    design(&[section(Act::Insert, loser), section(Act::TakeOne, loser)])
}

fn turn() -> Design {
    design(&[section(Act::InsertAndTakeAll, Loser::HandOver)])
}

fn staged() -> Design {
    let look = Section { times: 4, hold_ps: 10 * NS, ..section(Act::Look, Loser::GoOn) };
    let stage = Section { lock: 1, hold_ps: 10 * NS, ..section(Act::Insert, Loser::Sleep) };
    design(&[look, stage, section(Act::TakeOne, Loser::HandOver)])
}

fn all() -> [(&'static str, Design); 7] {
    [
        ("alone", design(&[])),
        ("sleep", locked(Loser::Sleep)),
        ("spin", locked(Loser::Spin)),
        ("queue", locked(Loser::Queue)),
        ("staged", staged()),
        ("turn", turn()),
        ("bare", Design { outside_ps: NS, run_ps: NS, ..design(&[]) }),
    ]
}

fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.02
}

/// I/Os a second if every `ps` brings so many.
fn rate(ios: f64, ps: Ps) -> f64 {
    ios * 1e12 / ps as f64
}

#[test]
fn every_io_is_done_and_nobody_waits_for_ever() {
    for (name, design) in all() {
        for (cores, threads) in [(1, 1), (1, 5), (2, 2), (2, 32), (3, 7), (16, 16), (64, 8)] {
            for costs in [COSTS, NO_COSTS] {
                let found = simulate(&design, &costs, &short(cores, threads));
                let place = format!("{name}: {threads} threads, {cores} cores: {found:?}");
                assert_eq!(found.begun, found.done + found.open, "{place}");
                assert!(found.open <= 4 * threads as u64, "one batch a thread: {place}");
                assert!(found.done > 0 && found.iops > 0.0, "{place}");
                assert!((0.0..=1.0).contains(&found.contention), "{place}");
            }
        }
    }
}

#[test]
fn one_thread_meets_nobody() {
    for (name, design) in all() {
        let found = simulate(&design, &COSTS, &exact(4, 1));
        let Figures { contention, foreign, preemptions, sleeps, .. } = found;
        assert_eq!((contention, foreign, preemptions, sleeps), (0.0, 0, 0, 0), "{name}");
    }
    // 300 outside, insertion and four dispatches of 100, four runs of 25.
    let found = simulate(&locked(Loser::Sleep), &COSTS, &exact(1, 1));
    assert!(near(found.iops, rate(4.0, 900 * NS)), "{found:?}");
    // 300, one hold of four times 100, four runs.
    let found = simulate(&turn(), &COSTS, &exact(1, 1));
    assert!(near(found.iops, rate(4.0, 800 * NS)), "{found:?}");
}

#[test]
fn the_same_inputs_give_the_same_run() {
    for (name, design) in all() {
        let run = |seed| simulate(&design, &COSTS, &Setting { seed, ..setting(2, 9) });
        assert_eq!(run(7), run(7), "{name}");
    }
    let run = |seed| simulate(&turn(), &COSTS, &Setting { seed, ..setting(8, 8) });
    assert_ne!(run(7), run(8), "the seed matters");
}

#[test]
fn threads_that_share_a_core_share_its_time() {
    let alone = design(&[]);
    let one = simulate(&alone, &COSTS, &exact(1, 1)).iops;
    // A slice of 100 us, of it a switch of 1.5 us.
    let four = simulate(&alone, &COSTS, &exact(1, 4));
    assert!(near(four.iops, one * (1.0 - 1.5e-2)), "{four:?}");
    assert_eq!(four.preemptions, 3, "in 330 us");
    let two = simulate(&alone, &COSTS, &exact(2, 2)).iops;
    assert!(near(two, 2.0 * one));
}

/// A core that is available for a third of the time does a third of the work.
#[test]
fn cores_that_are_not_had_do_nothing() {
    let had = Setting { time_ps: 10_000_000 * NS, had: 1.0 / 3.0, ..exact(2, 2) };
    let alone = design(&[]);
    let all = simulate(&alone, &COSTS, &exact(2, 2)).iops;
    let found = simulate(&alone, &COSTS, &had);
    assert!((found.iops / all * 3.0 - 1.0).abs() < 0.15, "{found:?} of {all}");
    for (name, design) in self::all() {
        let found = simulate(&design, &COSTS, &had);
        assert!(found.done > 0 && found.begun == found.done + found.open, "{name}: {found:?}");
    }
}

#[test]
fn more_cores_never_make_none_slower() {
    let mut last = 0.0;
    for cores in [1, 2, 4, 8, 16, 32, 64, 128] {
        let found = simulate(&design(&[]), &COSTS, &setting(cores, cores)).iops;
        assert!(found > last * 0.99, "{cores} cores: {found} after {last}");
        last = found;
    }
}

#[test]
fn a_queued_lock_is_full_at_a_hold_and_a_transfer() {
    let mut full = design(&[Section { times: 4, ..section(Act::Look, Loser::Queue) }]);
    full.sections.push(section(Act::InsertAndTakeAll, Loser::Queue));
    full.sections[1].lock = 1;
    full.sections[1].hold_ps = 1;
    // 4 I/Os for 4 holds, each of them with a transfer.
    let bound = rate(4.0, 4 * 150 * NS);
    let found = simulate(&full, &COSTS, &setting(16, 16));
    assert!(near(found.iops, bound), "{found:?} and not {bound}");
    assert!(found.contention > 0.6, "{found:?}");
    full.sections[0].lines = 2;
    let found = simulate(&full, &COSTS, &setting(16, 16));
    assert!(near(found.iops, rate(4.0, 4 * 250 * NS)), "two more lines: {found:?}");
}

#[test]
fn spinning_cores_slow_the_holder_down() {
    let run = |loser, cores| simulate(&locked(loser), &COSTS, &setting(cores, cores));
    let (queue, spin) = (run(Loser::Queue, 32), run(Loser::Spin, 32));
    assert!(spin.iops < 0.5 * queue.iops, "{spin:?} {queue:?}");
    assert!(run(Loser::Spin, 64).iops < spin.iops, "the more, the slower");
}

/// Two threads, no lines: a holder of 10 us makes the other spin 1 us, and sleep. The wake-up of
/// 2 us is the holder's, the way back takes 5 us and a switch.
#[test]
fn sleepers_are_charged_for_sleep() {
    let long = Section { hold_ps: 10_000 * NS, ..section(Act::Look, Loser::Sleep) };
    let all = Section { lock: 1, hold_ps: 1, ..section(Act::InsertAndTakeAll, Loser::Queue) };
    let asleep = design(&[long, all]);
    let lines = Costs { line_ps: 0, ..COSTS };
    let found = simulate(&asleep, &lines, &exact(2, 2));
    assert!(found.sleeps > 0, "{found:?}");
    let queue = Section { loser: Loser::Queue, ..long };
    let awake = design(&[queue, all]);
    let bound = simulate(&awake, &lines, &exact(2, 2));
    assert!(near(bound.iops, rate(4.0, 10_000 * NS)), "{bound:?}");
    assert!(found.iops < bound.iops, "nobody sleeps for nothing: {found:?}");
    // On one core, where a holder loses it once a slice, waker and sleeper pay with the same time.
    let long = 100_000 * NS;
    let shared = Setting { time_ps: 3_000_000 * NS, ..exact(1, 2) };
    let usual = simulate(&asleep, &lines, &shared);
    for dear in [Costs { wake_ps: long, ..lines }, Costs { switch_ps: long, ..lines }] {
        let slower = simulate(&asleep, &dear, &shared);
        assert!(slower.iops < 0.8 * usual.iops, "{dear:?}: {slower:?} after {usual:?}");
    }
}

/// No thread waits for the turn: a loser hands over.
#[test]
fn the_turn_has_no_contention_and_hands_over() {
    let found = simulate(&turn(), &COSTS, &setting(8, 8));
    assert_eq!(found.contention, 0.0);
    assert!(found.foreign > 0, "{found:?}");
    let full = simulate(&turn(), &COSTS, &setting(64, 64));
    assert!(full.iops < rate(1.0, 100 * NS) * 1.02, "one hold an I/O: {full:?}");
}

/// Worked out by hand: one core, two threads, and a holder that loses its core in the hold. The
/// other spins for its whole slice.
#[test]
fn who_spins_for_a_holder_off_its_core_spins_a_slice() {
    let long = Section { hold_ps: 90_000 * NS, ..section(Act::Look, Loser::Spin) };
    let all = Section { lock: 1, hold_ps: 1, ..section(Act::InsertAndTakeAll, Loser::Spin) };
    let design = Design { outside_ps: 50_000 * NS, run_ps: 0, ..design(&[long, all]) };
    let free = Costs { line_ps: 0, switch_ps: 0, ..COSTS };
    let found = simulate(&design, &free, &exact(1, 2));
    // In us: A is 50 outside and holds 50 of 90; B, from 100, is 50 outside and spins 50; A, from
    // 200, holds the 40 left, and is 50 outside and tries. B, from 300, holds.
    assert_eq!((found.preemptions, found.done), (3, 4), "{found:?}");
    assert!(found.contention > 0.1);
}

/// A thread that was woken for a lock may find nothing left to take, and then does not need the
/// lock. Others that sleep for the lock must still be woken.
#[test]
fn nobody_sleeps_for_ever() {
    for seed in 1..=20 {
        for (cores, threads) in [(2, 3), (2, 4), (3, 4), (6, 4), (6, 6)] {
            for latency_ns in [0, 500, 5000] {
                let costs = Costs { spin_ps: 0, latency_ps: latency_ns * NS, ..COSTS };
                let mut design = locked(Loser::Sleep);
                design.sections.iter_mut().for_each(|section| section.hold_ps = 1000 * NS);
                let figures = simulate(&design, &costs, &Setting { seed, ..short(cores, threads) });
                assert!(figures.done > 0, "seed {seed}, {threads} threads: {figures:?}");
            }
        }
    }
}
