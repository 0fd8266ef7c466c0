//! The waits of a channel for its hardware queue: for its turn to take tags, and for other queues
//! after their number has changed (Linux `blk_mq_update_nr_hw_queues`, which freezes the whole
//! queue; here each channel changes alone).
//!
//! Invariants:
//! * A channel that must change its queues begins no request. It takes the new queues once none of
//!   its requests is in flight. So a slot is used by one request at a time, and a polled request is
//!   polled on the queue that it is in.
//! * Only the channel's own bios wait for the change, and its units that a scheduler picked. The
//!   context's pending work goes on as always.
//! * The channel leaves a line for tags at once, but its message stays there until the turn comes;
//!   the channel then passes the turn on. Until then it counts as a user of that set.
//! * A unit that was granted with a tag of the old queue goes back to the scheduler.

use super::RequestChannel;
use super::tag_line::TAG_WAKE;
use crate::driver::{Driver, DriverQueue};
use crate::queues::QueueSlot;
use crate::scheduler::Scheduler;
use drystone_core::Env;
use drystone_core::mailbox::Message;

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Wait in line for a tag.
    #[cold]
    pub(super) fn wait_for_tag(&mut self, env: &mut Env) {
        if self.tags.is_waiting() || self.frees_for_itself() {
            return;
        }
        self.tags.line_up(env);
    }

    /// Use this channel's turn to take tags. Units of the shared scheduler wait for tags too, but
    /// not in line. They go first in every other turn, and in every turn once the scheduler is
    /// switched off.
    pub(super) fn tag_turn(&mut self, env: &mut Env) {
        self.tags.begin_turn(env);
        // A grant in the same delivery may have completed inline and left a spare tag.
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
        // The channel counts as waiting until the end of its turn, so this takes no tags beyond its
        // share.
        self.dispatch(env);
        self.tags.end_turn(env);
    }

    /// True if no other channel uses the set, so that this channel's completions free the tags that
    /// it lacks. If another one joins, the next completion notices that.
    pub(super) fn frees_for_itself(&self) -> bool {
        self.flight.is_any() && self.tags.set().users() == 1
    }

    /// True until the channel has followed the last change of queues.
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        !self.tags.is_current(&self.setup.config().map)
    }

    /// Change to the queues of the configuration, if that is possible yet. Call this between
    /// requests only.
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
