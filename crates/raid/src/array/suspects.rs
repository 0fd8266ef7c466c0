//! What may be wrong of an array that is started though something may be lost.
//!
//! Two things can be: blocks that are computed from parity that may not fit, since the array was not
//! stopped cleanly and no log says what it should be; and, once a member was forced in that had not
//! kept up, its blocks, and what is computed with them.

use crate::layout::Layout;
use crate::metadata::assemble::{Assembly, Member};
use drystone_core::SECTOR_SIZE;
use std::fmt;
use std::ops::Range;

/// Most ranges that are told in words.
const TOLD_MAX: usize = 20;
/// Most ranges that are counted: where all that a member holds is suspect there is one in each row, and this is
/// told to people who ask again and again.
const COUNTED_MAX: usize = 10_000;

/// Parts of an array that may be wrong. Where the bitmap does not tell, that is all that members hold
/// who are not there, or were forced in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suspects {
    layout: Layout,
    /// Roles whose data may be wrong, and from which member sector on.
    roles: Vec<(u32, u64)>,
    /// Member sectors in which it may be: in order, apart from one another.
    sectors: Vec<Range<u64>>,
    by_bitmap: bool,
}

impl Suspects {
    /// Of an array `now`, which was `found` before members were forced in. `set`: the member sectors that
    /// a bitmap marks that is as fresh as the array; `is_logged`: logs have told all that parity should be.
    pub(super) fn of(
        (found, now): (&Assembly, &Assembly),
        set: Option<Vec<Range<u64>>>,
        is_logged: bool,
    ) -> Option<Self> {
        let forced: Vec<u32> = forced(found, now).collect();
        let dirty_from = now.resync_from.filter(|_| !is_logged);
        let from = if forced.is_empty() { dirty_from? } else { 0 };
        let is_marked = forced.iter().all(|role| {
            matches!(found.members[*role as usize], Member::Stale { by_bitmap: true, .. })
        });
        let marked = set.filter(|_| is_marked);
        let by_bitmap = marked.is_some();
        let all = || std::iter::once(from..now.used()).collect::<Vec<_>>();
        let sectors = marked.unwrap_or_else(all);
        let clipped = sectors.into_iter().map(|range| range.start.max(from)..range.end);
        let suspects = Suspects {
            layout: now.layout,
            roles: lost(now).chain(forced.iter().map(|role| (*role, 0))).collect(),
            sectors: clipped.filter(|range| !range.is_empty()).collect(),
            by_bitmap,
        };
        let is_any = suspects.ranges().next().is_some();
        is_any.then_some(suspects)
    }

    /// Byte ranges of the array, in order, apart from one another.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut pieces = self.rows().flat_map(|row| self.pieces(row)).peekable();
        std::iter::from_fn(move || {
            let mut range = pieces.next()?;
            while let Some(next) = pieces.next_if(|next| next.start == range.end) {
                range.end = next.end;
            }
            Some(range)
        })
    }

    /// Whether the write-intent bitmap tells which parts these are; else all have to be suspected.
    pub fn by_bitmap(&self) -> bool {
        self.by_bitmap
    }

    /// The rows that are touched, each once.
    fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        let chunk = self.layout.chunk_sectors();
        let mut told = 0;
        self.sectors.iter().flat_map(move |range| {
            let first = (range.start / chunk).max(told);
            told = range.end.div_ceil(chunk).max(told);
            first..told
        })
    }

    /// The bytes of the array in a row.
    fn pieces(&self, row: u64) -> Vec<Range<u64>> {
        let chunk = self.layout.chunk_sectors();
        let (start, end) = (row * chunk, (row + 1) * chunk);
        let first = self.sectors.partition_point(|range| range.end <= start);
        let parts = || self.sectors[first..].iter().take_while(|range| range.start < end);
        let holders = self.layout.row(row);
        let mut pieces = Vec::new();
        for slot in 0..self.layout.data_disks() {
            let role = holders.data(slot);
            let Some((_, from)) = self.roles.iter().find(|(r, _)| *r == role) else { continue };
            for part in parts() {
                let (at, to) = (part.start.max(start).max(*from), part.end.min(end));
                if at < to {
                    let array_sector = self.layout.array_sector(slot, at);
                    pieces.push(bytes(array_sector..array_sector + (to - at)));
                }
            }
        }
        pieces
    }
}

fn bytes(sectors: Range<u64>) -> Range<u64> {
    sectors.start * SECTOR_SIZE..sectors.end * SECTOR_SIZE
}

/// Roles that have been given a member that had not kept up.
fn forced(found: &Assembly, now: &Assembly) -> impl Iterator<Item = u32> {
    let pairs = (0..).zip(found.members.iter().zip(&now.members));
    pairs.filter(|(_, (found, now))| found != now).map(|(role, _)| role)
}

