//! Small stacks for the tests of a run's parts, and fibers in which the tests run.

use super::plan::{ArrayEvent, DeviceKind, FaultPlan, Mix, Plan, Target};
use super::redundancy::Redundancy;
use super::run::Run;
use super::started::Started;
use crate::disk::{Disk, DiskOp, DiskOptions, Latency};
use crate::schedule::{Policy, Scheduler, Stuck};
use crate::stack::one;
use crate::world::World;
use drystone_core::{Bio, Status};
use std::rc::Rc;

/// Bytes of a disk.
pub(super) const DISK_BYTES: u64 = 2 << 20;
/// Sectors of a target.
pub(super) const SECTORS: u64 = 64;

const POLICY: Policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 20 };

/// A world with so many disks, which have no random faults.
pub(super) fn world(disks: usize) -> World {
    let world = World::new(false);
    (0..disks).for_each(|seed| _ = world.add_disk(Disk::new(options(), seed as u64)));
    world
}

fn options() -> DiskOptions {
    DiskOptions { latency: Latency::constant(1000), early_ppm: 0, ..DiskOptions::new(DISK_BYTES) }
}

/// A target that keeps data on these disks; it lies on a single one from its first sector on.
pub(super) fn target(name: &str, disks: &[usize]) -> Target {
    Target {
        name: name.to_owned(),
        kind: "of a test",
        first: 0,
        sectors: SECTORS,
        block: 1,
        disks: disks.to_vec(),
        lies_at: Some((disks[0], 0)).filter(|_| disks.len() == 1),
        device_kind: DeviceKind::Keeps,
        fails: false,
        redundancy: None,
        tables: vec![],
        moves: None,
        longer: None,
    }
}

/// A stack of two disks, `d0` and `d1`, each of which is a target.
pub(super) fn two_disks() -> Plan {
    plan(2, "", vec![target("d0", &[0]), target("d1", &[1])])
}

/// A stack of a RAID-5 of three disks, `a`, and two chunks of data in each row.
pub(super) fn array() -> Plan {
    let text = "[device.a]\ntype = \"raid5\"\nmembers = [\"d0\", \"d1\", \"d2\"]\n\
                raid_devices = 3\nchunk = 4096\nconsistency_policy = \"resync\"\n";
    let redundancy = Some(Redundancy { parity: 1, data: 2, chunk: 8, logged: false });
    let a = Target { lies_at: None, redundancy, ..target("a", &[0, 1, 2]) };
    plan(3, text, vec![a])
}

/// A stack of so many disks and the devices of `text`.
pub(super) fn plan(disks: usize, text: &str, targets: Vec<Target>) -> Plan {
    let disk = |number| {
        format!("[device.d{number}]\ntype = \"file\"\npath = \"/sim/{number}\"\nsize = \"2MiB\"\n")
    };
    Plan {
        text: (0..disks).map(disk).collect::<String>() + text,
        volumes: vec![],
        disks: vec![options(); disks],
        leaves: (0..disks).map(|number| format!("d{number}")).collect(),
        targets,
        contexts: 1,
        ios: 0,
        starts: 1,
        mix: mix(),
        faults: FaultPlan::default(),
        changes: 0,
        policy: POLICY,
        nbd: None,
        array_event: ArrayEvent::Nothing,
    }
}

/// Reads, and twice as many writes, of up to four sectors.
fn mix() -> Mix {
    Mix {
        weights: [1, 2, 0, 0, 0, 0],
        fua: 0,
        preflush: 0,
        nowait: 0,
        polled: 0,
        sequential: 0,
        blocks_max: 4,
        depth: 4,
        batch: 2,
        plugs: false,
        priorities: false,
        groups: false,
        drops_contexts: false,
        away_ns: 0,
    }
}

/// A run of the plan in a new world.
pub(super) fn run_of(plan: Plan) -> Rc<Run> {
    Run::new(World::new(false), plan, None, 1)
}

/// Runs `body` on a fiber, until all fibers of the run's world have ended.
pub(super) fn on_fiber(run: &Rc<Run>, body: impl FnOnce(&Rc<Run>) + 'static) -> Result<(), Stuck> {
    let inside = run.clone();
    run.world.spawn("test", move || body(&inside));
    Scheduler::new(run.world.clone(), POLICY, 1).run(None)
}

/// The message of the fault with which a run ended.
pub(super) fn sentence(ended: Result<(), Stuck>) -> String {
    ended.expect_err("a fault is found").to_string()
}

/// Does an operation of a disk from begin to end. Returns its result.
pub(super) fn operate(world: &World, disk: usize, op: DiskOp) -> i64 {
    world.disk(disk, |disk| {
        let (id, _) = disk.begin(0, op);
        disk.finish(id).result
    })
}

/// Does one I/O of a device. On a fiber only.
pub(super) fn io(run: &Run, start: &Started, name: &str, bio: Box<Bio>) -> Status {
    let mut cx = start.context(&run.world);
    let index = cx.open(&start.device(name)).expect("it opens");
    one(&mut cx, index, bio).status
}
