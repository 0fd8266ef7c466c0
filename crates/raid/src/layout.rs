//! Where data and parity lie (Linux `drivers/md/raid5.c`, `raid5_compute_sector`).
//!
//! ```text
//! left-symmetric, 4 members, chunks D0.. of the array:
//!   D0 D1 D2 P / D4 D5 P D3 / D8 P D6 D7 / P D9 D10 D11
//! ```

use crate::ids::Role;
use std::fmt;

/// The most members of an array. Linux's superblock has room for more, but mdadm writes no more.
pub const DISKS_MAX: u32 = 128;

/// Sectors of a stripe on each member.
pub const STRIPE_SECTORS: u64 = 8;

/// Bytes of a stripe on each member: a block of the cache.
pub(crate) const BLOCK_BYTES: usize = STRIPE_SECTORS as usize * 512;

/// RAID levels with parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// One member holds all parity.
    Raid4,
    /// The parity rotates over the members.
    Raid5,
    /// Two parities, P and Q.
    Raid6,
}

impl Level {
    /// By md's number: 4, 5 or 6.
    pub fn from_number(number: i32) -> Option<Self> {
        match number {
            4 => Some(Level::Raid4),
            5 => Some(Level::Raid5),
            6 => Some(Level::Raid6),
            _ => None,
        }
    }

    /// md's number.
    pub fn number(self) -> i32 {
        match self {
            Level::Raid4 => 4,
            Level::Raid5 => 5,
            Level::Raid6 => 6,
        }
    }

    /// The number of members whose space parity takes: as many may be lost.
    pub fn parity_disks(self) -> u32 {
        if self == Level::Raid6 { 2 } else { 1 }
    }

    /// Fewest members.
    pub fn disks_min(self) -> u32 {
        if self == Level::Raid6 { 4 } else { 2 }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "raid{}", self.number())
    }
}

/// md's numbers of layouts, with mdadm's names. Those from 8 on are for RAID-6 only.
const NAMES: [(u32, &str); 14] = [
    (0, "left-asymmetric"),
    (1, "right-asymmetric"),
    (2, "left-symmetric"),
    (3, "right-symmetric"),
    (4, "parity-first"),
    (5, "parity-last"),
    (8, "ddf-zero-restart"),
    (9, "ddf-N-restart"),
    (10, "ddf-N-continue"),
    (16, "left-asymmetric-6"),
    (17, "right-asymmetric-6"),
    (18, "left-symmetric-6"),
    (19, "right-symmetric-6"),
    (20, "parity-first-6"),
];

/// mdadm's short names.
const SHORT_NAMES: [(&str, u32); 4] = [("la", 0), ("ra", 1), ("ls", 2), ("rs", 3)];

/// The layout that mdadm chooses when none is asked for.
pub const LAYOUT_DEFAULT: u32 = 2;

/// mdadm's name of layout `number`.
pub fn layout_name(number: u32) -> Option<&'static str> {
    NAMES.iter().find(|(n, _)| *n == number).map(|(_, name)| *name)
}

/// The number of the layout of that name, long or short.
pub fn layout_number(name: &str) -> Option<u32> {
    let long = NAMES.iter().find(|(_, n)| *n == name).map(|(number, _)| *number);
    long.or_else(|| SHORT_NAMES.iter().find(|(n, _)| *n == name).map(|(_, number)| *number))
}

/// The geometry of an array: the map from array sectors to members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    level: Level,
    /// md's number.
    number: u32,
    disks: u32,
    chunk_sectors: u64,
}

/// A sector of the array on its member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    /// The role of the member.
    pub role: Role,
    /// The position among the data chunks of the row.
    pub slot: u32,
    /// Member sector.
    pub sector: u64,
}

/// The order of the data chunks of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// By role, without the parity members.
    Ascending,
    /// From role `first` on, wrapping around after `of` members.
    From { first: u32, of: u32 },
}

/// How the powers of the generator in Q are assigned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Powers {
    /// By position, counted from the member behind Q on.
    AfterQ,
    /// A member's power is its role.
    Role,
}

/// The roles of data and parity in a row of chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Holds the parity.
    pub p: Role,
    /// Holds the second parity of RAID-6.
    pub q: Option<Role>,
    disks: u32,
    order: Order,
    powers: Powers,
}