/// Roles whose data is computed, and from which member sector on.
fn lost(assembly: &Assembly) -> impl Iterator<Item = (u32, u64)> {
    (0..).zip(&assembly.members).filter_map(|(role, member)| match member {
        Member::InSync { .. } => None,
        Member::Rebuilding { recovered, .. } => Some((role, *recovered)),
        _ => Some((role, 0)),
    })
}

/// Lines for people: the first ranges, as first and last byte, and how many there are.
impl fmt::Display for Suspects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut roles: Vec<u32> = self.roles.iter().map(|(role, _)| *role).collect();
        roles.sort_unstable();
        let roles: Vec<String> = roles.iter().map(u32::to_string).collect();
        let roles = roles.join(" and ");
        let counted = self.ranges().take(COUNTED_MAX + 1).count();
        let count = match counted {
            0..=COUNTED_MAX => counted.to_string(),
            _ => format!("more than {COUNTED_MAX}"),
        };
        match self.by_bitmap {
            true => write!(
                f,
                "data of member {roles} may be wrong in {count} ranges of bytes, by the bitmap:"
            )?,
            false => write!(
                f,
                "all data of member {roles} may be wrong, in {count} ranges of bytes, as no write-intent \
                 bitmap and no whole partial parity log tells what was being written:"
            )?,
        }
        for range in self.ranges().take(TOLD_MAX) {
            write!(f, "\n  {}-{}", range.start, range.end - 1)?;
        }
        match counted {
            0..=TOLD_MAX => Ok(()),
            _ if counted <= COUNTED_MAX => write!(f, "\n  and {} more", counted - TOLD_MAX),
            _ => f.write_str("\n  and so on"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Level;
    use proptest::prelude::*;

    /// The same, sector by sector.
    fn slowly(suspects: &Suspects, used: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for sector in 0..suspects.layout.array_sectors(used).unwrap() {
            let place = suspects.layout.place(sector);
            let is_theirs =
                |(role, from): &(u32, u64)| *role == place.role && *from <= place.sector;
            let is_marked = suspects.sectors.iter().any(|range| range.contains(&place.sector));
            if !is_marked || !suspects.roles.iter().any(is_theirs) {
                continue;
            }
            match ranges.last_mut() {
                Some(range) if range.end == sector * SECTOR_SIZE => range.end += SECTOR_SIZE,
                _ => ranges.push(bytes(sector..sector + 1)),
            }
        }
        ranges
    }

    proptest! {
        #[test]
        fn ranges_are_those_that_are_found_slowly(
            (level, number) in prop_oneof![
                Just((Level::Raid4, 0)), Just((Level::Raid5, 2)), Just((Level::Raid5, 5)),
                Just((Level::Raid6, 2)), Just((Level::Raid6, 10)), Just((Level::Raid6, 16)),
            ],
            disks in 4u32..7,
            roles in prop::collection::btree_map(0u32..4, 0u64..100, 1..3),
            marked in prop::collection::btree_set(0u64..20, 0..20),
            step in prop_oneof![Just(4u64), Just(8), Just(40)],
        ) {
            let used = 8 * 12;
            let mut sectors: Vec<Range<u64>> = Vec::new();
            for bit in marked {
                let (start, end) = (bit * step, (bit * step + step).min(used));
                match sectors.last_mut() {
                    Some(last) if last.end == start => last.end = end.max(start),
                    _ if start < end => sectors.push(start..end),
                    _ => {}
                }
            }
            let layout = Layout::new(level, number, disks, 8).unwrap();
            let roles = roles.into_iter().collect();
            let suspects = Suspects { layout, roles, sectors, by_bitmap: true };
            let found: Vec<_> = suspects.ranges().collect();
            prop_assert_eq!(found, slowly(&suspects, used));
        }
    }

    #[test]
    fn the_first_ranges_are_told_and_the_others_counted() {
        let layout = Layout::new(Level::Raid5, 2, 4, 8).unwrap();
        let all = std::iter::once(0..8 * 100);
        let mut suspects =
            Suspects { layout, roles: vec![(1, 0)], sectors: all.collect(), by_bitmap: true };
        let text = suspects.to_string();
        assert_eq!(text.lines().count(), 2 + TOLD_MAX, "{text}");
        assert!(text.starts_with("data of member 1 may be wrong in 75 ranges"), "{text}");
        assert!(text.contains("\n  20480-24575\n") && text.ends_with("\n  and 55 more"), "{text}");
        suspects.by_bitmap = false;
        let text = suspects.to_string();
        assert!(
            text.starts_with("all data of member 1 may be wrong, in 75 ranges of bytes"),
            "{text}"
        );
        assert!(text.contains("\n  20480-24575\n") && text.ends_with("\n  and 55 more"), "{text}");
        suspects.sectors = std::iter::once(0..8 << 40).collect();
        let text = suspects.to_string();
        assert!(text.contains("in more than 10000 ranges of bytes"), "{text}");
        assert!(text.ends_with("\n  and so on"), "{text}");
    }
}
