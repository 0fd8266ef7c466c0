//! Where the parts of a new spare are: as on a member, but for the data, which begins where this device has
//! room for it. Members of one array may differ in that: mdadm chooses by the size of each device.

use crate::metadata::superblock::{Minor, Superblock};

/// mdadm has data begin at a multiple of this many sectors.
const ALIGNMENT_SECTORS: u64 = 2048;
/// At least this much it is aligned to.
const BLOCK_SECTORS: u64 = 8;

/// What a spare has to hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// Sectors of data.
    pub(super) used: u64,
    /// Sectors of the bitmap, if there is one.
    pub(super) bitmap: u64,
}

/// The superblock of a device of so many sectors, laid out as that of a member: as one of `models` if it can
/// be, the first ones first, or else with the data as late as it can be.
///
/// # Errors
/// There is no room: the sectors that would do.
pub(super) fn placed(
    models: &[&Superblock],
    sectors: u64,
    needs: Needs,
) -> Result<Superblock, u64> {
    let like = |model: &&Superblock| laid_out(model, sectors, model.data_offset, needs);
    let elsewhere = |model: &&Superblock| {
        let mut offsets = offsets(model, sectors, needs).into_iter();
        offsets.find_map(|offset| laid_out(model, sectors, offset, needs))
    };
    let found = models.iter().find_map(like).or_else(|| models.iter().find_map(elsewhere));
    let least = || models.iter().map(|model| least_sectors(model, needs)).min().unwrap_or(0);
    found.ok_or_else(least)
}

/// Where data may begin on a device of so many sectors.
fn offsets(model: &Superblock, sectors: u64, needs: Needs) -> Vec<u64> {
    if model.minor() == Minor::V1_0 {
        return vec![0];
    }
    let last = sectors.saturating_sub(needs.used);
    vec![last - last % ALIGNMENT_SECTORS, last - last % BLOCK_SECTORS]
}

fn laid_out(
    model: &Superblock,
    sectors: u64,
    data_offset: u64,
    needs: Needs,
) -> Option<Superblock> {
    let minor = model.minor();
    let super_offset = minor.sector(sectors)?;
    let data_end = if minor == Minor::V1_0 { super_offset } else { sectors };
    let data_size = data_end.checked_sub(data_offset).filter(|size| *size >= needs.used)?;
    let own = Superblock { super_offset, data_offset, data_size, ..model.clone() };
    let is_apart = |(start, end): (u64, u64)| {
        end <= sectors && (end <= data_offset || start >= data_offset + needs.used)
    };
    let areas: Option<Vec<_>> = areas(&own, needs).into_iter().collect();
    areas?.into_iter().all(is_apart).then_some(own)
}

/// The first sectors of the superblock and of what belongs to it, and those behind them; `None` of what would
/// begin before the device.
fn areas(own: &Superblock, needs: Needs) -> Vec<Option<(u64, u64)>> {
    let area = |offset: i64, length: u64| {
        let start = own.super_offset.checked_add_signed(offset)?;
        Some((start, start.checked_add(length)?))
    };
    let mut areas = vec![area(0, BLOCK_SECTORS)];
    areas.extend(own.bitmap_offset().map(|offset| area(offset.into(), needs.bitmap)));
    if own.bblog_offset != 0 {
        areas.push(area(own.bblog_offset.into(), own.bblog_size.into()));
    }
    areas.extend(own.ppl().map(|ppl| area(ppl.offset.into(), ppl.sectors.into())));
    areas
}

/// Sectors of the smallest device that has room.
fn least_sectors(model: &Superblock, needs: Needs) -> u64 {
    if model.minor() == Minor::V1_0 {
        return model.data_offset + needs.used;
    }
    let ends = areas(model, needs).into_iter().flatten().map(|(_, end)| end);
    let before = ends.filter(|end| *end <= model.data_offset).max().unwrap_or(model.data_offset);
    before.next_multiple_of(BLOCK_SECTORS) + needs.used
}
