//! Zeroing of ranges whose length no call should take: a context does a piece of one of them each
//! time it looks at its ring, and everything else of it goes on between.
//!
//! Invariants:
//! * While there are ranges a timer of the context's ring is set, so that the work goes on although
//!   the owner sleeps or is away. Never is more than one: it may find that all ranges were
//!   withdrawn.
//! * However many ranges there are, a call does one piece. They take turns, so a short one does not
//!   wait for the end of a long one, which may be another client's.

use super::store::{RamStore, Rest};
use drystone_core::{ChannelId, Env};
use drystone_queue::{Request, Slots};
use std::collections::VecDeque;
use std::ops::Range;

/// Marks the values of the timer's tokens. Others of these drivers name a slot alone.
const MARK: u64 = 1 << 40;

/// The ranges that a context zeroes.
pub(crate) struct Zeroing {
    channel: ChannelId,
    ranges: VecDeque<(u32, Rest)>,
    has_timer: bool,
}

impl Zeroing {
    /// For channel number `channel`.
    pub(crate) fn new(channel: ChannelId) -> Self {
        Zeroing { channel, ranges: VecDeque::new(), has_timer: false }
    }

    /// True if an event with a token of this value is of the timer.
    #[inline]
    pub(crate) fn has_set(&self, token_value: u64) -> bool {
        token_value & MARK != 0
    }

    /// Begins to zero `rest` for the request in this slot.
    #[cold]
    pub(crate) fn begin(&mut self, env: &mut Env, rq: &Request, rest: Rest) {
        self.ranges.push_back((rq.slot(), rest));
        self.set_timer(env);
    }

    /// The timer has fired: do a piece. The slot of the request that is done by it, if one is.
    pub(crate) fn go_on(&mut self, env: &mut Env, store: &RamStore) -> Option<u32> {
        self.has_timer = false;
        let (slot, mut rest) = self.ranges.pop_front()?;
        store.zero_some(&mut rest);
        let done = rest.is_empty().then_some(slot);
        if done.is_none() {
            self.ranges.push_back((slot, rest));
        }
        if !self.ranges.is_empty() {
            self.set_timer(env);
        }
        done
    }

    /// Forget the requests all of whose bios have their `user_data` in `range`: what is left of
    /// them is not zeroed. Their slots are pushed to `gone`.
    #[cold]
    pub(crate) fn withdraw(&mut self, range: &Range<u64>, slots: &mut Slots, gone: &mut Vec<u32>) {
        self.ranges.retain(|(slot, _)| {
            let unwanted = slots.get(*slot).bios().all(|bio| range.contains(&bio.user_data));
            if unwanted {
                gone.push(*slot);
            }
            !unwanted
        });
    }

    /// As soon as may be.
    fn set_timer(&mut self, env: &mut Env) {
        if !std::mem::replace(&mut self.has_timer, true) {
            env.ring.timer(1, Env::token(self.channel, MARK));
        }
    }
}
