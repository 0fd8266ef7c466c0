//! The faults, each shown, two of them beside what *before* does in the same case.

use std::collections::VecDeque;
use std::sync::Arc;

use drystone_core::clock::{ManualClock, Ns};
use drystone_core::op::OpGroup;
use drystone_core::{Bio, IoBuf, Limits, Priority, PriorityClass, Sector};
use drystone_queue::scheduler::deadline::{Deadline, Insertion, Position, Tunables};
use drystone_queue::unit::Unit;

use super::*;
use crate::scheduler::Baseline;
use crate::scheduler::counts::Counts;

const MS: u64 = 1_000_000;

/// A call made while a unit is granted, that is with the dispatcher at work.
type AtGrant = Box<dyn FnOnce()>;

/// A channel that the test plays.
struct Channel {
    port: PortId,
    locks: Arc<LockCounters>,
    now: Ns,
    limits: Limits,
    tunables: Tunables,
    tags: u32,
    granted: Vec<(u64, u64)>,
    placed: Option<Unit>,
    at_grant: VecDeque<AtGrant>,
}

impl Channel {
    fn new(port: u32, tags: u32) -> Self {
        Channel {
            port: PortId(port),
            locks: LockCounters::new(ManualClock::new(1)),
            now: 0,
            limits: Limits::default(),
            tunables: Tunables::new(64),
            tags,
            granted: Vec::new(),
            placed: None,
            at_grant: VecDeque::new(),
        }
    }

    fn batch(&self, bios: impl IntoIterator<Item = Box<Bio>>) -> BioList {
        let mut list = BioList::new();
        list.extend(bios.into_iter().map(|mut bio| {
            (bio.port, bio.start_ns) = (self.port, self.now);
            bio
        }));
        list
    }

    /// First sectors of what was granted, in order.
    fn sectors(&self) -> Vec<u64> {
        self.granted.iter().map(|(sector, _)| *sector).collect()
    }
}

impl Host for Channel {
    fn port_id(&self) -> PortId {
        self.port
    }
    fn locks(&self) -> &LockCounters {
        &self.locks
    }
    fn now(&self) -> Ns {
        self.now
    }
    fn held(&self) -> bool {
        false
    }
    fn insertion(&self) -> Insertion<'_> {
        Insertion { limits: &self.limits, nomerges: 0, tunables: &self.tunables }
    }
    fn count_merged(&self, _: OpGroup) {}
    fn reserve_tags(&mut self, _: usize) -> bool {
        self.tags > 0
    }
    fn tags_came_free(&self) -> bool {
        false
    }
    fn place_next(
        &mut self,
        trees: &mut Deadline,
        position: &mut Position,
        counts: &mut Counts,
    ) -> Option<(PortId, usize)> {
        let (placed, in_flight) = (&mut self.placed, |class| counts.in_flight(class, || 0));
        trees.dispatch_into(position, self.now, &self.tunables, in_flight, |_| {
            placed.insert(Unit::default())
        })
    }
    fn grant_placed(&mut self) -> Result<(), Unit> {
        let unit = self.placed.take().expect("it was placed");
        self.tags -= 1;
        self.granted.push((unit.sector.0, unit.bytes));
        if let Some(then) = self.at_grant.pop_front() {
            then();
        }
        Ok(())
    }
    fn ended(&mut self, _: usize) -> u64 {
        0
    }
    fn starve(&mut self, _: PortId) {}
}

fn read(sector: u64) -> Box<Bio> {
    Bio::read(Sector(sector), IoBuf::zeroed(512))
}

fn submit(scheduler: &Patched, host: &mut Channel, bios: impl IntoIterator<Item = Box<Bio>>) {
    let mut bios = host.batch(bios);
    scheduler.work(host, &mut bios, InsertAt::Tail);
    assert!(bios.is_empty());
}

fn stage(scheduler: &Patched, host: &Channel, bios: impl IntoIterator<Item = Box<Bio>>) {
    scheduler.stage(host, &mut host.batch(bios), InsertAt::Tail);
}

/// Have `then` done while the host's next unit is being dispatched, on another thread, which
/// would wait for ever if it waited for a lock.
fn meanwhile(
    scheduler: &Arc<Patched>,
    host: &mut Channel,
    then: impl FnOnce(&Patched) + Send + 'static,
) {
    let at = scheduler.clone();
    host.at_grant.push_back(Box::new(move || {
        std::thread::spawn(move || then(&at)).join().expect("no panic");
    }));
}

/// Dispatch everything, with every deadline over and no batches in sector order: in the order of
/// the FIFO.
fn drain(mut run: impl FnMut(&mut Channel) -> bool) -> Vec<u64> {
    let mut host = Channel::new(9, 99);
    host.now = 60_000 * MS;
    host.tunables.fifo_batch = 1;
    while run(&mut host) {}
    host.sectors()
}

const BATCHES: [u64; 3] = [10, 20, 30];

