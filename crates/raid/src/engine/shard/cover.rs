//! The whole rows that items cover.

use super::items::Items;
use crate::engine::region::REGION_SECTORS;
use crate::layout::{Layout, STRIPE_SECTORS};
use drystone_core::SECTOR_SIZE;
use std::ops::Range;

/// Items that cover whole rows of one region.
#[derive(Default)]
pub(super) struct Cover {
    /// The items, in the order of the array. If chunks are as long as a region or longer, each
    /// covers the region of one member. If not, each covers one or several rows.
    items: Vec<u32>,
    /// Where the rows of each item begin, if it covers rows.
    begins: Vec<u64>,
    /// Member sectors of all of it.
    sectors: Range<u64>,
}

/// The sectors of a member that lie in one piece in the array and in one region.
fn unit_sectors(layout: &Layout) -> u64 {
    layout.chunk_sectors().min(REGION_SECTORS)
}

/// The same in bytes.
pub(super) fn unit_bytes(layout: &Layout) -> usize {
    (unit_sectors(layout) * SECTOR_SIZE) as usize
}

/// The member sectors of the rows that an item covers, if it covers nothing else.
fn rows_of(all: &Items, layout: &Layout, number: u32) -> Option<Range<u64>> {
    let (bio, row) = (all.fresh_write(number)?, layout.row_sectors());
    let sectors = bio.bytes / SECTOR_SIZE;
    let is_whole = sectors > 0 && bio.sector.0.is_multiple_of(row) && sectors.is_multiple_of(row);
    let (first, data_disks) = (bio.sector.0, u64::from(layout.data_disks()));
    is_whole.then(|| first / data_disks..(first + sectors) / data_disks)
}

impl Cover {
    /// The rows that the first of `numbers` cover.
    pub(super) fn find(
        &mut self,
        all: &Items,
        layout: &Layout,
        numbers: impl Iterator<Item = u32>,
    ) -> bool {
        self.items.clear();
        self.begins.clear();
        let sectors = match layout.chunk_sectors() < REGION_SECTORS {
            true => self.of_rows(all, layout, numbers),
            false => self.of_regions(all, layout, numbers),
        };
        self.sectors = sectors.unwrap_or_default();
        !self.sectors.is_empty()
    }

    /// Items that each cover one or several rows, one behind the other.
    fn of_rows(
        &mut self,
        all: &Items,
        layout: &Layout,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<Range<u64>> {
        let (mut start, mut end) = (None, 0);
        for number in numbers {
            let Some(rows) = rows_of(all, layout, number) else { break };
            let first = *start.get_or_insert(rows.start);
            let follows = self.items.is_empty() || end == rows.start;
            if !follows || first / REGION_SECTORS != rows.start / REGION_SECTORS {
                break;
            }
            self.items.push(number);
            self.begins.push(rows.start);
            end = rows.end;
        }
        start.map(|start| start..end)
    }

    /// Items that each cover the same region of another data member, in the order of the array.
    fn of_regions(
        &mut self,
        all: &Items,
        layout: &Layout,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<Range<u64>> {
        let mut first = None;
        for (slot, number) in (0..layout.data_disks()).zip(numbers) {
            let bio = all.fresh_write(number)?;
            let place = layout.map_sector(bio.sector.0);
            let sector = *first.get_or_insert(place.sector);
            let is_region =
                bio.bytes == REGION_SECTORS * SECTOR_SIZE && sector.is_multiple_of(REGION_SECTORS);
            if !is_region || (place.slot, place.sector) != (slot, sector) {
                return None;
            }
            self.items.push(number);
        }
        let is_whole = self.items.len() == layout.data_disks() as usize;
        first.filter(|_| is_whole).map(|first| first..first + REGION_SECTORS)
    }

    /// The item with the data of `slot` in the unit at member sector `sector`, and where in it.
    pub(super) fn data_at(&self, layout: &Layout, slot: u32, sector: u64) -> (u32, u64) {
        if self.begins.is_empty() {
            return (self.items[slot as usize], 0);
        }
        let at = self.begins.partition_point(|begin| *begin <= sector) - 1;
        let row = (sector - self.begins[at]) / layout.chunk_sectors();
        let unit = row * u64::from(layout.data_disks()) + u64::from(slot);
        (self.items[at], unit * layout.chunk_sectors() * SECTOR_SIZE)
    }

    /// The member sectors at which its stripes begin.
    pub(super) fn stripes(&self) -> impl Iterator<Item = u64> + use<> {
        self.sectors.clone().step_by(STRIPE_SECTORS as usize)
    }

    /// The items, in the order of the array.
    pub(super) fn items(&self) -> &[u32] {
        &self.items
    }

    /// The member sectors of all of it.
    pub(super) fn sectors(&self) -> Range<u64> {
        self.sectors.clone()
    }

    /// The member sectors at which its units begin.
    pub(super) fn units(&self, layout: &Layout) -> impl Iterator<Item = u64> + use<> {
        self.sectors().step_by(unit_sectors(layout) as usize)
    }
}
