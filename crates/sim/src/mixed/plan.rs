//! The plan of one seed: its disks, its stack, and how they are used.

use super::nbd::NbdPlan;
use super::redundancy::Redundancy;
use crate::disk::DiskOptions;
use crate::schedule::Policy;
use fastrand::Rng;
use std::fmt::Write;

/// The way in which a device or volume treats data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// It keeps data.
    Keeps,
    /// It keeps data until its process ends.
    Forgets,
    /// Its disk claims that volatile data is durable.
    Lies,
    /// It may acknowledge writes without doing them.
    Drops,
    /// It reads as zeroes, whatever is written.
    Zero,
    /// All I/O fails.
    Error,
}

impl DeviceKind {
    /// True if reads depend on earlier writes; the oracle does not know other devices.
    pub(super) fn holds_data(self) -> bool {
        !matches!(self, DeviceKind::Zero | DeviceKind::Error)
    }
}

/// A device, or a part of one, that the load uses.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device's name.
    pub name: String,
    /// Its kind, for the counts.
    pub kind: &'static str,
    /// The first sector that the load uses.
    pub first: u64,
    /// The number of sectors that the load uses.
    pub sectors: u64,
    /// Sectors of its logical block.
    pub block: u64,
    /// The disks that hold its data, without disks that hold only a log of its writes.
    pub disks: Vec<usize>,
    /// The disk and the sector at which the target begins, if it always lies there in one piece. An
    /// error of the target then has a known sector.
    pub lies_at: Option<(usize, u64)>,
    /// The way in which it treats data.
    pub device_kind: DeviceKind,
    /// True if it may fail although no disk has a fault.
    pub fails: bool,
    /// The shape of the array, if it is one: no fault of a disk excuses an error of it.
    pub redundancy: Option<Redundancy>,
    /// Tables that map it to the same places; empty if it is no volume.
    pub tables: Vec<String>,
    /// The places between which it may move: its place now and another one, each a leaf and a
    /// sector.
    pub moves: Option<[(String, u64); 2]>,
    /// A longer table, its number of sectors, and the leaf that must grow first, with the leaf's
    /// new size in bytes.
    pub longer: Option<(String, u64, String, u64)>,
}

/// The operations, and how often each is chosen.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Weights: read, write, flush, discard, write zeroes, nonsense.
    pub weights: [u32; 6],
    /// Percent of writes with FUA, and with PREFLUSH.
    pub fua: u32,
    /// See `fua`.
    pub preflush: u32,
    /// Percent of bios that may not wait.
    pub nowait: u32,
    /// Percent of reads that are polled.
    pub polled: u32,
    /// Percent of bios that continue where the last one ended.
    pub sequential: u32,
    /// Most blocks of a bio.
    pub blocks_max: u64,
    /// Most bios in flight of a context.
    pub depth: u64,
    /// Most bios of a batch.
    pub batch: u64,
    /// Plugs are used.
    pub plugs: bool,
    /// Priorities are used.
    pub priorities: bool,
    /// Throttle groups are used.
    pub groups: bool,
    /// Contexts are dropped with I/O in flight.
    pub drops_contexts: bool,
    /// Longest absence of a thread from its context, in nanoseconds.
    pub away_ns: u64,
}

/// Chances of faults, in a million, that the disks of a seed have while faults are on.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Transient errors of reads, writes and flushes.
    pub read_error_ppm: u32,
    /// See above.
    pub write_error_ppm: u32,
    /// See above.
    pub flush_error_ppm: u32,
    /// A failed flush loses data that it should have kept.
    pub flush_error_drops: bool,
    /// Stalls of 1 to 60 seconds.
    pub stall_ppm: u32,
    /// Short transfers.
    pub short_ppm: u32,
    /// Operations that are interrupted.
    pub interrupted_ppm: u32,
    /// Operations that must be tried again.
    pub again_ppm: u32,
    /// Sectors become bad.
    pub bad_sectors: bool,
    /// A disk runs full for a while.
    pub full: bool,
    /// A disk fails altogether for a while.
    pub device_errors: bool,
    /// A disk vanishes until the next start.
    pub vanish: bool,
    /// Files of disks are truncated; no other fault occurs.
    pub cuts: bool,
}

/// One thing that happens to an array beside its load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayEvent {
    /// Nothing.
    Nothing,
    /// A member is missing from the beginning.
    Degraded,
    /// A disk fails all writes, and is back after a crash.
    Fails,
    /// A member is pulled out, and put back with its data.
    Returns,
    /// A member is pulled out, and an empty disk put in its place.
    Replaced,
    /// It is checked, again and again.
    Check,
    /// It is repaired, again and again.
    Repair,
    /// A spare takes the place of a member that is in use.
    Copied,
}

impl ArrayEvent {
    /// A weighted choice. Without a spare, `Copied` does nothing.
    pub const ALL: [ArrayEvent; 10] = [
        ArrayEvent::Copied,
        ArrayEvent::Repair,
        ArrayEvent::Degraded,
        ArrayEvent::Fails,
        ArrayEvent::Fails,
        ArrayEvent::Returns,
        ArrayEvent::Returns,
        ArrayEvent::Replaced,
        ArrayEvent::Check,
        ArrayEvent::Repair,
    ];
}

/// The plan of one seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The stack file, up to the volumes.
    pub text: String,
    /// The volumes with their first tables.
    pub volumes: Vec<(String, String)>,
    /// The disks, by number.
    pub disks: Vec<DiskOptions>,
    /// Names of the leaf devices with a request queue.
    pub leaves: Vec<String>,
    /// The targets that are loaded.
    pub targets: Vec<Target>,
    /// Contexts.
    pub contexts: u64,
    /// I/Os in all.
    pub ios: u64,
    /// Starts of the stack; all but the last end by a power cut or a kill.
    pub starts: u64,
    /// The mix of the contexts' operations.
    pub mix: Mix,
    /// The faults of the disks.
    pub faults: FaultPlan,
    /// Changes of the running stack in each start.
    pub changes: u64,
    /// The order of fibers.
    pub policy: Policy,
    /// The exports and clients, in the scenario `nbd`.
    pub nbd: Option<NbdPlan>,
    /// The event that happens to an array while its moments are taken.
    pub array_event: ArrayEvent,
}

/// The stack file with these volumes.
pub fn stack_file(text: &str, volumes: &[(String, String)]) -> String {
    let mut text = text.to_owned();
    for (name, table) in volumes {
        let lines: Vec<_> = table.lines().map(|line| format!("\"{line}\"")).collect();
        let _ = writeln!(text, "[device.{name}]\ntable = [{}]", lines.join(", "));
    }
    text
}

pub(super) fn chance(rng: &mut Rng, percent: u32) -> bool {
    rng.u32(0..100) < percent
}

/// One of `all`, drawn at random.
pub(super) fn of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.u64(0..all.len() as u64) as usize]
}
