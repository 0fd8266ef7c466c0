//! The stripes whose next step is due: now, or as soon as a new configuration is published (Linux
//! `handle_list`).
//!
//! Invariants:
//! * A stripe is queued at most once; `is_queued` says whether it is.
//! * A stripe that awaits the manager is not queued before the next configuration.

use super::cache::StripeCache;
use super::stripe::{State, Stripe};
use crate::ids::StripeId;
use std::collections::VecDeque;

/// See the module's text.
#[derive(Default)]
pub(super) struct ReadyQueue {
    ready: VecDeque<StripeId>,
    /// Stripes that wait for the manager to publish a configuration.
    awaiting: Vec<StripeId>,
}

impl ReadyQueue {
    /// Queue a stripe, unless it is queued already.
    pub(super) fn push(&mut self, id: StripeId, stripe: &mut Stripe) {
        if !std::mem::replace(&mut stripe.is_queued, true) {
            self.ready.push_back(id);
        }
    }

    /// Take the stripe that was queued first.
    pub(super) fn pop(&mut self, stripes: &mut StripeCache) -> Option<StripeId> {
        let id = self.ready.pop_front()?;
        stripes[id].is_queued = false;
        Some(id)
    }

    /// Put a stripe into `state`, and have it queued when the next configuration is published.
    pub(super) fn await_manager(&mut self, id: StripeId, stripe: &mut Stripe, state: State) {
        stripe.state = state;
        self.awaiting.push(id);
    }

    /// Queue the stripes that await a configuration, because a new one is published.
    pub(super) fn push_awaiting(&mut self, stripes: &mut StripeCache) {
        for id in std::mem::take(&mut self.awaiting) {
            self.push(id, &mut stripes[id]);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{conf, with_turn};
    use super::*;

    #[test]
    fn a_stripe_is_queued_once_and_a_waiting_one_by_the_next_configuration() {
        with_turn(&conf(3), |turn| {
            let mut stripes = StripeCache::new();
            stripes.resize(turn, 3);
            let mut queue = ReadyQueue::default();
            let [a, b, c] = [0, 1, 2].map(StripeId);
            for id in [b, a, b] {
                queue.push(id, &mut stripes[id]);
            }
            queue.await_manager(c, &mut stripes[c], State::Recording);
            assert_eq!(stripes[c].state, State::Recording);
            assert_eq!(queue.pop(&mut stripes), Some(b));
            queue.push(b, &mut stripes[b]);
            assert_eq!([(); 3].map(|()| queue.pop(&mut stripes)), [Some(a), Some(b), None]);
            queue.push_awaiting(&mut stripes);
            queue.push_awaiting(&mut stripes);
            assert_eq!([(); 2].map(|()| queue.pop(&mut stripes)), [Some(c), None]);
        });
    }
}
