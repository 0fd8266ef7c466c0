//! The interface of the control protocol to a live stack, and the plain data that it returns.

use std::collections::BTreeMap;

use drystone_core::clock::Ns;
use drystone_core::context::PollSwitch;
use drystone_core::sync::{ClassStats, LockRegistry, LockStats, LockTimes};
use serde::{Deserialize, Serialize};

use crate::attributes::{ATTRIBUTES, Attribute, Setting};
use crate::iomax::{IoMax, MaxLine, StatLine};
use crate::md::{ArrayChange, ArrayReport};

/// A live stack, as the control protocol sees it.
///
/// Any thread may call it, several at a time. Only [`Runtime::change`], [`Runtime::manage`],
/// [`Runtime::reopen`], and the setting of an attribute that an array's manager handles, wait for
/// I/O. The caller owns the returned values.
pub trait Runtime: Send + Sync {
    /// All devices, in the order of the stack file.
    fn devices(&self) -> Vec<DeviceSummary>;

    /// One device with the values of all its attributes, written as sysfs writes them; `None` if
    /// there is no device of that name.
    fn device(&self, name: &str) -> Option<DeviceDetail>;

    /// The size in bytes of the device in the stack file, which it has again after the next start;
    /// `None` if the file gives none, or without such a device.
    fn configured_size(&self, device: &str) -> Option<u64>;

    /// Sets an attribute that is read-write and whose value is within its type's range.
    ///
    /// # Errors
    /// See [`SetError`]; then nothing has changed.
    fn set(
        &self,
        device: &str,
        attribute: &'static Attribute,
        value: &Setting,
    ) -> Result<(), SetError>;

    /// Opens the path of a file device again, and uses that file from now on: a failed flush and a
    /// file that was cut short are forgotten. `replaced`: also if another file is there now. Waits
    /// on the caller's thread for the file system, and for a while until I/O on the previous file
    /// has ended. Returns whether that I/O has ended.
    ///
    /// # Errors
    /// See [`ChangeError`]; then nothing has changed.
    fn reopen(&self, device: &str, replaced: bool) -> Result<bool, ChangeError>;

    /// The volume of that name; `None` if no device has the name, or the device is no volume.
    fn volume(&self, name: &str) -> Option<VolumeReport>;

    /// All volumes, in the order of [`Runtime::devices`].
    fn volumes(&self) -> Vec<VolumeReport>;

    /// Makes a change to the volume `name`. One that suspends it waits until its I/O has drained,
    /// on the caller's thread, at most for as long as the change says.
    ///
    /// # Errors
    /// See [`ChangeError`]; then nothing has changed.
    fn change(&self, name: &str, change: &Change<'_>) -> Result<(), ChangeError>;

    /// A report of the array of that name, or of all, in the order of [`Runtime::devices`].
    ///
    /// # Errors
    /// There is no such device, or it is no array.
    fn arrays(&self, name: Option<&str>) -> Result<Vec<ArrayReport>, ChangeError>;

    /// Makes a change to the array `name`, or starts it. Waits on the caller's thread until the
    /// change is done, at most [`crate::control::MANAGER_PATIENCE_NS`] for each device. Returns the
    /// names of the devices concerned.
    ///
    /// # Errors
    /// See [`ChangeError`]; then nothing has changed, unless it took too long.
    fn manage(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>, ChangeError>;

    /// The throttle groups, the root (an empty path) first, each before those below it.
    fn groups(&self) -> Vec<GroupSummary>;

    /// Makes a group with that path, whose syntax was checked.
    ///
    /// # Errors
    /// There is such a group, or none above it.
    fn create_group(&self, path: &str) -> Result<(), ChangeError>;

    /// Removes a group.
    ///
    /// # Errors
    /// There is none, or an export, a client or a group below uses it.
    fn remove_group(&self, path: &str) -> Result<(), ChangeError>;

    /// Changes the limits of a group on a device. Returns the new limits.
    ///
    /// # Errors
    /// There is no such group or device; then nothing has changed.
    fn set_group(&self, path: &str, line: &IoMax) -> Result<MaxLine, ChangeError>;

    /// The sums of the I/O of a group, or of each, since the last reset; then resets them if asked
    /// to. The root has the counters of the devices, which are never reset.
    ///
    /// # Errors
    /// There is no such group, or the root must be reset.
    fn group_stats(&self, path: Option<&str>, reset: bool) -> Result<Vec<GroupStat>, ChangeError>;

    /// The counters of all devices, in the order of [`Runtime::devices`].
    fn diskstats(&self) -> Vec<DiskStats>;

    /// All exports, in the order of the stack file.
    fn exports(&self) -> Vec<ExportSummary>;

    /// Nanoseconds since the stack started, on the clock of the counters' times.
    fn uptime_ns(&self) -> u64;

    /// The registry that counts the locks of all contexts, devices and front ends.
    fn locks(&self) -> &LockRegistry;

    /// The poll mode of data threads.
    fn poll_switch(&self) -> &PollSwitch;
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
        /// The permitted values: "4 to 64".
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

/// A change of a volume, as dmsetup(8) has them. Tables are texts in its syntax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// Make a volume of that name.
    Create {
        /// Its live table; without one every I/O fails.
        table: Option<&'a str>,
        /// Refuse writes.
        read_only: bool,
        /// Take the table although others use the same sectors.
        force: bool,
    },
    /// Put a table into the inactive slot.
    Reload {
        /// The table.
        table: &'a str,
        /// Take the table although others use the same sectors.
        force: bool,
        /// Then resume with it, and wait for at most so many nanoseconds until the volume is quiet.
        /// If that takes longer, the table stays in its slot.
        resume_within: Option<Ns>,
    },
    /// Empty the inactive slot.
    Clear,
    /// Hold new I/O from now on.
    Suspend {
        /// Wait for at most so many nanoseconds until all I/O before it has ended; `None`: do not
        /// wait.
        within: Option<Ns>,
    },
    /// Let I/O go on. If there is an inactive table, suspend and make it the live one first.
    Resume {
        /// Wait for at most so many nanoseconds until the volume is quiet.
        within: Ns,
    },
    /// Send a message to a target.
    Message {
        /// A sector of the target.
        sector: u64,
        /// The words.
        text: &'a str,
    },
    /// Remove a volume that nothing uses.
    Remove,
}

/// Why a volume, an array or a group was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChangeError {
    /// The kind of reason.
    pub refused: Refused,
    /// One sentence.
    pub message: String,
}

/// A kind of reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no such device.
    NotFound,
    /// The name is not valid.
    BadName,
    /// There is a device of that name.
    Exists,
    /// The table is invalid, or does not fit the devices.
    BadTable,
    /// An export or a table uses it, or it holds something.
    InUse,
    /// Another command is changing it.
    Busy,
    /// The device does not support the change.
    Unsupported,
    /// Its I/O did not drain in time.
    TimedOut,
    /// Anything else.
    Failed,
}

