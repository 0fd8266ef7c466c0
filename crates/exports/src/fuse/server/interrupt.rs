//! Requests that are interrupted: a signal has come to a process that waits for an answer, SIGKILL for instance.
//!
//! The kernel tells it once (`FUSE_INTERRUPT`), to whichever session reads it, and the process waits on until its
//! request is answered (Documentation/filesystems/fuse/fuse.rst, *Interrupting filesystem operations*). If the
//! process is being killed ([`super::askers`]) nobody wants the answer, and what may take long ends early with
//! `EINTR`:
//! * Zeroing (`ftruncate`, `open` with `O_TRUNC`, `fallocate`): what waits for a limit of its throttle group is
//!   withdrawn, no further piece is begun, and the answer comes when those that a device has are back.
//! * Whatever changes the file and waits for others to write the same blocks leaves the line.
//!
//! Other reads and writes go on, since a disk ends them in time.
//!
//! Invariants:
//! * An interrupt has no answer.
//! * One that names a request which its reader does not know is remembered before the other sessions are woken. A
//!   session looks there when it begins with what may take long, or puts something in a line; and through
//!   those that it has not seen when it is woken. So the order in which requests and interrupts are read does not
//!   matter. One that comes after the answer stays until others take its place: numbers of requests are not used
//!   again.
//!
//! Cost: each interrupt is compared once with the operations of each session, [`super::IN_FLIGHT_MAX`] at the
//! most. Nothing is done for an I/O that nobody waits for.

use super::session::{Op, Session};
use crate::fuse::proto::{Operation, Request};
use crate::server::Work;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Bio, Status};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Interrupts that are remembered: more than there are processes that are interrupted at one moment and whose
/// requests others read.
const REMEMBERED_MAX: usize = 1024;

/// Interrupts of requests that another session has, or is about to begin with. Any thread may use it.
pub(super) struct Interrupts {
    /// How many there were. Released after the list has the last of them, so that whoever acquires it finds it there.
    count: AtomicU64,
    recent: Lock<VecDeque<u64>>,
}

impl Interrupts {
    /// None yet.
    pub(super) fn new() -> Self {
        let recent = Lock::new(LockClass::Control, VecDeque::new());
        Interrupts { count: AtomicU64::new(0), recent }
    }

    fn add(&self, unique: u64, user: &LockCounters) {
        let mut recent = self.recent.lock(user);
        if recent.len() == REMEMBERED_MAX {
            recent.pop_front();
        }
        recent.push_back(unique);
        self.count.fetch_add(1, Release);
    }

    fn count(&self) -> u64 {
        self.count.load(Acquire)
    }

    fn has(&self, unique: u64, user: &LockCounters) -> bool {
        self.count() > 0 && self.recent.lock(user).contains(&unique)
    }

    /// Those that came after the first `seen`, as far as they are remembered; and how many there were.
    fn since(&self, seen: u64, user: &LockCounters) -> (Vec<u64>, u64) {
        let recent = self.recent.lock(user);
        let count = self.count();
        let new = usize::try_from(count - seen).unwrap_or(usize::MAX).min(recent.len());
        (recent.range(recent.len() - new..).copied().collect(), count)
    }
}

impl Session {
    /// Whoever asked for `unique` was interrupted.
    pub(super) fn interrupt(&mut self, unique: u64) {
        if !self.interrupt_own(unique) {
            self.mount.interrupts().add(unique, &self.locks);
            self.mount.wake_all();
        }
    }

    /// There are interrupts that it has not looked at.
    pub(super) fn has_interrupts(&self) -> bool {
        self.mount.interrupts().count() != self.interrupts_seen
    }

    /// Look whether any of them is for an operation of this session.
    pub(super) fn follow_interrupts(&mut self) {
        let (new, count) = self.mount.interrupts().since(self.interrupts_seen, &self.locks);
        self.interrupts_seen = count;
        for unique in new {
            self.interrupt_own(unique);
        }
    }

    /// Watch who asked for `unique`, if that may end early. False if no operation of this session answers it.
    fn interrupt_own(&mut self, unique: u64) -> bool {
        let Some(index) = self.op_named(unique) else { return false };
        let is_long = self.ops[index as usize].as_ref().is_some_and(|op| op.is_long);
        if is_long || self.is_in_line(index) {
            self.watch_asker(index);
        }
        true
    }

    /// The operation that answers `unique`.
    pub(super) fn op_named(&self, unique: u64) -> Option<u32> {
        let is_it = |op: &Option<Op>| op.as_ref().is_some_and(|op| op.unique == unique);
        self.ops.iter().position(is_it).map(|index| index as u32)
    }

    /// Operation `index`, which may end early, has begun: its interrupt may have been read before.
    #[cold]
    pub(super) fn watch_if_interrupted(&mut self, index: u32) {
        let Some(op) = &self.ops[index as usize] else { return };
        if self.mount.interrupts().has(op.unique, &self.locks) {
            self.watch_asker(index);
        }
    }

    /// Nobody waits for the answer of operation `index` any more.
    pub(super) fn end_early(&mut self, index: u32, work: &mut Work) {
        if self.leave_line(index) {
            return;
        }
        let op = self.ops[index as usize].as_mut();
        if let Some(op) = op.filter(|op| op.is_long && !op.interrupted) {
            op.interrupted = true;
            // One whose bios are all back is ended by its next step. Its number may be another's by the time that
            // `work` withdraws.
            if op.pending > 0 {
                work.withdraw(self.user_data_of_op(index));
            }
        }
    }

    /// Nobody wants the answer of the operation that this bio belongs to: it is not to wait for a limit.
    pub(super) fn withdraw_if_interrupted(&self, bio: &Bio, work: &mut Work) {
        let index = Session::op_of(bio);
        if self.ops[index as usize].as_ref().is_some_and(|op| op.interrupted) {
            work.withdraw(self.user_data_of_op(index));
        }
    }
}

/// Whether a request may take long, so that it ends early when its asker is killed.
pub(super) fn is_long(request: &Request<'_>) -> bool {
    matches!(request.operation, Operation::SetAttributes { .. } | Operation::Allocate { .. })
}

impl Op {
    /// It ends before its time, because nobody waits for it.
    pub(super) fn is_interrupted_by(&self, status: Status) -> bool {
        self.interrupted && status == Status::Cancelled
    }

    /// It is to end before it does more.
    pub(super) fn stop_if_interrupted(&mut self) {
        if self.interrupted && self.status.is_ok() {
            self.status = Status::Cancelled;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    #[test]
    fn each_is_told_once() {
        let user = LockCounters::new(ManualClock::new(1));
        let interrupts = Interrupts::new();
        assert_eq!(interrupts.since(0, &user), (vec![], 0));
        (1..=3).for_each(|unique| interrupts.add(unique, &user));
        assert_eq!(interrupts.since(0, &user), (vec![1, 2, 3], 3));
        assert_eq!(interrupts.since(2, &user), (vec![3], 3));
        assert_eq!(interrupts.since(3, &user), (vec![], 3));
        let many = REMEMBERED_MAX as u64 + 3;
        (4..=many).for_each(|unique| interrupts.add(unique, &user));
        let (new, count) = interrupts.since(1, &user);
        assert_eq!(
            (new.len(), new[0], count),
            (REMEMBERED_MAX, 4, many),
            "the oldest are forgotten"
        );
        assert!(interrupts.has(4, &user) && !interrupts.has(3, &user));
    }
}
