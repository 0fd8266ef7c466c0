//! Partial parity logs at the start of an array (`ppl_load`). If the array was not stopped cleanly,
//! the parity that they log is corrected. Then the logs are emptied.
//!
//! Invariants:
//! * Nothing is written before all logs are read. Blocks of parity are written first, then empty
//!   headers, then the superblocks. A crash between two of these steps is as harmless as one before
//!   all of them: correcting parity a second time gives the same result.
//! * A read-only array writes nothing: its reads return the blocks that would be written.
//! * A block is computed only from members that are in sync there. If a member is missing, a write
//!   to it that was under way is lost, but no other content.

use super::disk::{Disk, DiskState, LogTodo};
use super::io::{Io, Ticket};
use crate::engine::{LogArea, PplConf};
use crate::ids::Role;
use crate::layout::{BLOCK_BYTES, MemberAddress, STRIPE_SECTORS};
use crate::metadata::assemble::Assembly;
use crate::metadata::ppl::{
    HEADER_BYTES, HEADER_SECTORS, PARITY_BYTES_MAX, ParityBlock, PplEntry, PplHeader, crc32c,
    decode, newest, signature,
};
use drystone_core::primitive::Ordering::*;
use drystone_core::{Error, Result, SECTOR_SIZE};
use std::sync::Arc;

/// `resync_offset` of a dirty array that its logs do not make whole, because it needs a resync for
/// another reason (it is new, or members of different ages were put together). If this value is 0,
/// Linux relies on the logs and runs no resync (`raid5-ppl.c`, `ppl_init_log`); otherwise it
/// resyncs from here on.
pub(super) const RESYNC_PENDING: u64 = STRIPE_SECTORS;
/// The most bytes of an area that one write has.
const WRITE_BYTES: usize = 128 << 10;

/// A block of parity with its correct content.
pub(crate) struct Patch {
    /// The position of its disk.
    disk: usize,
    /// Its sector on the disk.
    sector: u64,
    bytes: Vec<u8>,
}

/// The contents of an array's logs.
pub(crate) struct Replay {
    pub(crate) conf: PplConf,
    patches: Vec<Patch>,
    entries: usize,
    /// Damaged entries, one sentence each.
    pub(crate) notices: Vec<String>,
    /// Something could not be read, or was damaged.
    pub(crate) is_wrong: bool,
}

impl Replay {
    /// Read the logs, if the array has them. Their entries are applied only if the array was not
    /// stopped cleanly and `is_asked` is true. A log that cannot be read or used is noted: then the
    /// logs do not make the array whole.
    pub(crate) fn read(
        io: &mut Io,
        disks: &[Disk],
        assembly: &Assembly,
        is_asked: bool,
    ) -> Option<Self> {
        if !assembly.has_ppl {
            return None;
        }
        let signature = signature(assembly.fresh.set_uuid);
        let conf = PplConf { signature, generation: 0 };
        let mut replay = Replay {
            conf,
            patches: Vec::new(),
            entries: 0,
            notices: assembly.logs_lost.clone(),
            is_wrong: false,
        };
        // A spare gets a log when it gets a role.
        for position in
            (0..disks.len()).filter(|position| disks[*position].state != DiskState::Spare)
        {
            let Some(area) = disks[position].places.ppl() else { continue };
            let (start, sectors) = (area.start, area.end - area.start);
            let read = |sector| read_at(io, &disks[position], start + sector, HEADER_BYTES);
            let Ok(found) = newest(sectors, signature, read) else {
                replay.is_wrong = true;
                continue;
            };
            let Some((at, header)) = found else {
                // The log is damaged, and its entries are not known.
                replay.is_wrong = true;
                continue;
            };
            replay.conf.generation = replay.conf.generation.max(header.generation);
            // The log of a replacement is a copy of the log of its member.
            let is_copy = matches!(disks[position].state, DiskState::Replacement(_));
            if is_asked && assembly.resync_from.is_some() && !is_copy {
                for (sector, entry) in header.entries_at(at) {
                    let partial = (start + sector, start + sectors);
                    let done = replay.entry(io, disks, position, assembly, entry, partial);
                    if let Err(why) = done {
                        let name = &disks[position].name;
                        replay.notices.push(format!("{name}: partial parity log: {why}"));
                        replay.is_wrong = true;
                    }
                }
            }
        }
        // The generation of the headers that the start writes.
        replay.conf.generation += 1;
        Some(replay)
    }

