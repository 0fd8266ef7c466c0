//! The contents of devices before they become members: foreign data, superblocks of other arrays.

use super::io::Io;
use crate::metadata::MetadataError;
use crate::metadata::assemble::Candidate;
use crate::metadata::foreign::{Contents, HEAD_BYTES, TAIL_BYTES, identify};
use crate::metadata::superblock::{self, SUPERBLOCK_BYTES_MAX, is_magic, places};
use drystone_core::ChannelId;
use drystone_core::{Context, Device, DeviceInfo, Error, Result, SECTOR_SIZE, Status};
use std::sync::Arc;

/// The contents of a device by their signatures. Reads the start and the end of the device, and
/// waits for that.
///
/// # Errors
/// The device cannot be opened or read; the message says why.
pub fn contents(ctx: Context, device: &Arc<dyn Device>) -> Result<Contents> {
    let mut io = Io::new(ctx);
    let info = device.info();
    let index = io.open(device)?;
    let sectors = info.size_bytes / SECTOR_SIZE;
    let mut read = |from: u64, bytes: usize| {
        let whole = (sectors - from).saturating_mul(SECTOR_SIZE).min(bytes as u64);
        let block = io.read(index, from, whole as usize);
        block.map_err(|status| Error::invalid(format!("{} cannot be read: {status}", info.name)))
    };
    let head = read(0, HEAD_BYTES)?;
    let tail = sectors.saturating_sub(TAIL_BYTES as u64 / SECTOR_SIZE);
    Ok(identify(&head, &read(tail, TAIL_BYTES)?, sectors))
}

/// The contents of a device, without those of a journal.
pub(super) fn candidate(io: &mut Io, device: &Arc<dyn Device>) -> Result<Candidate> {
    let info = device.info();
    let mut read = reader(io, device)?;
    let sectors = info.size_bytes / SECTOR_SIZE;
    let found = superblock::probe(sectors, |sector| read(sector, SUPERBLOCK_BYTES_MAX));
    let found = found.unwrap_or_else(|status| Err(unreadable("the superblock", status)));
    Ok(Candidate::look(info.name.clone(), sectors, found, read))
}

/// A function that reads a number of bytes from a sector of a device on, and waits for that.
pub(super) fn reader<'a>(
    io: &'a mut Io,
    device: &Arc<dyn Device>,
) -> Result<impl FnMut(u64, usize) -> std::result::Result<Vec<u8>, Status> + use<'a>> {
    let blocks = (io.open(device)?, device.info().limits.logical_block_size);
    Ok(move |sector, bytes| io.read_in_blocks(blocks, sector, bytes))
}

fn unreadable(what: &str, status: Status) -> MetadataError {
    MetadataError::Invalid(format!("{what} cannot be read: {status}"))
}

/// Erase everything that looks like a superblock of md, wherever one may lie except at `own`. The
/// erasure is durable when this returns.
pub(super) fn erase_superblocks(
    io: &mut Io,
    index: ChannelId,
    info: &DeviceInfo,
    own: u64,
) -> std::result::Result<(), Status> {
    let block = (info.limits.logical_block_size as usize).max(SUPERBLOCK_BYTES_MAX);
    for sector in places(info.size_bytes / SECTOR_SIZE).filter(|sector| *sector != own) {
        let found = io.read(index, sector, block)?;
        if !is_magic(&found) {
            continue;
        }
        let ticket = io.start_write(index, sector, &vec![0; block]);
        match io.wait_for(ticket).status {
            Status::Ok => {}
            status => return Err(status),
        }
    }
    Ok(())
}
