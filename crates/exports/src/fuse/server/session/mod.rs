//! One session: it carries out the requests that its channel brings.
//!
//! ```text
//!   kernel <--> KernelChannel      Volumes, WriteLocks --> bios --> device
//!                     \            /                                  |
//!                   Session: OpTable  <------------- completed -------+
//! ```
//!
//! This folder has no state except the parts, each of which is in a file of its own beside it. A
//! request goes through `receive`, `dispatch`, then one of `io`, `truncate`, `unaligned`, `seek`
//! and `meta`. No part calls the session: a part returns the next step.
//!
//! Invariants:
//! * A session is dropped only when it has no poll, query or bio in flight.
//! * At the bound of operations, or without a free buffer for any request, the session reads
//!   nothing more.
//! * A read or write allocates nothing: its memory exists since the session began.

mod interrupt;
mod io;
mod meta;
mod receive;
mod seek;
#[cfg(test)]
mod tests;
mod truncate;
mod unaligned;

use super::Incoming;
use super::askers::Askers;
use super::buffers::Buffers;
use super::channel::KernelChannel;
use super::descriptor::Descriptor;
use super::event::Event;
use super::life::Life;
use super::mount::Mount;
use super::op::Op;
use super::op_table::OpTable;
use super::over_ring::OverRing;
use super::volumes::Volumes;
use super::write_locks::WriteLocks;
use crate::fuse::proto::init::MAX_WRITE;
use crate::server::{OpId, SessionId, Work};
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, BioList, Op as BioOp};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// A session. All calls are made by its worker's thread.
pub(super) struct Session {
    mount: Arc<Mount>,
    /// Its number in the mount.
    number: usize,
    counters: Arc<LockCounters>,
    life: Life,
    channel: KernelChannel,
    buffers: Buffers,
    volumes: Volumes,
    ops: OpTable,
    locks: WriteLocks,
    askers: Askers,
}

impl Session {
    /// The session `id` of its worker; `None` when memory is short.
    pub(super) fn new(incoming: Incoming, id: SessionId, work: &mut Work) -> Option<Self> {
        let Incoming { mount, number, device } = incoming;
        let mut buffers = Buffers::new(work.reserve.clone(), mount.volume_count())?;
        let descriptor = Descriptor::new(device, buffers.take(MAX_WRITE as usize)?);
        let volumes = Volumes::open(&mount, work);
        let ring = match mount.options().over_ring {
            true => OverRing::open(number, mount.session_count()),
            false => None,
        };
        mount.begin(number, work.cx.handle(), ring.is_some());
        Some(Session {
            number,
            counters: work.locks.clone(),
            life: Life::default(),
            channel: KernelChannel::new(descriptor, ring),
            buffers,
            volumes,
            ops: OpTable::new(id),
            locks: WriteLocks::new(&mount, work),
            askers: Askers::new(),
            mount,
        })
    }

    // --- life

    /// True while it serves.
    pub(super) fn is_open(&self) -> bool {
        self.life.is_open()
    }

    /// Ends the session, because the mount is gone or given up. It sends no answer from now on.
    pub(super) fn give_up(&mut self) {
        if self.life.end() {
            self.channel.close();
            self.drop_blocked();
        }
    }

