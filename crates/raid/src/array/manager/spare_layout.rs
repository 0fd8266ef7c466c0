//! The places of a new spare's areas: the same as on a member, except for the data, which begins
//! where this device has room for it. Members of one array may differ in that, because mdadm
//! chooses by the size of each device. If no member's places fit, the spare gets those of a new
//! array.

use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::places::Places;
use crate::metadata::room::{BAD_BLOCK_LOG_SECTORS, Log, PPL_SECTORS, parts};
use crate::metadata::superblock::{Features, Minor, Superblock};

/// mdadm aligns the beginning of data to this many sectors.
const ALIGNMENT_SECTORS: u64 = 2048;
/// Data is aligned to at least this many sectors.
const BLOCK_SECTORS: u64 = 8;

/// The sizes of the areas that a spare has to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs<'a> {
    /// Sectors of data.
    pub(super) used: u64,
    /// The bitmap, if there is one.
    pub(super) bitmap: Option<&'a BitmapHeader>,
    /// Sectors of the device's logical block.
    pub(super) block_sectors: u64,
}

/// The superblock of a device of `sectors` sectors, with the areas of a member. It follows the
/// first of `models` that fits. If none fits, its data begins as late as possible; if that does not
/// fit either, all areas lie where a new array would have them.
///
/// # Errors
/// No layout fits: the number of sectors that would suffice.
pub(super) fn placed(
    models: &[&Superblock],
    sectors: u64,
    needs: Needs<'_>,
) -> Result<Superblock, u64> {
    let like = |model: &&Superblock| laid_out(model, sectors, model.data_offset, needs);
    let elsewhere = |model: &&Superblock| {
        let mut offsets = offsets(model, sectors, needs).into_iter();
        offsets.find_map(|offset| laid_out(model, sectors, offset, needs))
    };
    let fresh = |model: &&Superblock| {
        let offsets = std::iter::once(model.data_offset).chain(offsets(model, sectors, needs));
        let mut laid = offsets.filter_map(|offset| with_new_places(model, sectors, offset, needs));
        laid.find_map(|own| laid_out(&own, sectors, own.data_offset, needs))
    };
    let found = models.iter().find_map(like).or_else(|| models.iter().find_map(elsewhere));
    let found = found.or_else(|| models.iter().find_map(fresh));
    let least = || models.iter().map(|model| least_sectors(model, needs)).min().unwrap_or(0);
    found.ok_or_else(least)
}

/// The sectors at which data may begin on a device of `sectors` sectors.
fn offsets(model: &Superblock, sectors: u64, needs: Needs<'_>) -> Vec<u64> {
    if model.minor() == Minor::V1_0 {
        return vec![0];
    }
    let last = sectors.saturating_sub(needs.used);
    vec![last - last % ALIGNMENT_SECTORS, last - last % BLOCK_SECTORS]
}

/// A superblock with the offsets of `model` from the superblock. `None` unless all areas have room,
/// do not overlap and consist of whole blocks of the device.
fn laid_out(
    model: &Superblock,
    sectors: u64,
    data_offset: u64,
    needs: Needs<'_>,
) -> Option<Superblock> {
    let super_offset = model.minor().sector(sectors)?;
    let mut own = Superblock { super_offset, data_offset, size: needs.used, ..model.clone() };
    own.feature_map -= Features::BAD_BLOCKS;
    let places = Places::of(&own, sectors, needs.bitmap).ok()?;
    let places = places.in_blocks(&own, needs.block_sectors).ok()?;
    if places.unused().is_some() || places.bitmap_in_blocks(&own, needs.block_sectors).is_some() {
        return None;
    }
    let logs = [places.bitmap().ok()?, places.ppl(), places.bad_blocks()].into_iter().flatten();
    let used = super_offset..super_offset + BLOCK_SECTORS;
    // Areas behind the data limit its growth.
    let ends = logs.chain([used, sectors..sectors]).map(|area| area.start);
    let end = ends.filter(|end| *end >= data_offset).min()?;
    own.data_size = end.checked_sub(data_offset).filter(|size| *size >= needs.used)?;
    (data_offset >= super_offset + BLOCK_SECTORS || super_offset >= end).then_some(own)
}

