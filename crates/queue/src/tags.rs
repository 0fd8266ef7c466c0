//! Tag sets: they limit the requests that a hardware queue may have with the driver, and record the
//! contexts that wait for a tag.
//!
//! Layout and search follow Linux's sbitmap (`lib/sbitmap.c`): words of bits, each on a cache
//! line of its own; a small set is spread over at least four words; a context starts at its own
//! word and takes several tags with one compare-exchange.
//!
//! Waiting is fair: first come, first served; one context is woken for each free tag.
//!
//! Invariants:
//! * A set bit is a tag in use. Only the context that holds the tag (or one that visits that
//!   context) clears the bit, after the driver has given the request back.
//! * While `waiting` is not 0, tags go only to contexts that were woken. A context counts in
//!   `waiting` from [`TagSet::wait`] until it has answered its wake-up with [`TagSet::woken`].
//! * No tag stays free while a context waits: a context that frees tags, begins to wait, or answers
//!   a wake-up calls `wake` afterwards. Only one context wakes others at a time. The others add
//!   their call to `calls`, which that context checks again after it has released the lock.
//!
//! Memory order: `free` clears bits with release and `take` sets them with acquire. So the next
//! holder of a tag sees what the former holder did with the shared state of the slot. There are two
//! store-load races, with a full fence on each side. In the first, `free` clears bits and reads
//! `waiting`, while `wait` adds to `waiting` and (at the start of `wake`) reads the bits (Linux's
//! rule: clear, barrier, look for waiters; register, barrier, try again). In the second, a call of
//! `wake` adds to `calls` and tries the lock, while the waking context releases the lock and reads
//! `calls`.

use crossbeam_utils::CachePadded;
use drystone_core::mailbox::{Mailbox, Message};
use drystone_core::mistake;
use drystone_core::primitive::{Arc, AtomicU32, AtomicU64, Ordering::*, fence};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::collections::VecDeque;

/// The most tags of one set (Linux `BLK_MQ_MAX_DEPTH`).
pub const MAX_DEPTH: u32 = 10_240;

/// Tags taken together: bits of one word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TagBatch {
    /// Tag number of bit 0.
    pub base: u32,
    /// The tags, one bit each.
    pub mask: u64,
}

impl TagBatch {
    /// Take the lowest tag out of the batch.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        if self.mask == 0 {
            return None;
        }
        let bit = self.mask.trailing_zeros();
        self.mask &= self.mask - 1;
        Some(self.base + bit)
    }
}

/// The tags of one hardware queue, shared by the contexts that map to it.
pub struct TagSet {
    words: Box<[CachePadded<AtomicU64>]>,
    shift: u32,
    depth: u32,
    /// Only tags below this number are handed out; at most `depth`.
    limit: AtomicU32,
    /// The number of channels that take tags from this set.
    users: AtomicU32,
    /// The number of contexts that wait, including those that were woken but have not taken a tag.
    waiting: AtomicU32,
    /// The number of woken contexts that have not answered.
    granted: AtomicU32,
    /// The number of calls of `wake` that no thread has handled.
    calls: AtomicU32,
    /// The number of turns of waiters in which units outside the line wanted tags too.
    shared_turns: AtomicU32,
    /// New waiters.
    arrivals: Mailbox,
    /// The waiters in order. The context that wakes them holds the lock.
    queue: Lock<VecDeque<Arc<Message>>>,
}

impl TagSet {
    /// A set of `depth` free tags (1 to [`MAX_DEPTH`]).
    pub fn new(depth: u32) -> Self {
        assert!((1..=MAX_DEPTH).contains(&depth));
        let mut shift = 6;
        while shift > 0 && depth >= 4 && 4 << shift > depth {
            shift -= 1;
        }
        let words = depth.div_ceil(1 << shift);
        TagSet {
            words: (0..words).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            shift,
            depth,
            limit: AtomicU32::new(depth),
            users: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            granted: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            shared_turns: AtomicU32::new(0),
            arrivals: Mailbox::new(),
            queue: Lock::new(LockClass::TagWaiters, VecDeque::new()),
        }
    }

    /// The number of tags.
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Hand out only tags below `limit` (1 to the depth) from now on. Tags beyond it that are in
    /// use stay valid until they are freed. The caller must then call [`TagSet::wake`].
    pub fn set_limit(&self, limit: u32) {
        assert!((1..=self.depth).contains(&limit));
        self.limit.store(limit, Release);
    }

    /// Count a channel that begins to use the set.
    pub fn join(&self) {
        self.users.fetch_add(1, Relaxed);
    }

    /// Stop to count a channel, which holds no tag and waits for none.
    pub fn leave(&self) {
        let users = self.users.fetch_sub(1, Relaxed);
        debug_assert!(users > 0);
    }

