//! Groups in simulated time: which limits bind which group, in which order bios pass, and that
//! nothing stays behind when something goes.

mod common;
use common::*;
use drystone_core::{BioFlags, BioList, Op, Status};
use drystone_throttle::{Change, GroupError, IoStat, Limits, SLICE_NS};

fn at_of(bench: &Bench, group: u32) -> Vec<u64> {
    bench.seen().iter().filter(|seen| seen.group == group).map(|seen| seen.at).collect()
}

#[test]
fn a_bio_is_bound_by_its_group_and_all_above() {
    let mut bench = Bench::new(1);
    let (_, a, b) = (bench.group("top"), bench.group("top/a"), bench.group("top/a/b"));
    bench.set("top", iops(100, 100));
    bench.set("top/a/b", iops(10, 10));
    for n in 0..400 {
        bench.submit(0, bio(Op::Read, a, 512, n));
        bench.submit(0, bio(Op::Read, b, 512, n));
    }
    bench.run(3 * SECOND, MS);
    let (of_a, of_b) = (at_of(&bench, a).len(), at_of(&bench, b).len());
    assert!((29..=32).contains(&of_b), "{of_b}");
    assert!((300..=310).contains(&(of_a + of_b)), "{of_a}");
    // The root, and groups that only have neighbours with limits, pass.
    let free = bench.group("free");
    (0..100).for_each(|n| bench.submit(0, bio(Op::Read, free, 512, n)));
    (0..100).for_each(|n| bench.submit(0, bio(Op::Read, 0, 512, n)));
    assert_eq!((at_of(&bench, free).len(), at_of(&bench, 0).len()), (100, 100));
}

#[test]
fn reads_and_writes_are_limited_apart_and_flushes_never_wait() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", Change { wiops: Some(Some(1)), ..Change::default() });
    for n in 0..20 {
        bench.submit(0, bio(Op::Write, group, 512, n));
        bench.submit(0, bio(Op::Read, group, 512, n));
    }
    bench.submit(0, bio(Op::Flush, group, 0, 99));
    let ops: Vec<Op> = bench.seen().iter().map(|seen| seen.op).collect();
    assert_eq!(ops.iter().filter(|op| **op == Op::Read).count(), 20);
    assert_eq!(ops.iter().filter(|op| **op == Op::Flush).count(), 1);
    bench.run(10 * SECOND, 10 * MS);
    let writes = bench.seen().iter().filter(|seen| seen.op == Op::Write).count();
    assert!((10..=11).contains(&writes), "one a second: {writes}");
}

/// However many writes wait, of whatever length, in the same submission or before: a read passes at
/// once.
#[test]
fn reads_do_not_wait_behind_writes_that_do() {
    let limits = [
        (Change { wbps: Some(Some(MIB)), ..Change::default() }, 40, MIB),
        (Change { wiops: Some(Some(10)), ..Change::default() }, 200, 4 * KIB),
        (bps(100 * MIB, MIB), 40, MIB),
        (iops(10_000, 10), 200, 4 * KIB),
    ];
    for (limit, writes, bytes) in limits {
        let mut bench = Bench::with_most(2, 128 * KIB);
        let group = bench.group("a");
        bench.set("a", limit);
        let mut all = BioList::new();
        (0..writes).for_each(|n| all.push(bio(Op::Write, group, bytes, n)));
        all.push(bio(Op::Read, group, 4 * KIB, 1000));
        bench.contexts[0].submit(bench.index, &mut all);
        bench.submit(0, bio(Op::Read, group, 4 * KIB, 1001));
        bench.submit(1, bio(Op::Read, group, 4 * KIB, 1002));
        bench.run(SECOND, 10 * MS);
        bench.submit(0, bio(Op::Read, group, 4 * KIB, 1003));
        bench.submit(1, bio(Op::Read, group, 4 * KIB, 1004));
        let reads = bench.seen().into_iter().filter(|seen| seen.op == Op::Read);
        let at: Vec<u64> = reads.map(|seen| seen.at).collect();
        assert_eq!(at, [0, 0, 0, SECOND, SECOND], "{limit:?}");
        let done = bench.ended.iter().filter(|(n, _)| *n < 1000).count() as u64;
        assert!(done < writes, "some writes wait");
    }
}

