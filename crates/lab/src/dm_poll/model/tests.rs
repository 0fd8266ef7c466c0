//! Tests of the simulation: cases computed by hand, and properties that hold for all costs.

use super::load::{Figures, IoCosts, Load, Way, times_as_long};
use super::sim::simulate;
use crate::model::design::{Costs, Ps, Setting};

const NS: Ps = 1000;
const SKIP: Way = Way::Poll { skips: true };
const WAIT: Way = Way::Poll { skips: false };

const IO: IoCosts = IoCosts {
    submit_ps: 200 * NS,
    interrupt_ps: 400 * NS,
    look_ps: 20 * NS,
    hold_ps: 30 * NS,
    found_ps: 10 * NS,
    found_hold_ps: 15 * NS,
    tell_ps: 50 * NS,
    send_ps: 60 * NS,
    sleep_ps: 3000 * NS,
    waker_ps: 2000 * NS,
};

const COSTS: Costs = Costs {
    line_ps: 100 * NS,
    rest_ps: 100 * NS,
    spin_ps: 1000 * NS,
    yield_ps: 200 * NS,
    switch_ps: 1500 * NS,
    wake_ps: 2000 * NS,
    latency_ps: 5000 * NS,
    slice_ps: 100_000 * NS,
};

/// Lines cost nothing, and waiters never sleep.
const NO_LINES: Costs = Costs { line_ps: 0, spin_ps: 1_000_000_000 * NS, ..COSTS };

fn load(way: Way, queues: usize) -> Load {
    Load {
        way,
        depth: 128,
        striped: false,
        queues,
        latency_ps: 10_000 * NS,
        devices: 3,
        devices_had: 1.0,
    }
}

fn setting(cores: usize, threads: usize) -> Setting {
    let time_ps = 2_000_000 * NS;
    Setting { cores, threads, batch: 1, time_ps, had: 1.0, jitter: 0.5, seed: 1 }
}

fn run(load: &Load, io: &IoCosts, costs: &Costs, threads: usize) -> Figures {
    simulate(load, io, costs, &setting(threads, threads))
}

#[track_caller]
fn assert_about(found: f64, wanted: f64, part: f64) {
    assert!((found / wanted - 1.0).abs() < part, "{found}, not about {wanted}");
}

/// Each round submits one I/O and polls once, or a few times more if the oldest is late: the time
/// of a round is known.
#[test]
fn one_poller_takes_what_its_parts_take() {
    for way in [SKIP, WAIT] {
        let found = run(&load(way, 1), &IO, &COSTS, 1);
        let looks = found.polls_per_io * (20.0 + 30.0);
        assert_about(found.iops, 1e9 / (200.0 + looks + 10.0 + 15.0), 0.01);
        assert!((1.0..1.3).contains(&found.polls_per_io), "{found:?}");
        assert_eq!((found.skipped_per_io, found.foreign_per_io, found.contention), (0.0, 0.0, 0.0));
    }
    // Three parts, of which each look finds those of its member.
    let striped = Load { striped: true, ..load(SKIP, 1) };
    let found = run(&striped, &IO, &COSTS, 1);
    let looks = found.polls_per_io * (20.0 + 30.0);
    assert_about(found.iops, 1e9 / (200.0 + looks + 3.0 * (10.0 + 15.0)), 0.01);
    assert!((2.9..3.9).contains(&found.polls_per_io), "{found:?}");
}

/// By interrupt no thread polls, and the device's core may be the bottleneck.
#[test]
fn interrupts_take_what_their_parts_take() {
    let found = run(&load(Way::Interrupt, 1), &IO, &COSTS, 1);
    assert_about(found.iops, 1e9 / 400.0, 0.01);
    assert_eq!((found.polls_per_io, found.sleeps_per_io), (0.0, 0.0));
    let dear = IoCosts { tell_ps: 1000 * NS, ..IO };
    let one = Load { devices: 1, ..load(Way::Interrupt, 1) };
    let found = run(&one, &dear, &NO_LINES, 8);
    assert!(found.iops < 1e6 && found.sleeps_per_io > 0.0, "{found:?}");
    assert_about(found.device_busy, 1.0, 0.01);
    let half = Load { devices_had: 0.5, ..one };
    assert_about(run(&half, &dear, &NO_LINES, 8).iops, found.iops / 2.0, 0.15);
}

/// With one in flight each I/O takes its latency, and by interrupt a wake-up.
#[test]
fn one_in_flight_waits_for_its_device() {
    let parts: Vec<f64> = (0..1000).map(|n| times_as_long((f64::from(n) + 0.5) / 1000.0)).collect();
    let mean_ns = 10_000.0 * parts.iter().sum::<f64>() / 1000.0;
    let long = Setting { time_ps: 100_000_000 * NS, ..setting(1, 1) };
    let polled = Load { depth: 1, ..load(SKIP, 1) };
    let found = simulate(&polled, &IO, &COSTS, &long);
    // It polls every 50 ns, so it is late by half of that; and it sometimes offers its core.
    assert_about(found.iops, 1e9 / (mean_ns + 200.0 + 25.0 + 25.0), 0.02);
    let told = Load { way: Way::Interrupt, ..polled };
    let found = simulate(&told, &IO, &COSTS, &long);
    assert_about(found.iops, 1e9 / (mean_ns + 400.0 + 50.0 + 5000.0 + 1500.0), 0.02);
    assert_about(found.sleeps_per_io, 1.0, 0.01);
}

