//! Contexts that work for one another at mq-deadline, case by case.

use super::*;
use drystone_core::PriorityClass;

fn scheduled(setup: Setup) -> Rig {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    Rig::with(setup, &options, Engine::Auto)
}

fn idle(sector: u64) -> Box<Bio> {
    let mut bio = read(sector, 1);
    bio.priority.class = PriorityClass::Idle;
    bio
}

fn submit(cx: &mut Context, dev: ChannelId, bios: impl IntoIterator<Item = Box<Bio>>) {
    let mut list = BioList::new();
    list.extend(bios);
    cx.submit(dev, &mut list);
}

/// The holder of the turn issues the units of all channels if the driver completes inline. A unit
/// that may not complete inline needs a tag of its own hardware queue, and goes back to its
/// channel.
#[test]
fn units_that_may_stay_go_home() {
    let mut setup = Setup { completes_inline: true, ..Setup::cache(true) };
    setup.hw.default = 2;
    let mut rig = scheduled(setup);
    let (mut other, dev) = rig.another();
    rig.stage.next(Answer::Busy(1001 * MS));
    rig.submit([read(0, 1)]);
    submit(&mut other, dev, [read(8, 1), with(write(16, 1), BioFlags::FUA), read(24, 1)]);
    assert!(rig.taken().is_empty(), "the driver is busy");
    rig.clock.advance(2 * MS);
    assert_eq!(rig.all_ended(), [(0, Status::Ok)]);
    let seen = rig.stage.seen();
    assert!(seen.iter().any(|s| (s.context, s.sector) == (0, 8)), "its holder ran it: {seen:?}");
    let mut ended: Vec<u64> = (0..3).flat_map(|_| ended(&mut other)).map(|(n, _)| n).collect();
    ended.sort_unstable();
    assert_eq!(ended, [8, 16, 24]);
    let write = rig.stage.seen().into_iter().find(|s| s.op == Op::Write).expect("the write");
    assert_eq!((write.context, write.flags & BioFlags::FUA), (1, BioFlags::FUA));
}

/// Units for which the driver was too busy go back in their order, even if they are of several
/// contexts.
#[test]
fn what_comes_back_keeps_its_order() {
    let mut rig = scheduled(Setup { completes_inline: true, ..Setup::depth(8) });
    let (mut other, dev) = rig.another();
    rig.stage.next(Answer::Busy(1001 * MS));
    // The units are kept in the order of sectors; the other context's unit lies between these.
    rig.submit([read(10, 1), read(30, 1)]);
    submit(&mut other, dev, [read(20, 1)]);
    rig.stage.next(Answer::Busy(1003 * MS));
    rig.clock.advance(2 * MS);
    assert_eq!(rig.all_ended().len() + ended(&mut other).len(), 0, "busy again");
    rig.clock.advance(2 * MS);
    assert_eq!(rig.all_ended().len(), 2);
    let sectors: Vec<u64> = rig.taken().iter().map(|(sector, _)| *sector).collect();
    assert_eq!(sectors, [10, 20, 30], "of three runs of two contexts");
    assert_eq!(ended(&mut other).len(), 1);
}

/// Idle bios wait for requests of other contexts, and these contexts come and go: no count is lost,
/// and no context waits forever.
#[test]
fn contexts_that_go_take_their_counts_along() {
    const CONTEXTS: u32 = 200;
    let mut rig = scheduled(Setup::depth(8));
    let others: Vec<_> = (0..3)
        .map(|_| {
            let (set, device) = (rig.set.clone(), rig.device.clone());
            std::thread::spawn(move || {
                for _ in 0..CONTEXTS {
                    let mut cx = set.open(Engine::Auto).expect("a ring");
                    let dev = cx.open(&device).expect("a channel");
                    submit(&mut cx, dev, [read(8, 1), idle(80), read(160, 1)]);
                    wait_for(&mut cx, 3);
                }
            })
        })
        .collect();
    while others.iter().any(|other| !other.is_finished()) {
        rig.submit([idle(800)]);
        wait_for(&mut rig.cx, 1);
    }
    others.into_iter().for_each(|other| other.join().expect("no panic"));
    rig.submit([idle(800)]);
    wait_for(&mut rig.cx, 1);
}

fn wait_for(cx: &mut Context, mut bios: usize) {
    while bios > 0 {
        match ended(cx).len() {
            0 => cx.wait(None),
            n => bios -= n,
        }
    }
}
