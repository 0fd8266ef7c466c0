//! The index of the stripes by sector, and the order in which stripes without work were last used.
//!
//! Invariants:
//! * A stripe with a sector is in the chain of that sector's bucket; no sector is there twice.
//! * A stripe without work is in the order of use, least recently used first; one with work is not.

use crate::ids::StripeId;

/// No stripe.
const NONE: StripeId = StripeId(u32::MAX);

#[derive(Clone, Copy)]
struct Links {
    sector: Option<u64>,
    next_in_bucket: StripeId,
    before: StripeId,
    after: StripeId,
    is_idle: bool,
}

const UNLINKED: Links =
    Links { sector: None, next_in_bucket: NONE, before: NONE, after: NONE, is_idle: false };

/// See the module's text. Stripes are identified by number.
pub(super) struct StripeTable {
    links: Vec<Links>,
    buckets: Vec<StripeId>,
    first: StripeId,
    last: StripeId,
    idle: usize,
}

impl StripeTable {
    pub(super) fn new() -> Self {
        StripeTable { links: Vec::new(), buckets: vec![NONE], first: NONE, last: NONE, idle: 0 }
    }

    /// Set the number of stripes.
    pub(super) fn resize(&mut self, stripes: usize) {
        self.links.resize(stripes, UNLINKED);
        let buckets = stripes.next_power_of_two().max(1);
        if buckets > self.buckets.len() {
            self.rehash(buckets);
        }
    }

    fn rehash(&mut self, buckets: usize) {
        self.buckets = vec![NONE; buckets];
        for id in (0..self.links.len() as u32).map(StripeId) {
            if let Some(sector) = self.links[id.index()].sector {
                self.chain(id, sector);
            }
        }
    }

    fn bucket(&self, sector: u64) -> usize {
        (sector >> 3) as usize & (self.buckets.len() - 1)
    }

    fn chain(&mut self, id: StripeId, sector: u64) {
        let bucket = self.bucket(sector);
        self.links[id.index()].next_in_bucket = self.buckets[bucket];
        self.buckets[bucket] = id;
    }

    /// The stripe of a member sector.
    #[inline]
    pub(super) fn find(&self, sector: u64) -> Option<StripeId> {
        let mut at = self.buckets[self.bucket(sector)];
        while at != NONE {
            let links = &self.links[at.index()];
            if links.sector == Some(sector) {
                return Some(at);
            }
            at = links.next_in_bucket;
        }
        None
    }

    /// Change the sector of a stripe; `None` takes its sector away.
    pub(super) fn set_sector(&mut self, id: StripeId, sector: Option<u64>) {
        if let Some(former) = self.links[id.index()].sector {
            self.unchain(id, former);
        }
        self.links[id.index()].sector = sector;
        if let Some(sector) = sector {
            self.chain(id, sector);
        }
    }

    fn unchain(&mut self, id: StripeId, sector: u64) {
        let bucket = self.bucket(sector);
        let next = self.links[id.index()].next_in_bucket;
        if self.buckets[bucket] == id {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.links[at.index()].next_in_bucket != id {
            at = self.links[at.index()].next_in_bucket;
        }
        self.links[at.index()].next_in_bucket = next;
    }

    /// The number of stripes without work.
    pub(super) fn idle(&self) -> usize {
        self.idle
    }

    pub(super) fn is_idle(&self, id: StripeId) -> bool {
        self.links[id.index()].is_idle
    }

    /// Note that a stripe has no work any more. `first`: its content is of no use, so it is used
    /// first.
    pub(super) fn set_idle(&mut self, id: StripeId, first: bool) {
        debug_assert!(!self.is_idle(id));
        let (before, after) = if first { (NONE, self.first) } else { (self.last, NONE) };
        let links = &mut self.links[id.index()];
        (links.before, links.after, links.is_idle) = (before, after, true);
        *self.after(before) = id;
        *self.before(after) = id;
        self.idle += 1;
    }

    /// Note that a stripe gets work.
    pub(super) fn set_busy(&mut self, id: StripeId) {
        debug_assert!(self.is_idle(id));
        let Links { before, after, .. } = self.links[id.index()];
        *self.after(before) = after;
        *self.before(after) = before;
        self.links[id.index()].is_idle = false;
        self.idle -= 1;
    }

    /// The link to the stripe after `stripe`, or to the first one.
    fn after(&mut self, id: StripeId) -> &mut StripeId {
        match id {
            NONE => &mut self.first,
            id => &mut self.links[id.index()].after,
        }
    }

    fn before(&mut self, id: StripeId) -> &mut StripeId {
        match id {
            NONE => &mut self.last,
            id => &mut self.links[id.index()].before,
        }
    }

    /// The stripe without work that was used least recently.
    pub(super) fn least_recent(&self) -> Option<StripeId> {
        (self.first != NONE).then_some(self.first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, VecDeque};

    proptest! {
        #[test]
        fn as_a_map_and_a_queue(
            steps in proptest::collection::vec((0u32..12, 0u64..20, 0..4), 0..200),
        ) {
            let mut table = StripeTable::new();
            table.resize(6);
            let (mut sectors, mut idle) = (BTreeMap::new(), VecDeque::new());
            for (n, (stripe, sector, what)) in steps.into_iter().enumerate() {
                if n == 50 {
                    table.resize(12);
                }
                let stripe = StripeId(stripe % if n < 50 { 6 } else { 12 });
                let sector = sector * 8;
                match what {
                    0 if !sectors.values().any(|s| *s == sector) => {
                        table.set_sector(stripe, Some(sector));
                        sectors.insert(stripe, sector);
                    }
                    1 => {
                        table.set_sector(stripe, None);
                        sectors.remove(&stripe);
                    }
                    2 if !table.is_idle(stripe) => {
                        let first = sector == 0;
                        table.set_idle(stripe, first);
                        if first { idle.push_front(stripe) } else { idle.push_back(stripe) }
                    }
                    3 if table.is_idle(stripe) => {
                        table.set_busy(stripe);
                        idle.retain(|other| *other != stripe);
                    }
                    _ => {}
                }
                prop_assert_eq!(table.least_recent(), idle.front().copied());
                prop_assert_eq!(table.idle(), idle.len());
                for sector in (0..20).map(|s| s * 8) {
                    let found = sectors.iter().find(|(_, s)| **s == sector).map(|(n, _)| *n);
                    prop_assert_eq!(table.find(sector), found);
                }
            }
        }
    }
}
