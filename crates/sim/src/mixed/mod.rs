//! The scenario `mixed`: all features and faults together; and `crash` for the same stacks.

mod array;
mod boot;
mod builder;
mod compare;
mod control;
pub mod crash;
mod cuts;
mod disk_faults;
mod edited;
mod edits;
mod examine;
mod fault_injection;
mod flushes;
mod generate;
mod health;
mod io;
mod life;
mod load;
mod maintenance;
mod nbd;
mod operator;
mod plan;
mod progress;
mod records;
mod redundancy;
mod run;
mod shutdown;
mod started;
mod stops;
#[cfg(test)]
mod testing;

pub use crate::order::Keep;
pub use crate::outcome::{Line, Outcome};
pub use nbd::{ClientMix, ExportPlan, ListenerPlan, NbdPlan};
pub use plan::{ArrayEvent, DeviceKind, FaultPlan, Mix, Plan, Target};
pub use redundancy::Redundancy;

use crate::order::Order;
use crate::schedule::Scheduler;
use crate::world::World;
use fastrand::Rng;
use operator::Operator;
use run::Run;
use std::rc::Rc;

/// I/Os of a seed.
pub const IOS: u64 = 2_000;

/// I/Os of a seed that is served: each takes more than twice as long to simulate.
pub const NBD_IOS: u64 = 800;

/// I/Os of a seed of an array: each is several I/Os of its disks.
pub const RAID_IOS: u64 = 600;

/// Run a seed of `mixed`.
pub fn run(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::new(&mut rng, IOS);
    run_plan(order, rng, plan)
}

/// Run a seed of `raid`.
pub fn run_raid(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::raid(&mut rng, RAID_IOS);
    run_plan(order, rng, plan)
}

/// Run a seed of `shrinks`.
pub fn run_shrinks(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::shrinks(&mut rng, RAID_IOS);
    run_plan(order, rng, plan)
}

/// Run a seed of `raid-metadata`.
pub fn run_metadata(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::raid(&mut rng, RAID_IOS);
    run_plan_by(order, rng, plan, edited::operate)
}

/// Run a seed of `bad-sectors`.
pub fn run_bad_sectors(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::bad_sectors(&mut rng, IOS);
    run_plan(order, rng, plan)
}

/// Run a seed of `nbd`.
pub fn run_nbd(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let mut plan = Plan::new(&mut rng, NBD_IOS);
    NbdPlan::add(&mut plan, &mut rng);
    run_plan(order, rng, plan)
}

fn run_plan(order: &Order, rng: Rng, plan: Plan) -> Outcome {
    run_plan_by(order, rng, plan, |run, seed| Operator::new(run, seed).operate())
}

fn run_plan_by(order: &Order, mut rng: Rng, plan: Plan, operate: fn(Rc<Run>, u64)) -> Outcome {
    let world = World::new(order.trace);
    let mut scheduler = Scheduler::new(world.clone(), plan.policy, rng.u64(..));
    let stack = plan::stack_file(&plan.text, &plan.volumes);
    let run = Run::new(world.clone(), plan, order.keep.clone(), rng.u64(..));
    let (operated, seed, begin) = (run.clone(), rng.u64(..), world.now());
    world.spawn("operator", move || operate(operated, seed));
    let failure = scheduler.run(order.mistake).err();
    if failure.is_some() && order.trace {
        world.describe_rings();
        scheduler.describe().into_iter().for_each(|line| world.note(|| line));
    }
    let lines = world.trace().into_iter();
    let name = |fiber| scheduler.name(fiber).to_owned();
    let trace = lines.map(|(at, fiber, line)| (at, name(fiber), line)).collect();
    let mut counts = run.counts.borrow().clone();
    for disk in 0..world.disks() {
        for (name, n) in world.disk(disk, |disk| *disk.counts()).each() {
            counts.add(&format!("disk: {name}"), n);
        }
    }
    for (name, n) in world.net_counts().each() {
        counts.add(&format!("net: {name}"), n);
    }
    Outcome {
        culprit: run.culprit.get(),
        counts,
        digest: world.sum().0,
        ios: run.progress.begun(),
        contexts: run.plan.contexts,
        simulated_ns: world.now() - begin,
        trace,
        stack,
        failure,
    }
}
