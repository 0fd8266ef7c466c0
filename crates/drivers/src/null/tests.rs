//! The null device: how requests complete, and its models.

use super::*;
use crate::testing::{ENGINES, Rig, pattern};
use drystone_core::clock::ManualClock;
use drystone_core::op::OpGroup;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioFlags, BioList, Context, IoBuf, Op, Sector, Status};
use drystone_queue::queue::QueueOptions;

const MODES: [Completion; 3] = [Completion::Inline, Completion::Thread, Completion::Timer];

fn null(change: impl FnOnce(&mut NullOptions)) -> Null {
    let mut options = NullOptions { size_bytes: 1 << 20, ..NullOptions::default() };
    options.latency = Latency::constant(100_000);
    change(&mut options);
    Null::new(options).expect("sensible options")
}

fn read(sector: u64) -> Box<Bio> {
    let mut bio = Bio::read(Sector(sector), IoBuf::zeroed(512));
    bio.user_data = sector;
    bio
}

#[test]
fn every_mode_completes_everything_once() {
    for (engine, irqmode) in ENGINES.into_iter().flat_map(|e| MODES.map(|m| (e, m))) {
        let mut rig = Rig::new(null(|o| (o.irqmode, o.hw_queue_depth) = (irqmode, 8)), engine);
        rig.submit((0..100).map(|i| read(i * 2)));
        rig.submit([Bio::flush()]);
        let ended = rig.drain();
        assert!(ended.iter().all(|b| b.status.is_ok()));
        let mut sectors: Vec<_> =
            ended.iter().filter(|b| b.op == Op::Read).map(|b| b.user_data).collect();
        sectors.sort_unstable();
        assert_eq!(sectors, (0..100).map(|i| i * 2).collect::<Vec<_>>(), "{irqmode:?}");
        assert_eq!(rig.device.stats().group(OpGroup::Read).completed, 100);
    }
}

#[test]
fn a_shorter_latency_ends_first() {
    for engine in ENGINES {
        let latency =
            |ns| null(|o| (o.irqmode, o.latency) = (Completion::Timer, Latency::constant(ns)));
        let mut rig = Rig::new(latency(40_000_000), engine);
        let quick = drystone_queue::RequestQueue::new(
            "quick",
            latency(1_000_000),
            &QueueOptions::default(),
            rig.cx.locks().clone(),
        );
        let quick = rig.cx.open(&(Arc::new(quick.unwrap()) as Arc<_>)).unwrap();
        rig.submit([read(1)]);
        let mut list = BioList::new();
        list.push(read(2));
        rig.cx.submit(quick, &mut list);
        let order: Vec<_> = rig.drain().iter().map(|b| b.user_data).collect();
        assert_eq!(order, [2, 1]);
        let least = rig.device.latencies(OpGroup::Read).min().unwrap();
        assert!(least >= 39_000_000, "a timer never fires early: {least}");
    }
}

#[test]
fn bad_blocks_fail_whatever_touches_them() {
    for irqmode in MODES {
        let bad = vec![(10, 11), (20, 20)];
        let mut rig = Rig::new(null(|o| (o.irqmode, o.badblocks) = (irqmode, bad)), Engine::Auto);
        let sizes = [(8, 2, true), (8, 3, false), (11, 1, false), (12, 8, true), (12, 9, false)];
        for (sector, sectors, good) in sizes {
            let bio = Bio::read(Sector(sector), IoBuf::zeroed(sectors * 512));
            let expected = if good { Status::Ok } else { Status::IoError };
            assert_eq!(rig.one(bio).status, expected, "{sector} + {sectors}, {irqmode:?}");
        }
        assert_eq!(rig.write(20 * 512, &[1; 512], BioFlags::empty()), Status::IoError);
        assert_eq!(rig.flush(), Status::Ok);
    }
}

