//! Which stripes are in the cache, and in which order those without work were used.
//!
//! Invariants:
//! * A stripe with a sector is in the chain of that sector's bucket; no sector is there twice.
//! * A stripe without work is in the order of use, least recently used first; with work it is not.

/// No stripe.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Links {
    sector: Option<u64>,
    next_in_bucket: u32,
    before: u32,
    after: u32,
    is_idle: bool,
}

const UNLINKED: Links =
    Links { sector: None, next_in_bucket: NONE, before: NONE, after: NONE, is_idle: false };

/// See the module's text. Stripes are known by number.
pub(crate) struct StripeTable {
    links: Vec<Links>,
    buckets: Vec<u32>,
    first: u32,
    last: u32,
    idle: usize,
}

impl StripeTable {
    pub(crate) fn new() -> Self {
        StripeTable { links: Vec::new(), buckets: vec![NONE], first: NONE, last: NONE, idle: 0 }
    }

    /// There are so many numbers from now on.
    pub(crate) fn resize(&mut self, stripes: usize) {
        self.links.resize(stripes, UNLINKED);
        let buckets = stripes.next_power_of_two().max(1);
        if buckets > self.buckets.len() {
            self.rehash(buckets);
        }
    }

    fn rehash(&mut self, buckets: usize) {
        self.buckets = vec![NONE; buckets];
        for stripe in 0..self.links.len() as u32 {
            if let Some(sector) = self.links[stripe as usize].sector {
                self.chain(stripe, sector);
            }
        }
    }

    fn bucket(&self, sector: u64) -> usize {
        (sector >> 3) as usize & (self.buckets.len() - 1)
    }

    fn chain(&mut self, stripe: u32, sector: u64) {
        let bucket = self.bucket(sector);
        self.links[stripe as usize].next_in_bucket = self.buckets[bucket];
        self.buckets[bucket] = stripe;
    }

    /// The stripe of a member sector.
    #[inline]
    pub(crate) fn find(&self, sector: u64) -> Option<u32> {
        let mut at = self.buckets[self.bucket(sector)];
        while at != NONE {
            let links = &self.links[at as usize];
            if links.sector == Some(sector) {
                return Some(at);
            }
            at = links.next_in_bucket;
        }
        None
    }

    /// Give a stripe a sector in the place of the one it has, or none.
    pub(crate) fn set_sector(&mut self, stripe: u32, sector: Option<u64>) {
        if let Some(former) = self.links[stripe as usize].sector {
            self.unchain(stripe, former);
        }
        self.links[stripe as usize].sector = sector;
        if let Some(sector) = sector {
            self.chain(stripe, sector);
        }
    }

    fn unchain(&mut self, stripe: u32, sector: u64) {
        let bucket = self.bucket(sector);
        let next = self.links[stripe as usize].next_in_bucket;
        if self.buckets[bucket] == stripe {
            self.buckets[bucket] = next;
            return;
        }
        let mut at = self.buckets[bucket];
        while self.links[at as usize].next_in_bucket != stripe {
            at = self.links[at as usize].next_in_bucket;
        }
        self.links[at as usize].next_in_bucket = next;
    }

    /// Stripes without work.
    pub(crate) fn idle(&self) -> usize {
        self.idle
    }

    pub(crate) fn is_idle(&self, stripe: u32) -> bool {
        self.links[stripe as usize].is_idle
    }

    /// The stripe has no work any more; `first` if what it holds is worth nothing.
    pub(crate) fn set_idle(&mut self, stripe: u32, first: bool) {
        debug_assert!(!self.is_idle(stripe));
        let (before, after) = if first { (NONE, self.first) } else { (self.last, NONE) };
        let links = &mut self.links[stripe as usize];
        (links.before, links.after, links.is_idle) = (before, after, true);
        *self.after(before) = stripe;
        *self.before(after) = stripe;
        self.idle += 1;
    }

    /// The stripe gets work.
    pub(crate) fn set_busy(&mut self, stripe: u32) {
        debug_assert!(self.is_idle(stripe));
        let Links { before, after, .. } = self.links[stripe as usize];
        *self.after(before) = after;
        *self.before(after) = before;
        self.links[stripe as usize].is_idle = false;
        self.idle -= 1;
    }

    /// What comes after `stripe`, or first.
    fn after(&mut self, stripe: u32) -> &mut u32 {
        match stripe {
            NONE => &mut self.first,
            stripe => &mut self.links[stripe as usize].after,
        }
    }

    fn before(&mut self, stripe: u32) -> &mut u32 {
        match stripe {
            NONE => &mut self.last,
            stripe => &mut self.links[stripe as usize].before,
        }
    }

    /// The stripe without work that was used least recently.
    pub(crate) fn least_recent(&self) -> Option<u32> {
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
        fn as_a_map_and_a_queue(steps in proptest::collection::vec((0u32..12, 0u64..20, 0..4), 0..200)) {
            let mut table = StripeTable::new();
            table.resize(6);
            let (mut sectors, mut idle) = (BTreeMap::new(), VecDeque::new());
            for (n, (stripe, sector, what)) in steps.into_iter().enumerate() {
                if n == 50 {
                    table.resize(12);
                }
                let (stripe, sector) = (stripe % if n < 50 { 6 } else { 12 }, sector * 8);
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
