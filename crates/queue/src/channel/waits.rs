//! Waits of a channel for its hardware queue: for the turn to take tags, and for other queues when
//! their number changes (Linux `blk_mq_update_nr_hw_queues`, which freezes the whole queue; here
//! each channel goes by itself).
//!
//! Invariants:
//! * A channel that must move to other queues begins no request. It takes them once none of its
//!   requests is in flight; so a slot is used by one request at a time, and a polled request is
//!   found on the queue where it is.
//! * Only the channel's own bios wait for the change, and units of it that a scheduler picked. The
//!   context's pending work is processed as always.
//! * The channel leaves a line for tags at once, but its message stays there until its turn comes,
//!   which it passes on. Until then it counts as a user of that set.
//! * A unit that was granted with a tag of the queue that was left goes back to the scheduler.

use super::RequestChannel;
use super::tag_line::TAG_WAKE;
use crate::driver::{Driver, DriverQueue};
use crate::queues::QueueSlot;
use crate::scheduler::Scheduler;
use drystone_core::Env;
use drystone_core::mailbox::Message;

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Line up for a tag.
    #[cold]
    pub(super) fn wait_for_tag(&mut self, env: &mut Env) {
        if self.tags.is_waiting() || self.frees_for_itself() {
            return;
        }
        self.tags.line_up(env);
    }

    /// It is this channel's turn to take tags. Units of the shared scheduler wait for tags too, but
    /// not in line: they go first every other turn, and always if the scheduler has been switched
    /// off.
    pub(super) fn tag_turn(&mut self, env: &mut Env) {
        self.tags.begin_turn(env);
        // A grant in the same delivery may have completed inline.
        self.free_spare(env);
        if self.setup.scheduler().has_work()
            && (!self.setup.has_scheduler() || self.tags.alternate())
        {
            self.tags.put_scheduler_first(true);
            self.run_scheduler(env);
            self.free_spare(env);
            self.tags.put_scheduler_first(false);
        }
        if self.held.has_work() {
            self.tags.reserve_share();
        }
        // The turn counts as a wait until its end, so this takes no tags beyond the share.
        self.dispatch(env);
        self.tags.end_turn(env);
    }

    /// True if completions of this channel will free the tags that it lacks, because no other
    /// channel uses the set. If one begins to, the next completion finds out.
    pub(super) fn frees_for_itself(&self) -> bool {
        self.flight.is_any() && self.tags.set().users() == 1
    }

    /// True until the channel has followed the last change of queues.
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
        let (handle, id) = (env.handle(), self.setup.channel());
        self.tags.change_set(set, || Message::to(handle, id, TAG_WAKE));
        self.setup.driver().use_poll_queue(env, to.poll);
    }
}
