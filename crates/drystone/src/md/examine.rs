//! `drystone md examine`.

use std::path::PathBuf;

use clap::Args;
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::bad_blocks::{self, BadBlocks};
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use drystone_raid::metadata::examine::{bad_blocks_text, bitmap_text, superblock_text};
use drystone_raid::metadata::foreign::Contents;
use drystone_raid::metadata::places::Places;
use drystone_raid::metadata::superblock::{SUPERBLOCK_BYTES_MAX, Superblock};
use drystone_stack::one_line;
use serde_json::{Value, json};

use super::examine_json::{bad_blocks_json, bitmap_json, superblock_json};
use super::member::Device;
use crate::failure::Failure;
use crate::output;

/// Most bytes of bits that are counted: bitmaps are far smaller, and what says otherwise is
/// damaged.
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
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// `drystone md examine`: all that can be shown is; the first device of which nothing can is the
/// failure.
pub fn run(args: &ExamineArgs) -> Result<(), Failure> {
    let mut failure = None;
    let mut devices = Vec::new();
    for path in &args.paths {
        let found = Device::for_reading(path).and_then(|device| Found::read(&device, args));
        match found.and_then(|found| if args.json { found.json() } else { found.text() }) {
            Ok(Shown::Json(value)) => devices.push(value),
            Ok(Shown::Text(text)) => {
                output::print(&text)?;
            }
            Err(error) if failure.is_none() => failure = Some(error),
            Err(error) => output::fail(&error),
        }
    }
    if args.json {
        output::print_json(&json!({ "devices": devices }))?;
    }
    failure.map_or(Ok(()), Err)
}

/// The way a device is shown.
enum Shown {
    Text(String),
    Json(Value),
}

/// The information that is asked for of a device.
struct Found {
    name: String,
    sectors: u64,
    what: What,
}

enum What {
    /// The superblock, its bytes, and its bitmap's header.
    Superblock(Box<Superblock>, Vec<u8>, Option<BitmapHeader>),
    /// Header and bits.
    Bitmap(Vec<u8>),
    /// `None`: the device has no list.
    BadBlocks(Option<BadBlocks>),
}

impl Found {
    fn read(device: &Device, args: &ExamineArgs) -> Result<Self, Failure> {
        let name = one_line(&device.path.display().to_string()).into_owned();
        let (bytes, found) = superblock(device)?;
        let what = if args.badblocks {
            What::BadBlocks(bad_blocks_of(device, &found)?)
        } else {
            let area = bitmap_area(device, &found)?;
            match (args.bitmap, area) {
                (true, Some(area)) => What::Bitmap(area),
                (true, None) => {
                    return Err(Failure::Refused(format!(
                        "{name}: the array has no internal bitmap"
                    )));
                }
                (false, area) => {
                    let header = area.and_then(|area| BitmapHeader::parse(&area).ok());
                    What::Superblock(Box::new(found), bytes, header)
                }
            }
        };
        Ok(Found { name, sectors: device.sectors, what })
    }

    fn refused(&self) -> impl Fn(MetadataError) -> Failure + use<> {
        let name = self.name.clone();
        move |error| Failure::Refused(format!("{name}: {error}"))
    }

    fn text(&self) -> Result<Shown, Failure> {
        let text = match &self.what {
            What::Superblock(_, bytes, header) => {
                superblock_text(&self.name, bytes, self.sectors, header.as_ref())
            }
            What::Bitmap(area) => bitmap_text(&self.name, area),
            What::BadBlocks(list) => Ok(bad_blocks_text(&self.name, list.as_ref())),
        };
        text.map(Shown::Text).map_err(self.refused())
    }

    fn json(&self) -> Result<Shown, Failure> {
        let mut value = match &self.what {
            What::Superblock(found, bytes, _) => superblock_json(found, bytes),
            What::Bitmap(area) => bitmap_json(area).map_err(self.refused())?,
            What::BadBlocks(list) => bad_blocks_json(list.as_ref()),
        };
        value["path"] = json!(self.name);
        Ok(Shown::Json(value))
    }
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
            output::warning(&format!("{name}: {error}"));
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
    if let Some(why) = device.whole_disk()? {
        text += &format!(": {why}");
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

/// The bad blocks; `None` if the device has no list of them. A list that lies where something else
/// does is not shown: what is there is not known to be a list.
fn bad_blocks_of(device: &Device, found: &Superblock) -> Result<Option<BadBlocks>, Failure> {
    if found.bblog_offset == 0 {
        return Ok(None);
    }
    let name = one_line(&device.path.display().to_string()).into_owned();
    let refused = |error| Failure::Refused(format!("{name}: {error}"));
    let area = bitmap_area(device, found)?;
    let header = area.and_then(|area| BitmapHeader::parse(&area).ok());
    let places = Places::of(found, device.sectors, header.as_ref()).map_err(refused)?;
    if let Some(why) = places.unused() {
        output::warning(&format!("{name}: {why}"));
    }
    let read = |sector, bytes| device.read(sector, bytes).map_err(|failure| failure.sentence());
    bad_blocks::read(found, &places, device.sectors, read).map(Some).map_err(refused)
}
