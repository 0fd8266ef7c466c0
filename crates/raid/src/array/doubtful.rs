//! Ranges that may hold wrong data in an array that was started by force.
//!
//! Two kinds of blocks may be wrong. The first kind is computed from parity that may not fit,
//! because the array was not stopped cleanly and no log corrected its parity. The second kind
//! exists if a stale member was forced in: the blocks of that member, and blocks computed with
//! them.

use crate::ids::Role;
use crate::layout::Layout;
use crate::metadata::assemble::{Assembly, Member};
use drystone_core::SECTOR_SIZE;
use std::fmt;
use std::ops::Range;

/// The most ranges that a message names.
const TOLD_MAX: usize = 20;
/// The most ranges that a message counts. If all of a member is suspect, each row has a range, and
/// the message is made often.
const COUNTED_MAX: usize = 10_000;

/// Parts of an array that may be wrong. If the bitmap does not limit them, these are all parts on
/// members that are missing or were forced in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoubtfulRanges {
    layout: Layout,
    /// Roles whose data may be wrong, each from this member sector on.
    roles: Vec<(Role, u64)>,
    /// Member sectors that may be wrong: ordered ranges that do not touch.
    sectors: Vec<Range<u64>>,
    by_bitmap: bool,
}

impl DoubtfulRanges {
    /// The ranges of the array `now`, which was `found` before members were forced in. `set` are
    /// the sectors that an up-to-date bitmap marks. `is_logged`: the logs have corrected all
    /// parity.
    pub(super) fn of(
        (found, now): (&Assembly, &Assembly),
        set: Option<Vec<Range<u64>>>,
        is_logged: bool,
    ) -> Option<Self> {
        let forced: Vec<Role> = forced(found, now).collect();
        let dirty_from = now.resync_from.filter(|_| !is_logged);
        let from = if forced.is_empty() { dirty_from? } else { 0 };
        let is_marked = forced.iter().all(|role| {
            matches!(found.members[role.index()], Member::Stale { by_bitmap: true, .. })
        });
        let marked = set.filter(|_| is_marked);
        let by_bitmap = marked.is_some();
        let all = || std::iter::once(from..now.used()).collect::<Vec<_>>();
        let sectors = marked.unwrap_or_else(all);
        let clipped = sectors.into_iter().map(|range| range.start.max(from)..range.end);
        let suspects = DoubtfulRanges {
            layout: now.layout,
            roles: lost(now).chain(forced.iter().map(|role| (*role, 0))).collect(),
            sectors: clipped.filter(|range| !range.is_empty()).collect(),
            by_bitmap,
        };
        let is_any = suspects.ranges().next().is_some();
        is_any.then_some(suspects)
    }

    /// Byte ranges of the array: ordered, and not touching.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let pieces_of = |rows: Rows| match rows {
            Rows::One(row) => self.pieces(row),
            Rows::Whole(rows) => vec![self.whole(rows)],
        };
        let mut pieces = self.rows().flat_map(pieces_of).peekable();
        std::iter::from_fn(move || {
            let mut range = pieces.next()?;
            while let Some(next) = pieces.next_if(|next| next.start == range.end) {
                range.end = next.end;
            }
            Some(range)
        })
    }

    /// True if the write-intent bitmap limits the ranges. Otherwise all parts have to be suspected.
    pub fn by_bitmap(&self) -> bool {
        self.by_bitmap
    }

    /// The rows with suspect sectors, each once. An array may have very many rows. So a stretch of
    /// rows that is suspect as a whole, or not at all, takes one step.
    fn rows(&self) -> impl Iterator<Item = Rows> + '_ {
        let chunk = self.layout.chunk_sectors();
        let (mut sectors, mut next, mut mixed_below) = (self.sectors.iter().peekable(), 0, 0);
        std::iter::from_fn(move || {
            loop {
                let range = *sectors.peek()?;
                let row = (range.start / chunk).max(next);
                if row >= range.end.div_ceil(chunk) {
                    sectors.next();
                    continue;
                }
                let end = self.alike_below(range, row);
                if row >= mixed_below && end > row + self.layout.period() {
                    next = end;
                    match self.shares(row) {
                        Share::All => return Some(Rows::Whole(row..end)),
                        Share::None => continue,
                        Share::Some => mixed_below = end,
                    }
                }
                next = row + 1;
                return Some(Rows::One(row));
            }
        })
    }

    /// The end of the rows from `row` on that lie completely in `range` and have the same suspect
    /// roles.
    fn alike_below(&self, range: &Range<u64>, row: u64) -> u64 {
        let chunk = self.layout.chunk_sectors();
        if range.start > row * chunk {
            return row;
        }
        let later = self.roles.iter().map(|(_, from)| *from).filter(|from| *from > row * chunk);
        later.chain([range.end]).min().map_or(row, |end| end / chunk)
    }

    /// How much of the rows from `row` on is suspect; they have the same suspect roles.
    fn shares(&self, row: u64) -> Share {
        let sector = row * self.layout.chunk_sectors();
        let suspect: Vec<Role> =
            self.roles.iter().filter(|(_, from)| *from <= sector).map(|(role, _)| *role).collect();
        let slots = (row..row + self.layout.period()).flat_map(|row| {
            let holders = self.layout.row(row);
            (0..self.layout.data_disks()).map(move |slot| holders.data(slot))
        });
        let mut are_suspect = slots.map(|role| suspect.contains(&role));
        let first = are_suspect.next().unwrap_or(false);
        match (first, are_suspect.all(|is_suspect| is_suspect == first)) {
            (true, true) => Share::All,
            (false, true) => Share::None,
            (_, false) => Share::Some,
        }
    }

    /// All bytes of the array in these rows.
    fn whole(&self, rows: Range<u64>) -> Range<u64> {
        let row_sectors = self.layout.row_sectors();
        bytes(rows.start * row_sectors..rows.end * row_sectors)
    }

    /// The suspect bytes of the array in a row.
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

