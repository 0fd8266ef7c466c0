//! Files that nobody uses any more: contexts give them up while they live on.

use super::*;
use drystone_core::clock::SystemClock;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, Device};
use drystone_queue::RequestQueue;
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use std::sync::Arc;

fn device(file: File, scheduler: SchedulerKind) -> Arc<dyn Device> {
    let options = QueueOptions { scheduler: Some(scheduler), ..QueueOptions::default() };
    let locks = LockCounters::new(SystemClock::new());
    Arc::new(RequestQueue::new("d0", file, &options, locks).expect("a queue"))
}

fn write(cx: &mut Context, device: ChannelId) {
    let mut list = BioList::new();
    list.extend((0..16).map(|n| Bio::write(Sector(n * 8), IoBuf::zeroed(4096))));
    cx.submit(device, &mut list);
    let mut done = BioList::new();
    while done.len() < 16 {
        cx.wait(None);
        cx.reap(&mut done);
    }
    assert!(done.iter().all(|bio| bio.status == Status::Ok));
}

/// True if this process has the file open.
pub(super) fn is_open(path: &Path) -> bool {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    open.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|link| link == path))
}

#[test]
fn a_retired_file_is_closed_once_all_contexts_have_given_it_up() {
    for (engine, scheduler) in [
        (Engine::Auto, SchedulerKind::None),
        (Engine::Auto, SchedulerKind::MqDeadline),
        (Engine::Plain, SchedulerKind::MqDeadline),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let set = ContextSet::new(SystemClock::new());
        let mut contexts = [set.open(engine).unwrap(), set.open(engine).unwrap()];
        let mut before: Option<ChannelId> = None;
        for round in 0..3 {
            let device = device(file(dir.path(), MIB), scheduler);
            let indices = contexts.each_mut().map(|cx| cx.open(&device).unwrap());
            assert!(before.is_none_or(|index| index == indices[0]), "round {round}: a new number");
            before = Some(indices[0]);
            contexts.iter_mut().zip(indices).for_each(|(cx, index)| write(cx, index));
            device.retire();
            assert_eq!(Arc::strong_count(&device), 3, "the owners have it");
            contexts[0].release(indices[0]);
            device.retire();
            assert!(is_open(&path), "the other one has it");
            contexts[1].release(indices[1]);
            // The first call makes each context release the others.
            for _ in 0..3 {
                device.retire();
            }
            assert_eq!(Arc::strong_count(&device), 1, "round {round}");
            drop(device);
            assert!(!is_open(&path), "round {round}");
        }
    }
}

/// The last close of a file may take long, so a data thread leaves it to another.
#[test]
fn a_data_thread_closes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let file = file(dir.path(), MIB);
    // In a debug build a close on that thread would panic.
    drystone_core::blocking::as_data_thread(move || drop(file));
    while is_open(&path) {
        std::thread::yield_now();
    }
}

/// A context keeps a device while it has I/O in flight on it.
#[test]
fn a_retired_device_stays_until_its_io_has_ended() {
    use crate::null::{Completion, Latency, Null, NullOptions};
    use drystone_core::clock::ManualClock;
    // A time that the kernel's clock does not reach: timers go by the clock that the test moves.
    let clock = ManualClock::new(1 << 60);
    let options = NullOptions {
        size_bytes: MIB,
        irqmode: Completion::Timer,
        latency: Some(Latency::constant(1_000_000)),
        ..NullOptions::default()
    };
    let null = Null::new(options).unwrap();
    let mut rig = Rig::with(null, &QueueOptions::default(), Engine::Plain, clock.clone());
    rig.submit([Bio::read(Sector(0), IoBuf::zeroed(512))]);
    rig.cx.release(rig.dev);
    for _ in 0..3 {
        rig.device.retire();
    }
    assert_eq!(Arc::strong_count(&rig.device), 2);
    clock.advance(2_000_000);
    assert_eq!(rig.drain().len(), 1);
    for _ in 0..3 {
        rig.device.retire();
    }
    assert_eq!(Arc::strong_count(&rig.device), 1);
}