#[test]
fn with_memory_data_is_kept() {
    for irqmode in MODES {
        let options = |o: &mut NullOptions| {
            (o.irqmode, o.memory_backed, o.discard) = (irqmode, true, true);
        };
        let mut rig = Rig::new(null(options), Engine::Auto);
        let data = pattern(16384, 3);
        assert_eq!(rig.write(4096, &data, BioFlags::empty()), Status::Ok);
        assert_eq!(rig.read(4096, 16384).unwrap(), data);
        assert_eq!(rig.allocation(1 << 20)[..2], [(4096, false), (16384, true)]);
        assert_eq!(rig.range(Op::Discard, 4096, 8192, BioFlags::empty()), Status::Ok);
        assert_eq!(rig.read(4096, 8192).unwrap(), [0; 8192]);
        assert_eq!(rig.read(12288, 8192).unwrap(), data[8192..]);
    }
    let mut rig = Rig::new(null(|_| ()), Engine::Auto);
    assert_eq!(rig.range(Op::Discard, 0, 4096, BioFlags::empty()), Status::NotSupported);
    assert_eq!(rig.range(Op::WriteZeroes, 0, 4096, BioFlags::empty()), Status::NotSupported);
}

#[test]
fn bandwidth_is_a_budget_a_tick() {
    let clock = ManualClock::new(50 * TICK_NS);
    let options = QueueOptions { nomerges: Some(2), ..QueueOptions::default() };
    let driver = null(|o| o.mbps = 1);
    let mut rig = Rig::with(driver, &options, Engine::Auto, clock.clone());
    // 1 MiB/s is 20971 bytes a tick: a request may begin while the budget is not used up.
    rig.submit((0..15).map(|i| Bio::read(Sector(i * 8), IoBuf::zeroed(4096))));
    assert_eq!(rig.reap().len(), 6);
    clock.advance(TICK_NS - 1);
    rig.cx.wait(Some(0));
    assert_eq!(rig.reap().len(), 0, "the next tick has not begun");
    clock.advance(1);
    rig.cx.wait(Some(0));
    assert_eq!(rig.reap().len(), 6);
    clock.advance(10 * TICK_NS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.reap().len(), 3);
    rig.submit((0..10).map(|i| Bio::read(Sector(i * 8), IoBuf::zeroed(4096))));
    assert_eq!(rig.reap().len(), 3, "a budget that was not used is not saved up");
}

#[test]
fn bandwidth_limited_io_ends_by_itself() {
    let mut rig = Rig::new(null(|o| o.mbps = 20), Engine::Auto);
    rig.submit((0..64).map(|i| Bio::read(Sector(i * 16), IoBuf::zeroed(8192))));
    assert_eq!(rig.drain().len(), 64);
}

fn poll(cx: &mut Context) -> Vec<u64> {
    let mut out = BioList::new();
    cx.poll(&mut out);
    out.iter().map(|b| b.user_data).collect()
}

#[test]
fn polled_bios_end_by_polling_only() {
    let mut rig = Rig::new(null(|o| o.poll_queues = 1), Engine::Auto);
    let polled = |sector| {
        let mut bio = read(sector);
        bio.flags = BioFlags::POLLED;
        bio
    };
    rig.submit([polled(1), polled(10), read(20)]);
    let ended: Vec<_> = rig.reap().iter().map(|b| b.user_data).collect();
    assert_eq!(ended, [20], "the one that is not polled");
    assert!(rig.reap().is_empty());
    assert_eq!(poll(&mut rig.cx), [1, 10]);
    rig.device.set_attribute("queue/io_poll", "0").unwrap();
    rig.submit([polled(1)]);
    assert_eq!(rig.reap().len(), 1, "polling is off");
    let mut rig = Rig::new(null(|_| ()), Engine::Auto);
    rig.submit([polled(1)]);
    assert_eq!(rig.reap().len(), 1, "a device without poll queues");
}

#[test]
fn a_polled_bad_block_fails() {
    let driver = null(|o| (o.poll_queues, o.badblocks) = (1, vec![(5, 5)]));
    let mut rig = Rig::new(driver, Engine::Auto);
    let mut bio = read(5);
    bio.flags = BioFlags::POLLED;
    rig.submit([bio]);
    let mut out = BioList::new();
    assert_eq!(rig.cx.poll(&mut out), 1);
    assert_eq!(out.pop().unwrap().status, Status::IoError);
}

