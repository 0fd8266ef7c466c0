//! What one seed does: its disks, its stack, and how they are used. Swarm testing: each seed takes
//! a subset of everything and leaves the rest out, so that what hides behind a common operation is
//! met too.

use super::builder::Builder;
use super::maintenance::ArrayEvent;
use super::nbd::NbdPlan;
use super::redundancy::Redundancy;
use crate::disk::DiskOptions;
use crate::schedule::Policy;
use fastrand::Rng;
use std::fmt::Write;

/// What a device or volume does with what it is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// It keeps data.
    Keeps,
    /// It keeps data until its process ends.
    Forgets,
    /// Its disk says that data is durable which is not.
    Lies,
    /// It may not do writes that it says it has done.
    Drops,
    /// It reads as zeroes, whatever is written.
    Zero,
    /// All I/O fails.
    Error,
}

/// Something that I/O goes to.
#[derive(Clone, Debug)]
pub struct Target {
    /// The device.
    pub name: String,
    /// What it is, for the counts.
    pub kind: &'static str,
    /// The first sector of it that is used.
    pub first: u64,
    /// How many are.
    pub sectors: u64,
    /// Sectors of its logical block.
    pub block: u64,
    /// The disks that it stands on; none of those that are only logged to.
    pub disks: Vec<usize>,
    /// The disk and the sector of it at which it begins, if it lies there in one piece whatever
    /// happens: then an error is known by its sectors.
    pub lies_at: Option<(usize, u64)>,
    /// What it does.
    pub device_kind: DeviceKind,
    /// Faults are to be expected of it even if no disk has any.
    pub fails: bool,
    /// What is known of it if it is an array: no fault of a disk excuses one of it.
    pub redundancy: Option<Redundancy>,
    /// Tables that map it to the same places; empty if it is no volume.
    pub tables: Vec<String>,
    /// Where it may move: its place now and another one, each a leaf and a sector.
    pub moves: Option<[(String, u64); 2]>,
    /// A longer table, the sectors that it has, and the leaf that must grow first, with its new
    /// size in bytes.
    pub longer: Option<(String, u64, String, u64)>,
}

/// Which operations there are, and how often.
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
    /// A failed flush loses what it should have kept.
    pub flush_error_drops: bool,
    /// Stalls of 1 to 60 seconds.
    pub stall_ppm: u32,
    /// Transfers that do less than was asked.
    pub short_ppm: u32,
    /// Operations that are interrupted.
    pub interrupted_ppm: u32,
    /// Operations that are to be tried again.
    pub again_ppm: u32,
    /// Sectors become bad.
    pub bad_sectors: bool,
    /// A disk runs full for a while.
    pub full: bool,
    /// A disk fails altogether for a while.
    pub device_errors: bool,
    /// A disk vanishes until the next start.
    pub vanish: bool,
    /// Files of disks are cut off, and nothing else goes wrong.
    pub cuts: bool,
}

/// All of it.
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
    /// What is loaded.
    pub targets: Vec<Target>,
    /// Contexts.
    pub contexts: u64,
    /// I/Os in all.
    pub ios: u64,
    /// Starts of the stack; all but the last end by a power cut or a kill.
    pub starts: u64,
    /// What the contexts do.
    pub mix: Mix,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// Changes of the running stack in each start.
    pub changes: u64,
    /// The order of fibers.
    pub policy: Policy,
    /// What is served, in the scenario `nbd`.
    pub nbd: Option<NbdPlan>,
    /// What happens to an array while its moments are taken.
    pub array_event: ArrayEvent,
}

impl Plan {
    /// The plan of a seed, for about `ios` I/Os.
    pub fn new(rng: &mut Rng, ios: u64) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(4..=8);
        let mix = Mix::random(rng);
        let faults = FaultPlan::random(rng);
        let starts = rng.u64(2..=3);
        let changes = rng.u64(2..=12);
        let mut builder = Builder::new(rng);
        builder.leaves();
        builder.targets();
        Plan { starts, faults, changes, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// An array, whose disks fail in ways that it makes up for, or lose their power.
    pub fn raid(rng: &mut Rng, ios: u64) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=8);
        let mix = Mix::random(rng);
        let starts = rng.u64(1..=3);
        let faults = FaultPlan::harmless(rng);
        let changes = of(rng, &[0, 0, 2, 6, 20]);
        let mut builder = Builder::small(rng, MEMBER_SECTORS);
        builder.array(ArrayEvent::Nothing);
        Plan { starts, faults, changes, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// An array, or parts of disks, whose files are cut off while they are used.
    pub fn shrinks(rng: &mut Rng, ios: u64) -> Self {
        let faults = FaultPlan { cuts: true, ..FaultPlan::default() };
        if rng.bool() {
            let changes = of(rng, &[1, 2, 6]);
            return Plan { faults, changes, ..Self::raid(rng, ios) };
        }
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=4);
        let mix = Mix::random(rng);
        let changes = of(rng, &[1, 4, 12]);
        let mut builder = Builder::new(rng);
        builder.honest_disks();
        builder.straight_targets();
        Plan { faults, changes, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// Small bios beside one another, on disks with bad sectors.
    pub fn bad_sectors(rng: &mut Rng, ios: u64) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=4);
        let mix = Mix {
            sequential: 80,
            blocks_max: of(rng, &[1, 2, 4]),
            depth: 32,
            batch: of(rng, &[8, 16, 40]),
            ..Mix::random(rng)
        };
        let faults = FaultPlan { bad_sectors: true, ..FaultPlan::default() };
        let changes = of(rng, &[0, 4, 12]);
        let mut builder = Builder::new(rng);
        builder.honest_disks();
        builder.straight_targets();
        Plan { faults, changes, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// A small plan of an array: single blocks and whole rows are written, in all ways that there
    /// are.
    pub fn small_array(rng: &mut Rng) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=3);
        let ios = rng.u64(2..=12);
        let mix = Mix { blocks_max: of(rng, &[1, 8, 16, 64]), ..Mix::small(rng) };
        let array_event = of(rng, &ArrayEvent::ALL);
        // Writes come one by one that must not be lost: the first that a failing member does not
        // take, too.
        let mix = match array_event {
            ArrayEvent::Fails => Mix { fua: 80, depth: 2, batch: 1, ..mix },
            _ => mix,
        };
        let mut builder = Builder::small(rng, SMALL_MEMBER_SECTORS);
        let array_event = match (array_event, builder.array(array_event)) {
            (ArrayEvent::Copied, 0) => ArrayEvent::Nothing,
            (array_event, _) => array_event,
        };
        Plan { array_event, ..builder.plan(policy, contexts, ios, mix) }
    }