#[test]
fn batches_are_reversed() {
    let mailed = Patched::default();
    let before = Baseline::<false>::default();
    let mut host = Channel::new(0, 0);
    for first in BATCHES {
        stage(&mailed, &host, [read(first), read(first + 2)]);
        let mut batch = host.batch([read(first), read(first + 2)]);
        before.work(&mut host, &mut batch, InsertAt::Tail);
    }
    // Into the trees, where their deadlines begin.
    mailed.work(&mut host, &mut BioList::new(), InsertAt::Tail);
    let order = drain(|host| mailed.work(host, &mut BioList::new(), InsertAt::Tail));
    assert_eq!(order, [30, 32, 20, 22, 10, 12]);
    let order = drain(|host| before.work(host, &mut BioList::new(), InsertAt::Tail));
    assert_eq!(order, [10, 12, 20, 22, 30, 32]);
}

#[test]
fn deadlines_begin_when_bios_enter_the_trees() {
    let mailed = Patched::default();
    let before = Baseline::<false>::default();
    let dispatch_late = |run: &dyn Fn(&mut Channel, &mut BioList)| {
        let mut host = Channel::new(0, 1);
        host.tunables.fifo_batch = 1;
        let mut first = host.batch([read(8000)]);
        run(&mut host, &mut first);
        host.now = 60_000 * MS;
        let mut young = host.batch([read(9000)]);
        host.tags = 2;
        run(&mut host, &mut young);
        host.sectors()
    };
    // A read at 10 waits for a minute, then comes one at 9000, nearer to the last sector.
    let order = dispatch_late(&|host, bios| {
        mailed.work(host, bios, InsertAt::Tail);
        if host.now == 0 {
            stage(&mailed, host, [read(10)]);
        }
    });
    assert_eq!(order, [8000, 9000, 10], "nobody saw that 10 was overdue");
    let order = dispatch_late(&|host, bios| {
        before.work(host, bios, InsertAt::Tail);
        if host.now == 0 {
            let mut old = host.batch([read(10)]);
            before.work(host, &mut old, InsertAt::Tail);
        }
    });
    assert_eq!(order, [8000, 10, 9000]);
}

#[test]
fn nothing_merges_into_what_is_staged() {
    let mailed = Arc::new(Patched::default());
    let mut holder = Channel::new(0, 1);
    meanwhile(&mailed, &mut holder, |mailed| {
        let mut other = Channel::new(1, 9);
        submit(mailed, &mut other, [read(10)]);
        submit(mailed, &mut other, [read(11)]);
        let tries = other.locks.get(LockClass::Scheduler);
        assert_eq!((tries.acquisitions, tries.contentions), (0, 2), "both attempts gave up");
        assert_eq!(mailed.staged.load(SeqCst), 2, "two bios, not one of two sectors");
    });
    submit(&mailed, &mut holder, [read(8000)]);
    assert!(holder.at_grant.is_empty());

    let mut host = Channel::new(0, 0);
    submit(&mailed, &mut host, [read(50)]);
    submit(&mailed, &mut host, [read(51)]);
    host.tags = 9;
    while mailed.work(&mut host, &mut BioList::new(), InsertAt::Tail) {}
    assert!(host.granted.contains(&(50, 1024)), "in the trees they do: {:?}", host.granted);
}

#[test]
fn what_is_staged_is_not_counted_as_queued() {
    let mailed = Patched::default();
    let mut host = Channel::new(0, 0);
    submit(&mailed, &mut host, [read(8000), read(8010)]);
    host.tags = 9;
    let mut urgent = read(10);
    urgent.priority = Priority { class: PriorityClass::RealTime, level: 0 };
    let locks = host.locks.clone();
    {
        // A dispatcher that has just looked at the staging lists.
        let mut queue = mailed.lock.lock(&locks);
        mailed.transfer(&host, &mut queue);
        stage(&mailed, &host, [urgent]);
        assert_eq!(queue.kept(), 2);
        assert_eq!(queue.dispatch_one(&mut host, true), Outcome::Granted);
    }
    assert_eq!(host.sectors(), [8000], "before the real-time read, which nobody counts");
    mailed.work(&mut host, &mut BioList::new(), InsertAt::Tail);
    assert_eq!(host.sectors()[1], 10);
}

#[test]
fn who_finds_the_bit_set_leaves_what_it_brought() {
    let mailed = Arc::new(Patched::default());
    let mut holder = Channel::new(0, 1);
    meanwhile(&mailed, &mut holder, |mailed| {
        let mut other = Channel::new(1, 9);
        let mut bios = other.batch([read(10), read(20)]);
        assert!(!mailed.work(&mut other, &mut bios, InsertAt::Tail), "nothing to come again for");
        assert_eq!(other.granted, [], "nine tags and two bios, and nothing goes");
        assert!(mailed.has_staged_or_kept());
    });
    submit(&mailed, &mut holder, [read(8000)]);
    assert_eq!(holder.sectors(), [8000]);
    // The next run of the queue finds them.
    holder.tags = 2;
    while mailed.work(&mut holder, &mut BioList::new(), InsertAt::Tail) {}
    assert_eq!(holder.sectors(), [8000, 10, 20]);
    assert!(!mailed.has_staged_or_kept());
}
