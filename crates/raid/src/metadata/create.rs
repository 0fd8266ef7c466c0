//! A new array: the bytes that are written to each member, as mdadm writes them.
//!
//! A member's superblock is written last, so a device whose creation was cut short is no member. An
//! array starts only when all superblocks are written, in the order of [`Plan::order`].

use super::Uuid;
use super::bitmap::{self, BitmapHeader};
use super::ppl::{self, PplHeader};
use super::room::{self, Log, PPL_SECTORS};
use super::superblock::{CLEAN, DevRole, Features, Minor, Superblock};
use crate::layout::{Layout, Level};

/// Entries of a new table of roles: they fill the superblock's first sector.
pub const ROLES: usize = 128;
/// mdadm's chunk where none is asked for, in sectors: 512 KiB.
pub const CHUNK_SECTORS_DEFAULT: u64 = 1024;
/// mdadm gives arrays with larger members a bitmap unasked: 100 GiB, in sectors.
const BITMAP_UNASKED_SECTORS: u64 = 100 << 21;

/// The method by which parity is corrected after a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// All parity is recomputed.
    Resync,
    /// Parity is recomputed where a bitmap marks it.
    Bitmap,
    /// Parity is computed from partial parity logs.
    Ppl,
}

/// The options of a new array.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The geometry.
    pub layout: Layout,
    /// Where superblocks stand.
    pub minor: Minor,
    /// Devices that wait for a member to fail.
    pub spare_devices: u32,
    /// `None`: a bitmap if the members are large.
    pub policy: Option<Policy>,
    /// Bytes of member space for a bit of the bitmap.
    pub bitmap_chunk: Option<u64>,
    /// Sectors to use of each member; `None`: as many as there are.
    pub size: Option<u64>,
    /// Sector where data starts.
    pub data_offset: Option<u64>,
    /// The array's name, with its host's before a colon if it has one.
    pub set_name: String,
    /// Of the array.
    pub set_uuid: Uuid,
    /// Now, in seconds since 1970.
    pub ctime: u64,
    /// Parity is right already, or need not be.
    pub assume_clean: bool,
    /// Start a complete RAID-4 or RAID-5 as dirty, instead of rebuilding its last member.
    pub force: bool,
}

/// A device for a new array.
#[derive(Clone, Debug)]
pub struct NewDevice {
    /// Its name in messages.
    pub name: String,
    /// Its size.
    pub sectors: u64,
    /// Sectors of its logical block.
    pub block_sectors: u64,
    /// A random one.
    pub uuid: Uuid,
}

/// Bytes to write to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Device sector.
    pub sector: u64,
    /// Whole sectors.
    pub bytes: Vec<u8>,
}

/// The metadata of a new member.
#[derive(Clone, Debug)]
pub struct NewMember {
    /// Its superblock.
    pub superblock: Superblock,
    /// Writes that have to be durable before the superblock is written.
    pub before: Vec<Write>,
    /// The superblock's bytes.
    pub last: Write,
}

/// A new array.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Sectors used on each member.
    pub used: u64,
    /// The method by which parity is corrected after a crash.
    pub policy: Policy,
    /// One for each device that was named, in that order; `None` where it is missing.
    pub members: Vec<Option<NewMember>>,
    /// The device that is rebuilt when the array starts.
    pub rebuilt: Option<usize>,
    /// True if parity counts as right.
    pub clean: bool,
    /// The largest device, and its sectors for data, if these exceed `used` by more than one
    /// percent.
    pub larger: Option<(usize, u64)>,
}

impl Plan {
    /// The devices in the order in which their superblocks must be written: spares first, because
    /// one of them may be rebuilt. So an incomplete array lacks a member that its superblocks have,
    /// and does not start by itself.
    pub fn order(&self) -> Vec<usize> {
        let there = |index: &usize| self.members[*index].is_some();
        let mut order: Vec<usize> = (0..self.members.len()).filter(there).collect();
        let is_member = |member: &NewMember| member.superblock.role() != DevRole::Spare;
        order.sort_by_key(|index| self.members[*index].as_ref().is_some_and(is_member));
        order
    }
}

