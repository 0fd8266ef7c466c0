//! Zeroes long ranges in pieces: a context does a piece of one range each time it looks at its
//! ring, and its other work goes on between.
//!
//! Invariants:
//! * While ranges are left, a timer of the context's ring is set, so that the work goes on although
//!   the owner sleeps or is away. At most one timer is set; it may find that all ranges were
//!   withdrawn.
//! * One call does one piece, however many ranges there are. The ranges take turns, so a short one
//!   does not wait for the end of a long one, which may be another client's.

use super::store::{RamStore, Rest};
use drystone_core::{ChannelId, Env};
use drystone_queue::{Request, Slots};
use std::collections::VecDeque;
use std::ops::Range;

/// The bit that marks the timer's token values; the other tokens of these drivers are slot numbers.
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

    /// True if a token value is the timer's.
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

    /// Do a piece, because the timer has fired. Returns the slot of the request that this
    /// completes, if any.
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

    /// Forget each request whose bios all have their `user_data` in `range`: the rest of it is not
    /// zeroed. The slots of these requests are pushed to `gone`.
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

    /// Sets the timer to fire at once.
    fn set_timer(&mut self, env: &mut Env) {
        if !std::mem::replace(&mut self.has_timer, true) {
            env.ring.timer(1, Env::token(self.channel, MARK));
        }
    }
}
