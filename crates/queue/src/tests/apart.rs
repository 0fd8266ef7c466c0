//! Merged requests that fail: only the bios fail whose own sectors are bad.

use super::*;

fn options(scheduler: SchedulerKind, straight: &str) -> QueueOptions {
    let iosched = match scheduler {
        SchedulerKind::MqDeadline => vec![("straight", straight.to_owned())],
        SchedulerKind::None => Vec::new(),
    };
    QueueOptions { scheduler: Some(scheduler), iosched, ..QueueOptions::default() }
}

/// All paths of units: each scheduler, alone and through shared trees, on drivers that complete
/// requests at once (declared or not) and on others.
fn rigs() -> Vec<(Rig, bool)> {
    let kinds = [
        options(SchedulerKind::None, "0"),
        options(SchedulerKind::MqDeadline, "0"),
        options(SchedulerKind::MqDeadline, "1"),
    ];
    let ways = [(true, false), (false, false), (false, true)];
    let rig = |options: &QueueOptions, (completes_inline, holds): (bool, bool)| {
        let rig = Rig::with(Setup { completes_inline, ..Setup::depth(4) }, options, Engine::Auto);
        rig.stage.otherwise(if holds { Answer::Hold } else { Answer::Done(Status::Ok) });
        (rig, holds)
    };
    kinds.iter().flat_map(|options| ways.map(|way| rig(options, way))).collect()
}

fn sorted(mut ended: Vec<(u64, Status)>) -> Vec<(u64, Status)> {
    ended.sort_unstable_by_key(|(number, _)| *number);
    ended
}

/// Run until all submitted bios have ended, and return them.
fn run(rig: &mut Rig, holds: bool) -> Vec<(u64, Status)> {
    let mut all = rig.all_ended();
    while holds && rig.stage.held() > 0 {
        all.extend(rig.give_back_all());
        all.extend(rig.all_ended());
    }
    sorted(all)
}

#[test]
fn only_bios_that_touch_bad_sectors_fail() {
    for make in [read, write, |at, n| without_data(Op::Discard, at, n)] {
        for (mut rig, holds) in rigs() {
            rig.stage.spoil(11, Status::IoError);
            rig.stage.spoil(14, Status::Medium);
            rig.submit((8..16).step_by(2).map(|sector| make(sector, 2)));
            assert_eq!(rig.taken()[0], (8, 8 * 512), "one request");
            let ended = run(&mut rig, holds);
            let expected = [Status::Ok, Status::IoError, Status::Ok, Status::Medium];
            assert_eq!(ended, [8, 10, 12, 14].into_iter().zip(expected).collect::<Vec<_>>());
            let mut taken = rig.taken().split_off(1);
            taken.sort_unstable();
            assert_eq!(taken, [(8, 1024), (10, 1024), (12, 1024), (14, 1024)], "each once, alone");
            assert_eq!(rig.cx.outstanding(), 0);
            assert_eq!(rig.device.failures().unwrap().take().count(), 2, "they can be told of");
        }
    }
}

/// Bios of two contexts merge in the shared trees, and one of the contexts runs them.
#[test]
fn bios_of_others_are_tried_again_for_them() {
    let setup = Setup { completes_inline: true, ..Setup::depth(8) };
    let mut rig = Rig::with(setup, &options(SchedulerKind::MqDeadline, "0"), Engine::Auto);
    let (mut other, dev) = rig.another();
    rig.stage.spoil(101, Status::IoError);
    rig.stage.next(Answer::Busy(1001 * MS));
    rig.submit([read(0, 1), read(1, 1)]);
    let mut bios = BioList::new();
    bios.extend([read(100, 1), read(101, 1), read(102, 1), read(200, 1)]);
    other.submit(dev, &mut bios);
    rig.clock.advance(2 * MS);
    assert_eq!(rig.all_ended(), [(0, Status::Ok), (1, Status::Ok)]);
    let ends: Vec<_> = (0..4).flat_map(|_| ended(&mut other)).collect();
    let expected =
        [(100, Status::Ok), (101, Status::IoError), (102, Status::Ok), (200, Status::Ok)];
    assert_eq!(sorted(ends), expected);
    assert_eq!((rig.cx.outstanding(), other.outstanding()), (0, 0));
}

#[test]
fn what_is_not_of_some_sectors_is_not_tried_again() {
    use Status::*;
    for status in [NotSupported, Timeout, NoSpace, Transport, Target, Resource, Offline, Permission]
    {
        for (mut rig, holds) in rigs() {
            rig.stage.spoil(8, status);
            rig.submit([read(8, 1), read(9, 1)]);
            assert_eq!(run(&mut rig, holds), [(8, status), (9, status)]);
            assert_eq!(rig.taken(), [(8, 1024)]);
        }
    }
}

#[test]
fn what_timed_out_is_not_tried_again() {
    let mut rig = Rig::new(Setup::depth(4));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(8, 1), read(9, 1)]);
    rig.clock.advance(31_000 * MS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.stage.timed_out(), [8]);
    rig.stage.give_back(0, Status::IoError);
    assert_eq!(rig.all_ended(), [(8, Status::Timeout), (9, Status::Timeout)]);
    assert_eq!(rig.taken().len(), 1);
}

/// A bio with NOWAIT got a tag. The failure of bios that were merged with it must not make it fail.
#[test]
fn a_second_try_may_wait_for_a_tag() {
    for scheduler in SchedulerKind::ALL {
        let setup = Setup::depth(1);
        let mut rig = Rig::with(setup, &options(scheduler, "0"), Engine::Auto);
        rig.stage.otherwise(Answer::Hold);
        rig.stage.spoil(10, Status::Medium);
        rig.submit((8..11).map(|sector| with(read(sector, 1), BioFlags::NOWAIT)));
        let expected = [(8, Status::Ok), (9, Status::Ok), (10, Status::Medium)];
        assert_eq!(run(&mut rig, true), expected, "{scheduler:?}");
    }
}

/// No context waits for the bios of a dropped context, and none sends them again.
#[test]
fn a_dropped_context_tries_nothing_again() {
    for scheduler in SchedulerKind::ALL {
        let rig = Rig::with(Setup::depth(4), &options(scheduler, "0"), Engine::Auto);
        rig.stage.otherwise(Answer::Hold);
        rig.stage.spoil(8, Status::IoError);
        let (mut other, dev) = rig.another();
        let mut bios = BioList::new();
        bios.extend([read(8, 1), read(9, 1)]);
        other.submit(dev, &mut bios);
        drop(other);
        assert!(rig.stage.give_back(0, Status::Ok));
        rig.set.kick_all();
        assert_eq!(rig.set.free_idle_orphans(), 0, "{scheduler:?}: it is over");
        assert_eq!(rig.taken(), [(8, 1024)], "{scheduler:?}");
        assert_eq!(rig.stage.held(), 0);
    }
}
