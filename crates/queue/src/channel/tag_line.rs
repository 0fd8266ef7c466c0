//! The tags of a channel: those that it took in advance, and its places in lines for more.
//!
//! Invariants:
//! * Spare tags belong to the set in use. They are freed before the call that took them ends.
//! * Tags are taken out of order only while no channel waits in the line of the set; the exception
//!   is the shared scheduler's turn ([`TagLine::put_scheduler_first`]).
//! * The wake message is here, in the line of the set, or on its way back. A channel that changes
//!   its set leaves the message in the old line and makes a new one, so each set wakes it once.
//! * The channel counts as a user of its set, and of each set in whose line it has a stale wait.

use crate::queues::{QueueMap, QueueSlot, Tags};
use crate::tags::{TagBatch, TagSet};
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use drystone_core::{ContextId, Env};
use std::sync::Arc;

/// The payload of the message by which a tag set wakes a channel. The lower half of a driver's
/// payload is a slot, which never has this value.
pub(crate) const TAG_WAKE: u64 = u64::MAX;

/// A wait in the line of a tag set that the channel does not use any more.
struct StaleTagWait {
    set: Tags,
    wake: Arc<Message>,
}

/// See the module's text.
pub(crate) struct TagLine {
    /// Tags taken in advance in this call.
    spare: TagBatch,
    set: Tags,
    /// The hardware queues that the channel's context maps to.
    slot: QueueSlot,
    /// The generation of the queue map that `slot` is from.
    generation: u64,
    /// The wake message is with the set or on its way back.
    is_waiting: bool,
    /// The shared scheduler takes tags before the channels in line.
    scheduler_first: bool,
    wake: Arc<Message>,
    stale: Vec<StaleTagWait>,
}

impl TagLine {
    /// The tags of `context`. The set sends `wake` when it is the channel's turn.
    pub(crate) fn new(map: &QueueMap, context: ContextId, wake: Arc<Message>) -> Self {
        let slot = map.slot_of(context);
        let set = map.set(slot.hctx).clone();
        set.join();
        TagLine {
            spare: TagBatch::default(),
            set,
            slot,
            generation: map.generation(),
            is_waiting: false,
            scheduler_first: false,
            wake,
            stale: Vec::new(),
        }
    }

    /// The set in use.
    #[inline]
    pub(crate) fn set(&self) -> &TagSet {
        &self.set
    }

    /// The hardware queues in use.
    #[inline]
    pub(crate) fn slot(&self) -> &QueueSlot {
        &self.slot
    }

    /// True if the channel has followed every change of `map`.
    #[inline]
    pub(crate) fn is_current(&self, map: &QueueMap) -> bool {
        map.generation() == self.generation
    }

    /// Number of spare tags.
    #[inline]
    pub(crate) fn spare_count(&self) -> u32 {
        self.spare.mask.count_ones()
    }

    /// True if a tag is spare.
    #[inline]
    pub(crate) fn has_spare(&self) -> bool {
        self.spare.mask != 0
    }