    /// The number of channels that use the set.
    pub fn users(&self) -> u32 {
        self.users.load(Relaxed)
    }

    /// The addresses of the words.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn word_addresses(&self) -> Vec<usize> {
        self.words.iter().map(|w| std::ptr::from_ref(w).addr()).collect()
    }

    /// The number of words, of which a context's hint names one.
    pub fn words(&self) -> u32 {
        self.words.len() as u32
    }

    /// True while a context waits: then only woken contexts may take tags.
    #[inline]
    pub fn has_waiters(&self) -> bool {
        self.waiting.load(Relaxed) != 0
    }

    /// The bits of word `index` that may be handed out.
    #[inline]
    fn valid(&self, index: u32) -> u64 {
        let limit = self.limit.load(Relaxed);
        let bits = limit.saturating_sub(index << self.shift).min(1 << self.shift);
        u64::MAX.checked_shr(64 - bits).unwrap_or(0)
    }

    /// True if a tag was free at the time of the read.
    pub fn any_free(&self) -> bool {
        self.free_now() > 0
    }

    /// The number of tags that may be taken now.
    fn free_now(&self) -> u32 {
        let free = |(index, word): (usize, &CachePadded<AtomicU64>)| {
            (!word.load(Acquire) & self.valid(index as u32)).count_ones()
        };
        self.words.iter().enumerate().map(free).sum()
    }

    /// Take up to `want` tags of one word; word `hint` is tried first. Returns an empty batch if no
    /// tag is free.
    #[inline]
    pub fn take(&self, hint: u32, want: u32) -> TagBatch {
        // With a low limit, hints beyond it are spread over the words that still have tags.
        let n = self.limit.load(Relaxed).div_ceil(1 << self.shift);
        let hint = if hint < n { hint } else { hint % n };
        for i in 0..n {
            let index = if hint + i < n { hint + i } else { hint + i - n };
            let mask = self.take_from(index, want);
            if mask != 0 {
                return TagBatch { base: index << self.shift, mask };
            }
        }
        TagBatch::default()
    }

    #[inline]
    fn take_from(&self, index: u32, want: u32) -> u64 {
        let word = &self.words[index as usize];
        let valid = self.valid(index);
        let mut used = word.load(Relaxed);
        loop {
            let free = !used & valid;
            if free == 0 {
                return 0;
            }
            let mask = lowest_bits(free, want);
            match word.compare_exchange_weak(used, used | mask, Acquire, Relaxed) {
                Ok(_) => return mask,
                Err(now) => used = now,
            }
        }
    }

    /// Free tags. True if a context waits; the caller must then call [`TagSet::wake`].
    #[inline]
    #[must_use]
    pub fn free(&self, batch: TagBatch) -> bool {
        let word = &self.words[(batch.base >> self.shift) as usize];
        let before = word.fetch_and(!batch.mask, free_order());
        debug_assert_eq!(before & batch.mask, batch.mask, "freed tags were in use");
        if !drystone_core::mutated!("tag_free_fence") {
            fence(SeqCst);
        }
        self.has_waiters()
    }

    /// The batch that holds just `tag`.
    #[inline]
    pub fn batch_of(&self, tag: u32) -> TagBatch {
        let base = tag >> self.shift << self.shift;
        TagBatch { base, mask: 1 << (tag - base) }
    }

    /// The number of tags in use now.
    pub fn in_use(&self) -> u32 {
        self.words.iter().map(|w| w.load(Acquire).count_ones()).sum()
    }

    /// Wait for a tag: the set sends `message` when it is this waiter's turn. The caller must then
    /// call [`TagSet::wake`], because a tag may have become free meanwhile.
    pub fn wait(&self, message: Arc<Message>) {
        self.waiting.fetch_add(1, Relaxed);
        let fresh = self.arrivals.push(message);
        debug_assert!(fresh, "a waiter waits once");
    }

    /// Answer a wake-up, after the waiter has taken the tags that it needs (or needs none any
    /// more). The caller must then call [`TagSet::wake`], which passes the other tags on.
    pub fn woken(&self) {
        let granted = self.granted.fetch_sub(1, AcqRel);
        let waiting = self.waiting.fetch_sub(1, AcqRel);
        debug_assert!(granted > 0 && waiting > 0);
    }

    /// True if units outside the line go before this woken waiter: every other time.
    pub fn others_first(&self) -> bool {
        self.shared_turns.fetch_add(1, Relaxed).is_multiple_of(2)
    }

    /// The number of tags that a woken waiter may take at once, its share of the set.
    pub fn share(&self) -> u32 {
        (self.limit.load(Relaxed) / (self.waiting.load(Relaxed) + 1)).max(1)
    }

    /// Wake as many waiters as there are free tags, by a `send` of their messages. Never blocks: if
    /// another context is waking, it also does this call's work.
    pub fn wake(&self, user: &LockCounters, mut send: impl FnMut(Arc<Message>)) {
        self.calls.fetch_add(1, AcqRel);
        if !drystone_core::mutated!("tag_wake_fence") {
            fence(SeqCst);
        }
        while self.calls.load(Acquire) != 0 {
            let Some(mut queue) = self.queue.try_lock(user) else { return };
            self.calls.swap(0, AcqRel);
            self.arrivals.take(|m| queue.push_back(m));
            let n =
                self.free_now().saturating_sub(self.granted.load(Acquire)).min(queue.len() as u32);
            self.granted.fetch_add(n, AcqRel);
            let turn: Vec<_> = queue.drain(..n as usize).collect();
            drop(queue);
            turn.into_iter().for_each(&mut send);
            if mistake!("tag_recheck") {
                return;
            }
            if !drystone_core::mutated!("tag_unlock_fence") {
                fence(SeqCst);
            }
        }
    }
}

