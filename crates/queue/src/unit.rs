//! A unit: one bio, or a run of merged bios that are contiguous on the device, which becomes one
//! request.

use drystone_core::{Bio, BioFlags, BioList, Limits, Op, Priority, Sector};

/// Flags in which all bios of a unit must agree.
const SAME: BioFlags = BioFlags::SYNC
    .union(BioFlags::POLLED)
    .union(BioFlags::BACKGROUND)
    .union(BioFlags::NOUNMAP)
    .union(BioFlags::FAST_ZERO);

/// Flags that forbid merging.
const ALONE: BioFlags = BioFlags::NOMERGE.union(BioFlags::FUA).union(BioFlags::PREFLUSH);

/// Bios that belong to one request. Invariant: they are contiguous and in order, and have the same
/// operation.
#[derive(Debug, Default)]
pub struct Unit {
    /// The bios in the order of their sectors.
    pub bios: BioList,
    /// The operation of all bios.
    pub op: Op,
    /// The flags of the first bio, which apply to the unit.
    pub flags: BioFlags,
    /// Priority class and level of all bios.
    pub priority: Priority,
    /// Throttle group of all bios.
    pub group: u32,
    /// First sector.
    pub sector: Sector,
    /// The sum of the bios' bytes.
    pub bytes: u64,
    /// The sum of the bios' segments.
    pub segments: u32,
    /// The earliest submission time of the bios, in ns.
    pub start_ns: u64,
}

impl Unit {
    /// A unit of one bio.
    #[inline]
    pub fn new(bio: Box<Bio>) -> Self {
        let mut unit = Unit::default();
        unit.set(bio);
        unit
    }

    /// Fill this empty unit with `bio`.
    #[inline]
    pub fn set(&mut self, bio: Box<Bio>) {
        debug_assert!(self.bios.is_empty());
        self.op = bio.op;
        self.flags = bio.flags;
        self.priority = bio.priority;
        self.group = bio.group;
        self.sector = bio.sector;
        self.bytes = bio.bytes;
        self.segments = bio.segment_count() as u32;
        self.start_ns = bio.start_ns;
        self.bios.set_only(bio);
    }

    /// Take the contents out. Only [`Unit::set`] may then be called on the rest.
    #[inline]
    pub fn take(&mut self) -> Unit {
        Unit { bios: self.bios.take(), ..*self }
    }

    /// The first sector behind the unit.
    #[inline]
    pub fn end_sector(&self) -> Sector {
        self.sector.after(self.bytes)
    }

    /// Merge `bio` at the end (back merge) or in front (front merge), if it is adjacent and the
    /// limits permit it. Fails with the bio otherwise. Rules: Linux `blk_rq_merge_ok` and related
    /// functions.
    #[inline]
    pub fn try_merge(&mut self, bio: Box<Bio>, limits: &Limits) -> Result<(), Box<Bio>> {
        let back = self.end_sector() == bio.sector;
        if !back && bio.end_sector() != self.sector {
            return Err(bio);
        }
        self.merge_adjoining(bio, back, limits)
    }

    fn merge_adjoining(
        &mut self,
        bio: Box<Bio>,
        back: bool,
        limits: &Limits,
    ) -> Result<(), Box<Bio>> {
        let first = if back { self.sector } else { bio.sector };
        let segments = bio.segment_count() as u32;
        if !self.may_merge(&bio) || !self.fits(bio.bytes, segments, first, limits) {
            return Err(bio);
        }
        self.bytes += bio.bytes;
        self.segments += segments;
        self.start_ns = self.start_ns.min(bio.start_ns);
        self.sector = first;
        if back {
            self.bios.push(bio)
        } else {
            self.bios.push_front(bio)
        }
        Ok(())
    }

    /// Append all bios of `other`, if it begins where this unit ends and the rules of
    /// [`Unit::try_merge`] permit it. Otherwise returns false, and both units are unchanged.
    pub fn try_append(&mut self, other: &mut Unit, limits: &Limits) -> bool {
        let first = other.bios.front();
        let fits = self.end_sector() == other.sector
            && first.is_some_and(|bio| self.may_merge(bio))
            && self.fits(other.bytes, other.segments, self.sector, limits);
        if fits {
            self.bytes += other.bytes;
            self.segments += other.segments;
            self.start_ns = self.start_ns.min(other.start_ns);
            self.bios.append(&mut other.bios);
        }
        fits
    }

    /// True for a unit of one bio that came with a pipe: such a bio is alone in its unit.
    fn has_pipe(&self) -> bool {
        self.bios.front().is_some_and(Bio::has_pipe)
    }

    fn may_merge(&self, bio: &Bio) -> bool {
        let kind = matches!(bio.op, Op::Read | Op::Write | Op::Discard);
        kind && bio.op == self.op
            && !(bio.flags | self.flags).intersects(ALONE)
            && bio.flags & SAME == self.flags & SAME
            && bio.priority == self.priority
            && bio.group == self.group
            && bio.bytes > 0
            && self.bytes > 0
            && !(bio.op == Op::Read && (self.has_pipe() || bio.has_pipe()))
    }