    /// Parity will fit everywhere once the blocks are written.
    pub(crate) fn is_whole(&self, assembly: &Assembly) -> bool {
        self.entries > 0 && !self.is_wrong && assembly.resync_from == Some(0)
    }

    /// Apply an entry of a disk's log. `partial` is where its partial parity begins and where its
    /// area ends.
    ///
    /// # Errors
    /// The entry is damaged, or a block cannot be read. The message is one sentence.
    fn entry(
        &mut self,
        io: &mut Io,
        disks: &[Disk],
        position: usize,
        assembly: &Assembly,
        entry: &PplEntry,
        partial: (u64, u64),
    ) -> std::result::Result<(), String> {
        // `decode` has checked that the entry covers whole stripes.
        let blocks = decode(entry, &assembly.layout, assembly.used()).map_err(|e| e.to_string())?;
        let partial = partial_parity(io, &disks[position], entry, partial)?;
        for block in blocks {
            let computed = parity(io, disks, &block, &partial);
            let computed = computed.ok_or("what an entry touched cannot be read")?;
            if let Some(bytes) = computed {
                let sector = disks[position].superblock.data_offset + block.sector;
                self.patches.push(Patch { disk: position, sector, bytes });
            }
        }
        self.entries += 1;
        Ok(())
    }

    /// Write the blocks; durable when this returns.
    pub(crate) fn write(&mut self, io: &mut Io, disks: &[Disk]) {
        let write =
            |patch: &Patch| io.start_write(disks[patch.disk].index, patch.sector, &patch.bytes);
        let tickets: Vec<Ticket> = self.patches.iter().map(write).collect();
        self.is_wrong |= !io.wait_for_all(&tickets);
    }

    /// Make reads return these blocks in place of the members' own. This serves a read-only array,
    /// which computes missing blocks from them.
    pub(crate) fn overlay(&mut self, disks: &mut [Disk]) {
        for Patch { disk, sector, bytes } in self.patches.drain(..) {
            let disk = &mut disks[disk];
            let patches = Arc::make_mut(disk.patches.get_or_insert_default());
            patches.insert(sector - disk.superblock.data_offset, bytes);
        }
    }
}

/// Read the partial parity of an entry of a disk's log, between the sectors `start` and `end`.
fn partial_parity(
    io: &mut Io,
    disk: &Disk,
    entry: &PplEntry,
    (start, end): (u64, u64),
) -> std::result::Result<Vec<u8>, String> {
    let sectors = u64::from(entry.pp_size) / SECTOR_SIZE;
    if start + sectors > end {
        let left = end.saturating_sub(start);
        return Err(format!("an entry has {sectors} sectors, expected up to {left}"));
    }
    if disk.member_role() != Some(Role(entry.parity_disk)) {
        return Err(format!("an entry is of member {}, expected its own", entry.parity_disk));
    }
    let partial = match entry.pp_size {
        0 => Vec::new(),
        bytes => read_at(io, disk, start, bytes as usize)
            .map_err(|status| format!("an entry cannot be read: {status}"))?,
    };
    match crc32c(&partial) {
        found if found == entry.checksum => Ok(partial),
        found => Err(format!(
            "the checksum of an entry's partial parity is {found:08x}, expected {:08x}",
            entry.checksum
        )),
    }
}

