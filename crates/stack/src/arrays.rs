//! The sizes that arrays will have, by the present contents of their members. Changes nothing.
//!
//! Sizes are known only for arrays on files and block devices, or on devices that each start makes.
//! The contents of other members are unknown until they are open.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

use drystone_raid::layout::{LAYOUT_DEFAULT, Layout};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::{Candidate, assemble};
use drystone_raid::metadata::create::{self, CHUNK_SECTORS_DEFAULT, CreateOptions, NewDevice};
use drystone_raid::metadata::superblock::{Minor, SUPERBLOCK_BYTES_MAX, probe};

use crate::spec::{DeviceKind, Member, RaidSpec, SECTOR_BYTES, StackSpec};

/// Bytes of the array `name`; `None` if its members make none, or are not known yet.
pub(crate) fn size(name: &str, raid: &RaidSpec, stack: &StackSpec) -> Option<u64> {
    let sectors = match raid.members.iter().all(|member| will_be_new(member, stack)) {
        true => new_sectors(name, raid, stack)?,
        false => found_sectors(raid, stack)?,
    };
    sectors.checked_mul(SECTOR_BYTES)
}

/// True if this start makes the member, so that it holds no earlier data.
fn will_be_new(member: &Member, stack: &StackSpec) -> bool {
    match stack.device(&member.device).map(|device| &device.kind) {
        Some(DeviceKind::File(file)) => {
            fs::metadata(&file.options.path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
        }
        Some(DeviceKind::Ram(_) | DeviceKind::Null(_)) => true,
        Some(DeviceKind::Volume(_) | DeviceKind::Raid(_)) | None => false,
    }
}

/// Sectors of the array that its members hold now.
fn found_sectors(raid: &RaidSpec, stack: &StackSpec) -> Option<u64> {
    let members = raid.members.iter().filter(|member| !stack.absent.contains(&member.device));
    let mut candidates = Vec::new();
    for member in members {
        let DeviceKind::File(file) = &stack.device(&member.device)?.kind else { return None };
        candidates.push(candidate(&member.device, open(&file.options.path).ok()?).ok()?);
    }
    let found = assemble(&candidates, raid.uuid).ok()?;
    found.layout.array_sectors(found.used())
}

/// Opens the file, unless it is a pipe: that open would wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(ErrorKind::InvalidInput.into());
    }
    File::open(path)
}

fn candidate(name: &str, mut file: File) -> io::Result<Candidate> {
    let sectors = file.seek(SeekFrom::End(0))? / SECTOR_BYTES;
    let read = |sector: u64, bytes: usize| -> io::Result<Vec<u8>> {
        let left = sectors.saturating_sub(sector).saturating_mul(SECTOR_BYTES);
        let mut out = vec![0; bytes.min(usize::try_from(left).unwrap_or(usize::MAX))];
        file.read_exact_at(&mut out, sector.saturating_mul(SECTOR_BYTES))?;
        Ok(out)
    };
    let found = probe(sectors, |sector| read(sector, SUPERBLOCK_BYTES_MAX))?;
    Ok(Candidate::look(name.to_owned(), sectors, found, read))
}

/// Sectors of the array that the start will make.
fn new_sectors(name: &str, raid: &RaidSpec, stack: &StackSpec) -> Option<u64> {
    let device = |name: &String| {
        let sectors = stack.sizes.get(name)? / SECTOR_BYTES;
        let (name, uuid) = (name.clone(), Uuid([0; 16]));
        // Where data begins when a start makes an array fits blocks of every size.
        Some(Some(NewDevice { name, sectors, block_sectors: 1, uuid }))
    };
    let devices = raid.members.iter().map(|member| device(&member.device));
    let devices: Vec<_> = devices.collect::<Option<_>>()?;
    let options = new_array(name, raid, Uuid([0; 16]), 0).ok()?;
    let plan = create::plan(&options, &devices).ok()?;
    options.layout.array_sectors(plan.used)
}

/// The array that a start makes of members that are all new.
///
/// # Errors
/// The members do not allow such an array.
pub(crate) fn new_array(
    name: &str,
    raid: &RaidSpec,
    uuid: Uuid,
    ctime: u64,
) -> Result<CreateOptions, String> {
    let disks = raid.raid_devices.unwrap_or(raid.members.len() as u32);
    let chunk = raid.chunk_sectors.unwrap_or(CHUNK_SECTORS_DEFAULT);
    Ok(CreateOptions {
        layout: Layout::new(raid.level, raid.layout.unwrap_or(LAYOUT_DEFAULT), disks, chunk)?,
        minor: Minor::V1_2,
        spare_devices: (raid.members.len() as u32).saturating_sub(disks),
        policy: raid.policy,
        bitmap_chunk: None,
        size: None,
        data_offset: None,
        set_name: create::set_name("", name),
        set_uuid: raid.uuid.unwrap_or(uuid),
        ctime,
        // A member that was just made reads as zeroes, whose parity is zero.
        assume_clean: true,
        force: false,
    })
}
