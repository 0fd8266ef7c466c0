//! What the control protocol needs of a live stack, and the plain data it hands out.

use std::collections::BTreeMap;

use drystone_core::sync::{ClassStats, LockRegistry, LockStats, LockTimes};
use serde::{Deserialize, Serialize};

use crate::attributes::{Attribute, Setting};

/// A live stack, as the control protocol sees it.
///
/// One caller at a time; no method may wait for I/O of clients to complete. The caller owns what
/// is returned.
pub trait Runtime: Send {
    /// All devices, in the order of the stack file.
    fn devices(&self) -> Vec<DeviceSummary>;

    /// One device with the values of all its attributes, written as sysfs writes them; `None` if
    /// there is no device of that name.
    fn device(&self, name: &str) -> Option<DeviceDetail>;

    /// Sets an attribute that is read-write and whose value is within its type's range.
    ///
    /// # Errors
    /// See [`SetError`]; then nothing has changed.
    fn set(
        &mut self,
        device: &str,
        attribute: &'static Attribute,
        value: &Setting,
    ) -> Result<(), SetError>;

    /// The counters of all devices, in the order of [`Runtime::devices`].
    fn diskstats(&self) -> Vec<DiskStats>;

    /// All exports, in the order of the stack file.
    fn exports(&self) -> Vec<ExportSummary>;

    /// Nanoseconds since the stack started, on the clock of the counters' times.
    fn uptime_ns(&self) -> u64;

    /// Where the locks of all contexts, devices and front ends are counted.
    fn locks(&self) -> &LockRegistry;
}

/// Why an attribute was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// There is no such device (any more).
    #[error("there is no such device")]
    NoSuchDevice,
    /// This device takes only these values, fewer than the attribute's type.
    #[error("is out of range; permitted: {permitted}")]
    OutOfRange {
        /// What is permitted: "4 to 64".
        permitted: String,
    },
    /// This device does not have the attribute, or cannot change it.
    #[error("cannot be set: {reason}")]
    Unsupported {
        /// Why.
        reason: String,
    },
    /// The change was tried and failed.
    #[error("failed: {reason}")]
    Failed {
        /// Why.
        reason: String,
    },
}

/// A device in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Its name.
    pub name: String,
    /// Its kind: `file`, `ram`, `null`.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Bios in flight now.
    pub in_flight: u64,
}

/// Everything about one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceDetail {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// What it is made of (a path, a table), for people.
    pub description: String,
    /// The devices it stands on.
    pub members: Vec<String>,
    /// The exports that serve it.
    pub exports: Vec<String>,
    /// Values by attribute name, written as sysfs writes them.
    pub attributes: BTreeMap<String, String>,
}

/// An export in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportSummary {
    /// Its name.
    pub name: String,
    /// The device it serves.
    pub device: String,
    /// Where clients reach it.
    pub uris: Vec<String>,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Connections now.
    pub connections: u64,
}

/// The 17 numbers of `/proc/diskstats` for one device, in its order. Times are milliseconds,
/// sectors 512 bytes.
///
/// Source: `Documentation/admin-guide/iostats.rst`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskStats {
    /// The device's name.
    pub device: String,
    /// Reads completed.
    pub reads: u64,
    /// Reads merged.
    pub reads_merged: u64,
    /// Sectors read.
    pub sectors_read: u64,
    /// Time of reads.
    pub read_ms: u64,
    /// Writes completed.
    pub writes: u64,
    /// Writes merged.
    pub writes_merged: u64,
    /// Sectors written.
    pub sectors_written: u64,
    /// Time of writes.
    pub write_ms: u64,
    /// Requests in flight now; the only number that goes down.
    pub in_flight: u64,
    /// Time with anything in flight.
    pub busy_ms: u64,
    /// Sum of the times of all requests.
    pub weighted_ms: u64,
    /// Discards completed.
    pub discards: u64,
    /// Discards merged.
    pub discards_merged: u64,
    /// Sectors discarded.
    pub sectors_discarded: u64,
    /// Time of discards.
    pub discard_ms: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Time of flushes.
    pub flush_ms: u64,
}

