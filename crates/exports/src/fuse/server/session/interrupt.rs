//! Interrupted requests: a process that waits for an answer has got a signal, such as SIGKILL.
//!
//! The kernel reports the signal once (`FUSE_INTERRUPT`), to the session that reads it, and the
//! process still waits for the answer to its request (Documentation/filesystems/fuse/fuse.rst,
//! *Interrupting filesystem operations*). If the process is being killed
//! ([`crate::fuse::server::askers`]), nobody needs the answer. A request that may take long then
//! ends early with `EINTR`:
//! * Zeroing (`ftruncate`, `open` with `O_TRUNC`, `fallocate`): bios that wait for a limit of their
//!   throttle group are withdrawn, no further piece begins, and the answer comes when the bios that
//!   a device has are back.
//! * A write that waits for other writes of the same blocks leaves the line.
//!
//! Other reads and writes continue, because a device ends them soon.
//!
//! Invariants:
//! * An interrupt has no answer.
//! * An interrupt of a request that its reader does not have is remembered before the other
//!   sessions are woken. A session checks the remembered interrupts when it begins an operation
//!   that may take long or blocks a write, and when it is woken. So the order in which requests and
//!   interrupts are read does not matter.
//!
//! Cost: each interrupt is compared once with the operations of each session,
//! [`crate::fuse::server::IN_FLIGHT_MAX`] at the most. An I/O that nobody interrupts costs nothing.

use super::Session;
use crate::fuse::server::event::Event;
use crate::server::{OpId, Work};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use drystone_core::ring::Query;

impl Session {
    /// Obeys the interrupt of request `unique`, or passes it on to the other sessions.
    pub(super) fn interrupt(&mut self, unique: u64) {
        if !self.interrupt_own(unique) {
            self.mount.interrupts().add(unique, &self.counters);
            self.mount.wake_all();
        }
    }

    /// True if there are interrupts that it has not seen.
    pub(in crate::fuse::server) fn has_interrupts(&self) -> bool {
        self.askers.has_unseen(self.mount.interrupts())
    }

    /// Obeys the unseen interrupts of its own operations.
    pub(in crate::fuse::server) fn follow_interrupts(&mut self) {
        for unique in self.askers.take_unseen(self.mount.interrupts(), &self.counters) {
            self.interrupt_own(unique);
        }
    }

    /// Watches the asker of `unique`, if that may end early. False if it is not this session's.
    fn interrupt_own(&mut self, unique: u64) -> bool {
        let Some(id) = self.ops.find(unique) else { return false };
        let Some(op) = self.ops.op(id) else { return false };
        if op.is_long || self.locks.is_blocked(op.volume, id) {
            self.watch_asker(id);
        }
        true
    }

    /// Watches the asker of an operation that has just begun and may end early, if its interrupt
    /// was read before.
    #[cold]
    pub(super) fn watch_if_interrupted(&mut self, id: OpId) {
        let Some(op) = self.ops.op(id) else { return };
        if self.mount.interrupts().has(op.reply.unique, &self.counters) {
            self.watch_asker(id);
        }
    }

    fn watch_asker(&mut self, id: OpId) {
        if let Some(op) = self.ops.op(id) {
            self.askers.add(op.reply.unique, op.asker);
        }
    }

    /// The time at which a query about an asker is due.
    pub(in crate::fuse::server) fn asker_deadline(&self) -> Option<Ns> {
        self.askers.deadline().filter(|_| self.is_open())
    }

    /// Queries the state of the next asker, if that is due.
    pub(in crate::fuse::server) fn check_askers(&mut self, work: &mut Work) {
        if self.asker_deadline().is_none() {
            return;
        }
        let now = work.cx.set().clock().now();
        let ops = &self.ops;
        let next = self.askers.begin(now, |unique| ops.find(unique).is_some());
        let Some(task) = next else { return };
        let query = Query::Whether { ask: self.mount.options().is_killed, of: task };
        work.cx.start_query(query, Event::Asker.value(self.ops.session()));
        // A busy thread does not sleep, and so would not submit the query otherwise.
        work.cx.submit_ring();
    }

    /// Takes the answer about an asker. An error is no answer: the query comes again.
    pub(in crate::fuse::server) fn end_asker_check(&mut self, result: i32, work: &mut Work) {
        let now = work.cx.set().clock().now();
        let Some(unique) = self.askers.end(result > 0, now) else { return };
        if let Some(id) = self.ops.find(unique) {
            self.end_early(id, work);
        }
    }

    /// Ends an operation early if it may: nobody waits for its answer.
    pub(super) fn end_early(&mut self, id: OpId, work: &mut Work) {
        if self.leave_line(id) {
            return;
        }
        let op = self.ops.op_mut(id);
        let Some(op) = op.filter(|op| op.is_long && !op.interrupted) else { return };
        op.interrupted = true;
        // An operation whose bios are all back ends with its next step. It must not be withdrawn:
        // another operation may have its number when `work` withdraws.
        if op.pending > 0 {
            work.withdraw(self.ops.user_data_of(id));
        }
    }

    /// Withdraws a bio of an operation that ends early, so that it waits for no limit.
    #[inline]
    pub(super) fn withdraw_if_interrupted(&self, bio: &Bio, work: &mut Work) {
        let id = OpId::of(bio);
        if self.ops.op(id).is_some_and(|op| op.interrupted) {
            work.withdraw(self.ops.user_data_of(id));
        }
    }
}