#[test]
fn the_tail_is_the_devices() {
    let times = [0.0, 0.5, 0.7, 0.9, 0.99, 0.999, 1.0].map(times_as_long);
    let wanted = [1.0, 1.0, 1.1, 1.2, 3.0, 6.0, 10.0];
    assert!(times.iter().zip(wanted).all(|(found, wanted)| (found - wanted).abs() < 1e-9));
}

/// Each poll holds the lock for a fixed time: if pollers wait for it, all of them together are
/// limited by that.
#[test]
fn who_waits_is_limited_by_the_hold() {
    let long = IoCosts { hold_ps: 1000 * NS, found_hold_ps: 0, ..IO };
    // A striped bio looks at three queues in turn, each held by one at a time.
    for (striped, threads) in [(true, 6), (true, 12), (false, 30)] {
        let load = Load { striped, ..load(WAIT, 1) };
        let found = run(&load, &long, &NO_LINES, threads);
        // Three locks, each held for 1 us a look.
        let looks = found.iops * found.polls_per_io;
        assert!(looks <= 3e6 * 1.01, "{looks}");
        assert!(found.contention > 0.3 && found.waits_per_io > 0.0, "{found:?}");
    }
    let skipping = run(&Load { striped: true, ..load(SKIP, 1) }, &long, &NO_LINES, 12);
    let waiting = run(&Load { striped: true, ..load(WAIT, 1) }, &long, &NO_LINES, 12);
    assert_about(waiting.iops, 1e6, 0.05);
    assert!(skipping.iops > 2.0 * waiting.iops, "{skipping:?}");
}

/// If a poll is the only cost of a queue, a thread that skips is at least as fast as one that
/// waits.
#[test]
fn skipping_is_never_slower_than_waiting() {
    for threads in [1, 2, 3, 8] {
        for hold_ps in [10 * NS, 100 * NS, 1000 * NS] {
            for line_ps in [0, 50 * NS, 200 * NS] {
                let io = IoCosts { hold_ps, ..IO };
                let costs = Costs { line_ps, ..COSTS };
                let iops = |way| run(&load(way, 1), &io, &costs, threads).iops;
                let (skipping, waiting) = (iops(SKIP), iops(WAIT));
                assert!(
                    skipping >= waiting * 0.97,
                    "{threads}, {io:?}, {line_ps}: {skipping}, {waiting}"
                );
            }
        }
    }
}

#[test]
fn pollers_with_a_queue_each_share_nothing() {
    for striped in [false, true] {
        let iops = |threads| {
            let load = Load { striped, ..load(WAIT, threads) };
            let found = run(&load, &IO, &COSTS, threads);
            assert_eq!((found.waits_per_io, found.foreign_per_io), (0.0, 0.0));
            found.iops
        };
        assert_about(iops(3), 3.0 * iops(1), 0.03);
    }
}

/// Three pollers on one core get as much as one, and a queue is busy only if its holder was
/// preempted while it held the lock.
#[test]
fn pollers_that_share_a_core_share_its_time() {
    let one = run(&load(SKIP, 1), &IO, &COSTS, 1).iops;
    for way in [SKIP, WAIT] {
        let costs = Costs { slice_ps: 1_000_000 * NS, ..COSTS };
        let long = Setting { time_ps: 30_000_000 * NS, ..setting(1, 3) };
        let found = simulate(&load(way, 1), &IO, &costs, &long);
        assert_about(found.iops, one, 0.05);
        assert!(found.skipped_per_io + found.waits_per_io < 0.05, "{found:?}");
        assert!(found.foreign_per_io > 0.0);
    }
}

#[test]
fn no_io_is_lost_and_the_same_values_give_the_same_figures() {
    for way in [Way::Interrupt, SKIP, WAIT] {
        for (cores, threads) in [(1, 1), (1, 3), (3, 3), (2, 5)] {
            for had in [1.0, 0.6] {
                let load = Load { striped: threads == 3, ..load(way, 1) };
                let setting = Setting { had, ..setting(cores, threads) };
                let found = simulate(&load, &IO, &COSTS, &setting);
                assert_eq!(found.begun, found.done + found.open, "{way:?}, {setting:?}");
                assert!(found.open <= 128 * threads as u64 && found.done > 0);
                assert_eq!(found, simulate(&load, &IO, &COSTS, &setting));
            }
        }
    }
}