/// Bios that are submitted after a limit of the device has changed are cut and counted by the new
/// one, also the first of each context.
#[test]
fn a_devices_new_limit_holds_at_once() {
    let mut bench = Bench::with_most(2, 64 * KIB);
    let group = bench.group("a");
    bench.set("a", iops(1_000_000, 1_000_000));
    (0..2).for_each(|context| bench.submit(context, bio(Op::Write, group, 64 * KIB, 0)));
    for (most, parts) in [(16 * KIB, 4), (64 * KIB, 1)] {
        *bench.disk.limit.lock().unwrap() = Some(most);
        for context in 0..2 {
            let before = bench.seen().len();
            bench.submit(context, bio(Op::Write, group, 64 * KIB, 1));
            let lengths: Vec<u64> = bench.seen()[before..].iter().map(|seen| seen.bytes).collect();
            assert_eq!(lengths, vec![most; parts]);
        }
    }
}

#[test]
fn a_groups_bios_keep_their_order() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", bps(MIB, MIB));
    // Small ones do not overtake large ones.
    for n in 0..200 {
        let bytes = if n % 7 == 0 { 64 * KIB } else { 512 };
        bench.submit(0, bio(Op::Write, group, bytes, n));
    }
    bench.run(5 * SECOND, MS);
    let order: Vec<u64> = bench.seen().iter().map(|seen| seen.user_data).collect();
    assert_eq!(order, (0..200).collect::<Vec<u64>>());
}

#[test]
fn order_holds_while_limits_change() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    let limits = [
        iops(100, 100),
        iops(5, 5),
        bps(MIB, MIB),
        Change { wiops: Some(None), wbps: Some(None), ..Change::default() },
    ];
    for n in 0..600 {
        bench.submit(0, bio(Op::Write, group, 4096, n));
        if n % 3 == 0 {
            bench.set("a", limits[(n / 3 % 4) as usize]);
            bench.run(MS, MS);
        }
    }
    bench.set("a", limits[3]);
    bench.run(2 * MS, MS);
    let order: Vec<u64> = bench.seen().iter().map(|seen| seen.user_data).collect();
    assert_eq!(order, (0..600).collect::<Vec<u64>>());
}

#[test]
fn contexts_share_a_limit_in_the_order_of_arrival() {
    let mut bench = Bench::new(3);
    let group = bench.group("a");
    bench.set("a", iops(100, 100));
    (0..90).for_each(|n| bench.submit(n as usize % 3, bio(Op::Read, group, 512, n)));
    bench.run(SECOND, MS);
    let order: Vec<u64> = bench.seen().iter().map(|seen| seen.user_data).collect();
    let waited = order.iter().skip(6).copied().collect::<Vec<_>>();
    assert!(waited.is_sorted(), "{order:?}");
    assert_eq!(order.len(), 90);
}

/// A context whose owner stays away holds up nobody: others let its bios go, too.
#[test]
fn an_absent_owner_is_in_nobodys_way() {
    let mut bench = Bench::new(2);
    let group = bench.group("a");
    bench.set("a", iops(100, 100));
    (0..50).for_each(|n| bench.submit(0, bio(Op::Read, group, 512, n)));
    (50..100).for_each(|n| bench.submit(1, bio(Op::Read, group, 512, n)));
    let away = bench.contexts.remove(0);
    bench.run(2 * SECOND, MS);
    assert_eq!(bench.seen().len(), 100, "the device got those of the absent one, too");
    drop(away);
}

#[test]
fn a_limit_that_is_lifted_lets_all_go_at_once() {
    for lift in [true, false] {
        let mut bench = Bench::new(2);
        let group = bench.group("a");
        bench.set("a", bps(1, 1));
        (0..50).for_each(|n| bench.submit(n as usize % 2, bio(Op::Write, group, MIB, n)));
        bench.run(SECOND, 100 * MS);
        assert_eq!(bench.seen().len(), 0);
        match lift {
            true => bench.set("a", Change { wbps: Some(None), ..Change::default() }),
            false => bench.groups.remove("a").unwrap(),
        }
        assert_eq!(bench.seen().len(), 50, "without anybody's look");
        bench.look();
        assert_eq!(bench.ended.len(), 50);
    }
}

#[test]
fn a_detached_device_lets_all_go() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", iops(1, 1));
    (0..50).for_each(|n| bench.submit(0, bio(Op::Write, group, 512, n)));
    bench.groups.detach("disk");
    bench.look();
    assert_eq!(bench.ended.len(), 50);
    let refused = bench.groups.set_max("a", "disk", &iops(1, 1));
    assert!(matches!(refused, Err(GroupError::NoDevice(_))));
}

