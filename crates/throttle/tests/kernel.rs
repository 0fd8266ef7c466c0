//! The acceptance tests that the kernel's throttle has to pass (blktests, group `throtl`), in
//! simulated time. Times are seconds, right to within the slice.

mod common;
use common::*;
use drystone_core::clock::AGE_BOUND_NS;
use drystone_core::{Op, Status};
use drystone_throttle::{Change, SLICE_NS};

/// Submit `count` I/Os of `bytes` at once, and return when each passed.
fn all_at_once(bench: &mut Bench, op: Op, group: u32, count: u64, bytes: u64) -> Vec<u64> {
    (0..count).for_each(|n| bench.submit(0, bio(op, group, bytes, n)));
    bench.run(20 * SECOND, MS);
    let seen = bench.seen();
    assert!(seen.iter().map(|seen| seen.bytes).sum::<u64>() == count * bytes, "all of it passed");
    seen.iter().map(|seen| seen.at).collect()
}

fn assert_near(at: u64, seconds: u64) {
    let expected = seconds * SECOND;
    assert!(at <= expected + 2 * MS && at + SLICE_NS >= expected, "{at} ns, not {seconds} s");
}

/// throtl/001: 256 I/Os of 4 KiB at 1 MiB/s, and at 256 IOPS, take a second.
#[test]
fn a_second_of_small_ios() {
    for op in [Op::Read, Op::Write] {
        for change in [bps(MIB, MIB), iops(256, 256)] {
            let mut bench = Bench::new(1);
            let group = bench.group("a");
            bench.set("a", change);
            let at = all_at_once(&mut bench, op, group, 256, 4 * KIB);
            assert_near(at[255], 1);
        }
    }
}

/// A caller that comes again sooner than a shared reading of the clock may grow old, all the time.
#[test]
fn shared_readings_of_the_clock_do_not_add_up() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", iops(20_000, 20_000));
    (0..20_000).for_each(|n| bench.submit(0, bio(Op::Read, group, 4 * KIB, n)));
    bench.run(SECOND + 5 * MS, AGE_BOUND_NS / 4);
    let at: Vec<u64> = bench.seen().iter().map(|seen| seen.at).collect();
    assert_eq!(at.len(), 20_000);
    assert_near(at[19_999], 1);
}

/// throtl/002: I/Os are charged for each part that the device takes at once.
#[test]
fn parts_are_ios() {
    let mut bench = Bench::with_most(1, 4 * KIB);
    let group = bench.group("a");
    bench.set("a", iops(256, 256));
    let at = all_at_once(&mut bench, Op::Write, group, 1, MIB);
    assert_eq!(at.len(), 256);
    assert_near(at[255], 1);
    assert_eq!(bench.ended, [(0, Status::Ok)]);
}

/// throtl/003: bytes are charged once.
#[test]
fn bytes_are_charged_once() {
    let mut bench = Bench::with_most(1, 4 * KIB);
    let group = bench.group("a");
    bench.set("a", bps(MIB, MIB));
    let at = all_at_once(&mut bench, Op::Write, group, 1, MIB);
    assert_near(at[255], 1);
}

/// throtl/005: what was waited for under one limit counts under the next.
#[test]
fn a_change_of_the_limit_keeps_what_was_paid() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", bps(512 * KIB, 512 * KIB));
    bench.submit(0, bio(Op::Write, group, MIB, 1));
    bench.run(SECOND, MS);
    bench.set("a", bps(256 * KIB, 256 * KIB));
    bench.run(5 * SECOND, MS);
    assert_near(bench.seen()[0].at, 3);
}

/// throtl/007: two at once pass one after the other, also with a limit of I/Os that does not bind.
#[test]
fn large_ios_take_turns() {
    for change in [bps(MIB, MIB), Change { wiops: Some(Some(1_000_000)), ..bps(MIB, MIB) }] {
        let mut bench = Bench::new(1);
        let group = bench.group("a");
        bench.set("a", change);
        let at = all_at_once(&mut bench, Op::Write, group, 2, MIB);
        assert_near(at[0], 1);
        assert_near(at[1], 2);
    }
}