    fn fits(&self, bytes: u64, segments: u32, first: Sector, limits: &Limits) -> bool {
        let bytes = self.bytes.saturating_add(bytes);
        let most = match self.op {
            Op::Discard => limits.max_discard_bytes,
            _ => u64::from(limits.max_bytes).min(limits.to_chunk_end(first.bytes())),
        };
        let segments = self.segments.saturating_add(segments);
        bytes <= most && segments <= u32::from(limits.max_segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::IoBuf;
    use proptest::prelude::*;

    fn read(sector: u64, sectors: u64) -> Box<Bio> {
        Bio::read(Sector(sector), IoBuf::zeroed(sectors as usize * 512))
    }

    #[test]
    fn merges_back_and_front_in_order() {
        let limits = Limits::default();
        let mut unit = Unit::new(read(10, 2));
        assert!(unit.try_merge(read(12, 1), &limits).is_ok());
        assert!(unit.try_merge(read(8, 2), &limits).is_ok());
        assert!(unit.try_merge(read(14, 1), &limits).is_err(), "a gap");
        assert_eq!((unit.sector.0, unit.bytes, unit.segments), (8, 5 * 512, 3));
        let order: Vec<_> = unit.bios.iter().map(|b| b.sector.0).collect();
        assert_eq!(order, [8, 10, 12]);
    }

    #[test]
    fn appends_a_whole_unit_or_nothing() {
        let limits = Limits { max_segments: 4, ..Limits::default() };
        let unit = |sector| {
            let mut unit = Unit::new(read(sector, 2));
            assert!(unit.try_merge(read(sector + 2, 1), &limits).is_ok());
            unit
        };
        let (mut low, mut high) = (unit(10), unit(13));
        high.start_ns = 0;
        low.start_ns = 5;
        assert!(!high.try_append(&mut low, &limits), "the wrong way round");
        assert!(!low.try_append(&mut unit(14), &limits), "a gap");
        assert!(low.try_append(&mut high, &limits));
        assert_eq!((low.sector.0, low.bytes, low.segments, low.start_ns), (10, 6 * 512, 4, 0));
        let order: Vec<_> = low.bios.iter().map(|b| b.sector.0).collect();
        assert_eq!(order, [10, 12, 13, 15]);
        assert!(high.bios.is_empty());
        let mut next = Unit::new(read(16, 1));
        assert!(!low.try_append(&mut next, &limits), "too many segments");
        assert_eq!((low.bios.len(), next.bios.len()), (4, 1));
        let taken = low.take();
        assert_eq!((taken.bios.len(), taken.bytes, low.bios.len()), (4, 6 * 512, 0));
    }

    #[test]
    fn refuses_what_must_stay_apart() {
        let limits = Limits { max_segments: 2, chunk_bytes: 16 * 512, ..Limits::default() };
        let check = |change: &dyn Fn(&mut Bio)| {
            let mut bio = read(12, 1);
            change(&mut bio);
            Unit::new(read(10, 2)).try_merge(bio, &limits).is_ok()
        };
        assert!(check(&|_| ()));
        assert!(!check(&|b| b.op = Op::Write));
        assert!(!check(&|b| b.flags = BioFlags::FUA));
        assert!(!check(&|b| b.flags = BioFlags::PREFLUSH));
        assert!(!check(&|b| b.flags = BioFlags::NOMERGE));
        assert!(!check(&|b| b.flags = BioFlags::POLLED));
        assert!(!check(&|b| b.priority.level = 3));
        assert!(!check(&|b| b.group = 1));
        let mut unit = Unit::new(read(10, 2));
        assert!(unit.try_merge(read(12, 5), &limits).is_err(), "crosses a chunk");
        assert!(unit.try_merge(read(12, 1), &limits).is_ok());
        assert!(unit.try_merge(read(13, 1), &limits).is_err(), "too many segments");
    }

    proptest! {
        /// Compared with the obvious model: a set of sectors, one run, within the limits.
        #[test]
        fn a_unit_is_always_one_run(
            bios in prop::collection::vec((0u64..24, 1u64..4), 1..40),
            max_sectors in 1u32..12, chunk_sectors in 0u64..9, max_segments in 1u16..6,
        ) {
            let limits = Limits {
                max_bytes: max_sectors * 512,
                chunk_bytes: chunk_sectors * 512,
                max_segments,
                ..Limits::default()
            };
            let mut unit = Unit::new(read(bios[0].0, bios[0].1));
            let (mut low, mut high, mut count) = (bios[0].0, bios[0].0 + bios[0].1, 1);
            for &(sector, n) in &bios[1..] {
                let (l, h) = (low.min(sector), high.max(sector + n));
                let adjoins = sector == high || sector + n == low;
                let in_chunk = chunk_sectors == 0 || l / chunk_sectors == (h - 1) / chunk_sectors;
                let fits = h - l <= u64::from(max_sectors) && in_chunk && count < max_segments;
                let merged = unit.try_merge(read(sector, n), &limits).is_ok();
                prop_assert_eq!(merged, adjoins && fits);
                if merged {
                    (low, high, count) = (l, h, count + 1);
                }
                prop_assert_eq!((unit.sector.0, unit.end_sector().0), (low, high));
            }
            let mut at = low;
            for bio in unit.bios.iter() {
                prop_assert_eq!(bio.sector.0, at);
                at = bio.end_sector().0;
            }
            prop_assert_eq!(at, high);
        }
    }
}
