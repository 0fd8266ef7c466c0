//! Writes that the journal of an array holds and its members lack. Drystone does not replay a
//! journal, so it refuses to start such an array unless forced.

use super::disk::Disk;
use super::io::Io;
use crate::layout::{Layout, STRIPE_SECTORS};
use crate::metadata::assemble::Assembly;
use crate::metadata::journal::{BLOCK_BYTES, Journal, Logged};
use drystone_core::SECTOR_SIZE;
use std::ops::Range;

/// The most ranges of bytes that a message names.
const TOLD_MAX: usize = 10;

/// The writes that only the journal has, as a sentence; `None` if the members have all of them.
pub(super) fn what_members_lack(
    io: &mut Io,
    disks: &[Disk],
    journal: &Journal,
    assembly: &Assembly,
) -> Option<String> {
    let layout = &assembly.layout;
    let mut blocks: Vec<u64> = Vec::new();
    for (sector, logged) in journal.stripes() {
        if lacks(io, disks, journal, sector, logged) {
            blocks.extend(stale(layout, sector, logged, assembly.lost() > 0));
        }
    }
    blocks.sort_unstable();
    if blocks.is_empty() {
        return None;
    }
    Some(format!(
        "the journal holds writes that the members do not have, so that bytes of the array are \
         older than they should be or wrong: {}; start and stop the array with mdadm on Linux, \
         which replays its journal",
        told(&joined(&blocks))
    ))
}

/// True if a member of the stripe lacks a block of the journal, or if that cannot be known.
fn lacks(io: &mut Io, disks: &[Disk], journal: &Journal, sector: u64, logged: &Logged) -> bool {
    let mut is_known = true;
    for (role, checksum) in &logged.checksums {
        let Some(disk) = disks.iter().find(|disk| disk.has_block(*role, sector)) else {
            is_known = false;
            continue;
        };
        match io.read(disk.index, disk.superblock.data_offset + sector, BLOCK_BYTES) {
            Ok(block) if journal.checksum(&block) == *checksum => {}
            _ => return true,
        }
    }
    // A missing block is computed from the others, and those fit if the parity is that of the
    // journal.
    !is_known && !logged.has_parity
}

/// The array sectors of blocks that may be wrong. In a degraded array, blocks computed with the
/// stripe may be wrong too.
fn stale(layout: &Layout, sector: u64, logged: &Logged, is_degraded: bool) -> Vec<u64> {
    let row = layout.row_at(sector);
    let slots = (0..layout.data_disks())
        .filter(|slot| is_degraded || logged.checksums.contains_key(&row.data(*slot)));
    slots.map(|slot| layout.array_sector(slot, sector)).collect()
}

/// The byte ranges of ordered blocks; adjacent blocks are joined.
fn joined(blocks: &[u64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for sector in blocks {
        let (start, end) = (sector * SECTOR_SIZE, (sector + STRIPE_SECTORS) * SECTOR_SIZE);
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    ranges
}

fn told(ranges: &[Range<u64>]) -> String {
    let named = ranges.iter().take(TOLD_MAX);
    let mut named: Vec<String> =
        named.map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
    match ranges.len().saturating_sub(TOLD_MAX) {
        0 => {}
        more => named.push(format!("and {more} more ranges")),
    }
    named.join(", ")
}