/// Compute a block of parity from the log. `Some(None)` if its own member, or a member that it
/// would be computed from, is missing; `None` if a block cannot be read.
fn parity(
    io: &mut Io,
    disks: &[Disk],
    block: &ParityBlock,
    partial: &[u8],
) -> Option<Option<Vec<u8>>> {
    let holder = |role, sector| disks.iter().find(|disk| disk.has_block(role, sector));
    let is_there = |address: &MemberAddress| holder(address.role, address.sector).is_some();
    if holder(block.role, block.sector).is_none() || !block.touched.iter().all(is_there) {
        return Some(None);
    }
    let mut parity = match block.parity_at {
        Some(at) => partial.get(at..at + BLOCK_BYTES)?.to_vec(),
        None => vec![0; BLOCK_BYTES],
    };
    for MemberAddress { role, sector, .. } in &block.touched {
        let disk = holder(*role, *sector)?;
        let data = read_at(io, disk, disk.superblock.data_offset + sector, BLOCK_BYTES).ok()?;
        parity.iter_mut().zip(&data).for_each(|(parity, data)| *parity ^= data);
    }
    Some(Some(parity))
}

fn read_at(
    io: &mut Io,
    disk: &Disk,
    sector: u64,
    bytes: usize,
) -> std::result::Result<Vec<u8>, drystone_core::Status> {
    io.read(disk.index, sector, bytes).map(|block| block.to_vec())
}

/// Check that all logs can be written. The header of each log is written again as it is. A header
/// that cannot be read is written as zeroes, which say as little.
///
/// # Errors
/// A log cannot be written; the start ends and has changed nothing.
pub(super) fn check_logs_take_writes(io: &mut Io, disks: &[Disk]) -> Result<()> {
    let logs = disks.iter().filter(|disk| disk.state.role().is_some());
    let logs = logs.filter_map(|disk| Some((disk, disk.places.ppl()?.start)));
    let started: Vec<_> = logs
        .map(|(disk, start)| {
            let header = read_at(io, disk, start, HEADER_BYTES);
            let bytes = disk.whole_blocks(header.unwrap_or_else(|_| vec![0; HEADER_BYTES]));
            (disk, io.start_write(disk.index, start, &bytes))
        })
        .collect();
    let ended: Vec<_> =
        started.into_iter().map(|(disk, ticket)| (disk, io.wait_for(ticket).status)).collect();
    match ended.iter().find(|(_, status)| !status.is_ok()) {
        None => Ok(()),
        Some((disk, status)) => Err(Error::invalid(format!(
            "the partial parity log of {} cannot be written: {status}; nothing has been changed: \
             leave it out to start without it",
            disk.name
        ))),
    }
}

impl Disk {
    /// The area in which contexts log, if the array has logs.
    pub(crate) fn log_area(&self) -> Option<LogArea> {
        let area = self.places.ppl()?;
        let (sector, sectors) = (area.start, area.end - area.start);
        let bytes = (sectors - HEADER_SECTORS) * SECTOR_SIZE;
        let whole = bytes.min(PARITY_BYTES_MAX.into()) as usize / BLOCK_BYTES * BLOCK_BYTES;
        Some(LogArea { sector, parity_bytes: whole as u32 })
    }

    /// The disk holds the current block of a role at a member sector.
    pub(super) fn has_block(&self, role: Role, sector: u64) -> bool {
        let start = self.superblock.data_offset + sector;
        self.member_role() == Some(role)
            && sector + STRIPE_SECTORS <= self.in_sync_below.load(Acquire)
            && self.bad_blocks.overlap(start..start + STRIPE_SECTORS).is_none()
    }

    /// Begin to write its log area: the header, and zeroes behind it if needed.
    pub(crate) fn start_log(&mut self, io: &mut Io, conf: &PplConf) -> Vec<Ticket> {
        let todo = std::mem::replace(&mut self.log_todo, LogTodo::Nothing);
        let Some(area) = self.places.ppl().filter(|_| todo != LogTodo::Nothing) else {
            return Vec::new();
        };
        let (start, sectors) = (area.start, area.end - area.start);
        let header = PplHeader::empty(conf.signature, conf.generation).to_bytes();
        let bytes = match todo {
            LogTodo::All => (sectors * SECTOR_SIZE) as usize,
            _ => HEADER_BYTES,
        };
        let mut area = self.whole_blocks(header);
        area.resize(area.len().max(bytes), 0);
        let index = self.index;
        let chunks = area.chunks(WRITE_BYTES).enumerate();
        chunks
            .map(|(n, chunk)| {
                io.start_write(index, start + (n * WRITE_BYTES) as u64 / SECTOR_SIZE, chunk)
            })
            .collect()
    }
}