/// Rows of an array with suspect sectors.
enum Rows {
    /// One row, which must be checked for its suspect parts.
    One(u64),
    /// All of these is suspect.
    Whole(Range<u64>),
}

/// The part of the data of some rows that is suspect.
enum Share {
    None,
    Some,
    All,
}

fn bytes(sectors: Range<u64>) -> Range<u64> {
    sectors.start * SECTOR_SIZE..sectors.end * SECTOR_SIZE
}

/// Roles whose member was forced in although it is stale.
fn forced(found: &Assembly, now: &Assembly) -> impl Iterator<Item = Role> {
    let pairs = (0..).map(Role).zip(found.members.iter().zip(&now.members));
    pairs.filter(|(_, (found, now))| found != now).map(|(role, _)| role)
}

/// Roles whose data is computed, each from this member sector on.
fn lost(assembly: &Assembly) -> impl Iterator<Item = (Role, u64)> {
    (0..).map(Role).zip(&assembly.members).filter_map(|(role, member)| match member {
        Member::InSync { .. } => None,
        Member::Rebuilding { recovered, .. } => Some((role, *recovered)),
        _ => Some((role, 0)),
    })
}

/// Text for people: the first ranges, each as first and last byte, and the number of ranges.
impl fmt::Display for DoubtfulRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut roles: Vec<Role> = self.roles.iter().map(|(role, _)| *role).collect();
        roles.sort_unstable();
        let roles: Vec<String> = roles.iter().map(Role::to_string).collect();
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
                "all data of member {roles} may be wrong, in {count} ranges of bytes, as no \
                 write-intent bitmap and no whole partial parity log tells what was being written:"
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::Level;
    use proptest::prelude::*;

    /// The same ranges, computed sector by sector.
    fn slowly(suspects: &DoubtfulRanges, used: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for sector in 0..suspects.layout.array_sectors(used).unwrap() {
            let address = suspects.layout.map_sector(sector);
            let is_theirs =
                |(role, from): &(Role, u64)| *role == address.role && *from <= address.sector;
            let is_marked = suspects.sectors.iter().any(|range| range.contains(&address.sector));
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
            roles in prop::collection::btree_map(0u32..6, prop_oneof![Just(0), 0u64..400], 1..6),
            marked in prop::collection::btree_set(0u64..20, 0..20),
            step in prop_oneof![Just(4u64), Just(8), Just(40), Just(400)],
        ) {
            let used = 8 * 48;
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
            let roles = roles.into_iter().map(|(role, from)| (Role(role), from)).collect();
            let suspects = DoubtfulRanges { layout, roles, sectors, by_bitmap: true };
            let found: Vec<_> = suspects.ranges().collect();
            prop_assert_eq!(found, slowly(&suspects, used));
        }
    }

    #[test]
    fn the_first_ranges_are_told_and_the_others_counted() {
        let layout = Layout::new(Level::Raid5, 2, 4, 8).unwrap();
        let all = std::iter::once(0..8 * 100);
        let mut suspects = DoubtfulRanges {
            layout,
            roles: vec![(Role(1), 0)],
            sectors: all.collect(),
            by_bitmap: true,
        };
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
        // So many rows cannot be checked one by one.
        suspects.sectors = std::iter::once(0..8 << 40).collect();
        let text = suspects.to_string();
        assert!(text.contains("in more than 10000 ranges of bytes"), "{text}");
        assert!(text.ends_with("\n  and so on"), "{text}");
    }

    /// A disk may have more rows than can be checked one by one.
    #[test]
    fn what_is_suspect_of_a_large_array_is_computed() {
        let whole = 0..8 << 40;
        let ranges = |level, number, roles: &[(u32, u64)]| {
            let layout = Layout::new(level, number, 4, 8).unwrap();
            let sectors = std::iter::once(whole.clone()).collect();
            let suspects = DoubtfulRanges {
                layout,
                roles: roles.iter().map(|(role, from)| (Role(*role), *from)).collect(),
                sectors,
                by_bitmap: false,
            };
            suspects.ranges().take(2).map(|range| (range.start, range.end)).collect::<Vec<_>>()
        };
        // Suspect is: only parity; all data; all data from a sector in the middle of a row on.
        assert_eq!(ranges(Level::Raid4, 0, &[(3, 0)]), []);
        let all = [(0, 0), (1, 0), (2, 0)];
        assert_eq!(ranges(Level::Raid4, 0, &all), [(0, (8 << 40) * 3 * 512)]);
        let late =
            ranges(Level::Raid5, 2, &[(0, 8 << 39), (1, 8 << 39), (2, 8 << 39), (3, 8 << 39)]);
        assert_eq!(late, [((8 << 39) * 3 * 512, (8 << 40) * 3 * 512)]);
        let one = ranges(Level::Raid4, 0, &[(1, (8 << 39) + 4)]);
        let start = ((8 << 39) * 3 + 8 + 4) * 512;
        let (second, size) = (start + 20 * 512, 8 * 512);
        assert_eq!(one, [(start, start + size / 2), (second, second + size)]);
    }
}
