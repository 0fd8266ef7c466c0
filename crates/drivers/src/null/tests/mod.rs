//! The null device: how requests complete, and its models.

mod head;
mod polling;

use super::*;
use crate::testing::{ENGINES, Rig, pattern};
use drystone_core::clock::{Clock, ManualClock};
use drystone_core::op::OpGroup;
use drystone_core::ring::Engine;
use drystone_core::{Bio, BioFlags, BioList, Context, IoBuf, Op, Sector, Status};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;

const MODES: [Completion; 3] = [Completion::Inline, Completion::Thread, Completion::Timer];

pub(super) fn null(change: impl FnOnce(&mut NullOptions)) -> Null {
    let mut options = NullOptions { size_bytes: 1 << 20, ..NullOptions::default() };
    options.latency = Some(Latency::constant(100_000));
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
        let latency = |ns| {
            null(|o| (o.irqmode, o.latency) = (Completion::Timer, Some(Latency::constant(ns))))
        };
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

/// The same holds for bios that the device got in one request.
#[test]
fn bad_blocks_fail_nothing_beside_them() {
    let schedulers = SchedulerKind::ALL.into_iter().flat_map(|s| MODES.map(|mode| (s, mode)));
    for (scheduler, irqmode) in schedulers {
        for flags in [BioFlags::empty(), BioFlags::POLLED] {
            let driver = null(|o| {
                (o.irqmode, o.badblocks, o.hw_queue_depth) = (irqmode, vec![(8, 15)], 1);
                o.poll_queues = 1;
            });
            let options = QueueOptions { scheduler: Some(scheduler), ..QueueOptions::default() };
            let clock = drystone_core::clock::SystemClock::new();
            let mut rig = Rig::with(driver, &options, Engine::Auto, clock);
            rig.submit((0..9).map(|n| {
                let mut bio = Bio::read(Sector(8 * n), IoBuf::zeroed(4096));
                (bio.user_data, bio.flags) = (n, flags);
                bio
            }));
            let mut failed = rig.drain();
            failed.retain(|bio| !bio.status.is_ok());
            let failed: Vec<_> = failed.iter().map(|bio| (bio.user_data, bio.status)).collect();
            assert_eq!(failed, [(1, Status::IoError)], "{scheduler:?}, {irqmode:?}, {flags:?}");
            let noted = rig.device.failures().unwrap().take();
            assert_eq!(noted.count(), 1, "{scheduler:?}, {irqmode:?}, {flags:?}");
        }
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
    for irqmode in MODES {
        let driver = null(|o| {
            (o.irqmode, o.memory_backed, o.discard, o.size_bytes) = (irqmode, true, true, 1 << 37);
        });
        let mut rig = Rig::new(driver, Engine::Auto);
        assert_eq!(rig.write(1 << 36, &[1; 4096], BioFlags::empty()), Status::Ok);
        rig.submit([Bio::without_data(Op::Discard, Sector(0), 1 << 37), read(0)]);
        let order: Vec<Op> = rig.drain().iter().map(|bio| bio.op).collect();
        assert_eq!(order, [Op::Read, Op::Discard], "a long one is done in pieces, {irqmode:?}");
        assert_eq!(rig.read(1 << 36, 4096).unwrap(), [0; 4096]);
        let mut zeroes = Bio::without_data(Op::WriteZeroes, Sector(0), 1 << 37);
        (zeroes.flags, zeroes.user_data) = (BioFlags::NOUNMAP, 1);
        rig.submit([zeroes]);
        rig.cx.withdraw(1..2);
        let statuses: Vec<_> = rig.drain().iter().map(|bio| bio.status).collect();
        assert_eq!(statuses, [Status::Cancelled], "nobody wants all of it, {irqmode:?}");
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

#[test]
fn a_timer_that_is_too_slow_is_given_up() {
    for engine in ENGINES {
        let options = QueueOptions { io_timeout_ms: Some(20), ..QueueOptions::default() };
        let hour = Some(Latency::constant(3_600_000_000_000));
        let driver = null(|o| (o.irqmode, o.latency) = (Completion::Timer, hour));
        let clock = drystone_core::clock::SystemClock::new();
        let mut rig = Rig::with(driver, &options, engine, clock);
        assert_eq!(rig.one(read(1)).status, Status::Timeout);
        assert_eq!(rig.device.stats().in_flight(), (0, 0));
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
    let seek = |min_ns, max_ns| Some(Seek { min_ns, max_ns });
    refused(&|o| o.seek = seek(1, 2), "irqmode 2");
    refused(&|o| (o.seek, o.irqmode) = (seek(1, 2), Completion::Thread), "irqmode 2");
    refused(&|o| (o.seek, o.irqmode) = (seek(3, 2), Completion::Timer), "seek_min_nsec 3");
    refused(&|o| (o.seek, o.irqmode) = (seek(0, 1 << 42), Completion::Timer), "an hour");
}

#[test]
fn parameters_can_be_read_and_not_changed() {
    let driver = null(|o| (o.irqmode, o.mbps) = (Completion::Timer, 7));
    let rig = Rig::new(driver, Engine::Auto);
    let value = |name: &str| rig.device.attribute(name).unwrap();
    assert_eq!([value("irqmode"), value("mbps"), value("completion_nsec")], ["2", "7", "100000"]);
    let error = rig.device.set_attribute("mbps", "8").unwrap_err().to_string();
    assert_eq!(error, format!("mbps of {} cannot be changed", rig.device.info().name));
}

/// Bios that the device completes at once count as the requests that they would be, and adjacent
/// ones still merge.
#[test]
fn what_is_done_at_once_merges_and_is_counted() {
    // Backward and forward merges, and one bio that adjoins another, but not its neighbour in the
    // call.
    let sectors = [50, 90, 91, 92, 7, 6, 30, 51];
    for (nomerges, merged) in [(0, 3), (1, 3), (2, 0)] {
        let options = QueueOptions { nomerges: Some(nomerges), ..QueueOptions::default() };
        let clock = drystone_core::clock::SystemClock::new();
        let mut rig = Rig::with(null(|_| ()), &options, Engine::Auto, clock);
        rig.submit(sectors.map(read));
        let ended: Vec<_> = rig.reap().iter().map(|bio| bio.user_data).collect();
        assert_eq!(ended.len(), sectors.len());
        let stats = *rig.device.stats().group(OpGroup::Read);
        assert_eq!((stats.merged, stats.completed), (merged, sectors.len() as u64 - merged));
        assert_eq!((stats.started, stats.sectors), (stats.completed, sectors.len() as u64));
        assert_eq!(rig.device.latencies(OpGroup::Read).total(), stats.completed);
    }
}

/// An invalid bio ends as it would in a request.
#[test]
fn what_is_done_at_once_is_checked() {
    let mut rig = Rig::new(null(|o| (o.size_bytes, o.blocksize) = (1 << 20, 4096)), Engine::Auto);
    let mut bios = [read(0), read(1), read(2048), read(16)];
    bios.iter_mut().for_each(|bio| bio.bytes = 512);
    (bios[0].bytes, bios[3].flags) = (4096, BioFlags::NOWAIT);
    rig.submit(bios);
    let ended: Vec<_> = rig.reap().iter().map(|bio| bio.status).collect();
    assert_eq!(ended, [Status::Invalid, Status::Invalid, Status::IoError, Status::Invalid]);
}
