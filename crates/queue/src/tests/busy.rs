//! A driver that is busy: requests wait at the head of the queue, in order.

use super::*;
use drystone_core::Limits;
use drystone_core::buf::Arena;

#[test]
fn a_refused_request_goes_first_when_something_completes() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.stage.next(Answer::Hold);
    rig.stage.next(Answer::Busy(0));
    rig.submit([read(0, 1), read(10, 1), read(20, 1)]);
    rig.submit([read(30, 1)]);
    assert_eq!((rig.taken(), rig.stage.refused()), (vec![(0, 512)], vec![10]));
    rig.cx.wait(Some(0));
    assert_eq!(rig.stage.refused(), [10], "not offered again before something completes");
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended().len(), 4);
    let sectors: Vec<_> = rig.taken().iter().map(|t| t.0).collect();
    assert_eq!(sectors, [0, 10, 20, 30]);
}

#[test]
fn refused_again_and_again_keeps_the_order() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.stage.next(Answer::Hold);
    for _ in 0..3 {
        rig.stage.next(Answer::Busy(0));
        rig.stage.next(Answer::Hold);
    }
    rig.submit((0..4).map(|i| read(i * 10, 1)));
    let mut ended = Vec::new();
    while rig.stage.give_back(0, Status::Ok) {
        ended.extend(rig.ended().iter().map(|e| e.0));
    }
    assert_eq!(ended, [0, 10, 20, 30]);
    assert_eq!(rig.stage.refused(), [10, 20, 30]);
}

#[test]
fn with_nothing_in_flight_a_deadline_brings_it_back() {
    for engine in ENGINES {
        let mut rig = Rig::with(Setup::depth(8), &QueueOptions::default(), engine);
        rig.stage.next(Answer::Busy(0));
        rig.submit([read(0, 1), read(10, 1)]);
        rig.clock.advance(MS);
        rig.cx.wait(Some(0));
        assert!(rig.taken().is_empty(), "too early");
        rig.clock.advance(2 * MS);
        rig.cx.wait(Some(0));
        assert_eq!(rig.taken(), [(0, 512), (10, 512)]);
        assert_eq!(rig.ended().len(), 2);
    }
}

#[test]
fn a_loop_that_only_reaps_offers_it_again() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.stage.next(Answer::Busy(0));
    rig.submit([read(0, 1)]);
    rig.clock.advance(3 * MS);
    let ended: usize = (0..256).map(|_| rig.ended().len()).sum();
    assert_eq!((rig.taken(), ended), (vec![(0, 512)], 1));
}

#[test]
fn the_drivers_own_deadline_is_kept() {
    let mut rig = Rig::new(Setup::depth(8));
    let until = rig.clock.now() + 20 * MS;
    rig.stage.next(Answer::Hold);
    rig.stage.next(Answer::Busy(until));
    rig.submit([read(0, 1), read(10, 1)]);
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended().len(), 1);
    assert_eq!(rig.taken().len(), 1, "a completion does not make that time come");
    rig.clock.advance(19 * MS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.taken().len(), 1);
    rig.clock.advance(MS);
    rig.cx.wait(Some(0));
    assert_eq!((rig.taken().len(), rig.ended().len()), (2, 1));
}

#[test]
fn a_refused_flush_is_asked_for_again() {
    let mut rig = Rig::new(Setup::cache(false));
    rig.stage.next(Answer::Busy(0));
    rig.submit([with(write(5, 1), BioFlags::PREFLUSH)]);
    assert!(rig.ended().is_empty());
    rig.clock.advance(3 * MS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.ops(), [Op::Flush, Op::Write]);
    assert_eq!(rig.ended(), [(5, Status::Ok)]);
}

#[test]
fn busy_gives_its_tag_back_and_nowait_does_not_stay() {
    let mut rig = Rig::new(Setup::depth(1));
    rig.stage.next(Answer::Busy(0));
    rig.submit([read(0, 1)]);
    rig.submit([with(read(10, 1), BioFlags::NOWAIT)]);
    assert_eq!(rig.ended(), [(10, Status::Again)]);
    let (mut other, dev) = rig.another();
    let mut list = BioList::new();
    list.push(read(20, 1));
    other.submit(dev, &mut list);
    assert_eq!(ended(&mut other), [(20, Status::Ok)], "the only tag is free");
}

#[test]
fn a_dropped_context_cancels_what_was_refused() {
    let mut rig = Rig::new(Setup::depth(4));
    rig.stage.next(Answer::Busy(0));
    rig.submit([read(0, 1), read(10, 1)]);
    let (other, _) = rig.another();
    drop(std::mem::replace(&mut rig.cx, other));
    rig.clock.advance(10 * MS);
    assert_eq!(rig.set.free_idle_orphans(), 0);
    assert!(rig.taken().is_empty());
}

/// A bio that leaves the flush machine after the drop finds the driver busy, or no tag. No later
/// call would offer it again.
#[test]
fn what_comes_up_after_the_drop_ends_too() {
    for busy in [Answer::Busy(0), Answer::Busy(u64::MAX - 1)] {
        let setup = Setup {
            limits: Limits { max_bytes: 4096, ..Setup::cache(false).limits },
            ..Setup::depth(1)
        };
        let mut rig = Rig::new(setup);
        rig.stage.next(Answer::Hold);
        rig.stage.otherwise(busy);
        // The driver has the flush; the data of that bio, and the parts of the other bio, come
        // after it.
        rig.submit([
            with(write(0, 8), BioFlags::PREFLUSH),
            with(write(64, 64), BioFlags::PREFLUSH),
        ]);
        let (other, _) = rig.another();
        drop(std::mem::replace(&mut rig.cx, other));
        assert_eq!(rig.set.free_idle_orphans(), 1, "the driver has the flush");
        rig.stage.give_back(0, Status::Ok);
        assert_eq!(rig.set.free_idle_orphans(), 0);
        assert!(rig.stage.refused().is_empty() && rig.ops() == [Op::Flush], "nothing new is sent");
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}

/// The parts of a split bio are with the driver, refused, and not offered yet, all at the same
/// time.
#[test]
fn a_split_bio_ends_as_a_whole_when_its_context_is_dropped() {
    let mut rig = Rig::new(Setup::limits(|l| l.max_bytes = 4096));
    rig.stage.next(Answer::Hold);
    rig.stage.otherwise(Answer::Busy(0));
    let arena = Arena::new(64 << 10).expect("memory");
    let (buf, alive) = (arena.cut(64 << 10).expect("a buffer"), Arc::downgrade(&arena));
    drop(arena);
    rig.submit([tag(Bio::write(Sector(0), buf), 1)]);
    assert_eq!((rig.stage.held(), rig.stage.refused().len()), (1, 1));
    let (other, _) = rig.another();
    drop(std::mem::replace(&mut rig.cx, other));
    assert!(alive.upgrade().is_some(), "the driver has its memory");
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.set.free_idle_orphans(), 0);
    assert!(alive.upgrade().is_none(), "the parent and its memory are gone");
}