impl Layout {
    /// A geometry of `disks` members with chunks of `chunk_sectors` sectors. RAID-4 ignores
    /// `number`.
    ///
    /// # Errors
    /// A geometry that md would not take: one sentence.
    pub fn new(level: Level, number: u32, disks: u32, chunk_sectors: u64) -> Result<Self, String> {
        let min = level.disks_min();
        if disks < min || disks > DISKS_MAX {
            return Err(format!("{level} takes {min} to {DISKS_MAX} members, not {disks}"));
        }
        if !chunk_sectors.is_power_of_two() || !(STRIPE_SECTORS..=1 << 31).contains(&chunk_sectors)
        {
            return Err(format!(
                "a chunk is a power of two from 4 KiB to 1 TiB, not {chunk_sectors} sectors"
            ));
        }
        let known = match level {
            Level::Raid4 => true,
            Level::Raid5 => number <= 5,
            Level::Raid6 => layout_name(number).is_some(),
        };
        if !known {
            return Err(format!("{level} has no layout number {number}"));
        }
        Ok(Layout { level, number, disks, chunk_sectors })
    }

    /// The level.
    pub fn level(&self) -> Level {
        self.level
    }

    /// md's number of the layout.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Members of a complete array.
    pub fn disks(&self) -> u32 {
        self.disks
    }

    /// The number of members whose space holds data.
    #[inline]
    pub fn data_disks(&self) -> u32 {
        self.disks - self.level.parity_disks()
    }

    /// Sectors of a chunk.
    #[inline]
    pub fn chunk_sectors(&self) -> u64 {
        self.chunk_sectors
    }

    /// Sectors of a row's data.
    #[inline]
    pub fn row_sectors(&self) -> u64 {
        self.chunk_sectors * u64::from(self.data_disks())
    }

    /// Sectors of an array whose members have `used` sectors each, a multiple of the chunk.
    pub fn array_sectors(&self, used: u64) -> Option<u64> {
        used.checked_mul(self.data_disks().into())
    }

    /// The place of an array sector.
    #[inline]
    pub fn map_sector(&self, array_sector: u64) -> MemberAddress {
        let shift = self.chunk_sectors.trailing_zeros();
        let (chunk, offset) = (array_sector >> shift, array_sector & (self.chunk_sectors - 1));
        let data_disks = u64::from(self.data_disks());
        let (row, slot) = (chunk / data_disks, (chunk % data_disks) as u32);
        MemberAddress { role: self.row(row).data(slot), slot, sector: (row << shift) + offset }
    }

    /// The array sector that data slot `slot` has at a member sector.
    #[inline]
    pub fn array_sector(&self, slot: u32, sector: u64) -> u64 {
        let shift = self.chunk_sectors.trailing_zeros();
        let chunk = (sector >> shift) * u64::from(self.data_disks()) + u64::from(slot);
        (chunk << shift) + (sector & (self.chunk_sectors - 1))
    }

    /// The row that a member sector lies in.
    #[inline]
    pub fn row_at(&self, sector: u64) -> Row {
        self.row(sector >> self.chunk_sectors.trailing_zeros())
    }

    /// The number of rows after which the roles repeat.
    pub fn period(&self) -> u64 {
        match (self.level, self.number) {
            (Level::Raid4, _) => 1,
            (Level::Raid6, 16..=19) => u64::from(self.disks - 1),
            _ => u64::from(self.disks),
        }
    }

    /// The roles of data and parity in row `row`.
    #[inline]
    pub fn row(&self, row: u64) -> Row {
        match self.level {
            Level::Raid4 => self.row_with_p(self.disks - 1, Order::Ascending),
            Level::Raid5 => self.row_of_raid5(row),
            Level::Raid6 => self.row_of_raid6(row),
        }
    }

    fn row_with_p(&self, p: u32, order: Order) -> Row {
        Row { p: Role(p), q: None, disks: self.disks, order, powers: Powers::AfterQ }
    }

    #[inline]
    fn row_of_raid5(&self, row: u64) -> Row {
        let n = self.disks;
        let r = (row % u64::from(n)) as u32;
        let after = |p: u32| Order::From { first: (p + 1) % n, of: n };
        let (p, order) = match self.number {
            0 => (n - 1 - r, Order::Ascending),
            1 => (r, Order::Ascending),
            2 => (n - 1 - r, after(n - 1 - r)),
            3 => (r, after(r)),
            4 => (0, Order::Ascending),
            _ => (n - 1, Order::Ascending),
        };
        self.row_with_p(p, order)
    }

