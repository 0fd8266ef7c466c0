//! A channel follows its device when the number of hardware queues changes (Linux
//! `blk_mq_update_nr_hw_queues`, which freezes the whole queue; here each channel goes by itself).
//!
//! Invariants:
//! * A channel that is to use other queues begins no request. It takes them once none of its
//!   requests is in flight; so a slot is used by one request at a time, and what is polled is found
//!   where it is.
//! * Nobody waits for it but its own bios, and units of it that a scheduler picked; its context's
//!   crank is turned as always.
//! * It leaves a line for tags at once, but its message stays there until its turn comes, which it
//!   passes on. Until then it counts as a user of that set.
//! * A unit that was let go with a tag of the queue that it left goes back to the scheduler.

use super::RequestChannel;
use super::tag_line::TAG_WAKE;
use crate::driver::{Driver, DriverQueue};
use crate::queues::QueueSlot;
use crate::scheduler::deadline::lane_of;
use crate::scheduler::{Grant, Scheduler};
use crate::unit::Unit;
use drystone_core::mailbox::Message;
use drystone_core::{Env, Status};
use std::sync::Arc;

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// True until it has followed the last change.
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        !self.tags.is_current(&self.setup.config().map)
    }

    /// Use the queues that the configuration says, if that may be yet. Between requests only.
    #[cold]
    pub(crate) fn follow_queues(&mut self, env: &mut Env) {
        let to = self.setup.config().map.slot_of(self.setup.context());
        if !to.has_queues_of(self.tags.slot()) {
            self.port.current_hctx.leave();
            self.free_spare(env);
            if self.flight.is_any() {
                return;
            }
            self.change_queues(env, to);
        }
        self.tags.follow(&self.setup.config().map, to);
        self.vain = false;
        self.port.current_hctx.arrive(to.hctx, to.hint);
    }

    fn change_queues(&mut self, env: &mut Env, to: QueueSlot) {
        debug_assert!(self.granted.is_empty() && self.to_run.is_empty());
        // At most one comes after this: a dispatcher looks at `current_hctx` for each.
        while let Some(grant) = self.port.take_grant() {
            self.bounce(env, grant);
        }
        let set = self.setup.config().map.set(to.hctx).clone();
        let (handle, index) = (env.handle(), self.setup.index());
        self.tags.change_set(set, || Message::to(handle, index, TAG_WAKE));
        self.setup.driver().use_poll_queue(env, to.poll);
    }

    /// The turn has come in a line that this channel has left.
    #[cold]
    pub(crate) fn pass_stale_turn(&mut self, env: &mut Env, message: &Arc<Message>) {
        env.entrusted -= 1;
        let locks = env.locks.clone();
        self.tags.pass_stale_turn(message, &locks, |message| env.notify_lazily(message));
    }

    /// A unit was granted with a tag of a queue that this channel has left.
    #[cold]
    pub(crate) fn bounce(&mut self, env: &mut Env, mut grant: Grant) {
        if env.is_draining() {
            self.cancel_unit(env, &mut grant.unit);
        } else {
            self.port.count_ended(lane_of(grant.unit.op, grant.unit.priority), 1);
            self.returned.append(&mut grant.unit.bios);
        }
        self.vain = false;
        let set = self.setup.config().map.set(grant.hctx).clone();
        if set.free(set.batch_of(grant.tag)) {
            let locks = env.locks.clone();
            set.wake(&locks, |message| env.notify_lazily(message));
        }
    }

    /// Nobody waits for the bios of `unit`, which was let go, any more.
    pub(crate) fn cancel_unit(&mut self, env: &mut Env, unit: &mut Unit) {
        let mut bios = unit.bios.take();
        self.port.count_ended(lane_of(unit.op, unit.priority), 1);
        self.entrusted -= bios.len();
        env.entrusted -= bios.len();
        while let Some(bio) = bios.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}
