//! The next step of a stripe. The decisions need no I/O, only the known state of the stripe's
//! blocks.
//!
//! A stripe has one block for each member. A block is *up to date* if the cache has the content
//! that the member has or must get. A block is *lost* if it is neither up to date nor readable.
//!
//! Source: `handle_stripe_dirtying`, `fetch_block` and `handle_stripe` of Linux
//! `drivers/md/raid5.c` as facts.

use super::roles::Roles;
use crate::layout::{Layout, Row};

/// The known state of a stripe.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View {
    pub(crate) row: Row,
    pub(crate) data: Roles,
    /// Members whose block can be read.
    pub(crate) readable: Roles,
    /// Members whose block must be written when it changes: `readable`, and members being rebuilt.
    pub(crate) writable: Roles,
    pub(crate) uptodate: Roles,
    /// Parity is known to fit the data, as far as the blocks can be read.
    pub(crate) parity_fits: bool,
}

/// The step that makes blocks up to date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fetch {
    /// None: they are up to date.
    Ready,
    /// Read these blocks first.
    Read(Roles),
    /// Compute these blocks now, from the blocks that are up to date.
    Compute(Roles),
    /// None is possible: too many blocks are lost.
    Lost,
}

/// The method by which parity is brought up to date for a write (`rmw`, `rcw`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// Read-modify-write: take the old data out of the old parity, and add the new data.
    Rmw,
    /// Reconstruct-write: compute parity from all data of the stripe.
    Rcw,
    /// No parity to update: no member can take it.
    NoParity,
}

/// The method and the needs of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WritePlan {
    pub(crate) method: Method,
    /// Blocks whose old content it needs.
    pub(crate) needs: Roles,
}

/// The blocks that pending writes cover.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Covered {
    /// Blocks that are written whole.
    pub(crate) whole: Roles,
    /// Blocks of which a part is written.
    pub(crate) part: Roles,
}

/// `md/rmw_level`: when read-modify-write is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum RmwLevel {
    /// Never.
    Never,
    /// When it needs fewer reads.
    #[default]
    Fewer,
    /// Also when both need the same number.
    Prefer,
}

impl RmwLevel {
    /// All levels, each at its number.
    pub const ALL: [Self; 3] = [Self::Never, Self::Fewer, Self::Prefer];
}

/// All data members of a row.
pub(crate) fn data_of(layout: &Layout, row: &Row) -> Roles {
    Roles::below(layout.disks()) - parity_of(row)
}

/// The members that hold parity in a row.
pub(crate) fn parity_of(row: &Row) -> Roles {
    Roles::one(row.p) | Roles::of_option(row.q)
}

impl View {
    fn parity(&self) -> Roles {
        parity_of(&self.row)
    }

    /// Blocks that cannot be read.
    fn lost(&self) -> Roles {
        (self.data | self.parity()) - self.uptodate - self.readable
    }

    /// The next step towards `wanted` being up to date.
    pub(crate) fn fetch(&self, wanted: Roles) -> Fetch {
        let missing = wanted - self.uptodate;
        if missing.is_empty() {
            return Fetch::Ready;
        }
        if self.readable.contains(missing) {
            return Fetch::Read(missing);
        }
        self.reconstruct(missing)
    }

    fn reconstruct(&self, missing: Roles) -> Fetch {
        let lost = self.lost();
        let lost_data = lost & self.data;
        let parity = self.parity() - lost;
        if lost_data.len() > parity.len() {
            return Fetch::Lost;
        }
        // P before Q: one lost block needs only one of them, and P costs less.
        let helpers: Roles = [Some(self.row.p), self.row.q]
            .into_iter()
            .flatten()
            .filter(|role| parity.has(*role))
            .take(lost_data.len() as usize)
            .collect();
        let inputs = (self.data - lost_data) | helpers | (missing - lost);
        let to_read = inputs - self.uptodate;
        match to_read.is_empty() {
            true => Fetch::Compute(missing & lost | lost_data),
            false => Fetch::Read(to_read),
        }
    }

    /// The number of reads that `needs` takes. A block that cannot be read costs more than any
    /// other method would (Linux: twice the number of members).
    fn cost(&self, needs: Roles) -> u32 {
        let missing = needs - self.uptodate;
        let unreadable = missing - self.readable;
        let disks = (self.data | self.parity()).len();
        (missing - unreadable).len() + unreadable.len() * 2 * disks
    }

