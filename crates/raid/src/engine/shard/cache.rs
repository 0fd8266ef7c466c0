//! The stripes of a shard. The cache knows which stripe has work, and which one gets another sector
//! next.
//!
//! Invariants:
//! * A stripe is *busy* (it has work or I/O), *idle*, or *given up*. Only a busy one has pieces;
//!   one that is given up has no blocks and no sector.
//! * No two stripes have the same sector.
//! * A stripe becomes busy in [`StripeCache::claim`] and idle in [`StripeCache::release`], and
//!   keeps its blocks in between: a cache that must shrink gives it up afterwards.
//! * [`StripeCache::resize`] adds idle stripes, and gives up idle ones only.

use super::stripe::{State, Stripe};
use super::table::StripeTable;
use crate::engine::turn::TurnInput;
use crate::ids::StripeId;
use std::ops::{Index, IndexMut};

/// See the module's text.
pub(super) struct StripeCache {
    stripes: Vec<Stripe>,
    table: StripeTable,
    given_up: Vec<StripeId>,
}

impl StripeCache {
    /// Without stripes.
    pub(super) fn new() -> Self {
        StripeCache { stripes: Vec::new(), table: StripeTable::new(), given_up: Vec::new() }
    }

    /// Stripes that are busy or idle.
    pub(super) fn live(&self) -> usize {
        self.stripes.len() - self.given_up.len()
    }

    /// The number of busy stripes.
    pub(super) fn active(&self) -> usize {
        self.live() - self.table.idle()
    }

    /// The number of idle stripes.
    pub(super) fn idle(&self) -> usize {
        self.table.idle()
    }

    /// The member sectors of the stripes that are being written.
    pub(super) fn being_written(&self) -> impl Iterator<Item = u64> {
        let written = self.stripes.iter().filter(|stripe| stripe.is_being_written());
        written.map(|stripe| stripe.sector)
    }

    /// Set the number of stripes. Busy stripes beyond it are given up once they have no work.
    pub(super) fn resize(&mut self, turn: &TurnInput<'_>, stripes: usize) {
        while self.live() < stripes {
            let id = self.given_up.pop().unwrap_or(StripeId(self.stripes.len() as u32));
            match self.stripes.get_mut(id.index()) {
                Some(stripe) => *stripe = Stripe::new(turn),
                None => self.stripes.push(Stripe::new(turn)),
            }
            self.table.resize(self.stripes.len());
            self.table.set_idle(id, true);
        }
        while self.live() > stripes.max(1) {
            let Some(id) = self.table.least_recent() else { break };
            self.table.set_busy(id);
            self.give_up(id);
        }
    }

    fn give_up(&mut self, id: StripeId) {
        self.table.set_sector(id, None);
        self[id].blocks = Vec::new();
        self.given_up.push(id);
    }

    /// The stripe that has a sector, busy or idle.
    #[inline]
    pub(super) fn find(&self, sector: u64) -> Option<StripeId> {
        self.table.find(sector)
    }

    #[inline]
    pub(super) fn is_idle(&self, id: StripeId) -> bool {
        self.table.is_idle(id)
    }

    /// Make an idle stripe busy for a sector: the one `found` for it, or else the least recently
    /// used one. `None` if no stripe is idle.
    pub(super) fn claim(
        &mut self,
        turn: &TurnInput<'_>,
        sector: u64,
        found: Option<StripeId>,
    ) -> Option<StripeId> {
        let id = found.or_else(|| self.table.least_recent())?;
        self.table.set_busy(id);
        if found.is_none() {
            self.table.set_sector(id, Some(sector));
            self[id].become_stripe_of(sector, turn);
        }
        Some(id)
    }

    /// Note that a stripe has no work any more. False if the cache has more than `quota` stripes
    /// and gives it up.
    pub(super) fn release(&mut self, id: StripeId, quota: usize) -> bool {
        let is_too_many = self.live() > quota;
        let stripe = &mut self[id];
        debug_assert!(stripe.state == State::Idle && stripe.io == 0 && !stripe.has_work());
        stripe.unreadable = Default::default();
        let is_empty = stripe.uptodate.is_empty();
        if is_too_many {
            self.give_up(id);
            return false;
        }
        self.table.set_idle(id, is_empty);
        true
    }
}