/// mdadm's name of an array: the host's, a colon and the array's, if both fit into a superblock.
pub fn set_name(host: &str, name: &str) -> String {
    match host.len() + 1 + name.len() {
        _ if host.is_empty() || name.contains(':') => name.to_owned(),
        0..=31 => format!("{host}:{name}"),
        _ => name.to_owned(),
    }
}

/// Plans the array on these devices; `None` stands for a `missing` device. The first
/// `layout.disks()` devices are its members, the others are spares.
///
/// # Errors
/// The array cannot be made; the reason, one sentence.
pub fn plan(options: &CreateOptions, devices: &[Option<NewDevice>]) -> Result<Plan, String> {
    check_devices(options, devices)?;
    let (minor, chunk) = (options.minor, options.layout.chunk_sectors());
    let asked_ppl = options.policy == Some(Policy::Ppl);
    let first = devices.iter().flatten().next().ok_or("all devices are missing")?;
    let data_offset = match options.data_offset {
        Some(offset) => offset,
        None => room::data_offset(minor, first.sectors, chunk, asked_ppl),
    };
    check_data_offset(data_offset, devices)?;
    let (used, larger) = used_sectors(options, devices, data_offset)?;
    let policy = options.policy.unwrap_or(match used > BITMAP_UNASKED_SECTORS {
        true => Policy::Bitmap,
        false => Policy::Resync,
    });
    let bitmap = match policy {
        Policy::Bitmap => Some(new_bitmap(options, first.sectors, data_offset, used)?),
        _ => None,
    };
    let places = places(options, devices);
    let clean = options.assume_clean || places.vacant;
    let mut members = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let builder =
            Builder { options, data_offset, used, policy, bitmap: bitmap.as_ref(), clean };
        let roles = &places.roles;
        members.push(match device {
            Some(device) => Some(builder.member(device, places.numbers[index], roles)?),
            None => None,
        });
    }
    Ok(Plan { used, policy, members, rebuilt: places.rebuilt, clean, larger })
}

fn check_devices(options: &CreateOptions, devices: &[Option<NewDevice>]) -> Result<(), String> {
    let layout = &options.layout;
    let (disks, spares) = (layout.disks() as usize, options.spare_devices as usize);
    if devices.len() != disks + spares {
        return Err(format!(
            "{} devices are named, expected {disks} for the array and {spares} spare",
            devices.len()
        ));
    }
    if devices.len() > ROLES {
        return Err(format!("{} devices are named, expected up to {ROLES}", devices.len()));
    }
    // The device that is rebuilt has a number above all others.
    if devices.len() == ROLES && rebuilt(options, devices).is_some() {
        return Err(format!(
            "{ROLES} devices are named, of which the last member would be rebuilt, expected fewer: \
             with --force all of the array is resynced instead"
        ));
    }
    let missing = devices[..disks].iter().filter(|device| device.is_none()).count();
    let most = layout.level().parity_disks() as usize;
    if missing > most || devices[disks..].iter().any(Option::is_none) {
        return Err(format!(
            "{missing} members of a {} are missing, expected at most {most}, and no spare",
            layout.level()
        ));
    }
    if options.set_name.len() > 32 {
        return Err(format!(
            "the name {} has {} bytes, expected at most 32",
            options.set_name,
            options.set_name.len()
        ));
    }
    if options.set_name.contains(char::is_control) {
        return Err(format!(
            "the name {:?} has a control character, expected letters, digits and signs",
            options.set_name
        ));
    }
    check_policy(options)
}

fn check_policy(options: &CreateOptions) -> Result<(), String> {
    let layout = &options.layout;
    if options.minor == Minor::V1_0 && options.data_offset.unwrap_or(0) != 0 {
        return Err("metadata 1.0 has its data at the start: leave the data offset out".to_owned());
    }
    if options.bitmap_chunk.is_some() && options.policy != Some(Policy::Bitmap) {
        return Err("a bitmap chunk needs a bitmap".to_owned());
    }
    let ppl = options.policy == Some(Policy::Ppl);
    if ppl && (layout.level() != Level::Raid5 || layout.disks() > ppl::DISKS_MAX) {
        return Err(format!(
            "a PPL needs a raid5 of up to {} members, not a {} of {}",
            ppl::DISKS_MAX,
            layout.level(),
            layout.disks()
        ));
    }
    Ok(())
}