    /// Take a spare tag.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<u32> {
        self.spare.pop()
    }

    /// If there is no spare tag, take up to `want` tags, unless a channel waits in line. True if
    /// there is a spare tag afterwards.
    #[inline]
    pub(crate) fn reserve(&mut self, want: u32) -> bool {
        if self.spare.mask == 0 && !self.set.has_waiters() {
            self.spare = self.set.take(self.slot.hint, want);
        }
        self.spare.mask != 0
    }

    /// The same for up to `units` units of the shared scheduler. Call it without spare tags only.
    pub(crate) fn reserve_scheduled(&mut self, units: u32) -> bool {
        debug_assert!(!self.has_spare());
        if self.scheduler_first || !self.set.has_waiters() {
            let first = self.scheduler_first;
            let most = if first { self.set.share() } else { PLUG_MAX_BIOS as u32 };
            self.spare = self.set.take(self.slot.hint, most.min(units));
        }
        self.spare.mask != 0
    }

    /// Take the channel's share of tags in its turn. Call it without spare tags only.
    pub(crate) fn reserve_share(&mut self) {
        debug_assert!(!self.has_spare());
        self.spare = self.set.take(self.slot.hint, self.set.share());
    }

    /// Keep `tag`, whose request has ended, as a spare one. False if it is in another word than the
    /// other spare tags; the caller must free it then.
    #[inline]
    #[must_use]
    pub(crate) fn reuse(&mut self, tag: TagBatch) -> bool {
        let fits = self.spare.mask == 0 || self.spare.base == tag.base;
        if fits {
            self.spare = TagBatch { base: tag.base, mask: self.spare.mask | tag.mask };
        }
        fits
    }

    /// Free tags, and wake the channels whose turn it is then.
    #[inline]
    pub(crate) fn free(&self, env: &mut Env, batch: TagBatch) {
        if self.set.free(batch) {
            self.wake_waiters(env);
        }
    }

    /// The same for one tag.
    pub(crate) fn free_tag(&self, env: &mut Env, tag: u32) {
        self.free(env, self.set.batch_of(tag));
    }

    /// Free the spare tags. True if there were some.
    #[inline]
    pub(crate) fn free_spare(&mut self, env: &mut Env) -> bool {
        let any = self.has_spare();
        if any && self.release_spare() {
            self.wake_waiters(env);
        }
        any
    }

    /// Free the spare tags, of which there must be some. True if a channel waits; the caller must
    /// then call [`TagLine::wake`].
    #[inline]
    #[must_use]
    pub(crate) fn release_spare(&mut self) -> bool {
        self.set.free(std::mem::take(&mut self.spare))
    }

    /// Wake the channels whose turn it is.
    #[cold]
    fn wake_waiters(&self, env: &mut Env) {
        let locks = env.locks.clone();
        self.set.wake(&locks, |message| env.notify_lazily(message));
    }

    /// The same; `locks` counts the lock, and `send` gets the messages.
    pub(crate) fn wake(&self, locks: &LockCounters, send: impl FnMut(Arc<Message>)) {
        self.set.wake(locks, send);
    }

    /// Wait in line.
    pub(crate) fn line_up(&mut self, env: &mut Env) {
        env.expected_remote += 1;
        self.wait();
        self.wake_waiters(env);
    }

    fn wait(&mut self) {
        debug_assert!(!self.is_waiting);
        self.is_waiting = true;
        self.set.wait(self.wake.clone());
    }

    /// True while the channel waits in the line of its set.
    #[inline]
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// The number of lines in which the channel waits.
    pub(crate) fn waits(&self) -> usize {
        usize::from(self.is_waiting) + self.stale.len()
    }

    /// True if `message` is the wake of the set in use, not of a stale wait.
    pub(crate) fn is_own_wake(&self, message: &Arc<Message>) -> bool {
        Arc::ptr_eq(message, &self.wake)
    }

    /// True if no tag set or mailbox has the wake message.
    pub(crate) fn is_wake_unshared(&self) -> bool {
        Arc::strong_count(&self.wake) == 1
    }

    /// Begin the channel's turn: its wake message is back.
    pub(crate) fn begin_turn(&mut self, env: &mut Env) {
        env.expected_remote -= 1;
        self.leave_line();
    }

    fn leave_line(&mut self) {
        debug_assert!(self.is_waiting);
        self.is_waiting = false;
    }

    /// True if the shared scheduler goes first in this turn of the channel.
    pub(crate) fn alternate(&self) -> bool {
        self.set.others_first()
    }

    /// Set whether the shared scheduler takes tags before the channels in line.
    pub(crate) fn put_scheduler_first(&mut self, first: bool) {
        self.scheduler_first = first;
    }

    /// True while the shared scheduler takes tags before the channels in line.
    pub(crate) fn is_scheduler_first(&self) -> bool {
        self.scheduler_first
    }

    /// End the turn: free the spare tags, and wake the next channels.
    pub(crate) fn end_turn(&mut self, env: &mut Env) {
        self.answer();
        self.wake_waiters(env);
    }

    fn answer(&mut self) {
        self.set.woken();
        if self.has_spare() {
            let _ = self.release_spare();
        }
    }

    /// Change to the queues of `slot`, whose tags are `set`. A wait in the old line becomes stale;
    /// the next wait uses the message that `fresh` makes. The channel must hold no tag.
    pub(crate) fn change_set(&mut self, set: Tags, fresh: impl FnOnce() -> Arc<Message>) {
        debug_assert!(!self.has_spare());
        set.join();
        let old = std::mem::replace(&mut self.set, set);
        if self.is_waiting {
            let wake = std::mem::replace(&mut self.wake, fresh());
            self.stale.push(StaleTagWait { set: old, wake });
            self.is_waiting = false;
        } else {
            old.leave();
        }
    }

    /// Note that the channel has followed `map`, and uses `slot`.
    pub(crate) fn follow(&mut self, map: &QueueMap, slot: QueueSlot) {
        self.slot = slot;
        self.generation = map.generation();
    }

    /// Pass on the turn of a stale wait.
    ///
    /// # Panics
    /// If `message` is not of a stale wait.
    #[cold]
    pub(crate) fn pass_stale_turn(&mut self, env: &mut Env, message: &Arc<Message>) {
        env.expected_remote -= 1;
        let locks = env.locks.clone();
        self.pass_on(message, &locks, |message| env.notify_lazily(message));
    }

    fn pass_on(
        &mut self,
        message: &Arc<Message>,
        locks: &LockCounters,
        send: impl FnMut(Arc<Message>),
    ) {
        let at = self.stale.iter().position(|wait| Arc::ptr_eq(&wait.wake, message));
        let wait = self.stale.swap_remove(at.expect("a message of this channel"));
        wait.set.woken();
        wait.set.wake(locks, send);
        wait.set.leave();
    }
}