#[test]
fn what_nobody_wants_any_more_is_withdrawn() {
    let mut bench = Bench::new(2);
    let group = bench.group("a");
    bench.set("a", iops(10, 10));
    for n in 0..20 {
        bench.submit(0, bio(Op::Write, group, 512, 1000 + n));
        bench.submit(0, bio(Op::Write, group, 512, n));
        bench.submit(1, bio(Op::Write, group, 512, 1000 + n));
    }
    bench.contexts[0].withdraw(1000..2000);
    bench.look();
    let cancelled = bench.ended.iter().filter(|(_, status)| *status == Status::Cancelled);
    assert_eq!(cancelled.count(), 20);
    bench.run(5 * SECOND, MS);
    assert_eq!(bench.seen().len(), 40, "others went on, with all of the limit");
    let last = bench.seen().last().unwrap().at;
    assert!(last <= 4 * SECOND + 2 * MS && last + SLICE_NS >= 39 * SECOND / 10, "{last}");
}

#[test]
fn a_dropped_context_leaves_nothing_behind() {
    let mut bench = Bench::new(2);
    let group = bench.group("a");
    bench.set("a", iops(10, 10));
    (0..40).for_each(|n| bench.submit(n as usize % 2, bio(Op::Read, group, 512, n)));
    drop(bench.contexts.remove(0));
    bench.run(3 * SECOND, MS);
    let set = bench.contexts[0].set().clone();
    assert_eq!(set.free_idle_orphans(), 0, "it is gone");
    assert_eq!(bench.seen().len(), 20);
    assert!(bench.seen().iter().all(|seen| seen.user_data % 2 == 1));
}

#[test]
fn who_may_not_wait_is_told() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", iops(100, 100));
    for n in 0..20 {
        let mut bio = bio(Op::Read, group, 512, n);
        bio.flags |= BioFlags::NOWAIT;
        bench.submit(0, bio);
    }
    bench.look();
    let again = bench.ended.iter().filter(|(_, status)| *status == Status::Again).count();
    assert_eq!((again, bench.seen().len()), (15, 5), "the burst is five");
}

/// Lengths that no device has: it is for the device to refuse them.
#[test]
fn absurd_lengths_go_to_the_device() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    for _ in 0..3 {
        bench.submit(0, bio(Op::WriteZeroes, group, u64::MAX - 511, 0));
    }
    assert_eq!(bench.seen().len(), 3);
}

#[test]
fn statistics_are_those_of_the_group_and_all_below() {
    let mut bench = Bench::with_most(2, 4096);
    let (a, b) = (bench.group("a"), bench.group("a/b"));
    let mut bios = BioList::new();
    bios.push(bio(Op::Read, a, 4096, 0));
    bios.push(bio(Op::Write, a, 12288, 0));
    bios.push(bio(Op::Discard, b, 1 << 20, 0));
    bios.push(bio(Op::Flush, b, 0, 0));
    bench.contexts[0].submit(bench.index, &mut bios);
    bench.submit(1, bio(Op::WriteZeroes, b, 4096, 0));
    let of_b = IoStat { wbytes: 4096, wios: 1, dbytes: 1 << 20, dios: 256, ..IoStat::default() };
    let mut of_a = of_b;
    of_a += IoStat { rbytes: 4096, rios: 1, wbytes: 12288, wios: 3, ..IoStat::default() };
    let stat = |path: &str| bench.groups.io_stat(path).unwrap();
    assert_eq!(stat("a/b"), [("disk".to_owned(), of_b)]);
    assert_eq!(stat("a"), [("disk".to_owned(), of_a)]);
    let until_now = bench.groups.reset_stat("a").unwrap();
    let disk = |stat| vec![("disk".to_owned(), stat)];
    assert_eq!(until_now, [("a".to_owned(), disk(of_a)), ("a/b".to_owned(), disk(of_b))]);
    assert_eq!(bench.groups.io_stat("a").unwrap(), []);
    drop(bench.contexts.remove(1));
    bench.submit(0, bio(Op::Read, b, 512, 0));
    let after = IoStat { rbytes: 512, rios: 1, ..IoStat::default() };
    assert_eq!(bench.groups.io_stat("a").unwrap(), [("disk".to_owned(), after)]);
}

