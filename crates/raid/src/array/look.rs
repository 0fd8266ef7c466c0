//! What devices hold before they are members.

use super::io::Io;
use crate::metadata::foreign::{Contents, HEAD_BYTES, TAIL_BYTES, identify};
use drystone_core::{Context, Device, Error, Result, SECTOR_SIZE};
use std::sync::Arc;

/// What is on a device, told by signatures. Reads its start and its end, and waits for that.
///
/// # Errors
/// The device cannot be opened, or not be read; the message says why.
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
