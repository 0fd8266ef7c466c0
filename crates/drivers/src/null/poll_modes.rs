//! Tests of a context's waits for null devices in each poll mode.
#![allow(clippy::vec_box, reason = "submit and reap take and give bios in boxes")]

use super::tests::null;
use super::*;
use crate::testing::{ENGINES, Rig};
use drystone_core::clock::SystemClock;
use drystone_core::context::{PollMode, PollSwitch};
use drystone_core::{Bio, BioFlags, IoBuf};
use drystone_queue::queue::QueueOptions;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

fn reads(count: usize) -> Vec<Box<Bio>> {
    (0..count).map(|_| Bio::read(drystone_core::Sector(0), IoBuf::zeroed(512))).collect()
}

/// A null device with a poll queue that takes `ns` for each request, polled or not. `io_poll` is
/// its setting.
fn rig(ns: u64, io_poll: bool, engine: drystone_core::ring::Engine) -> Rig {
    let driver = null(|o| {
        (o.irqmode, o.latency) = (Completion::Thread, Some(Latency::constant(ns)));
        o.poll_queues = 1;
    });
    let options = QueueOptions { io_poll: Some(io_poll), ..QueueOptions::default() };
    Rig::with(driver, &options, engine, SystemClock::new())
}

/// The device's count of successful polls.
fn found_by_polling(rig: &Rig) -> u64 {
    let stat = rig.device.attribute("queue/poll_stat").expect("it has poll queues");
    stat.rsplit_once("success=").expect("a count").1.parse().expect("a number")
}

#[test]
fn poll_never_sleeps() {
    for (engine, io_poll) in ENGINES.into_iter().flat_map(|e| [(e, true), (e, false)]) {
        let mut rig = rig(50_000, io_poll, engine);
        rig.cx.set_poll_mode(PollMode::Poll);
        for _ in 0..20 {
            rig.submit(reads(4));
            assert!(rig.drain().iter().all(|bio| bio.status.is_ok()));
        }
        let counts = rig.cx.wait_counts();
        assert_eq!(counts.sleeps, 0, "{engine:?}");
        assert!(counts.polls > 0);
        assert_eq!(found_by_polling(&rig) > 0, io_poll, "polled where the device may be");
    }
}

#[test]
fn a_deadline_and_a_wake_up_end_polling() {
    for mode in [PollMode::Poll, PollMode::Adaptive] {
        let mut rig = rig(1_000, true, ENGINES[0]);
        rig.cx.set_poll_mode(mode);
        let deadline = rig.cx.now() + 1_000_000;
        while rig.cx.now() < deadline {
            rig.cx.wait(Some(deadline));
        }
        let (handle, has_polled) = (rig.cx.handle().clone(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // A wake-up that comes before a wait ends the wait before it polls, so the thread sends
            // several.
            scope.spawn(|| {
                while !has_polled.load(Relaxed) {
                    handle.wake();
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            });
            while !has_polled.load(Relaxed) {
                rig.cx.wait(None);
                let polls = rig.cx.wait_counts().polls > 0;
                has_polled.store(polls || mode == PollMode::Adaptive, Relaxed);
            }
        });
    }
}

/// Without a poll mode the device's own setting counts; with *interrupt* only bios that ask for it
/// are polled.
#[test]
fn interrupt_sleeps() {
    let mut rig = rig(50_000, true, ENGINES[0]);
    for _ in 0..20 {
        rig.submit(reads(4));
        rig.drain();
    }
    let counts = rig.cx.wait_counts();
    assert!(counts.sleeps > 0 && counts.polls == 0, "{counts:?}");
    assert_eq!(found_by_polling(&rig), 0);
}

/// No event would wake a context for polled I/O, so it does not sleep.
#[test]
fn adaptive_does_not_sleep_on_polled_io() {
    let mut rig = rig(5_000_000, true, ENGINES[0]);
    rig.cx.set_poll_mode(PollMode::Poll);
    rig.submit(reads(1));
    rig.cx.set_poll_mode(PollMode::Adaptive);
    assert!(rig.drain()[0].status.is_ok());
    assert_eq!(rig.cx.wait_counts().sleeps, 0);
}

/// The test does not judge which waits *adaptive* chooses on this machine, only that no I/O is lost
/// and that the submitter's own flag is ignored.
#[test]
fn adaptive_finds_everything() {
    for engine in ENGINES {
        let mut rig = rig(10_000, true, engine);
        rig.cx.set_poll_mode(PollMode::Adaptive);
        let mut ended = 0;
        for round in 0..2000 {
            let mut bios = reads(1 + round % 4);
            bios.iter_mut().for_each(|bio| bio.flags |= BioFlags::POLLED);
            ended += bios.len();
            rig.submit(bios);
            ended -= rig.drain().iter().filter(|bio| bio.status.is_ok()).count();
        }
        assert_eq!(ended, 0);
        let counts = rig.cx.wait_counts();
        assert!(counts.sleeps > 0 && counts.polls + counts.fruitless_polls > 0, "{counts:?}");
    }
}

#[test]
fn a_context_follows_its_switch() {
    let switch = PollSwitch::new(PollMode::Poll);
    let mut rig = rig(10_000, false, ENGINES[0]);
    rig.cx.follow_poll_mode(switch.clone());
    rig.submit(reads(1));
    rig.drain();
    assert_eq!(rig.cx.wait_counts().sleeps, 0);
    switch.set(PollMode::Interrupt);
    for _ in 0..20 {
        rig.submit(reads(1));
        rig.drain();
    }
    assert_eq!(rig.cx.poll_mode(), PollMode::Interrupt);
    assert!(rig.cx.wait_counts().sleeps > 0);
}
