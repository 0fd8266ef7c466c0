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
use crate::scheduler::Scheduler;
use drystone_core::Env;
use drystone_core::mailbox::Message;

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
            self.sched.leave_hctx();
            self.free_spare(env);
            if self.flight.is_any() {
                return;
            }
            self.change_queues(env, to);
        }
        self.tags.follow(&self.setup.config().map, to);
        self.sched.arrive_at(&to);
    }

    fn change_queues(&mut self, env: &mut Env, to: QueueSlot) {
        self.sched.bounce_all(&self.setup, env);
        let set = self.setup.config().map.set(to.hctx).clone();
        let (handle, index) = (env.handle(), self.setup.index());
        self.tags.change_set(set, || Message::to(handle, index, TAG_WAKE));
        self.setup.driver().use_poll_queue(env, to.poll);
    }
}