impl Drop for TagLine {
    fn drop(&mut self) {
        debug_assert!(self.stale.is_empty() || std::thread::panicking());
        self.set.leave();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::driver::HwQueues;
    use crate::queues::HctxId;
    use drystone_core::ChannelId;
    use drystone_core::clock::ManualClock;

    fn map(default: u32, depth: u32) -> QueueMap {
        QueueMap::new(HwQueues { default, poll: 0, depth })
    }

    fn line(map: &QueueMap, context: u32) -> TagLine {
        TagLine::new(map, ContextId(context), Message::new(ChannelId(context), TAG_WAKE))
    }

    /// The channels that the set of `line` wakes.
    fn woken(line: &TagLine) -> Vec<Arc<Message>> {
        let mut woken = Vec::new();
        line.wake(&locks(), |message| woken.push(message));
        woken
    }

    fn locks() -> Arc<LockCounters> {
        LockCounters::new(ManualClock::new(1))
    }

    #[test]
    fn tags_are_taken_out_of_turn_only_while_nobody_waits() {
        let map = map(1, 4);
        let (mut first, mut second) = (line(&map, 0), line(&map, 1));
        assert!(first.reserve(1) && first.spare_count() == 1);
        second.wait();
        assert_eq!(first.pop(), Some(0));
        assert!(!first.reserve(1), "another one waits");
        first.put_scheduler_first(true);
        assert!(first.reserve_scheduled(8), "the scheduler's turn");
        assert_eq!(
            first.spare_count(),
            1,
            "a share of 4 tags with one that waits, in words of one"
        );
        assert_eq!(second.waits(), 1);
        let _ = (first.release_spare(), first.set().free(first.set().batch_of(0)));
        let turn = woken(&second);
        assert!(turn.len() == 1 && second.is_own_wake(&turn[0]));
        second.leave_line();
        second.reserve_share();
        second.answer();
        assert_eq!((second.set().in_use(), second.waits()), (0, 0));
        assert!(first.reserve(1), "nobody waits any more");
        let _ = first.release_spare();
    }

    #[test]
    fn spare_tags_are_of_one_word() {
        let map = map(1, 8);
        let mut line = line(&map, 0);
        assert!(line.reserve(8));
        let held = line.spare_count();
        assert!(held < 8, "small sets are spread over words");
        let other = line.set().take(1, 1);
        assert!(!line.reuse(other));
        let tag = line.pop().unwrap();
        assert!(line.reuse(line.set().batch_of(tag)));
        assert_eq!(line.spare_count(), held);
        let _ = (line.set().free(other), line.release_spare());
        assert_eq!(line.set().in_use(), 0);
    }

    #[test]
    fn a_wait_in_a_left_line_passes_its_turn_on() {
        let map = map(2, 1);
        let (mut moves, mut stays) = (line(&map, 0), line(&map, 2));
        assert!(stays.reserve(1));
        moves.wait();
        assert!(woken(&moves).is_empty());
        let old = map.set(HctxId(0)).clone();
        moves.change_set(map.set(HctxId(1)).clone(), || Message::new(ChannelId(0), TAG_WAKE));
        assert_eq!((moves.waits(), moves.is_waiting()), (1, false));
        assert_eq!(
            (old.users(), map.set(HctxId(1)).users()),
            (2, 1),
            "a stale wait counts as a user"
        );
        moves.wait();
        assert_eq!(moves.waits(), 2);
        let own = woken(&moves);
        assert!(own.len() == 1 && moves.is_own_wake(&own[0]));
        moves.leave_line();
        moves.answer();
        assert!(stays.release_spare(), "somebody waits");
        stays.wait();
        let stale = woken(&stays);
        assert!(stale.len() == 1 && !moves.is_own_wake(&stale[0]));
        let mut next = Vec::new();
        moves.pass_on(&stale[0], &locks(), |message| next.push(message));
        assert!(next.len() == 1 && stays.is_own_wake(&next[0]));
        assert_eq!((moves.waits(), old.users()), (0, 1));
        stays.leave_line();
        stays.answer();
    }
}