#[test]
fn groups_are_made_set_and_removed() {
    let bench = Bench::new(1);
    let groups = &bench.groups;
    assert!(matches!(groups.create("a/b"), Err(GroupError::NotFound(_))));
    let a = groups.create("a").unwrap();
    groups.create("a/b").unwrap();
    assert!(matches!(groups.create("a"), Err(GroupError::Exists(_))));
    assert!(matches!(groups.remove("a"), Err(GroupError::InUse(_))));
    let member = groups.join("a/b").unwrap();
    assert!(matches!(groups.remove("a/b"), Err(GroupError::InUse(_))));
    drop(member);
    groups.set_max("a/b", "disk", &bps(5, 6)).unwrap();
    let limits = Limits { rbps: Some(5), wbps: Some(6), ..Limits::default() };
    assert_eq!(groups.io_max("a/b").unwrap(), [("disk".to_owned(), limits)]);
    assert!(matches!(groups.set_max("", "disk", &bps(1, 1)), Err(GroupError::Invalid(_))));
    assert!(matches!(groups.set_max("a", "disk", &bps(0, 1)), Err(GroupError::Invalid(_))));
    assert!(matches!(groups.set_max("a", "none", &bps(1, 1)), Err(GroupError::NoDevice(_))));
    groups.remove("a/b").unwrap();
    groups.remove("a").unwrap();
    let again = groups.create("a").unwrap();
    assert_ne!(again.id(), a.id(), "nobody takes it for the former one");
    let deep = (1..=17).map(|_| "d").collect::<Vec<_>>().join("/");
    assert!(matches!(groups.create(&deep), Err(GroupError::Invalid(_))));
}

/// Bios of a group that is no more are bound by nothing, and harm nobody.
#[test]
fn bios_of_a_removed_group_pass() {
    let mut bench = Bench::new(1);
    let group = bench.group("a");
    bench.set("a", iops(1, 1));
    bench.groups.remove("a").unwrap();
    let other = bench.group("b");
    bench.set("b", iops(1, 1));
    (0..10).for_each(|n| bench.submit(0, bio(Op::Read, group, 512, n)));
    assert_eq!(at_of(&bench, group).len(), 10);
    assert_eq!(at_of(&bench, other).len(), 0);
}

/// Leases are counted: however many contexts take them, the bound over time holds.
#[test]
fn leases_keep_the_bound() {
    let mut bench = Bench::new(40);
    let group = bench.group("a");
    bench.set("a", iops(10_000, 10_000));
    let mut n = 0;
    for round in 0..2000u64 {
        bench.clock.advance(MS);
        // Some ask for little, some for much, some not at all for a while.
        for context in 0..40 {
            let wants = (round / 100 + context) % 5 * ((context + round) % 3);
            for _ in 0..wants {
                bench.submit(context as usize, bio(Op::Read, group, 512, n));
                n += 1;
            }
        }
        bench.look();
    }
    let seen = bench.seen();
    let (mut sum, mut least) = (0.0f64, f64::INFINITY);
    for io in &seen {
        let time = io.at as f64 * 1e-9 * 10_000.0;
        least = least.min(sum - time);
        sum += 1.0;
        let most = SLICE_NS as f64 * 1e-9 * 10_000.0 + 1.0;
        assert!(sum - time - least <= most, "{} beyond the limit", sum - time - least);
    }
    assert!(seen.len() > 19_000, "and nearly all of it is given: {}", seen.len());
}

/// A context that has leased much is away while the limit becomes a thousandth. The lease that it
/// gives back then is not in the way of bios that wait: with the lease the first would wait for
/// fifteen seconds more.
#[test]
fn what_is_given_back_when_a_limit_falls_is_there_for_what_waits() {
    let mut bench = Bench::new(2);
    let group = bench.group("g");
    bench.set("g", bps(100 * MIB, 100 * MIB));
    bench.submit(0, bio(Op::Read, group, 4 * KIB, 0));
    bench.submit(1, bio(Op::Read, group, 5 * MIB, 1));
    bench.set("g", bps(100 * KIB, 100 * KIB));
    bench.run(50 * SECOND, 10 * MS);
    assert_eq!(bench.ended.last(), Some(&(0, Status::Ok)), "5 MiB take 51 seconds");
    bench.run(2 * SECOND, 10 * MS);
    assert_eq!(bench.ended.last(), Some(&(1, Status::Ok)));
}
