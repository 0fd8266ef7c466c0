//! The cost of an I/O in the steady state on devices that complete inline: no allocation, no
//! lock, one clock reading for 32. In a process of its own, because the allocator counts for
//! all threads; one test, for the same reason.

use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, BioList, ContextSet, Device, IoBuf, Sector};
use drystone_drivers::null::{Null, NullOptions};
use drystone_drivers::ram::Ram;
use drystone_queue::queue::QueueOptions;
use drystone_queue::{Driver, RequestQueue};
use drystone_testkit::alloc::CountingAllocator;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

const ROUNDS: u64 = 2_000;

/// The cost of `ROUNDS` rounds: allocations, locks, clock readings.
struct Costs {
    allocations: u64,
    locks: u64,
    clock_reads: u64,
}

fn null(poll_queues: u32) -> Null {
    let options = NullOptions { size_bytes: 1 << 20, poll_queues, ..NullOptions::default() };
    Null::new(options).expect("a null device")
}

fn costs(driver: impl Driver, engine: Engine, write: bool, polled: bool) -> Costs {
    let clock = SystemClock::new();
    let set = ContextSet::new(clock.clone());
    let locks = LockCounters::new(clock);
    let queue = RequestQueue::new("d0", driver, &QueueOptions::default(), locks);
    let device: Arc<dyn Device> = Arc::new(queue.expect("a queue"));
    let mut cx = set.open(engine).expect("a ring");
    let dev = cx.open(&device).expect("a channel");
    let mut bios = BioList::new();
    for i in 0..32 {
        let (sector, buf) = (Sector(i * 16), IoBuf::zeroed(4096));
        let mut bio = if write { Bio::write(sector, buf) } else { Bio::read(sector, buf) };
        bio.flags.set(BioFlags::POLLED, polled);
        bios.push(bio);
    }
    let mut run = |rounds| {
        for _ in 0..rounds {
            cx.submit(dev, &mut bios);
            let n = if polled { cx.poll(&mut bios) } else { cx.reap(&mut bios) };
            assert_eq!(n, 32);
        }
        (ALLOCATOR.allocations(), cx.locks().total().acquisitions, cx.clock_reads())
    };
    let before = run(10);
    let after = run(ROUNDS);
    assert!(bios.iter().all(|b| b.status.is_ok()));
    Costs {
        allocations: after.0 - before.0,
        locks: after.1 - before.1,
        clock_reads: after.2 - before.2,
    }
}

fn check(what: &str, costs: Costs, engine: Engine) {
    check_with_locks(what, costs, 0, engine);
}

fn check_with_locks(what: &str, costs: Costs, locks: u64, engine: Engine) {
    assert_eq!(costs.allocations, 0, "{what}: allocations on {engine:?}");
    assert_eq!(costs.locks, locks, "{what}: locks on {engine:?}");
    // One a round, and one more whenever the thread lost its processor between two calls: how
    // often that is depends on what else the machine does.
    assert!(costs.clock_reads >= ROUNDS, "{what}: a latency without a reading");
    let counter = SystemClock::new().cycles().is_some();
    // Without a cycle counter no reading is kept across calls.
    let most = if counter { ROUNDS + ROUNDS / 4 } else { 2 * ROUNDS };
    assert!(costs.clock_reads <= most, "{what}: {} readings", costs.clock_reads);
}

#[test]
fn the_steady_state_costs_nothing() {
    for engine in [Engine::Auto, Engine::Plain] {
        check("null", costs(null(0), engine, false, false), engine);
        // A look at a poll queue, which contexts may share, tries its lock: the device's own.
        check_with_locks("null, polled", costs(null(1), engine, false, true), ROUNDS, engine);
        let ram = || Ram::new(1 << 20, true).expect("memory");
        check("ram, reads", costs(ram(), engine, false, false), engine);
        check("ram, writes", costs(ram(), engine, true, false), engine);
    }
}