    #[inline]
    fn row_of_raid6(&self, row: u64) -> Row {
        let n = self.disks;
        let r = (row % u64::from(n)) as u32;
        // Layouts "-6" keep Q on the last member, and use a RAID-5 layout on the others.
        let (m, r1) = (n - 1, (row % u64::from(n - 1)) as u32);
        let after = |p: u32, parities: u32| Order::From { first: (p + parities) % n, of: n };
        let after_5 = |p: u32| Order::From { first: (p + 1) % m, of: m };
        let (p, q, order) = match self.number {
            0 => (m - r, (m - r + 1) % n, Order::Ascending),
            1 | 8 => (r, (r + 1) % n, Order::Ascending),
            2 => (m - r, (m - r + 1) % n, after(m - r, 2)),
            3 => (r, (r + 1) % n, after(r, 2)),
            4 => (0, 1, Order::Ascending),
            5 => (n - 2, n - 1, Order::Ascending),
            9 => {
                let p = m - (r + 1) % n;
                (p, (p + 1) % n, Order::Ascending)
            }
            10 => (m - r, (m - r + n - 1) % n, after(m - r, 1)),
            16 => (m - 1 - r1, m, Order::Ascending),
            17 => (r1, m, Order::Ascending),
            18 => (m - 1 - r1, m, after_5(m - 1 - r1)),
            19 => (r1, m, after_5(r1)),
            _ => (0, m, Order::Ascending),
        };
        let powers = if (8..=10).contains(&self.number) { Powers::Role } else { Powers::AfterQ };
        Row { p: Role(p), q: Some(Role(q)), disks: n, order, powers }
    }
}

impl Row {
    /// The member with data chunk `slot` of the row.
    #[inline]
    pub fn data(&self, slot: u32) -> Role {
        Role(match self.order {
            Order::From { first, of } => (first + slot) % of,
            Order::Ascending => {
                let (p, q) = (self.p.0, self.q.map_or(u32::MAX, |q| q.0));
                let (low, high) = (p.min(q), p.max(q));
                let role = slot + u32::from(slot >= low);
                role + u32::from(role >= high)
            }
        })
    }

    /// The slot of a member's data chunk; `None` for parity.
    #[inline]
    pub fn slot(&self, role: Role) -> Option<u32> {
        if role == self.p || Some(role) == self.q {
            return None;
        }
        Some(match self.order {
            Order::From { first, of } => (role.0 + of - first) % of,
            Order::Ascending => {
                role.0 - u32::from(role > self.p) - u32::from(self.q.is_some_and(|q| role > q))
            }
        })
    }

    /// The power of the generator by which a data member is multiplied in Q (RAID-6 only).
    #[inline]
    pub fn power(&self, role: Role) -> u32 {
        let Some(q) = self.q else { return 0 };
        if self.powers == Powers::Role {
            return role.0;
        }
        let behind_q = |role: Role| (role.0 + self.disks - q.0 - 1) % self.disks;
        behind_q(role) - u32::from(behind_q(role) > behind_q(self.p))
    }