    /// A small plan, all of whose targets keep data on honest disks that do not fail: so small that
    /// a power cut can be tried at each of its moments.
    pub fn small(rng: &mut Rng) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=4);
        let ios = rng.u64(10..=60);
        let mix = Mix::small(rng);
        let sectors = of(rng, &[128, 128, 256]);
        let mut builder = Builder::small(rng, sectors);
        builder.honest_disks();
        builder.small_targets();
        builder.plan(policy, contexts, ios, mix)
    }
}

/// Sectors that a member of an array has at least which is so small that a power cut can be tried
/// at each of its moments.
const SMALL_MEMBER_SECTORS: u64 = 256;

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

/// One of them.
pub(super) fn of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.u64(0..all.len() as u64) as usize]
}

impl Mix {
    fn random(rng: &mut Rng) -> Self {
        let mut weights = [0, 0, 2, 1, 1, 1].map(|base| if chance(rng, 60) { base } else { 0 });
        weights[0] = of(rng, &[5, 20, 60]);
        weights[1] = of(rng, &[10, 30, 60]);
        weights[2] = of(rng, &[0, 1, 3, 10]);
        Mix {
            weights,
            fua: of(rng, &[0, 0, 5, 30]),
            preflush: of(rng, &[0, 0, 3]),
            nowait: of(rng, &[0, 0, 0, 10]),
            polled: of(rng, &[0, 0, 20, 80]),
            sequential: of(rng, &[0, 20, 80]),
            blocks_max: of(rng, &[1, 4, 16, 64]),
            depth: of(rng, &[1, 2, 8, 32]),
            batch: of(rng, &[1, 4, 16, 40]),
            plugs: chance(rng, 40),
            priorities: chance(rng, 30),
            groups: chance(rng, 50),
            drops_contexts: chance(rng, 30),
            away_ns: of(rng, &[0, 10_000, 1_000_000, 50_000_000]),
        }
    }

    /// Mostly writes, and much that makes them durable.
    fn small(rng: &mut Rng) -> Self {
        let mut weights = [2, 20, 0, 0, 0, 0];
        weights[2] = of(rng, &[0, 2, 6]);
        weights[3] = of(rng, &[0, 0, 2]);
        weights[4] = of(rng, &[0, 2, 4]);
        Mix {
            weights,
            fua: of(rng, &[0, 10, 40]),
            preflush: of(rng, &[0, 10, 30]),
            nowait: of(rng, &[0, 0, 10]),
            polled: 0,
            sequential: of(rng, &[0, 20, 80]),
            blocks_max: of(rng, &[1, 2, 4, 16]),
            depth: of(rng, &[1, 2, 8]),
            batch: of(rng, &[1, 4, 8]),
            plugs: chance(rng, 40),
            priorities: chance(rng, 20),
            groups: false,
            drops_contexts: false,
            away_ns: of(rng, &[0, 10_000, 1_000_000]),
        }
    }
}

/// Sectors that a member of an array has at least.
const MEMBER_SECTORS: u64 = 2048;

impl FaultPlan {
    /// What a disk does that nobody should see, or that an array waits for.
    fn harmless(rng: &mut Rng) -> Self {
        let mut ppm = |most: u32| if chance(rng, 35) { 1 + rng.u32(0..most) } else { 0 };
        FaultPlan {
            short_ppm: ppm(50_000),
            interrupted_ppm: ppm(50_000),
            again_ppm: ppm(50_000),
            full: chance(rng, 30),
            ..FaultPlan::default()
        }
    }

    fn random(rng: &mut Rng) -> Self {
        let mut ppm = |most: u32| if chance(rng, 35) { 1 + rng.u32(0..most) } else { 0 };
        let mut plan = FaultPlan {
            read_error_ppm: ppm(20_000),
            write_error_ppm: ppm(20_000),
            flush_error_ppm: ppm(50_000),
            stall_ppm: ppm(1_000),
            short_ppm: ppm(50_000),
            interrupted_ppm: ppm(50_000),
            again_ppm: ppm(50_000),
            ..FaultPlan::default()
        };
        plan.flush_error_drops = chance(rng, 50);
        plan.bad_sectors = chance(rng, 25);
        plan.full = chance(rng, 20);
        plan.device_errors = chance(rng, 20);
        plan.vanish = chance(rng, 15);
        plan
    }
}