    /// True when nothing refers to the session and it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        let has_poll = self.channel.polls().next().is_some();
        !self.is_open() && !has_poll && !self.askers.is_asking() && self.ops.is_empty()
    }

    /// True once: its bios must be withdrawn.
    pub(super) fn take_withdrawal(&mut self) -> bool {
        self.life.take_withdrawal(self.ops.is_empty())
    }

    /// Returns the polls to cancel, once, when the session is over.
    pub(super) fn take_polls_to_cancel(&mut self) -> impl Iterator<Item = Event> {
        let is_due = self.life.take_cancellation();
        self.channel.polls().filter(move |_| is_due)
    }

    /// Ends a session that is over. Returns its descriptor, to be closed.
    pub(super) fn end(self) -> OwnedFd {
        self.mount.end(&self.counters);
        self.channel.into_device()
    }

    // --- polls

    /// True if only a poll would announce requests, and none is in the ring.
    pub(super) fn needs_poll(&self) -> bool {
        self.is_open() && self.channel.needs_poll()
    }

    /// Begins the polls that are needed: hands each with its descriptor to `start`.
    pub(super) fn begin_polls(&mut self, start: impl FnMut(Event, RawFd)) {
        if self.is_open() {
            self.channel.begin_polls(start);
        }
    }

    /// Ends a poll.
    pub(super) fn end_poll(&mut self, poll: Event, is_readable: bool) {
        self.channel.end_poll(poll, is_readable);
    }

    /// Decides before a sleep whether to poll busily.
    pub(super) fn begin_busy_poll(&mut self) -> bool {
        self.is_open() && self.channel.begin_busy_poll()
    }

    /// Polls once for requests, and starts them. True if there were any, or the session is over.
    pub(super) fn busy_poll(&mut self, work: &mut Work) -> bool {
        let before = self.channel.requests();
        self.channel.poll_once();
        self.receive(work);
        let has_found = self.channel.requests() != before || !self.is_open();
        if has_found {
            self.channel.end_busy_poll(true);
        }
        has_found
    }

    /// Notes that a busy poll has found nothing.
    pub(super) fn fail_busy_poll(&mut self) {
        self.channel.end_busy_poll(false);
    }

    /// True if another thread may have done what the session waits for: a write has its range, or
    /// the transport is known.
    ///
    /// False while it must still wait: a session that always has news keeps a thread that polls
    /// busily from its ring.
    pub(super) fn has_news_of_others(&self) -> bool {
        self.locks.has_news() || self.channel.awaits_transport() || self.has_failed()
    }

    // --- operations

    /// Adds an operation, and watches its asker if that was interrupted before.
    fn add(&mut self, op: Op) -> OpId {
        let is_long = op.is_long;
        let id = self.ops.add(op);
        if is_long {
            self.watch_if_interrupted(id);
        }
        id
    }

    /// Takes a bio back. The last one of its operation makes it answered, or ready for its next
    /// step.
    #[inline]
    pub(super) fn completed(&mut self, bio: Box<Bio>) {
        let (id, part) = (OpId::of(&bio), OpId::part_of(&bio));
        if !bio.status.is_ok() {
            self.note_failure(id, &bio);
        }
        let buf = self.buffers.give_bio(bio);
        let Some(op) = self.ops.op_mut(id) else { return };
        if op.end_bio(part, buf) {
            match op.has_steps() {
                true => self.ops.make_ready(id),
                false => self.finish(id),
            }
        }
    }

    /// Fails an operation with the first of its bios that does.
    #[cold]
    fn note_failure(&mut self, id: OpId, bio: &Bio) {
        if let Some(op) = self.ops.op_mut(id).filter(|op| op.status.is_ok()) {
            op.status = bio.status;
            if op.is_interrupted_by(bio.status) {
                return;
            }
            self.mount.shared(op.volume).volume.clients.note_failure(bio);
        }
    }

    /// Takes an idle bio with the marks of an operation.
    #[inline]
    fn bio(&mut self, volume: usize, group: u32, op: BioOp, flags: BioFlags) -> Box<Bio> {
        marked_bio(&self.mount, &mut self.buffers, (volume, group), (op, flags))
    }

    /// Submits one bio with this round's others.
    #[inline]
    fn submit(&mut self, volume: usize, bio: Box<Bio>, work: &mut Work) {
        let Some(device) = self.volumes.device(volume) else { return };
        self.withdraw_if_interrupted(&bio, work);
        let mut bios = BioList::new();
        bios.push(bio);
        work.queue(device, &mut bios);
    }
}

/// Takes an idle bio for a volume, with its throttle group.
#[inline]
fn marked_bio(
    mount: &Mount,
    buffers: &mut Buffers,
    (volume, group): (usize, u32),
    (op, flags): (BioOp, BioFlags),
) -> Box<Bio> {
    let mut bio = buffers.bio();
    (bio.priority, bio.group) = (mount.shared(volume).volume.priority, group);
    (bio.op, bio.flags) = (op, flags);
    bio
}