/// The lowest `n` set bits of `bits`.
#[inline]
fn lowest_bits(bits: u64, n: u32) -> u64 {
    if bits.count_ones() <= n {
        return bits;
    }
    let mut left = bits;
    for _ in 0..n {
        left &= left - 1;
    }
    bits & !left
}

/// The memory order of `free`, which the mutation check weakens.
#[inline(always)]
fn free_order() -> drystone_core::primitive::Ordering {
    if drystone_core::mutated!("tag_free") { Relaxed } else { Release }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use drystone_core::ChannelId;
    use proptest::prelude::*;

    #[test]
    fn small_sets_are_spread_and_large_ones_are_not() {
        let words = |depth| TagSet::new(depth).words();
        assert_eq!([1, 3, 4, 64, 128, 256, 1000].map(words), [1, 1, 4, 4, 4, 4, 16]);
    }

    proptest! {
        /// Compared with a plain set: no tag is handed out twice, every tag is reachable, none is
        /// beyond the depth.
        #[test]
        fn tags_are_unique(
            depth in 1u32..300,
            ops in prop::collection::vec((0u32..20, 1u32..40, any::<bool>()), 1..200),
        ) {
            let set = TagSet::new(depth);
            let mut held: Vec<u32> = Vec::new();
            for (hint, want, take) in ops {
                if take {
                    let mut batch = set.take(hint % set.words(), want);
                    prop_assert!(batch.mask.count_ones() <= want);
                    prop_assert_eq!(batch.mask == 0, held.len() as u32 == depth);
                    while let Some(tag) = batch.pop() {
                        prop_assert!(tag < depth && !held.contains(&tag));
                        held.push(tag);
                    }
                } else if let Some(tag) = held.pop() {
                    prop_assert!(!set.free(set.batch_of(tag)));
                }
                prop_assert_eq!(set.in_use(), held.len() as u32);
            }
        }
    }

    proptest! {
        /// With a limit that changes: no tag beyond it is handed out, held tags stay held, and all
        /// tags below it can be taken.
        #[test]
        fn a_limit_holds_from_the_next_tag(
            depth in 1u32..300,
            ops in prop::collection::vec((0u32..20, 1u32..400), 1..60),
        ) {
            let set = TagSet::new(depth);
            let mut held: Vec<u32> = Vec::new();
            for (hint, limit) in ops {
                let limit = limit.min(depth);
                set.set_limit(limit);
                let below = held.iter().filter(|t| **t < limit).count() as u32;
                prop_assert_eq!(set.free_now(), limit - below);
                while set.free_now() > 0 {
                    let mut batch = set.take(hint % set.words(), 7);
                    prop_assert!(batch.mask != 0);
                    while let Some(tag) = batch.pop() {
                        prop_assert!(tag < limit && !held.contains(&tag));
                        held.push(tag);
                    }
                }
                prop_assert_eq!(set.take(hint % set.words(), 7).mask, 0);
                let keep = held.len() / 2;
                held.drain(keep..).for_each(|tag| assert!(!set.free(set.batch_of(tag))));
                prop_assert_eq!(set.in_use(), held.len() as u32);
            }
        }
    }

    #[test]
    fn waiters_are_woken_in_order_one_a_tag() {
        let user = LockCounters::new(drystone_core::clock::ManualClock::new(1));
        let set = TagSet::new(2);
        let held = [set.take(0, 1), set.take(0, 1), set.take(1, 1)];
        let waiters: Vec<_> = (0..3).map(|i| Message::new(ChannelId(i), 0)).collect();
        let mut woken = Vec::new();
        for w in &waiters {
            set.wait(w.clone());
            set.wake(&user, |m| woken.push(m.channel().0));
        }
        assert!(woken.is_empty(), "no tag is free");
        assert!(set.free(held[0]));
        set.wake(&user, |m| woken.push(m.channel().0));
        assert_eq!(woken, [0]);
        assert!(set.free(held[1]));
        set.wake(&user, |m| woken.push(m.channel().0));
        assert_eq!(woken, [0, 1], "two tags, two woken, though neither has taken one yet");
        // The first waiter takes its tag; the second one needs none any more and passes the tag on.
        let tag = set.take(0, 1);
        set.woken();
        set.wake(&user, |m| woken.push(m.channel().0));
        assert_eq!(woken, [0, 1]);
        set.woken();
        set.wake(&user, |m| woken.push(m.channel().0));
        assert_eq!(woken, [0, 1, 2]);
        set.woken();
        assert!(!set.has_waiters() && !set.free(tag));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use drystone_core::ChannelId;
    use drystone_core::clock::ManualClock;
    use drystone_core::primitive::{AtomicBool, AtomicUsize};
    use loom::cell::UnsafeCell;

    /// Contexts on one tag set, each of which needs a tag once. As in a channel, the context that
    /// sends a waiter's message takes that waiter's turn.
    struct Model {
        set: TagSet,
        /// The state that a tag guards. The checker detects two holders at once, or one too early.
        slots: Vec<UnsafeCell<()>>,
        messages: Vec<Arc<Message>>,
        served: Vec<AtomicBool>,
        sent: AtomicUsize,
    }

    impl Model {
        fn new(depth: u32, contexts: u32) -> Arc<Self> {
            let set = TagSet::new(depth);
            // The lock is used once before threads contend for it.
            set.wake(&LockCounters::new(ManualClock::new(1)), |_| ());
            Arc::new(Model {
                set,
                slots: (0..depth).map(|_| UnsafeCell::new(())).collect(),
                messages: (0..contexts).map(|i| Message::new(ChannelId(i), 0)).collect(),
                served: (0..contexts).map(|_| AtomicBool::new(false)).collect(),
                sent: AtomicUsize::new(0),
            })
        }

        fn use_and_free(&self, context: u32, mut tags: TagBatch) -> bool {
            let tag = tags.pop().expect("a tag");
            assert_eq!(tags.mask, 0, "one was asked for");
            self.slots[tag as usize].with_mut(|_| ());
            assert!(!self.served[context as usize].swap(true, Relaxed), "served once");
            self.set.free(self.set.batch_of(tag))
        }

        fn wake(&self, user: &LockCounters) {
            let mut turns = Vec::new();
            self.set.wake(user, |m| turns.push(m));
            while let Some(message) = turns.pop() {
                self.sent.fetch_add(1, Relaxed);
                let tags = self.set.take(0, 1);
                let got = tags.mask != 0;
                if got {
                    let _ = self.use_and_free(message.channel().0, tags);
                }
                self.set.woken();
                if !got {
                    // A context that had not seen the waiters was faster.
                    self.set.wait(message);
                }
                self.set.wake(user, |m| turns.push(m));
            }
        }

        /// A context that needs one tag.
        fn context(&self, context: u32) {
            let user = LockCounters::new(ManualClock::new(1));
            let tags = match self.set.has_waiters() {
                true => TagBatch::default(),
                false => self.set.take(0, 1),
            };
            if tags.mask == 0 {
                self.set.wait(self.messages[context as usize].clone());
                self.wake(&user);
            } else if self.use_and_free(context, tags) {
                self.wake(&user);
            }
        }
    }

    fn run(depth: u32, contexts: u32) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let model = Model::new(depth, contexts);
            let threads: Vec<_> = (1..contexts)
                .map(|i| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.context(i))
                })
                .collect();
            model.context(0);
            threads.into_iter().for_each(|t| t.join().unwrap());
            let stranded = model.served.iter().filter(|s| !s.load(Relaxed)).count();
            assert_eq!(stranded, 0, "a context waits while all tags are free");
            assert_eq!((model.set.in_use(), model.set.has_waiters()), (0, false));
        });
    }

    /// Two contexts and one tag.
    #[test]
    fn loom_tags_two_contexts() {
        run(1, 2);
    }

    /// Three contexts and one tag: wakers contend.
    #[test]
    fn loom_tags_three_contexts() {
        run(1, 3);
    }

    /// Three contexts and two tags: two waiters may be woken at once.
    #[test]
    fn loom_tags_two_tags() {
        run(2, 3);
    }
}
