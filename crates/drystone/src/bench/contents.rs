//! Contents of a device that a benchmark would overwrite.

use anyhow::{Context as _, ensure};
use drystone_bench::failure;
use drystone_core::{Bio, BioList, ChannelId, Context, Device, IoBuf, Sector};
use drystone_raid::metadata::foreign::{Contents, HEAD_BYTES, TAIL_BYTES, identify};

use crate::failure::Failure;

/// Refuses a device that holds a file system, a partition table or a member of an array. `option`
/// is what would overwrite it, `name` what the user calls it.
///
/// # Errors The contents that it has, or that it cannot be read.
pub fn check(
    cx: &mut Context,
    index: ChannelId,
    device: &dyn Device,
    option: &str,
    name: &str,
) -> anyhow::Result<()> {
    let info = device.info();
    let block = u64::from(info.limits.logical_block_size);
    let end = info.size_bytes / block * block;
    let head = read(cx, index, 0, (HEAD_BYTES as u64).min(end))?;
    let from = end.saturating_sub(TAIL_BYTES as u64);
    let tail = read(cx, index, from, end - from)?;
    match identify(&head, &tail, info.size_bytes / 512) {
        Contents::Known(what) => {
            let text = format!("{option}: {name} appears to contain {what}; --force overwrites it");
            Err(Failure::Refused(text).into())
        }
        Contents::Blank | Contents::Unknown => Ok(()),
    }
}

fn read(cx: &mut Context, index: ChannelId, from: u64, bytes: u64) -> anyhow::Result<Vec<u8>> {
    let buf = IoBuf::try_zeroed(bytes as usize).context("no memory to read the device's ends")?;
    let mut out = BioList::new();
    out.push(Bio::read(Sector(from >> drystone_core::SECTOR_SHIFT), buf));
    cx.submit(index, &mut out);
    let mut done = BioList::new();
    while cx.reap(&mut done) == 0 {
        cx.wait(None);
    }
    let bio = done.pop().context("a read has not come back")?;
    ensure!(
        bio.status.is_ok(),
        "cannot read what is on the device: {}; --force overwrites it unseen",
        failure(&bio)
    );
    Ok(bio.buf().map_or_else(Vec::new, |buf| buf.to_vec()))
}
