//! The openings of a file that one queue uses: that for new requests, and the one before while
//! requests are under way on it.
//!
//! Invariants:
//! * A request ends on the opening that it began on.
//! * A queue has at most two openings: no file is opened again before all queues have left the one
//!   before.

use super::length::Mark;
use super::opened::Opened;
use super::shared::FileShared;
use drystone_core::Env;
use drystone_core::ring::RingFile;
use std::sync::Arc;

/// An opening of the file, as a queue uses it.
pub(super) struct InUse {
    opened: Arc<Opened>,
    file: RingFile,
    mark: Mark,
    /// Requests that were begun on it and have not ended.
    in_flight: u32,
}

impl InUse {
    fn new(opened: Arc<Opened>, env: &mut Env) -> Self {
        let (file, mark) = (env.ring.register(opened.fd()), Mark::new(opened.length.clone()));
        InUse { opened, file, mark, in_flight: 0 }
    }

    /// The opening.
    #[inline]
    pub(super) fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The file as the ring knows it.
    #[inline]
    pub(super) fn file(&self) -> RingFile {
        self.file
    }

    /// Notes that a request begins, which `changes` the file or not.
    #[inline]
    pub(super) fn begin(&mut self, changes: bool) {
        if changes {
            self.mark.change_begins();
        }
        self.in_flight += 1;
    }

    /// Notes that the kernel has nothing of a change any more.
    #[inline]
    pub(super) fn end_change(&mut self) {
        self.mark.change_ended();
    }

    /// Notes that requests have ended.
    #[inline]
    pub(super) fn end(&mut self, count: u32) {
        self.in_flight -= count;
    }

    /// Checks the length for requests that have ended, before they are acknowledged. True if the
    /// file was cut short.
    #[inline]
    pub(super) fn check_length(&mut self) -> bool {
        self.mark.look(&**self.opened.backing)
    }
}

/// The openings that a queue uses.
pub(super) struct OpeningsInUse {
    now: InUse,
    /// The exchange by which `now` came.
    epoch: u64,
    before: Option<InUse>,
}

impl OpeningsInUse {
    /// The opening of today.
    pub(super) fn new(shared: &FileShared, env: &mut Env) -> Self {
        let (epoch, opened) = shared.current(&env.locks);
        OpeningsInUse { now: InUse::new(opened, env), epoch, before: None }
    }

    /// The exchange of the file that new requests begin with.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The opening for new requests.
    #[inline]
    pub(super) fn now(&mut self) -> &mut InUse {
        &mut self.now
    }

    /// True while requests are under way on the opening before.
    #[inline]
    pub(super) fn has_two(&self) -> bool {
        self.before.is_some()
    }

    /// The opening that requests of `epoch` began on.
    #[inline]
    pub(super) fn of(&self, epoch: u64) -> &InUse {
        match &self.before {
            Some(before) if epoch != self.epoch => before,
            _ => &self.now,
        }
    }

    /// The same, to be changed.
    #[inline]
    pub(super) fn of_mut(&mut self, epoch: u64) -> &mut InUse {
        match &mut self.before {
            Some(before) if epoch != self.epoch => before,
            _ => &mut self.now,
        }
    }

    /// Checks the lengths of both. Returns whether the file of now was cut short, and that before.
    pub(super) fn check_lengths(&mut self) -> (bool, bool) {
        let is_cut = self.now.check_length();
        (is_cut, self.before.as_mut().is_some_and(InUse::check_length))
    }

    /// Takes the new opening over: the file was opened again.
    #[cold]
    pub(super) fn follow(&mut self, shared: &FileShared, env: &mut Env) {
        debug_assert!(self.before.is_none(), "all leave an opening before the next exchange");
        let (epoch, opened) = shared.current(&env.locks);
        self.before = Some(std::mem::replace(&mut self.now, InUse::new(opened, env)));
        self.epoch = epoch;
        self.leave(env);
    }

    /// Gives up the opening before, once nothing is under way on it.
    #[cold]
    pub(super) fn leave(&mut self, env: &mut Env) {
        if let Some(before) = self.before.take_if(|before| before.in_flight == 0) {
            self.now.opened.is_cut_short();
            env.ring.unregister(before.file);
        }
    }

    /// Gives up all: the queue is closed.
    pub(super) fn close(&mut self, env: &mut Env) {
        env.ring.unregister(self.now.file);
        if let Some(before) = self.before.take() {
            env.ring.unregister(before.file);
        }
    }
}
