//! `drystone md examine`.

use std::path::PathBuf;

use clap::Args;
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::bad_blocks::{BadBlocks, LOG_BYTES};
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use drystone_raid::metadata::examine::{bad_blocks_text, bitmap_text, superblock_text};
use drystone_raid::metadata::foreign::Contents;
use drystone_raid::metadata::superblock::{Features, SUPERBLOCK_BYTES_MAX, Superblock};
use drystone_stack::one_line;

use super::member::Device;
use crate::failure::Failure;
use crate::output;

/// Most bytes of bits that are counted: bitmaps are far smaller, and what says otherwise is damaged.
const BITS_BYTES_MAX: u64 = 64 << 20;

/// Arguments of `drystone md examine`.
#[derive(Debug, Args)]
pub struct ExamineArgs {
    /// Files or block devices
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Show the write-intent bitmap instead, as `mdadm --examine-bitmap` does
    #[arg(short = 'X', long, conflicts_with = "badblocks")]
    bitmap: bool,
    /// Show the bad blocks instead, as `mdadm --examine-badblocks` does
    #[arg(long)]
    badblocks: bool,
}

/// `drystone md examine`: all that can be shown is; the first device of which nothing can is the
/// failure.
pub fn run(args: &ExamineArgs) -> Result<(), Failure> {
    let mut failure = None;
    for path in &args.paths {
        match Device::for_reading(path).and_then(|device| text(&device, args)) {
            Ok(text) => {
                output::print(&text)?;
            }
            Err(error) if failure.is_none() => failure = Some(error),
            Err(error) => output::draw(&error.to_string()),
        }
    }
    failure.map_or(Ok(()), Err)
}

fn text(device: &Device, args: &ExamineArgs) -> Result<String, Failure> {
    let name = one_line(&device.path.display().to_string()).into_owned();
    let refused = |error: MetadataError| Failure::Refused(format!("{name}: {error}"));
    let (bytes, found) = superblock(device)?;
    if args.badblocks {
        return bad_blocks(device, &found);
    }
    let area = bitmap_area(device, &found)?;
    if args.bitmap {
        let none = || MetadataError::Absent("the array has no internal bitmap".to_owned());
        let area = area.ok_or_else(none).map_err(refused)?;
        return bitmap_text(&name, &area).map_err(refused);
    }
    let header = area.and_then(|area| BitmapHeader::parse(&area).ok());
    superblock_text(&name, &bytes, device.sectors, header.as_ref()).map_err(refused)
}

/// The superblock that md would use, or else any that is there, broken as it may be.
fn superblock(device: &Device) -> Result<(Vec<u8>, Superblock), Failure> {
    let name = device.path.display();
    let error = match device.probe()? {
        Ok((_, found)) => {
            return Ok((device.read(found.super_offset, SUPERBLOCK_BYTES_MAX)?, found));
        }
        Err(error) => error,
    };
    for sector in device.magic_places()? {
        let bytes = device.read(sector, SUPERBLOCK_BYTES_MAX)?;
        if let Ok(found) = Superblock::decode(&bytes) {
            output::complain(&format!("drystone: {name}: {error}"));
            return Ok((bytes, found));
        }
    }
    let mut text = format!("No md superblock detected on {name}");
    if !matches!(error, MetadataError::Absent(_)) {
        text += &format!(": {error}");
    }
    if let Contents::Known(what) = device.contents()? {
        text += &format!(", which holds {what}");
    }
    Err(Failure::Refused(text))
}

/// Header and bits of the bitmap, if the superblock says that there is one on the device.
fn bitmap_area(device: &Device, found: &Superblock) -> Result<Option<Vec<u8>>, Failure> {
    let offset = found.bitmap_offset();
    let Some(at) = offset.and_then(|o| found.super_offset.checked_add_signed(o.into())) else {
        return Ok(None);
    };
    let first = device.read(at, HEADER_BYTES)?;
    let bits = BitmapHeader::parse(&first).map_or(0, |header| header.bits().div_ceil(8));
    let bytes = HEADER_BYTES as u64 + bits.min(BITS_BYTES_MAX);
    Ok(Some(device.read(at, bytes as usize)?))
}

fn bad_blocks(device: &Device, found: &Superblock) -> Result<String, Failure> {
    let name = one_line(&device.path.display().to_string()).into_owned();
    let at = found.super_offset.checked_add_signed(found.bblog_offset.into());
    let Some(at) = at.filter(|_| found.bblog_offset != 0) else {
        return Ok(bad_blocks_text(&name, None));
    };
    if !found.feature_map.contains(Features::BAD_BLOCKS) {
        return Ok(bad_blocks_text(&name, Some(&BadBlocks::default())));
    }
    let list = BadBlocks::parse(&device.read(at, LOG_BYTES)?, found.bblog_shift);
    let list = list.map_err(|error| Failure::Refused(format!("{name}: {error}")))?;
    Ok(bad_blocks_text(&name, Some(&list)))
}