/// A superblock with the offsets of a new array's members.
fn with_new_places(
    model: &Superblock,
    sectors: u64,
    data_offset: u64,
    needs: Needs<'_>,
) -> Option<Superblock> {
    let log = match (needs.bitmap, model.ppl()) {
        (_, Some(_)) => Log::Ppl,
        (Some(header), None) => {
            let bits = header.sectors_for(needs.used).max(header.sectors_reserved.into());
            Log::Bitmap(bits.next_multiple_of(BLOCK_SECTORS))
        }
        (None, None) => Log::None,
    };
    let parts = parts(model.minor(), sectors, data_offset, needs.used, log).ok()?;
    let mut own = Superblock { data_offset, ..model.clone() };
    if log == Log::Ppl {
        let offset = i16::try_from(parts.log_offset).ok()?;
        own.bitmap_or_ppl[..2].copy_from_slice(&offset.to_le_bytes());
        own.bitmap_or_ppl[2..].copy_from_slice(&(PPL_SECTORS as u16).to_le_bytes());
    } else if model.bitmap_offset().is_some() {
        own.bitmap_or_ppl = parts.log_offset.to_le_bytes();
    }
    if model.bblog_offset != 0 {
        own.bblog_offset = parts.bblog_offset;
        own.bblog_size = BAD_BLOCK_LOG_SECTORS as u16;
    }
    Some(own)
}