impl Index<StripeId> for StripeCache {
    type Output = Stripe;

    #[inline]
    fn index(&self, id: StripeId) -> &Stripe {
        &self.stripes[id.index()]
    }
}

impl IndexMut<StripeId> for StripeCache {
    #[inline]
    fn index_mut(&mut self, id: StripeId) -> &mut Stripe {
        &mut self.stripes[id.index()]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{conf, with_turn};
    use super::*;
    use crate::engine::roles::Roles;
    use crate::ids::Role;

    /// Claim a stripe for a sector, whether one has it or not.
    fn claim(cache: &mut StripeCache, turn: &TurnInput<'_>, sector: u64) -> Option<StripeId> {
        let found = cache.find(sector);
        cache.claim(turn, sector, found)
    }

    #[test]
    fn no_sector_has_two_stripes_and_no_stripe_two_sectors() {
        with_turn(&conf(3), |turn| {
            let mut cache = StripeCache::new();
            cache.resize(turn, 2);
            let first = claim(&mut cache, turn, 0).unwrap();
            let second = claim(&mut cache, turn, 8).unwrap();
            assert_ne!(first, second);
            assert_eq!((cache.active(), claim(&mut cache, turn, 16)), (2, None));
            assert!(cache.release(first, 2));
            assert_eq!((cache.find(0), cache.is_idle(first)), (Some(first), true));
            assert_eq!(claim(&mut cache, turn, 16), Some(first), "the only one that is idle");
            assert_eq!((cache.find(0), cache.find(16)), (None, Some(first)));
            assert_eq!((cache[first].sector, cache[second].sector), (16, 8));
        });
    }

    #[test]
    fn an_idle_stripe_of_the_sector_keeps_what_it_holds() {
        with_turn(&conf(3), |turn| {
            let mut cache = StripeCache::new();
            cache.resize(turn, 2);
            let first = claim(&mut cache, turn, 0).unwrap();
            cache[first].uptodate.insert(Role(1));
            cache.release(first, 2);
            assert_eq!(claim(&mut cache, turn, 0), Some(first));
            assert!(cache[first].uptodate.has(Role(1)));
            cache.release(first, 2);
            // The other one is used first, because it holds nothing.
            let other = claim(&mut cache, turn, 8).unwrap();
            assert_ne!(other, first);
            cache.release(other, 2);
            assert_eq!(claim(&mut cache, turn, 16), Some(other));
            assert_eq!(claim(&mut cache, turn, 24), Some(first));
            assert_eq!(cache[first].uptodate, Roles::EMPTY, "of another sector");
        });
    }

    #[test]
    fn a_smaller_cache_gives_up_idle_stripes_now_and_busy_ones_when_they_are_released() {
        with_turn(&conf(3), |turn| {
            let mut cache = StripeCache::new();
            cache.resize(turn, 4);
            let busy: Vec<_> = (0..3).filter_map(|n| claim(&mut cache, turn, n * 8)).collect();
            cache.resize(turn, 1);
            assert_eq!((cache.live(), cache.active(), cache.idle()), (3, 3, 0));
            assert!(!cache.release(busy[0], 1) && !cache.release(busy[1], 1));
            assert!(cache[busy[0]].blocks.is_empty() && cache.find(0).is_none());
            assert!(cache.release(busy[2], 1), "one is kept");
            cache.resize(turn, 3);
            assert_eq!((cache.live(), cache.active()), (3, 0));
            assert!(busy.iter().all(|id| cache[*id].blocks.len() == 3), "numbers are used again");
            cache.resize(turn, 0);
            assert_eq!(cache.live(), 1, "items can always go on");
        });
    }

    #[test]
    fn stripes_that_are_written_are_told_by_their_sectors() {
        with_turn(&conf(3), |turn| {
            let mut cache = StripeCache::new();
            cache.resize(turn, 3);
            let ids: Vec<_> = (0..3).filter_map(|n| claim(&mut cache, turn, n * 8)).collect();
            cache[ids[1]].state = State::Recording;
            cache[ids[2]].state = State::Reading;
            assert_eq!(cache.being_written().collect::<Vec<_>>(), [8]);
        });
    }
}
