//! `mq-deadline` as Linux 6.12 has it: one lock for everything.
//!
//! A batch is inserted under the lock, and each request is dispatched under the lock, taken again
//! (`dd_insert_requests`, `dd_dispatch_request`). Linux also takes it for each bio to look for a
//! merge; here merging happens as a batch is inserted, which is kinder to the lock.
//!
//! Invariant: `kept` is the number of units in the trees whenever the lock is free, and a thread
//! that leaves units behind for want of tags, or of a class that may go, looks once more after the
//! lock is free and a full fence: no request is stranded.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*, fence};

use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_core::{BioList, PortId};
use drystone_queue::scheduler::{Caller, InsertAt, Port, Scheduler};

use super::host::Host;
use super::queue::{Outcome, Queue, Seen};

/// See the module's text. The lock is the best that a user program has (it spins a moment, then
/// sleeps); with `SPIN` it burns the processor until it is free, as a kernel's does.
#[repr(align(128))]
pub struct Baseline<const SPIN: bool> {
    kept: AtomicU32,
    /// Somebody dispatches. A hint.
    busy: AtomicBool,
    publisher: AtomicU32,
    lock: Lock<Queue>,
}

impl<const SPIN: bool> Default for Baseline<SPIN> {
    fn default() -> Self {
        Baseline {
            kept: AtomicU32::new(0),
            busy: AtomicBool::new(false),
            publisher: AtomicU32::new(0),
            lock: Lock::new(LockClass::Scheduler, Queue::default()),
        }
    }
}

impl<const SPIN: bool> Baseline<SPIN> {
    #[inline]
    fn lock(&self, user: &LockCounters) -> Guard<'_, Queue> {
        if SPIN { self.lock.spin(user) } else { self.lock.lock(user) }
    }

    #[inline]
    fn unlock(&self, queue: Guard<'_, Queue>) {
        self.kept.store(queue.kept(), Release);
    }

    pub(super) fn work(&self, host: &mut impl Host, bios: &mut BioList, place: InsertAt) -> bool {
        if !bios.is_empty() {
            let mut queue = self.lock(host.locks());
            self.publisher.store(host.port_id().0, Relaxed);
            queue.insert(host, bios, place);
            self.unlock(queue);
        }
        while self.kept.load(Acquire) != 0 {
            let (outcome, seen) = self.dispatch(host);
            if outcome != Outcome::Granted {
                return self.look_again(host, outcome, seen);
            }
        }
        self.set_busy(false);
        false
    }

    #[inline]
    fn dispatch(&self, host: &mut impl Host) -> (Outcome, Seen) {
        let tag = host.reserve_tags(PLUG_MAX_BIOS);
        let mut queue = self.lock(host.locks());
        self.set_busy(true);
        let outcome = queue.dispatch_one(host, tag);
        let seen = queue.seen();
        self.unlock(queue);
        (outcome, seen)
    }

    fn set_busy(&self, busy: bool) {
        if self.busy.load(Relaxed) != busy {
            self.busy.store(busy, Relaxed);
        }
    }

    /// True if what was missing came while the lock was held.
    fn look_again(&self, host: &mut impl Host, outcome: Outcome, seen: Seen) -> bool {
        self.set_busy(false);
        fence(SeqCst);
        let kept = self.kept.load(Relaxed) != 0 && !host.held();
        kept && match outcome {
            Outcome::NoTag => host.tags_came_free(),
            _ => seen.is_old(host),
        }
    }
}

impl<const SPIN: bool> Scheduler for Baseline<SPIN> {
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
        let mut queue = self.lock(caller.locks);
        let bios = queue.expel(caller, port);
        let kept = queue.kept() > 0;
        self.unlock(queue);
        (bios, kept)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.kept.load(Relaxed) != 0
    }

    fn is_busy(&self) -> bool {
        self.busy.load(Relaxed)
    }

    fn last_publisher(&self) -> PortId {
        PortId(self.publisher.load(Relaxed))
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        let mut queue = self.lock(locks);
        queue.closed(port);
        remove();
        queue.kept() > 0
    }
}