/// Checks that the data begins at a block of every device; then all areas before it fit too.
fn check_data_offset(data_offset: u64, devices: &[Option<NewDevice>]) -> Result<(), String> {
    let is_inside = |device: &&NewDevice| !data_offset.is_multiple_of(device.block_sectors);
    match devices.iter().flatten().find(is_inside) {
        None => Ok(()),
        Some(NewDevice { name, block_sectors, .. }) => Err(format!(
            "data at sector {data_offset} begins inside a block of {name}, which has {} bytes: the \
             data offset has to be a multiple of that",
            block_sectors * 512
        )),
    }
}

/// The sectors to use of each member, and the device that exceeds them by more than one percent.
fn used_sectors(
    options: &CreateOptions,
    devices: &[Option<NewDevice>],
    data_offset: u64,
) -> Result<(u64, Option<(usize, u64)>), String> {
    let ppl = options.policy == Some(Policy::Ppl);
    let chunk = options.layout.chunk_sectors();
    let available = |device: &NewDevice| {
        room::available(options.minor, device.sectors, data_offset, ppl) / chunk * chunk
    };
    let sizes = devices.iter().enumerate();
    let sizes: Vec<_> = sizes.filter_map(|(i, d)| Some((i, available(d.as_ref()?)))).collect();
    let (smallest, least) = *sizes.iter().min_by_key(|(_, size)| *size).ok_or("no devices")?;
    let smallest = devices[smallest].as_ref().map_or("", |device| &device.name);
    let used = match options.size {
        None => least,
        Some(size) => size / chunk * chunk,
    };
    if let (0, Some(size)) = (used, options.size) {
        return Err(format!(
            "{size} sectors are to be used of each device, expected at least a chunk of {chunk}"
        ));
    }
    if used == 0 {
        return Err(format!(
            "{smallest} is too small: it has {least} sectors for data behind the \
             metadata, in chunks of {chunk}"
        ));
    }
    if used > least {
        return Err(format!(
            "{used} sectors are to be used of each device, but {smallest} has {least}"
        ));
    }
    let largest = sizes.into_iter().max_by_key(|(_, size)| *size);
    Ok((used, largest.filter(|(_, size)| *size > used + used / 100)))
}

fn new_bitmap(
    options: &CreateOptions,
    device_sectors: u64,
    data_offset: u64,
    used: u64,
) -> Result<BitmapHeader, String> {
    let room = room::bitmap_room_at(options.minor, device_sectors, data_offset);
    let chunk = bitmap::choose_chunk(used, room, options.bitmap_chunk);
    let chunk = chunk.map_err(|error| error.to_string())?;
    Ok(BitmapHeader::new(options.set_uuid, used, chunk))
}

/// The roles of the devices of a new array.
struct Places {
    /// The table of roles.
    roles: Vec<u16>,
    /// The number of each device.
    numbers: Vec<u32>,
    /// The device that must be rebuilt.
    rebuilt: Option<usize>,
    /// True if a role has no device, so that no parity can be wrong.
    vacant: bool,
}

fn places(options: &CreateOptions, devices: &[Option<NewDevice>]) -> Places {
    let disks = options.layout.disks() as usize;
    let rebuilt = rebuilt(options, devices);
    let mut roles = vec![DevRole::Spare.number(); ROLES];
    let mut numbers = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        // The device that is rebuilt is a spare with a number above all others.
        let moved = rebuilt == Some(index);
        numbers.push(if moved { devices.len() as u32 } else { index as u32 });
        if index < disks && !moved && device.is_some() {
            roles[index] = index as u16;
        }
    }
    let vacant = rebuilt.is_some() || devices[..disks].iter().any(Option::is_none);
    Places { roles, numbers, rebuilt, vacant }
}

/// The device to rebuild. For a complete RAID-4 or RAID-5 this is the last member: a rebuild only
/// reads the others and writes one. A RAID-6 that lacks one member has its last device rebuilt too,
/// because Linux would have to resync it otherwise.
fn rebuilt(options: &CreateOptions, devices: &[Option<NewDevice>]) -> Option<usize> {
    if options.assume_clean || options.force {
        return None;
    }
    let members = &devices[..options.layout.disks() as usize];
    let missing = members.iter().filter(|device| device.is_none()).count();
    match (options.layout.level(), missing) {
        (Level::Raid4 | Level::Raid5, 0) | (Level::Raid6, 1) => {
            members.iter().rposition(Option::is_some)
        }
        _ => None,
    }
}

