//! The output of `drystone md examine --json`: the keys of `md detail --json` where they mean the
//! same, sizes in bytes, places in sectors of the device, times in seconds since 1970.

use drystone_raid::layout::{Level, layout_name};
use drystone_raid::metadata::MetadataError;
use drystone_raid::metadata::bad_blocks::BadBlocks;
use drystone_raid::metadata::bitmap::{BitmapHeader, STATE_STALE};
use drystone_raid::metadata::examine::dirty;
use drystone_raid::metadata::superblock::{
    DevRole, Features, ROLES_MAX, Superblock, checksum, level_name, seconds,
};
use serde_json::{Value, json};

const SECTOR_BYTES: u64 = 512;

/// A superblock, whose checksum may be wrong: `bytes` are its own.
pub fn superblock_json(found: &Superblock, bytes: &[u8]) -> Value {
    let level = Level::from_number(found.level);
    let data = found.raid_disks.saturating_sub(level.map_or(0, Level::parity_disks));
    let has_layout = matches!(level, Some(Level::Raid5 | Level::Raid6));
    let bytes_of = |sectors: u64| sectors.saturating_mul(SECTOR_BYTES);
    let ppl = found.ppl();
    let has = |feature| found.feature_map.contains(feature);
    let rebuilt = has(Features::RECOVERY_OFFSET).then_some(found.recovery_offset);
    json!({
        "version": found.minor().name(),
        "feature_map": found.feature_map.bits(),
        "uuid": found.set_uuid.to_string(),
        "set_name": found.name(),
        "creation_time": seconds(found.ctime),
        "level": level_name(found.level),
        "raid_devices": found.raid_disks,
        "array_size": bytes_of(found.size.saturating_mul(data.into())),
        "used_dev_size": bytes_of(found.size),
        "avail_dev_size": bytes_of(found.data_size),
        "data_offset": found.data_offset,
        "super_offset": found.super_offset,
        "recovery_offset": rebuilt,
        "reshape_position": has(Features::RESHAPE_ACTIVE).then_some(found.reshape_position),
        "state": if found.is_clean() { "clean" } else { "active" },
        "device_uuid": found.device_uuid.to_string(),
        "bitmap_offset": found.bitmap_offset(),
        "ppl": ppl.map(|area| json!({ "offset": area.offset, "sectors": area.sectors })),
        "update_time": seconds(found.utime),
        "bad_blocks_offset": (found.bblog_offset != 0).then_some(found.bblog_offset),
        "has_bad_blocks": has(Features::BAD_BLOCKS),
        "checksum_correct": found.checksum == checksum(bytes),
        "events": found.events,
        "layout": layout_name(found.layout).filter(|_| has_layout),
        "chunk_size": bytes_of(found.chunk_sectors.into()),
        "device_role": role(found),
        "role_devices": states(found),
    })
}

fn role(found: &Superblock) -> Value {
    let is_replacement = found.feature_map.contains(Features::REPLACEMENT);
    match found.role() {
        DevRole::Active(role) => {
            json!({ "kind": "active", "role": role, "replacement": is_replacement })
        }
        DevRole::Journal => json!({ "kind": "journal" }),
        DevRole::Spare | DevRole::Faulty => json!({ "kind": "spare" }),
    }
}

/// The number of devices that each role has, as this superblock knows it.
fn states(found: &Superblock) -> Vec<usize> {
    let disks = found.raid_disks.min(ROLES_MAX as u32);
    let count = |role| found.roles.iter().filter(|own| u32::from(**own) == role).count();
    (0..disks).map(count).collect()
}

/// A bitmap: `bytes` begin with its header, and hold all bits.
///
/// # Errors
/// There is no bitmap, or none that can be shown.
pub fn bitmap_json(bytes: &[u8]) -> Result<Value, MetadataError> {
    let header = BitmapHeader::parse(bytes)?;
    Ok(json!({
        "version": header.version,
        "uuid": header.uuid.to_string(),
        "events": header.events,
        "events_cleared": header.events_cleared,
        "stale": header.state & STATE_STALE != 0,
        "chunk": header.chunk_bytes,
        "daemon_sleep": header.daemon_sleep,
        "write_behind": header.write_behind,
        "sync_size": header.sync_size.saturating_mul(SECTOR_BYTES),
        "bits": header.bits(),
        "dirty": dirty(&header, bytes),
    }))
}

/// A list of bad blocks: sectors of the device's data; null where the device has no list.
pub fn bad_blocks_json(list: Option<&BadBlocks>) -> Value {
    let range = |(sector, sectors): (u64, u64)| json!({ "sector": sector, "sectors": sectors });
    json!({
        "bad_blocks": list.map(|list| {
            list.iter().map(|(sector, sectors)| range((sector, sectors))).collect::<Vec<_>>()
        }),
    })
}
