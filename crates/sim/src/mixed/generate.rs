//! Plans made from seeds. Swarm testing: each seed takes a subset of everything and leaves the rest
//! out, so that faults that hide behind a common operation come to light.

use super::builder::Builder;
use super::plan::{ArrayEvent, FaultPlan, Mix, Plan, chance, of};
use crate::schedule::Policy;
use fastrand::Rng;

/// Sectors that a member of an array has at least.
const MEMBER_SECTORS: u64 = 2048;

/// The fewest sectors of a member of a small array: so few that a power cut can be tried at each
/// moment.
const SMALL_MEMBER_SECTORS: u64 = 256;

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

    /// An array, or parts of disks, whose files are truncated during use.
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

    /// Small adjacent bios, on disks with bad sectors.
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

    /// A small plan of an array: its writes use all methods, from single blocks to whole rows.
    pub fn small_array(rng: &mut Rng) -> Self {
        let policy = Policy::random(rng);
        let contexts = rng.u64(1..=3);
        let ios = rng.u64(2..=12);
        let mix = Mix { blocks_max: of(rng, &[1, 8, 16, 64]), ..Mix::small(rng) };
        let array_event = of(rng, &ArrayEvent::ALL);
        // A write must not be lost even if it is the first that a failing member refuses. So writes
        // come one by one.
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

    /// A small plan whose targets all keep data on honest disks that do not fail. It is so small
    /// that a power cut can be tried at each moment.
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

    /// Mostly writes, many of them with FUA or flushes.
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

impl FaultPlan {
    /// Disk faults that no user should see, or that an array waits for.
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
