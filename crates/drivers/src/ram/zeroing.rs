//! Zeroing of ranges whose length no call should take: a context does a piece of one of them each time
//! it looks at its ring, and everything else of it goes on between.
//!
//! Invariants:
//! * While there are ranges, and only then, a timer of the context's ring is set, so that the work goes
//!   on although the owner sleeps or is away.
//! * Ranges are done one after the other: however many there are, a call does one piece.

use super::{RamStore, Rest};
use drystone_core::Env;
use drystone_queue::Request;
use std::collections::VecDeque;

/// Marks the values of the timer's tokens. Others of these drivers name a slot alone.
const MARK: u64 = 1 << 40;

/// The ranges that a context is to zero.
pub(crate) struct Zeroing {
    channel: u32,
    ranges: VecDeque<(u32, Rest)>,
}

impl Zeroing {
    /// For channel number `channel`.
    pub(crate) fn new(channel: u32) -> Self {
        Zeroing { channel, ranges: VecDeque::new() }
    }

    /// Whether an event with a token of this value is of the timer.
    #[inline]
    pub(crate) fn has_set(&self, token_value: u64) -> bool {
        token_value & MARK != 0
    }

    /// The request in this slot is to zero `rest`.
    #[cold]
    pub(crate) fn begin(&mut self, env: &mut Env, rq: &Request, rest: Rest) {
        self.ranges.push_back((rq.slot(), rest));
        if self.ranges.len() == 1 {
            self.set_timer(env);
        }
    }

    /// The timer has fired: do a piece. The slot of the request that is done by it, if one is.
    pub(crate) fn go_on(&mut self, env: &mut Env, store: &RamStore) -> Option<u32> {
        let (slot, rest) = self.ranges.front_mut()?;
        store.zero_some(rest);
        let done = rest.is_empty().then_some(*slot);
        if done.is_some() {
            self.ranges.pop_front();
        }
        if !self.ranges.is_empty() {
            self.set_timer(env);
        }
        done
    }

    /// As soon as may be.
    fn set_timer(&self, env: &mut Env) {
        env.ring.timer(1, Env::token(self.channel, MARK));
    }
}