impl DiskStats {
    /// The numbers in the order of `/proc/diskstats`.
    pub fn numbers(&self) -> [u64; 17] {
        [
            self.reads,
            self.reads_merged,
            self.sectors_read,
            self.read_ms,
            self.writes,
            self.writes_merged,
            self.sectors_written,
            self.write_ms,
            self.in_flight,
            self.busy_ms,
            self.weighted_ms,
            self.discards,
            self.discards_merged,
            self.sectors_discarded,
            self.discard_ms,
            self.flushes,
            self.flush_ms,
        ]
    }

    /// The `stat` attribute: the numbers, each padded to 8 characters.
    pub fn stat_line(&self) -> String {
        let padded: Vec<String> =
            self.numbers().iter().map(|number| format!("{number:>8}")).collect();
        padded.join(" ")
    }
}

/// The counters of all devices at one moment, as `iostat` needs them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Nanoseconds since the stack started.
    pub uptime_ns: u64,
    /// The counters.
    pub devices: Vec<DiskStats>,
}

/// The answer of `lockstat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockReport {
    /// Hold times are measured from now on.
    pub hold: bool,
    /// The classes that were used, in the order of [`drystone_core::sync::LockClass::ALL`].
    pub classes: Vec<LockLine>,
}

impl LockReport {
    /// The report of `stats`.
    pub fn new(hold: bool, stats: &LockStats) -> Self {
        let classes = stats.used().map(|(class, stats)| LockLine::new(class.name(), stats));
        LockReport { hold, classes: classes.collect() }
    }
}

/// The figures of a class of locks, in the columns of Linux's `/proc/lock_stat`. Times are whole
/// nanoseconds. Wait times are 0 where nobody waited; hold times are `None` where none was measured.
/// Shortest and longest are `None` also where the only time ended during a reset.
///
/// Source: `Documentation/locking/lockstat.rst`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLine {
    /// The class's name.
    pub class: String,
    /// Times a lock was not free.
    pub contentions: u64,
    /// How many of these waited; the others gave up.
    pub waits: u64,
    /// Shortest wait.
    pub waittime_min_ns: Option<u64>,
    /// Longest wait.
    pub waittime_max_ns: Option<u64>,
    /// Sum of all waits.
    pub waittime_total_ns: u64,
    /// Average of the waits.
    pub waittime_avg_ns: u64,
    /// Times a lock was taken.
    pub acquisitions: u64,
    /// Times it was held that were measured; see [`ClassStats::holds`].
    pub holds: u64,
    /// Shortest hold.
    pub holdtime_min_ns: Option<u64>,
    /// Longest hold.
    pub holdtime_max_ns: Option<u64>,
    /// Sum of all timed holds.
    pub holdtime_total_ns: Option<u64>,
    /// Average of the timed holds.
    pub holdtime_avg_ns: Option<u64>,
}

impl LockLine {
    fn new(class: &str, stats: &ClassStats) -> Self {
        let (waits, holds) = (&stats.waits, &stats.holds);
        let idle = (waits.count == 0).then_some(0);
        LockLine {
            class: class.to_owned(),
            contentions: stats.contentions,
            waits: waits.count,
            waittime_min_ns: waits.min_ns.or(idle),
            waittime_max_ns: waits.max_ns.or(idle),
            waittime_total_ns: waits.total_ns,
            waittime_avg_ns: waits.avg_ns().unwrap_or(0),
            acquisitions: stats.acquisitions,
            holds: holds.count,
            holdtime_min_ns: holds.min_ns,
            holdtime_max_ns: holds.max_ns,
            holdtime_total_ns: (holds.count > 0).then_some(holds.total_ns),
            holdtime_avg_ns: holds.avg_ns(),
        }
    }

    /// The figures as the library has them, for [`drystone_core::sync::lock_table`].
    pub fn stats(&self) -> ClassStats {
        ClassStats {
            contentions: self.contentions,
            waits: LockTimes {
                count: self.waits,
                total_ns: self.waittime_total_ns,
                min_ns: self.waittime_min_ns,
                max_ns: self.waittime_max_ns,
            },
            wait_cpu_ns: 0,
            acquisitions: self.acquisitions,
            holds: LockTimes {
                count: self.holds,
                total_ns: self.holdtime_total_ns.unwrap_or(0),
                min_ns: self.holdtime_min_ns,
                max_ns: self.holdtime_max_ns,
            },
        }
    }
}
