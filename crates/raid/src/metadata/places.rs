//! The areas of a member's metadata beside its data. They are checked against one another and
//! against the device before any of them is read or written.
//!
//! Invariants: no area overlaps the data, the superblock or another area, or exceeds the device. An
//! area that would do so is damage if the member needs it (a partial parity log, a bad block log
//! that is not empty); otherwise it is not used. All arithmetic on offsets from a superblock is
//! here, and is checked for overflow.

use super::bitmap::BitmapHeader;
use super::raw::{BAD_BLOCK_LOG_BYTES, PPL_HEADER_SECTORS};
use super::superblock::{Features, Superblock};
use super::{MetadataError, invalid};
use crate::layout::STRIPE_SECTORS;
use drystone_core::SECTOR_SIZE;
use std::ops::Range;

/// The sectors from a superblock's start that belong to it; only a bitmap may lie in them. Readers
/// always read as many.
const SUPERBLOCK_SECTORS: u64 = 8;

/// The areas of a member, in device sectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    bitmap: Option<Result<Range<u64>, MetadataError>>,
    ppl: Option<Range<u64>>,
    bad_blocks: Option<Range<u64>>,
    unused: Option<String>,
}

/// An area with its name for people.
type Named = (&'static str, Range<u64>);

impl Places {
    /// The areas of a device of `device_sectors` sectors by its superblock. `bitmap` is the header
    /// of its bitmap; without it, one sector counts as the bitmap's area.
    ///
    /// # Errors
    /// The partial parity log, or a bad block log that is not empty, cannot lie where the
    /// superblock says.
    pub fn of(
        own: &Superblock,
        device_sectors: u64,
        bitmap: Option<&BitmapHeader>,
    ) -> Result<Self, MetadataError> {
        let check = |name, offset, sectors, others: &[Named]| {
            area(own, device_sectors, (name, offset, sectors), others)
        };
        let superblock = || own.super_offset..own.super_offset.saturating_add(SUPERBLOCK_SECTORS);
        let data = ("the data", own.data_offset..own.data_offset.saturating_add(own.size));
        let kept = [data.clone(), ("the superblock", superblock())];
        let bitmap = own.bitmap_offset().map(|offset| {
            let sectors = bitmap.map_or(1, |header| header.sectors_for(own.size));
            // Arrays from 2008 to 2012 have the bitmap two sectors behind the start of the
            // superblock.
            let written = own.super_offset..own.super_offset.saturating_add(own.sectors());
            check("the bitmap", offset.into(), sectors, &[data, ("the superblock", written)])
        });
        let ppl = own.ppl().map(|area| {
            let sectors = u64::from(area.sectors);
            let is_enough = sectors >= PPL_HEADER_SECTORS + STRIPE_SECTORS;
            let too_small =
                || invalid(format!("the partial parity log has {sectors} sectors, expected 16"));
            is_enough.then_some(()).ok_or_else(too_small)?;
            check("the partial parity log", area.offset.into(), sectors, &kept)
        });
        let ppl = ppl.transpose()?;
        let mut places = Places { bitmap, ppl, bad_blocks: None, unused: None };
        if own.bblog_offset == 0 {
            return match own.feature_map.contains(Features::BAD_BLOCKS) {
                true => Err(invalid("there are bad blocks, and no bad block log".to_owned())),
                false => Ok(places),
            };
        }
        let others: Vec<Named> = kept.into_iter().chain(places.others()).collect();
        let sectors = BAD_BLOCK_LOG_BYTES as u64 / SECTOR_SIZE;
        let found = match u64::from(own.bblog_size) == sectors {
            true => check("the bad block log", own.bblog_offset.into(), sectors, &others),
            false => Err(invalid(format!(
                "the bad block log has {} sectors, expected {sectors}",
                own.bblog_size
            ))),
        };
        match found {
            Ok(area) => places.bad_blocks = Some(area),
            Err(error) if own.feature_map.contains(Features::BAD_BLOCKS) => {
                return Err(invalid(format!(
                    "{error}: what it lists is not known; `mdadm --assemble --update=force-no-bbl` \
                     drops it"
                )));
            }
            Err(error) => {
                places.unused = Some(not_used(&error));
            }
        }
        Ok(places)
    }

    /// The areas on a device with logical blocks of `block_sectors` sectors. Does not check the
    /// bitmap: see [`Places::bitmap_in_blocks`].
    ///
    /// # Errors
    /// An area that the member needs does not begin at a block.
    pub fn in_blocks(self, own: &Superblock, block_sectors: u64) -> Result<Self, MetadataError> {
        let check = |name: &str, start: u64| match start.is_multiple_of(block_sectors) {
            true => Ok(()),
            false => Err(invalid(format!(
                "{name} at sector {start} begins inside a block of the device, which has {} bytes: \
                 use a device with smaller blocks",
                block_sectors * SECTOR_SIZE
            ))),
        };
        check("the data", own.data_offset)?;
        if let Some(area) = &self.ppl {
            check("the partial parity log", area.start)?;
        }
        let Some(area) = &self.bad_blocks else { return Ok(self) };
        match check("the bad block log", area.start) {
            Ok(()) => Ok(self),
            Err(error) if own.feature_map.contains(Features::BAD_BLOCKS) => Err(error),
            Err(error) => {
                let unused = Some(not_used(&error));
                Ok(Places { bad_blocks: None, unused, ..self })
            }
        }
    }

    fn others(&self) -> Vec<Named> {
        let bitmap = self.bitmap.iter().filter_map(|found| found.clone().ok());
        let bitmap = bitmap.map(|area| ("the bitmap", area));
        let ppl = self.ppl.iter().map(|area| ("the partial parity log", area.clone()));
        bitmap.chain(ppl).collect()
    }

    /// Header and bits of the bitmap, if there is one.
    ///
    /// # Errors
    /// The bitmap cannot lie where the superblock says.
    pub fn bitmap(&self) -> Result<Option<Range<u64>>, MetadataError> {
        self.bitmap.clone().transpose()
    }

    /// The partial parity log, if there is one.
    pub fn ppl(&self) -> Option<Range<u64>> {
        self.ppl.clone()
    }

    /// The bad block log, if there is one that can be used.
    pub fn bad_blocks(&self) -> Option<Range<u64>> {
        self.bad_blocks.clone()
    }

    /// The reason why an area that exists is not used, in one sentence.
    pub fn unused(&self) -> Option<&str> {
        self.unused.as_deref()
    }

    /// The reason why the bitmap cannot be written on a device with logical blocks of
    /// `block_sectors` sectors, if there is one: only whole blocks can be written.
    pub fn bitmap_in_blocks(&self, own: &Superblock, block_sectors: u64) -> Option<MetadataError> {
        let area = self.bitmap().ok()??;
        let bytes = block_sectors * SECTOR_SIZE;
        let whole = whole_blocks(&area, block_sectors);
        if whole.start != area.start {
            return Some(invalid(format!(
                "the bitmap begins {} sectors from the superblock, inside a block of the device, \
                 which has {bytes} bytes, so that neither it nor the superblock can be written \
                 without the other: use a device with smaller blocks, or have mdadm move it \
                 (--grow --bitmap none, then internal)",
                area.start.abs_diff(own.super_offset)
            )));
        }
        let near = self.bad_blocks.iter().map(|area| ("the bad block log", area.clone()));
        let data = ("the data", own.data_offset..own.data_offset.saturating_add(own.size));
        let superblock = ("the superblock", own.super_offset..own.super_offset + own.sectors());
        let reached = near.chain([data, superblock]).find(|(_, other)| overlap(&whole, other));
        reached.map(|(name, _)| {
            invalid(format!(
                "the bitmap ends in a block of the device with {name}, where blocks have {bytes} \
                 bytes"
            ))
        })
    }
}

/// The notice about a bad block log that is not used.
fn not_used(why: &MetadataError) -> String {
    format!("{why}: it is empty and not used, so a block that cannot be written fails the member")
}

/// The whole blocks that an area touches.
fn whole_blocks(area: &Range<u64>, block_sectors: u64) -> Range<u64> {
    area.start / block_sectors * block_sectors..area.end.next_multiple_of(block_sectors)
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// The area of `sectors` sectors at `offset` from the superblock, if it does not overlap `others`.
fn area(
    own: &Superblock,
    device_sectors: u64,
    (name, offset, sectors): (&str, i64, u64),
    others: &[Named],
) -> Result<Range<u64>, MetadataError> {
    let of = || format!("{name} of {sectors} sectors at offset {offset} from the superblock");
    let start = own.super_offset.checked_add_signed(offset);
    let end = start.and_then(|start| start.checked_add(sectors));
    let (Some(start), Some(end)) = (start, end.filter(|end| *end <= device_sectors)) else {
        return Err(invalid(format!("{} is not on the device, which has {device_sectors}", of())));
    };
    match others.iter().find(|(_, other)| overlap(&(start..end), other)) {
        Some((other, _)) => Err(invalid(format!("{} reaches into {other}", of()))),
        None => Ok(start..end),
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metadata::Uuid;
    use crate::metadata::superblock::{Minor, probe};
    use crate::testing;
    use proptest::prelude::*;
    use std::convert::Infallible;

    /// The superblock of a member in a test vector, with its device's sectors.
    fn member(vector: &str) -> (Minor, Superblock, u64) {
        let image = testing::member(vector, 0).unwrap();
        let read = |sector| Ok::<_, Infallible>(image.read_sectors(sector, 8));
        let Ok(Ok((minor, own))) = probe(image.sectors(), read) else { panic!("a superblock") };
        (minor, own, image.sectors())
    }

    fn with_bitmap(own: &Superblock, offset: i32) -> Superblock {
        let feature_map = own.feature_map | Features::BITMAP_OFFSET;
        let bitmap_or_ppl = offset.to_le_bytes();
        Superblock { feature_map, bitmap_or_ppl, bblog_offset: 0, ..own.clone() }
    }

    #[test]
    fn a_bitmap_near_the_superblock_is_found_wherever_that_is() {
        for vector in ["r5-ls", "r5-ls-v10", "r5-ls-v11"] {
            let (minor, own, sectors) = member(vector);
            let header = BitmapHeader::new(Uuid([1; 16]), own.size, 64 << 10);
            let at = |offset| {
                let own = with_bitmap(&own, offset);
                (Places::of(&own, sectors, Some(&header)), own)
            };
            let (places, near) = at(2);
            let places = places.unwrap();
            let start = own.super_offset + 2;
            assert_eq!(places.bitmap(), Ok(Some(start..start + 1)), "{vector}");
            assert_eq!(places.bitmap_in_blocks(&near, 1), None);
            let why = places.bitmap_in_blocks(&near, 8).unwrap().to_string();
            assert!(why.contains("2 sectors from the superblock, inside a block"), "{why}");
            // The table of roles would overlap it in a superblock for more devices.
            assert_eq!((near.roles_max(), own.roles_max() > 384), (384, true));
            let longer = Superblock { roles: vec![0xFFFF; 385], ..near };
            let why = Places::of(&longer, sectors, None).unwrap().bitmap().unwrap_err().to_string();
            assert!(why.contains("reaches into the superblock"), "{why}");
            // The data ends before the superblock of version 1.0, and begins behind that of the
            // others.
            let data = match minor {
                Minor::V1_0 => -64 - (own.super_offset - own.size) as i32,
                _ => own.data_offset as i32,
            };
            let why = at(data).0.unwrap().bitmap().unwrap_err().to_string();
            assert!(why.contains("reaches into the data"), "{vector}: {why}");
            assert!(at(i32::MAX).0.unwrap().bitmap().is_err());
            assert!(at(i32::MIN).0.unwrap().bitmap().is_err());
        }
    }

    proptest! {
        /// Areas do not overlap, and lie on the device.
        #[test]
        fn areas_are_apart(
            features in prop::sample::select(vec![0u32, 1, 8, 9, 0x400, 0x408, 0x800]),
            offset in prop_oneof![-40i32..40, 0i32..5000, any::<i32>()],
            (bad_at, bad_size) in (prop_oneof![-40i32..40, 0i32..5000, any::<i32>()], 7u16..9),
            (data_offset, size) in (
                prop_oneof![0u64..5000, any::<u64>()], prop_oneof![0u64..20000, any::<u64>()]
            ),
            super_offset in prop_oneof![Just(8u64), Just(0), Just(16368), any::<u64>()],
            sectors in prop_oneof![Just(16384u64), any::<u64>()],
            chunk in 9u32..32,
        ) {
            let (_, own, _) = member("r5-ls-ppl");
            let feature_map = Features::from_bits_retain(features);
            let own = Superblock {
                feature_map,
                bitmap_or_ppl: offset.to_le_bytes(),
                bblog_offset: bad_at,
                bblog_size: bad_size,
                data_offset,
                size,
                super_offset,
                ..own
            };
            let header = BitmapHeader::new(own.set_uuid, size, 1 << chunk);
            let Ok(places) = Places::of(&own, sectors, Some(&header)) else { return Ok(()) };
            let bitmap = places.bitmap().ok().flatten();
            let fixed = [
                data_offset..data_offset.saturating_add(size),
                super_offset..super_offset.saturating_add(own.sectors()),
            ];
            let areas = [bitmap, places.ppl(), places.bad_blocks()].into_iter().flatten();
            let all: Vec<_> = areas.clone().chain(fixed).collect();
            prop_assert!(areas.clone().all(|area| !area.is_empty() && area.end <= sectors));
            for (index, area) in areas.enumerate() {
                let mut others = all.iter().enumerate().filter(|(other, _)| *other != index);
                prop_assert!(others.all(|(_, other)| !overlap(&area, other)), "{places:?}");
            }
        }
    }
}
