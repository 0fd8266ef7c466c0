//! `mq-deadline` as "block/mq-deadline: use separate insertion lists" makes it, with the faults
//! of that version.
//!
//! ```text
//!  submitter: try-lock to merge, else give up -> splice into a staging list   (insert_lock)
//!  dispatcher: bit taken? leave : set it -> lock -> staged bios into the trees -> one unit
//! ```
//!
//! Its faults, each shown by a test:
//! * A batch is spliced to the front of its staging list: batches arrive in reverse.
//! * A deadline (and the age of a class) counts from when a bio enters the trees, not from its
//!   submission. Here its `start_ns` is reset, so the latency that the queue counts lacks the
//!   time before, too.
//! * What is staged cannot be merged into and is not counted as queued.
//! * A caller that finds the dispatch bit set leaves, though its bios may have come after the
//!   holder's look at the staging lists. They then wait for the holder to run the queue again, once
//!   that has issued what it has. (Linux comes again after 3 ms.)
//!
//! Invariant: a stager writes `staged`, then reads `dispatching`; a dispatcher clears
//! `dispatching`, then reads `staged`; all four sequentially consistent. So no bio is stranded.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, fence};

use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{BioList, PortId};
use drystone_queue::scheduler::{Caller, InsertAt, Port, Scheduler};

use super::host::Host;
use super::queue::{Outcome, Queue, Seen};

/// See the module's text.
#[repr(align(128))]
pub struct Patched {
    dispatching: AtomicBool,
    kept: AtomicU32,
    publisher: AtomicU32,
    lock: Lock<Queue>,
    /// Bios in the staging lists; any thread may read this without the lock.
    staged: AtomicU32,
    insert_lock: Lock<Staging>,
}

#[derive(Default)]
struct Staging {
    at_head: BioList,
    at_tail: BioList,
}

impl Staging {
    fn len(&self) -> u32 {
        (self.at_head.len() + self.at_tail.len()) as u32
    }
}

impl Default for Patched {
    fn default() -> Self {
        Patched {
            dispatching: AtomicBool::new(false),
            kept: AtomicU32::new(0),
            publisher: AtomicU32::new(0),
            lock: Lock::new(LockClass::Scheduler, Queue::default()),
            staged: AtomicU32::new(0),
            insert_lock: Lock::new(Patched::INSERT_LOCK, Staging::default()),
        }
    }
}

/// The outcome of one entry of a dispatcher.
enum Entry {
    /// Somebody else dispatches.
    Skipped,
    Done(Outcome, Seen),
}

impl Patched {
    /// The class that counts the lock of the staging lists; the main one has the scheduler's.
    pub const INSERT_LOCK: LockClass = LockClass::Other;

    pub(super) fn work(&self, host: &mut impl Host, bios: &mut BioList, place: InsertAt) -> bool {
        if place == InsertAt::Tail {
            self.merge(host, bios);
        }
        if !bios.is_empty() {
            self.stage(host, bios, place);
        }
        while self.has_staged_or_kept() {
            match self.dispatch(host) {
                Entry::Skipped => return false,
                Entry::Done(Outcome::Granted, _) => {}
                Entry::Done(outcome, seen) => return self.look_again(host, outcome, seen),
            }
        }
        false
    }

    /// Try to merge each bio with what is kept, and give up where the lock is taken.
    fn merge(&self, host: &impl Host, bios: &mut BioList) {
        let mut left = BioList::new();
        while let Some(bio) = bios.pop() {
            let queue = self.lock.try_lock(host.locks());
            let merged = match queue {
                Some(mut queue) => {
                    let merged = queue.merge(host, bio);
                    self.kept.store(queue.kept(), Release);
                    merged
                }
                None => Err(bio),
            };
            left.extend(merged.err());
        }
        *bios = left;
    }

    /// Splice the batch to the front of its staging list.
    fn stage(&self, host: &impl Host, bios: &mut BioList, place: InsertAt) {
        let mut staging = self.insert_lock.lock(host.locks());
        self.publisher.store(host.port_id().0, Relaxed);
        let list = match place {
            InsertAt::Head => &mut staging.at_head,
            InsertAt::Tail => &mut staging.at_tail,
        };
        list.prepend(bios);
        self.staged.store(staging.len(), SeqCst);
    }

    /// One entry of a dispatcher: at most one unit.
    #[inline]
    fn dispatch(&self, host: &mut impl Host) -> Entry {
        let tag = host.reserve_tags(PLUG_MAX_BIOS);
        if !self.set_bit() {
            return Entry::Skipped;
        }
        let mut queue = self.lock.lock(host.locks());
        self.transfer(host, &mut queue);
        let outcome = queue.dispatch_one(host, tag);
        let seen = queue.seen();
        self.kept.store(queue.kept(), Release);
        drop(queue);
        self.dispatching.store(false, SeqCst);
        Entry::Done(outcome, seen)
    }

    /// True if the bit was clear and is ours now.
    #[inline]
    fn set_bit(&self) -> bool {
        !self.dispatching.load(SeqCst) && !self.dispatching.swap(true, SeqCst)
    }

    /// Move what is staged into the trees; its deadlines begin now.
    fn transfer(&self, host: &impl Host, queue: &mut Queue) {
        if self.staged.load(SeqCst) == 0 {
            return;
        }
        let mut staging = self.insert_lock.lock(host.locks());
        let (at_head, at_tail) = (staging.at_head.take(), staging.at_tail.take());
        self.staged.store(0, SeqCst);
        drop(staging);
        for (mut list, place) in [(at_head, InsertAt::Head), (at_tail, InsertAt::Tail)] {
            let mut stamped = BioList::new();
            while let Some(mut bio) = list.pop() {
                bio.start_ns = host.now();
                stamped.push(bio);
            }
            queue.insert(host, &mut stamped, place);
        }
    }

    /// True if what was missing came meanwhile, or bios were staged that this dispatcher missed.
    fn look_again(&self, host: &mut impl Host, outcome: Outcome, seen: Seen) -> bool {
        fence(SeqCst);
        if self.staged.load(SeqCst) != 0 {
            return true;
        }
        let kept = self.kept.load(Relaxed) != 0 && !host.held();
        kept && match outcome {
            Outcome::NoTag => host.tags_came_free(),
            _ => seen.is_old(host),
        }
    }

    #[inline]
    fn has_staged_or_kept(&self) -> bool {
        self.kept.load(Acquire) != 0 || self.staged.load(SeqCst) != 0
    }
}

impl Scheduler for Patched {
    type Local = ();

    fn run(
        &self,
        (): &mut (),
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> bool {
        self.work(caller, bios, place)
    }

    fn expel(&self, (): &mut (), caller: &mut Caller<'_>, port: PortId) -> (BioList, bool) {
        let mut queue = self.lock.lock(caller.locks);
        self.transfer(caller, &mut queue);
        let bios = queue.expel(caller, port);
        self.kept.store(queue.kept(), Release);
        (bios, queue.kept() > 0)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.has_staged_or_kept()
    }

    fn is_busy(&self) -> bool {
        self.dispatching.load(Relaxed)
    }

    fn last_publisher(&self) -> PortId {
        PortId(self.publisher.load(Relaxed))
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        let mut queue = self.lock.lock(locks);
        queue.closed(port);
        remove();
        drop(queue);
        self.has_staged_or_kept()
    }
}