    /// The data members in the order of falling powers.
    #[inline]
    pub fn by_power(&self) -> impl Iterator<Item = Role> {
        let (n, p, q) = (self.disks, self.p, self.q);
        // From before Q downwards, or from the highest role if powers are roles.
        let top = q.filter(|_| self.powers == Powers::AfterQ).map_or(n, |q| q.0);
        (1..=n)
            .map(move |i| Role((top + n - i) % n))
            .filter(move |role| *role != p && Some(*role) != q)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn drawn(level: Level, number: u32, disks: u32) -> Vec<String> {
        let layout = Layout::new(level, number, disks, 8).unwrap();
        let member = |row: u64, role: Role| {
            let r = layout.row(row);
            match r.slot(role) {
                Some(slot) => {
                    assert_eq!(r.data(slot), role);
                    format!("D{}", layout.array_sector(slot, row * 8) / 8)
                }
                None if role == r.p => "P".to_owned(),
                None => "Q".to_owned(),
            }
        };
        let row = |row| (0..disks).map(|d| member(row, Role(d))).collect::<Vec<_>>().join(" ");
        (0..u64::from(disks)).map(row).collect()
    }

    #[test]
    fn rows_repeat_after_a_period() {
        let numbers = |level| (0..=20).map(move |number| (level, number));
        let all = [Level::Raid4, Level::Raid5, Level::Raid6].into_iter().flat_map(numbers);
        for (level, number) in all {
            let Ok(layout) = Layout::new(level, number, 5, 8) else { continue };
            let period = layout.period();
            for row in 0..2 * period {
                assert_eq!(layout.row(row), layout.row(row + period), "{level} {number}");
            }
        }
    }

    #[test]
    fn rows_are_those_of_md() {
        let five = [
            (0, "D0 D1 D2 D3 P/D4 D5 D6 P D7/D8 D9 P D10 D11/D12 P D13 D14 D15/P D16 D17 D18 D19"),
            (1, "P D0 D1 D2 D3/D4 P D5 D6 D7/D8 D9 P D10 D11/D12 D13 D14 P D15/D16 D17 D18 D19 P"),
            (2, "D0 D1 D2 D3 P/D5 D6 D7 P D4/D10 D11 P D8 D9/D15 P D12 D13 D14/P D16 D17 D18 D19"),
            (3, "P D0 D1 D2 D3/D7 P D4 D5 D6/D10 D11 P D8 D9/D13 D14 D15 P D12/D16 D17 D18 D19 P"),
        ];
        for (number, rows) in five {
            assert_eq!(drawn(Level::Raid5, number, 5).join("/"), rows, "layout {number}");
        }
        let six = [
            (0, "Q D0 D1 D2 P/D3 D4 D5 P Q/D6 D7 P Q D8/D9 P Q D10 D11/P Q D12 D13 D14"),
            (1, "P Q D0 D1 D2/D3 P Q D4 D5/D6 D7 P Q D8/D9 D10 D11 P Q/Q D12 D13 D14 P"),
            (2, "Q D0 D1 D2 P/D3 D4 D5 P Q/D7 D8 P Q D6/D11 P Q D9 D10/P Q D12 D13 D14"),
            (3, "P Q D0 D1 D2/D5 P Q D3 D4/D7 D8 P Q D6/D9 D10 D11 P Q/Q D12 D13 D14 P"),
            (9, "D0 D1 D2 P Q/D3 D4 P Q D5/D6 P Q D7 D8/P Q D9 D10 D11/Q D12 D13 D14 P"),
            (10, "D0 D1 D2 Q P/D4 D5 Q P D3/D8 Q P D6 D7/Q P D9 D10 D11/P D12 D13 D14 Q"),
            (16, "D0 D1 D2 P Q/D3 D4 P D5 Q/D6 P D7 D8 Q/P D9 D10 D11 Q/D12 D13 D14 P Q"),
            (18, "D0 D1 D2 P Q/D4 D5 P D3 Q/D8 P D6 D7 Q/P D9 D10 D11 Q/D12 D13 D14 P Q"),
        ];
        for (number, rows) in six {
            assert_eq!(drawn(Level::Raid6, number, 5).join("/"), rows, "layout {number}");
        }
    }

    #[test]
    fn every_sector_has_one_place_and_back() {
        for (level, numbers) in [
            (Level::Raid4, &[0][..]),
            (Level::Raid5, &[0, 1, 2, 3, 4, 5]),
            (Level::Raid6, &[0, 1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 18, 19, 20]),
        ] {
            for (number, disks) in numbers.iter().flat_map(|n| [4, 5, 8].map(|d| (*n, d))) {
                let layout = Layout::new(level, number, disks, 16).unwrap();
                let mut seen = std::collections::BTreeSet::new();
                for sector in 0..layout.row_sectors() * 20 {
                    let address = layout.map_sector(sector);
                    assert!(seen.insert((address.role, address.sector)), "{level} {number}");
                    assert_eq!(layout.array_sector(address.slot, address.sector), sector);
                }
                powers_differ(&layout);
            }
        }
    }

    fn powers_differ(layout: &Layout) {
        for row in (0..20).map(|row| layout.row(row)).filter(|row| row.q.is_some()) {
            let mut powers: Vec<_> =
                (0..layout.data_disks()).map(|slot| row.power(row.data(slot))).collect();
            powers.sort_unstable();
            powers.dedup();
            let falling: Vec<_> = row.by_power().map(|role| row.power(role)).collect();
            assert!(falling.iter().eq(powers.iter().rev()));
            assert_eq!(powers.len() as u32, layout.data_disks());
            assert!(powers.iter().all(|power| *power < 255));
        }
    }

    #[test]
    fn powers_are_numbered_from_behind_q() {
        let layout = Layout::new(Level::Raid6, 0, 5, 8).unwrap();
        // D6 D7 P Q D8
        let row = layout.row(2);
        assert_eq!([4, 0, 1].map(|role| row.power(Role(role))), [0, 1, 2]);
    }

    #[test]
    fn what_md_does_not_take_is_refused() {
        assert!(Layout::new(Level::Raid5, 2, 1, 128).unwrap_err().contains("2 to 128"));
        assert!(Layout::new(Level::Raid6, 2, 3, 128).unwrap_err().contains("4 to 128"));
        assert!(Layout::new(Level::Raid5, 2, 4, 12).unwrap_err().contains("power of two"));
        assert!(Layout::new(Level::Raid5, 2, 4, 4).unwrap_err().contains("power of two"));
        assert!(Layout::new(Level::Raid5, 6, 4, 8).unwrap_err().contains("layout number 6"));
        assert!(Layout::new(Level::Raid6, 7, 4, 8).is_err());
        assert_eq!(layout_number("ls"), Some(2));
        assert_eq!(layout_number("ddf-N-restart").and_then(layout_name), Some("ddf-N-restart"));
    }
}