/// The size of the smallest device that has room, in sectors.
fn least_sectors(model: &Superblock, needs: Needs<'_>) -> u64 {
    let bitmap = needs.bitmap.map_or(0, |header| header.sectors_for(needs.used));
    let mut areas: Vec<(i64, u64)> = vec![(0, BLOCK_SECTORS)];
    areas.extend(model.bitmap_offset().map(|offset| (offset.into(), bitmap)));
    areas.extend(model.ppl().map(|ppl| (ppl.offset.into(), ppl.sectors.into())));
    if model.bblog_offset != 0 {
        areas.push((model.bblog_offset.into(), model.bblog_size.into()));
    }
    if model.minor() == Minor::V1_0 {
        // The superblock lies at a multiple of 4 KiB, at least 8 KiB before the end.
        let before = areas.iter().map(|(offset, _)| offset.unsigned_abs()).max().unwrap_or(0);
        let end = model.data_offset.saturating_add(needs.used).saturating_add(before);
        return end.div_ceil(BLOCK_SECTORS).saturating_mul(BLOCK_SECTORS).saturating_add(16);
    }
    let end = |(offset, length): (i64, u64)| {
        model.super_offset.saturating_add_signed(offset).saturating_add(length)
    };
    let ends = areas.into_iter().map(end).filter(|end| *end <= model.data_offset);
    let before = ends.max().unwrap_or(model.data_offset);
    before.div_ceil(BLOCK_SECTORS).saturating_mul(BLOCK_SECTORS).saturating_add(needs.used)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::metadata::superblock::probe;
    use crate::testing;
    use std::convert::Infallible;
    use std::ops::Range;

    /// The superblock of a member in a test vector, with its device's sectors and its bitmap.
    fn member(vector: &str) -> (Superblock, u64, Option<BitmapHeader>) {
        let image = testing::member(vector, 0).unwrap();
        let read = |sector| Ok::<_, Infallible>(image.read_sectors(sector, 8));
        let Ok(Ok((_, own))) = probe(image.sectors(), read) else { panic!("a superblock") };
        let bitmap = own.bitmap_offset().map(|offset| {
            let at = own.super_offset.checked_add_signed(offset.into()).unwrap();
            BitmapHeader::parse(&image.read_sectors(at, 8)).unwrap()
        });
        (own, image.sectors(), bitmap)
    }

    /// Check that a start accepts the layout.
    fn check(own: &Superblock, sectors: u64, needs: Needs<'_>) {
        let found = Superblock::parse(&own.to_bytes(), own.super_offset, sectors);
        let found = found.unwrap_or_else(|error| panic!("{error}"));
        assert!(found.data_size >= needs.used, "{found:?}");
        let places = Places::of(&found, sectors, needs.bitmap).unwrap();
        assert_eq!(places.unused(), None);
        assert!(places.bitmap().is_ok());
        // Data must be able to grow up to `data_size` without reaching the areas behind it.
        let data = found.data_offset..found.data_offset + found.data_size;
        let superblock = Some(found.super_offset..found.super_offset + BLOCK_SECTORS);
        let areas = [superblock, places.bitmap().unwrap(), places.ppl(), places.bad_blocks()];
        let is_apart = |area: Range<u64>| area.end <= data.start || area.start >= data.end;
        assert!(areas.into_iter().flatten().all(is_apart), "{found:?}");
        assert_eq!(own.bblog_offset != 0, places.bad_blocks().is_some());
    }

    #[test]
    fn spares_of_every_size_are_laid_out_or_told_what_is_needed() {
        for vector in ["r5-ls", "r5-ls-v10", "r5-ls-v11", "r5-ls-bitmap", "r5-ls-ppl", "r6-ls"] {
            let (own, sectors, bitmap) = member(vector);
            let needs = Needs { used: own.size, bitmap: bitmap.as_ref(), block_sectors: 1 };
            let Err(least) = placed(&[&own], own.size, needs) else { panic!("{vector}") };
            for size in [least, least + 1, least + 7, sectors, sectors + 4099, sectors * 16] {
                let placed = placed(&[&own], size, needs);
                check(&placed.unwrap_or_else(|least| panic!("{vector} {least}")), size, needs);
            }
            assert!(placed(&[&own], own.size + 8, needs).is_err(), "{vector}");
        }
    }

    /// The members' logs lie where this device has its data, or outside the device.
    #[test]
    fn logs_of_members_that_lie_elsewhere_are_placed_again() {
        for vector in ["r5-ls-bitmap", "r5-ls-ppl"] {
            let (own, sectors, bitmap) = member(vector);
            let needs = Needs { used: own.size, bitmap: bitmap.as_ref(), block_sectors: 8 };
            let mut far = Superblock { data_offset: 30_000, ..own.clone() };
            match far.ppl() {
                Some(_) => far.bitmap_or_ppl[..2].copy_from_slice(&20_000i16.to_le_bytes()),
                None => far.bitmap_or_ppl = 20_000i32.to_le_bytes(),
            }
            far.bblog_offset = 29_000;
            let placed = placed(&[&far], sectors, needs).unwrap();
            check(&placed, sectors, needs);
            assert!(placed.data_offset < 30_000 && placed.bblog_offset < 20_000, "{placed:?}");
        }
    }

    /// mdadm 3.3 and 3.4 put the bad block list inside the bitmap; on a new spare it lies beside
    /// the bitmap.
    #[test]
    fn what_overlaps_on_members_is_apart_on_a_spare() {
        let (own, sectors, bitmap) = member("r5-ls-bitmap");
        let needs = Needs { used: own.size, bitmap: bitmap.as_ref(), block_sectors: 1 };
        let overlapping = Superblock { bblog_offset: own.bitmap_offset().unwrap(), ..own.clone() };
        check(&placed(&[&overlapping], sectors, needs).unwrap(), sectors, needs);
        // A model that fits as it is comes first.
        let found = placed(&[&overlapping, &own], sectors, needs).unwrap();
        assert_eq!(found.bblog_offset, own.bblog_offset);
    }
}