impl Refused {
    /// The code in answers, one of [`crate::control::CODES`].
    pub fn code(self) -> &'static str {
        match self {
            Refused::NotFound => "not-found",
            Refused::BadName => "bad-request",
            Refused::Exists => "exists",
            Refused::BadTable => "bad-table",
            Refused::InUse => "in-use",
            Refused::Busy => "busy",
            Refused::Unsupported => "unsupported",
            Refused::TimedOut => "timed-out",
            Refused::Failed => "failed",
        }
    }
}

/// A volume as `table`, `status` and `info` show it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeReport {
    /// Its name.
    pub name: String,
    /// True if new I/O is held.
    pub suspended: bool,
    /// True if writes are refused.
    pub read_only: bool,
    /// Exports and tables that use it.
    pub open_count: u64,
    /// The live table.
    pub live: Option<TableReport>,
    /// The inactive table.
    pub inactive: Option<TableReport>,
}

/// A table as `table` and `status` show it, each line with a line end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableReport {
    /// Its lines, devices by name.
    pub text: String,
    /// The state of each line's target.
    pub status: String,
}

/// A throttle group in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSummary {
    /// Its path, empty for the root.
    pub path: String,
    /// Clients whose I/O belongs to it.
    pub members: u64,
    /// Its limits, on the devices where it has any.
    pub io_max: Vec<MaxLine>,
}

/// The sums of the I/O of a group and of those below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStat {
    /// Its path, empty for the root.
    pub path: String,
    /// A line for each device where there was any.
    pub io_stat: Vec<StatLine>,
}

/// A device in a listing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Its name.
    pub name: String,
    /// Its kind: `file`, `ram`, `null`; of a volume its target, or `table` if there are several.
    pub kind: String,
    /// Size in bytes.
    pub size: u64,
    /// True if writes are refused.
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
    /// Its origin (a path, a table), for people.
    pub description: String,
    /// The devices it stands on.
    pub members: Vec<String>,
    /// The exports that serve it.
    pub exports: Vec<String>,
    /// Values by attribute name, written as sysfs writes them.
    pub attributes: BTreeMap<String, String>,
}

impl DeviceDetail {
    /// `rw` for each attribute that this device takes, `ro` for those that `set` refuses, by name.
    pub fn modes(&self) -> BTreeMap<&'static str, &'static str> {
        let names = || self.attributes.keys().map(String::as_str);
        let is_read_only = self.attributes.get("ro").is_some_and(|value| value.trim() == "1");
        let shown = ATTRIBUTES.iter().filter(|one| self.attributes.contains_key(one.name));
        shown
            .map(|one| (one.name, one.mode_of((&self.kind, is_read_only), names()).name()))
            .collect()
    }
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
    /// True if writes are refused.
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
    /// True if hold times are measured from now on.
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
/// nanoseconds. Wait times are 0 where nobody waited; hold times are `None` where none was
/// measured. Shortest and longest are `None` also where the only time ended during a reset.
///
/// Source: `Documentation/locking/lockstat.rst`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockLine {
    /// The class's name.
    pub class: String,
    /// The number of times that a lock was not free.
    pub contentions: u64,
    /// The number of these that waited; the others gave up.
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
    /// The number of measured holds; see [`ClassStats::holds`].
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
