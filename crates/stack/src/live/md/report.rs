//! Reports on arrays: their status, in mdadm's words.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use drystone_core::SECTOR_SIZE;
use drystone_raid::array::{ArrayStatus, DiskState, DiskStatus, SyncStatus, action_name};
use drystone_raid::layout::{Level, layout_name};
use drystone_raid::metadata::superblock::{Superblock, level_name, seconds};
use drystone_raid::{Role, SyncAction};

use super::super::devices::State;
use crate::live::LiveDevice;
use crate::md::{ArrayReport, BitmapReport, MemberReport, SyncReport};

/// The report on `live`, if it is an array.
pub(super) fn report(state: &State, live: &LiveDevice) -> Option<ArrayReport> {
    let array = live.array.as_ref()?;
    let status = array.status();
    let own = &status.superblock;
    let report = ArrayReport {
        name: live.name.clone(),
        version: own.minor().name().to_owned(),
        creation_time: seconds(own.ctime),
        level: level_name(own.level),
        array_size: live.device.info().size_bytes,
        used_dev_size: status.used * SECTOR_SIZE,
        consistency_policy: policy(own).to_owned(),
        bitmap: status.bitmap.map(|bitmap| BitmapReport {
            pages_used: bitmap.pages_used as u64,
            pages: bitmap.pages as u64,
            chunk: bitmap.chunk_bytes,
        }),
        update_time: seconds(own.utime),
        state: state_line(&status),
        array_state: status.array_state().to_owned(),
        read_only: status.read_only,
        layout: layout(&status),
        algorithm: own.layout,
        chunk_size: status.layout.chunk_sectors() * SECTOR_SIZE,
        sync: status.sync.as_ref().map(sync),
        resync_pending: status.resync_pending,
        set_name: own.name(),
        uuid: own.set_uuid.to_string(),
        events: own.events,
        mismatch_cnt: status.mismatch_cnt,
        suspects: array.doubtful_ranges().map(|suspects| suspects.to_string()),
        left_out: array.left_out().to_vec(),
        notices: array.notices().to_vec(),
        devices: devices(state, &status),
        ..counts(&status)
    };
    Some(report)
}

/// The device counts, as the kernel computes them.
fn counts(status: &ArrayStatus) -> ArrayReport {
    let count = |is_one: fn(DiskState) -> bool| {
        status.disks.iter().filter(|disk| is_one(disk.state)).count() as u32
    };
    let (total, active) = (count(|_| true), count(|state| matches!(state, DiskState::InSync(_))));
    let failed = count(|state| matches!(state, DiskState::Faulty(_)));
    ArrayReport {
        raid_devices: status.layout.disks(),
        total_devices: total,
        active_devices: active,
        working_devices: total - failed,
        failed_devices: failed,
        spare_devices: total - failed - active,
        ..ArrayReport::default()
    }
}

fn policy(own: &Superblock) -> &'static str {
    match (own.ppl(), own.bitmap_offset()) {
        (Some(_), _) => "ppl",
        (None, Some(_)) => "bitmap",
        (None, None) => "resync",
    }
}

fn layout(status: &ArrayStatus) -> Option<String> {
    let (level, number) = (status.layout.level(), status.superblock.layout);
    let name =
        || layout_name(number).map_or_else(|| format!("-unknown- ({number})"), str::to_owned);
    (level != Level::Raid4).then(name)
}

/// mdadm's `State`.
fn state_line(status: &ArrayStatus) -> String {
    let lost = status.degraded() as u32;
    let whole = match lost {
        0 => "",
        lost if lost > status.layout.level().parity_disks() => ", FAILED",
        _ => ", degraded",
    };
    let doing = match status.sync.map(|sync| sync.action) {
        Some(SyncAction::Recover) => ", recovering",
        Some(SyncAction::Check) => ", checking",
        Some(SyncAction::Resync | SyncAction::Repair) => ", resyncing",
        None if status.resync_pending => ", resyncing (PENDING)",
        None => "",
    };
    format!("{}{whole}{doing}", status.array_state())
}

fn sync(sync: &SyncStatus) -> SyncReport {
    let report = SyncReport {
        action: action_name(sync.action).to_owned(),
        done: sync.done * SECTOR_SIZE,
        total: sync.total * SECTOR_SIZE,
        percent: 0,
        speed: sync.speed.saturating_mul(SECTOR_SIZE),
    };
    SyncReport { percent: report.per_mille() / 10, ..report }
}

/// In mdadm's order: by role, a replacement behind the member that it replaces; then those without
/// one.
fn devices(state: &State, status: &ArrayStatus) -> Vec<MemberReport> {
    let mut sorted: Vec<&DiskStatus> = status.disks.iter().collect();
    sorted.sort_by_key(|disk| (matches!(disk.state, DiskState::Replacement(_)), disk.number));
    let of_role = |role| sorted.iter().filter(move |disk| disk.state.role() == Some(role));
    let mut list = Vec::new();
    for role in (0..status.layout.disks()).map(Role) {
        if of_role(role).all(|disk| matches!(disk.state, DiskState::Replacement(_))) {
            let (raid_device, state) = (Some(role.0), "removed".to_owned());
            list.push(MemberReport { raid_device, state, ..MemberReport::default() });
        }
        list.extend(of_role(role).map(|disk| member(state, disk)));
    }
    let others = sorted.iter().filter(|disk| disk.state.role().is_none());
    list.extend(others.map(|disk| member(state, disk)));
    list
}

fn member(state: &State, disk: &DiskStatus) -> MemberReport {
    let word = match disk.state {
        DiskState::InSync(_) if disk.lacks_room => "active sync, no room: writes wait",
        DiskState::InSync(_) => "active sync",
        DiskState::Rebuilding(_) | DiskState::Replacement(_) => "spare rebuilding",
        DiskState::Spare => "spare",
        DiskState::Faulty(_) => "faulty",
    };
    let path = state.find(&disk.name).and_then(|live| live.device.attribute("path"));
    let (major, minor) = path.as_deref().map_or((0, 0), numbers);
    MemberReport {
        device: Some(disk.name.to_string()),
        path,
        number: Some(disk.number.0),
        major,
        minor,
        raid_device: disk.state.role().map(|role| role.0),
        state: word.to_owned(),
        replacement: matches!(disk.state, DiskState::Replacement(_)),
        bad_blocks: disk.has_bad_blocks,
    }
}

/// Major and minor number of a block device; 0 of anything else.
fn numbers(path: &str) -> (u64, u64) {
    match fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => split(found.rdev()),
        _ => (0, 0),
    }
}

/// As glibc's `gnu_dev_major` and `gnu_dev_minor`.
fn split(device: u64) -> (u64, u64) {
    let major = device >> 8 & 0xFFF | device >> 32 & 0xFFFF_F000;
    (major, device & 0xFF | device >> 12 & 0xFFFF_FF00)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_those_of_the_kernel() {
        // 254:16, 8:0 and one whose parts are large.
        assert_eq!(split(0xFE10), (254, 16));
        assert_eq!(split(0x800), (8, 0));
        assert_eq!(split(0x0000_1000_1230_0045), (0x1000, 0x12345));
    }
}
