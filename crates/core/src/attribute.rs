//! The attributes that every device has, named and spelled as in sysfs (`ABI/stable/sysfs-block`).

use crate::device::DeviceInfo;
use crate::error::{Error, Result};
use crate::stats::DiskStats;

/// The value of an attribute that follows from what a device is and has counted; `stats` is called
/// for those that need it.
pub fn of_device(name: &str, info: &DeviceInfo, stats: impl Fn() -> DiskStats) -> Option<String> {
    let l = &info.limits;
    let number = |n: u64| Some(n.to_string());
    let flag = |b: bool| Some(u8::from(b).to_string());
    match name {
        "size" => number(info.size_bytes >> 9),
        "ro" => flag(l.read_only),
        "stat" => Some(stats().fields().map(|n| format!("{n:>8}")).join(" ")),
        "inflight" => {
            let (reads, writes) = stats().in_flight();
            Some(format!("{reads:>8} {writes:>8}"))
        }
        "queue/max_sectors_kb" => number(u64::from(l.max_bytes) >> 10),
        "queue/logical_block_size" | "queue/hw_sector_size" => number(l.logical_block_size.into()),
        "queue/physical_block_size" => number(l.physical_block_size.into()),
        "queue/minimum_io_size" => number(l.io_min.into()),
        "queue/optimal_io_size" => number(l.io_opt.into()),
        "queue/discard_granularity" => number(l.discard_granularity.into()),
        "queue/discard_max_bytes" => number(l.max_discard_bytes),
        "queue/write_zeroes_max_bytes" => number(l.max_write_zeroes_bytes),
        "queue/max_segments" => number(l.max_segments.into()),
        "queue/chunk_sectors" => number(l.chunk_bytes >> 9),
        "queue/write_cache" => {
            Some(if l.write_cache { "write back" } else { "write through" }.to_owned())
        }
        "queue/fua" => flag(l.fua),
        "queue/rotational" => flag(l.rotational),
        _ => None,
    }
}

/// The refusal to set attribute `name` of the device `device`, which is known if the device shows
/// it.
pub fn not_settable(name: &str, device: &str, is_known: bool) -> Error {
    Error::invalid(match is_known {
        true => format!("{name} of {device} cannot be changed"),
        false => format!("{name} is not an attribute of {device}"),
    })
}

/// The value of attribute `name` as a number from `low` to `high`.
///
/// # Errors
/// One sentence with the permitted range.
pub fn parse_in(name: &str, value: &str, low: u64, high: u64) -> Result<u64> {
    match value.trim().parse::<u64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(Error::invalid(format!(
            "{name}: '{value}' is not permitted: a whole number from {low} to {high} is"
        ))),
    }
}