/// Makes the members of one array.
struct Builder<'a> {
    options: &'a CreateOptions,
    data_offset: u64,
    used: u64,
    policy: Policy,
    bitmap: Option<&'a BitmapHeader>,
    clean: bool,
}

impl Builder<'_> {
    fn member(&self, device: &NewDevice, number: u32, roles: &[u16]) -> Result<NewMember, String> {
        let log = match (self.policy, self.bitmap) {
            (Policy::Ppl, _) => Log::Ppl,
            (_, Some(header)) => Log::Bitmap(header.area_sectors()),
            _ => Log::None,
        };
        let minor = self.options.minor;
        let parts = room::parts(minor, device.sectors, self.data_offset, self.used, log)
            .map_err(|text| format!("{}: {text}", device.name))?;
        let superblock = self.superblock(device, number, roles, &parts);
        let log_at = parts.super_offset.checked_add_signed(parts.log_offset.into());
        let log_at = log_at.ok_or("the device is too small")?;
        let before = self.log().map(|bytes| Write { sector: log_at, bytes });
        let last = Write { sector: parts.super_offset, bytes: superblock.to_bytes() };
        Ok(NewMember { superblock, before: before.into_iter().collect(), last })
    }

    fn superblock(
        &self,
        device: &NewDevice,
        number: u32,
        roles: &[u16],
        parts: &room::Parts,
    ) -> Superblock {
        let CreateOptions { layout, set_uuid, ctime, .. } = self.options;
        let mut set_name = [0; 32];
        set_name[..self.options.set_name.len()].copy_from_slice(self.options.set_name.as_bytes());
        let (feature_map, bitmap_or_ppl) = self.features(parts.log_offset);
        Superblock {
            feature_map,
            set_uuid: *set_uuid,
            set_name,
            ctime: *ctime,
            level: layout.level().number(),
            layout: if layout.level() == Level::Raid4 { 0 } else { layout.number() },
            size: self.used,
            chunk_sectors: layout.chunk_sectors() as u32,
            raid_disks: layout.disks(),
            bitmap_or_ppl,
            new_level: 0,
            reshape_position: 0,
            delta_disks: 0,
            new_layout: 0,
            new_chunk: 0,
            new_offset: 0,
            data_offset: self.data_offset,
            data_size: parts.data_size,
            super_offset: parts.super_offset,
            recovery_offset: 0,
            dev_number: number,
            cnt_corrected_read: 0,
            device_uuid: device.uuid,
            devflags: 0,
            bblog_shift: 0,
            bblog_size: room::BAD_BLOCK_LOG_SECTORS as u16,
            bblog_offset: parts.bblog_offset,
            utime: *ctime,
            events: 0,
            resync_offset: if self.clean { CLEAN } else { 0 },
            checksum: 0,
            logical_block_size: 0,
            roles: roles.to_vec(),
        }
    }

    fn features(&self, log_offset: i32) -> (Features, [u8; 4]) {
        match self.policy {
            Policy::Resync => (Features::empty(), [0; 4]),
            Policy::Bitmap => (Features::BITMAP_OFFSET, log_offset.to_le_bytes()),
            Policy::Ppl => {
                let [a, b] = (log_offset as i16).to_le_bytes();
                let [c, d] = (PPL_SECTORS as u16).to_le_bytes();
                (Features::PPL, [a, b, c, d])
            }
        }
    }

    /// The first bytes of the bitmap, all bits set, or of the PPL, which is empty.
    fn log(&self) -> Option<Vec<u8>> {
        if self.policy == Policy::Ppl {
            return Some(PplHeader::empty(ppl::signature(self.options.set_uuid), 0).to_bytes());
        }
        let header = self.bitmap?;
        let mut bytes = header.to_bytes().to_vec();
        bytes.resize(header.area_sectors() as usize * 512, 0xFF);
        Some(bytes)
    }
}