#[test]
fn a_timer_that_is_too_slow_is_given_up() {
    for engine in ENGINES {
        let options = QueueOptions { io_timeout_ms: Some(20), ..QueueOptions::default() };
        let hour = Latency::constant(3_600_000_000_000);
        let driver = null(|o| (o.irqmode, o.latency) = (Completion::Timer, hour));
        let clock = drystone_core::clock::SystemClock::new();
        let mut rig = Rig::with(driver, &options, engine, clock);
        assert_eq!(rig.one(read(1)).status, Status::Timeout);
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}

/// The holder of the only tag submits and never calls again: its timer's end is in its ring,
/// which the waiter watches.
#[test]
fn a_holder_that_stays_away_keeps_nobody_waiting() {
    for engine in ENGINES {
        let driver = null(|o| {
            (o.irqmode, o.hw_queue_depth) = (Completion::Timer, 1);
            o.latency = Latency::constant(5_000_000);
        });
        let mut holder = Rig::new(driver, engine);
        holder.submit([read(1)]);
        let mut waiter = holder.set.open(engine).unwrap();
        let dev = waiter.open(&holder.device).unwrap();
        for round in 0..3 {
            let mut list = BioList::new();
            list.push(read(round));
            waiter.submit(dev, &mut list);
            let mut out = BioList::new();
            while waiter.reap(&mut out) == 0 {
                waiter.wait(None);
            }
            assert_eq!(out.pop().unwrap().status, Status::Ok);
        }
        assert_eq!(holder.reap().len(), 1, "its own bio waits for it");
    }
}

/// As above, with a thread that completes.
#[test]
fn a_holder_on_the_thread_keeps_nobody_waiting() {
    for engine in ENGINES {
        let driver = null(|o| (o.irqmode, o.hw_queue_depth) = (Completion::Thread, 1));
        let mut holder = Rig::new(driver, engine);
        let mut waiter = holder.set.open(engine).unwrap();
        let dev = waiter.open(&holder.device).unwrap();
        for round in 0..50 {
            holder.submit([read(1)]);
            let mut list = BioList::new();
            list.push(read(round));
            waiter.submit(dev, &mut list);
            let mut out = BioList::new();
            while waiter.reap(&mut out) == 0 {
                waiter.wait(None);
            }
        }
        assert_eq!(holder.drain().len(), 50);
    }
}

#[test]
fn a_dropped_context_leaves_its_requests_to_the_device() {
    for irqmode in [Completion::Thread, Completion::Timer] {
        let mut rig = Rig::new(null(|o| o.irqmode = irqmode), Engine::Auto);
        rig.submit((0..200).map(|i| read(i * 2)));
        let other = rig.set.open(Engine::Auto).unwrap();
        drop(std::mem::replace(&mut rig.cx, other));
        while rig.set.free_idle_orphans() > 0 {
            std::thread::yield_now();
        }
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
    }
}

#[test]
fn nonsense_is_refused() {
    let refused = |change: &dyn Fn(&mut NullOptions), word: &str| {
        let mut options = NullOptions { size_bytes: 1 << 20, ..NullOptions::default() };
        change(&mut options);
        let error = Null::new(options).err().expect(word).to_string();
        assert!(error.contains(word), "{error}");
    };
    refused(&|o| o.blocksize = 513, "blocksize 513");
    refused(&|o| o.blocksize = 8192, "blocksize 8192");
    refused(&|o| o.size_bytes = 0, "size 0");
    refused(&|o| (o.size_bytes, o.blocksize) = (4096 + 512, 4096), "multiple of blocksize 4096");
    refused(&|o| o.hw_queue_depth = 0, "hw_queue_depth 0");
    refused(&|o| o.hw_queue_depth = 10_241, "hw_queue_depth 10241");
    refused(&|o| o.submit_queues = 0, "submit_queues");
    refused(&|o| o.poll_queues = 2000, "poll_queues");
    refused(&|o| o.mbps = 40_961, "mbps 40961");
    refused(&|o| o.badblocks = vec![(5, 4)], "badblocks");
}

#[test]
fn parameters_can_be_read_and_not_changed() {
    let driver = null(|o| (o.irqmode, o.mbps) = (Completion::Timer, 7));
    let rig = Rig::new(driver, Engine::Auto);
    let value = |name: &str| rig.device.attribute(name).unwrap();
    assert_eq!([value("irqmode"), value("mbps"), value("completion_nsec")], ["2", "7", "100000"]);
    let error = rig.device.set_attribute("mbps", "8").unwrap_err().to_string();
    assert!(error.contains("mbps cannot be changed"), "{error}");
}
