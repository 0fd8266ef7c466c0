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

use crate::channel::{RequestChannel, TAG_WAKE};
use crate::driver::{Driver, DriverQueue};
use crate::queues::{Place, Tags};
use crate::scheduler::deadline::lane_of;
use crate::scheduler::{Grant, Scheduler};
use crate::unit::Unit;
use drystone_core::mailbox::Message;
use drystone_core::{Env, Status};
use std::sync::Arc;

/// A place in the line of a tag set that the channel has left.
pub(crate) struct LeftLine {
    tags: Tags,
    wake: Arc<Message>,
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// True until it has followed the last change.
    #[inline]
    pub(crate) fn is_moving(&self) -> bool {
        self.config.map.generation() != self.generation
    }

    /// Use the queues that the configuration says, if that may be yet. Between requests only.
    #[cold]
    pub(crate) fn follow_queues(&mut self, env: &mut Env) {
        let to = self.config.map.place(self.context);
        if !to.has_queues_of(&self.place) {
            self.port.berth.leave();
            self.free_spare(env);
            if self.in_flight > 0 {
                return;
            }
            self.change_queues(env, to);
        }
        self.place = to;
        self.generation = self.config.map.generation();
        self.vain = false;
        self.port.berth.arrive(to.hctx, to.hint);
    }

    fn change_queues(&mut self, env: &mut Env, to: Place) {
        debug_assert!(self.granted.is_empty() && self.to_run.is_empty());
        // At most one comes after this: whoever grants looks at the berth for each.
        while let Some(grant) = self.port.take_grant() {
            self.bounce(env, grant);
        }
        let tags = self.config.map.sets()[to.hctx as usize].clone();
        tags.join();
        let left = std::mem::replace(&mut self.tags, tags);
        match self.waiting {
            true => self.leave_line(env, left),
            false => left.leave(),
        }
        self.driver.use_poll_queue(env, to.poll);
    }

    fn leave_line(&mut self, env: &Env, tags: Tags) {
        let fresh = Message::to(env.handle(), self.index, TAG_WAKE);
        self.left_lines.push(LeftLine { tags, wake: std::mem::replace(&mut self.wake, fresh) });
        self.waiting = false;
    }

    /// The turn has come in a line that this channel has left.
    #[cold]
    pub(crate) fn turn_in_left_line(&mut self, env: &mut Env, message: &Arc<Message>) {
        let at = self.left_lines.iter().position(|line| Arc::ptr_eq(&line.wake, message));
        let line = self.left_lines.swap_remove(at.expect("a message of this channel"));
        env.entrusted -= 1;
        line.tags.woken();
        wake(env, &line.tags);
        line.tags.leave();
    }

    /// A unit was granted with a tag of a queue that this channel has left.
    #[cold]
    pub(crate) fn bounce(&mut self, env: &mut Env, mut grant: Grant) {
        if env.is_abandoned() {
            self.cancel_unit(env, &mut grant.unit);
        } else {
            self.port.count_ended(lane_of(grant.unit.op, grant.unit.priority), 1);
            self.returned.append(&mut grant.unit.bios);
        }
        self.vain = false;
        let tags = self.config.map.sets()[grant.hctx as usize].clone();
        if tags.free(tags.batch_of(grant.tag)) {
            wake(env, &tags);
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

/// Wake those whose turn it is at `tags`.
fn wake(env: &mut Env, tags: &Tags) {
    let locks = env.locks.clone();
    tags.wake(&locks, |message| env.leave_word(message));
}
