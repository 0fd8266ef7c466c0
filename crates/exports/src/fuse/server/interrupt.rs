//! Askers that give up: a signal has come to a process that waits for an answer, SIGKILL for instance.
//!
//! The kernel tells it once (`FUSE_INTERRUPT`), to whichever session reads it, and the process waits on until its
//! request is answered (Documentation/filesystems/fuse/fuse.rst, *Interrupting filesystem operations*). What may
//! take long is zeroing: `ftruncate`, `open` with `O_TRUNC`, `fallocate`. It is stopped: what waits for a limit
//! of its throttle group is withdrawn, no further piece is begun, and when those that a device has are back the answer is
//! `EINTR`. Reads and writes go on, since programs do not expect a disk to be interrupted.
//!
//! Invariants:
//! * An interrupt has no answer.
//! * One that names a request which its reader does not know is remembered before the other sessions are woken, and
//!   a session looks there when it begins with long work and when it is woken. So the order in which requests and
//!   interrupts are read does not matter. One that comes after the answer stays until others take its place:
//!   numbers of requests are not used again.

use super::session::Session;
use crate::fuse::proto::{Operation, Request};
use crate::server::Work;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Bio, Status};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::*};

/// Interrupts that are remembered: more than there are processes that give up at one moment and whose
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
}

impl Session {
    /// Whoever asked for `unique` gives up.
    pub(super) fn interrupt(&mut self, unique: u64, work: &mut Work) {
        if !self.interrupt_own(unique, work) {
            self.mount.interrupts().add(unique, &self.locks);
            self.mount.wake_all();
        }
    }

    /// There are interrupts that it has not looked at.
    pub(super) fn has_interrupts(&self) -> bool {
        self.mount.interrupts().count() != self.interrupts_seen
    }

    /// Look whether any of them is for an operation of this session.
    pub(super) fn follow_interrupts(&mut self, work: &mut Work) {
        self.interrupts_seen = self.mount.interrupts().count();
        let recent: Vec<u64> = {
            let recent = self.mount.interrupts().recent.lock(&self.locks);
            recent.iter().copied().collect()
        };
        for unique in recent {
            self.interrupt_own(unique, work);
        }
    }

    /// End the long work that answers `unique`. False if no operation of this session does.
    fn interrupt_own(&mut self, unique: u64, work: &mut Work) -> bool {
        let is_it =
            |op: &Option<_>| op.as_ref().is_some_and(|op: &super::session::Op| op.unique == unique);
        let Some(index) = self.ops.iter().position(is_it) else { return false };
        if let Some(op) = self.ops[index].as_mut().filter(|op| op.is_long && !op.interrupted) {
            op.interrupted = true;
            // One whose bios are all back is ended by its next step. Its number may be another's by the time that
            // `work` withdraws.
            if op.pending > 0 {
                work.withdraw(self.user_data_of_op(index as u32));
            }
        }
        true
    }

    /// Whether a request may take long, so that it is ended when its asker gives up; and whether he has.
    pub(super) fn is_long(&self, request: &Request<'_>) -> (bool, bool) {
        let is_long = matches!(
            request.operation,
            Operation::SetAttributes { .. } | Operation::Allocate { .. }
        );
        (is_long, is_long && self.mount.interrupts().has(request.unique, &self.locks))
    }

    /// Nobody wants the answer of the operation that this bio belongs to: it is not to wait for a limit.
    pub(super) fn withdraw_if_interrupted(&self, bio: &Bio, work: &mut Work) {
        let index = Session::op_of(bio);
        if self.ops[index as usize].as_ref().is_some_and(|op| op.interrupted) {
            work.withdraw(self.user_data_of_op(index));
        }
    }
}

impl super::session::Op {
    /// It ends before its time, as its asker wants.
    pub(super) fn is_interrupted_by(&self, status: Status) -> bool {
        self.interrupted && status == Status::Cancelled
    }
}