    /// Choose the method for writing `covered` that needs the fewest reads.
    pub(crate) fn write(&self, covered: &Covered, level: RmwLevel) -> WritePlan {
        let parity = self.parity() & self.writable;
        if parity.is_empty() {
            return WritePlan { method: Method::NoParity, needs: covered.part };
        }
        let rcw = WritePlan { method: Method::Rcw, needs: self.data - covered.whole };
        let rmw = WritePlan { method: Method::Rmw, needs: covered.whole | covered.part | parity };
        let is_lossless = self.uptodate.contains(parity) || self.readable.contains(parity);
        if level == RmwLevel::Never || !is_lossless || !self.parity_fits {
            return rcw;
        }
        let (rmw_cost, rcw_cost) = (self.cost(rmw.needs), self.cost(rcw.needs));
        match rmw_cost < rcw_cost || rmw_cost == rcw_cost && level == RmwLevel::Prefer {
            // If neither needs a read, reconstruct-write is cheaper: it need not take the old data
            // out.
            true if rmw_cost > 0 || rcw_cost > 0 => rmw,
            _ => rcw,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Role;
    use crate::layout::{Layout, Level};
    use proptest::prelude::*;

    fn view(level: Level, disks: u32, row: u64, lost: &[u32]) -> View {
        let layout = Layout::new(level, 2, disks, 128).unwrap();
        let row = layout.row(row);
        let readable = Roles::below(disks) - lost.iter().copied().collect();
        View {
            row,
            data: data_of(&layout, &row),
            readable,
            writable: readable,
            uptodate: Roles::EMPTY,
            parity_fits: true,
        }
    }

    fn one_block(level: Level, disks: u32) -> (usize, Method) {
        let view = view(level, disks, 0, &[]);
        let whole = Roles::one(view.row.data(0));
        let plan = view.write(&Covered { whole, part: Roles::EMPTY }, RmwLevel::Fewer);
        let reads = match view.fetch(plan.needs) {
            Fetch::Ready => 0,
            Fetch::Read(roles) => roles.len() as usize,
            other => panic!("{other:?}"),
        };
        (reads, plan.method)
    }

    /// The reads that Linux 6.12 was seen to make for one block.
    #[test]
    fn one_block_costs_what_md_pays() {
        use Method::{Rcw, Rmw};
        let five = [(3, 1, Rcw), (4, 2, Rcw), (5, 2, Rmw), (6, 2, Rmw), (8, 2, Rmw)];
        for (disks, reads, method) in five {
            assert_eq!(one_block(Level::Raid5, disks), (reads, method), "RAID-5 {disks}");
        }
        let six = [(4, 1, Rcw), (5, 2, Rcw), (6, 3, Rcw), (7, 3, Rmw), (8, 3, Rmw)];
        for (disks, reads, method) in six {
            assert_eq!(one_block(Level::Raid6, disks), (reads, method), "RAID-6 {disks}");
        }
    }

    #[test]
    fn whole_rows_need_no_reads() {
        for (level, disks) in [(Level::Raid5, 4), (Level::Raid6, 6)] {
            let view = view(level, disks, 3, &[]);
            let plan =
                view.write(&Covered { whole: view.data, part: Roles::EMPTY }, RmwLevel::Fewer);
            assert_eq!(plan, WritePlan { method: Method::Rcw, needs: Roles::EMPTY });
        }
    }

    #[test]
    fn parity_that_may_be_wrong_is_not_carried_on() {
        let mut view = view(Level::Raid5, 8, 0, &[]);
        view.parity_fits = false;
        let whole = Roles::one(view.row.data(0));
        let plan = view.write(&Covered { whole, part: Roles::EMPTY }, RmwLevel::Prefer);
        assert_eq!(plan.method, Method::Rcw);
    }

    #[test]
    fn a_lost_block_that_is_not_written_is_left_to_parity() {
        // D0 D1 D2 P: D1 is lost, D0 is written: old D0 and P suffice.
        let view = view(Level::Raid5, 4, 0, &[1]);
        let plan = view
            .write(&Covered { whole: Roles::one(Role(0)), part: Roles::EMPTY }, RmwLevel::Fewer);
        assert_eq!(plan.method, Method::Rmw);
        assert_eq!(view.fetch(plan.needs), Fetch::Read([0, 3].into_iter().collect()));
        // D1 is written itself: the other data blocks are read.
        let plan = view
            .write(&Covered { whole: Roles::one(Role(1)), part: Roles::EMPTY }, RmwLevel::Fewer);
        assert_eq!(plan.method, Method::Rcw);
        assert_eq!(view.fetch(plan.needs), Fetch::Read([0, 2].into_iter().collect()));
        // D1 is written in part: it has to be computed first.
        let plan = view
            .write(&Covered { whole: Roles::EMPTY, part: Roles::one(Role(1)) }, RmwLevel::Fewer);
        assert_eq!(view.fetch(plan.needs), Fetch::Read([0, 2, 3].into_iter().collect()));
    }

    #[test]
    fn without_parity_only_parts_are_read() {
        let view = view(Level::Raid5, 4, 0, &[3]);
        let plan = view.write(
            &Covered { whole: Roles::one(Role(0)), part: Roles::one(Role(1)) },
            RmwLevel::Fewer,
        );
        assert_eq!(plan, WritePlan { method: Method::NoParity, needs: Roles::one(Role(1)) });
    }

    fn roles(disks: u32) -> impl Strategy<Value = Roles> {
        proptest::collection::vec(0..disks, 0..=disks as usize)
            .prop_map(|roles| roles.into_iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        /// Following the steps makes the wanted blocks up to date, unless too many blocks are lost.
        #[test]
        fn fetching_ends(
            six in any::<bool>(),
            disks in 4u32..9,
            row in 0u64..20,
            lost in roles(8),
            cached in roles(8),
            wanted in roles(8),
        ) {
            let level = if six { Level::Raid6 } else { Level::Raid5 };
            let mut view = view(level, disks, row, &[]);
            let all = Roles::below(disks);
            view.readable = all - lost;
            view.uptodate = cached & all;
            let wanted = wanted & view.data;
            let mut steps = 0;
            loop {
                steps += 1;
                prop_assert!(steps < 4);
                match view.fetch(wanted) {
                    Fetch::Ready => {
                        prop_assert!(view.uptodate.contains(wanted));
                        break;
                    }
                    Fetch::Read(roles) => {
                        prop_assert!(view.readable.contains(roles) && !roles.is_empty());
                        prop_assert!((roles & view.uptodate).is_empty());
                        view.uptodate |= roles;
                    }
                    Fetch::Compute(roles) => {
                        let known = view.uptodate - roles;
                        prop_assert!(known.len() >= disks - level.parity_disks());
                        view.uptodate |= roles;
                    }
                    Fetch::Lost => {
                        let gone = all - view.readable - view.uptodate;
                        prop_assert!(gone.len() > level.parity_disks());
                        break;
                    }
                }
            }
        }
    }
}
