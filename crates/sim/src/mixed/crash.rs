//! The scenarios `crash` and `raid-crash`: a small stack under load, and every state that a power
//! cut may leave.

use super::array::Admin;
use super::boot::start_stack;
use super::compare::compare;
use super::examine::{await_empty_bitmap, degrade, examine, examine_cut};
use super::health::HealthSnapshot;
use super::load::spawn_loads;
use super::maintenance::spawn_maintenance;
use super::plan::{ArrayEvent, Plan, stack_file};
use super::run::{Run, fresh};
use super::shutdown::{Shutdown, end};
use crate::counts::Counts;
use crate::crash::{self, Subject};
use crate::disk::Disk;
use crate::fiber::Body;
use crate::oracle::Oracle;
use crate::order::{Keep, Order};
use crate::outcome::Outcome;
use crate::world::World;
use drystone_core::clock::Ns;
use fastrand::Rng;
use std::cell::RefCell;
use std::rc::Rc;

/// I/Os of a start after a cut, which show that the stack is usable.
const USE: u64 = 4;
/// Sectors of a large physical block, which a disk never tears.
const LARGE_BLOCK: u64 = 8;
/// The restarts of arrays, and the least images of a moment: few, because each restart synchronises
/// and checks the array.
const ARRAY_RESTARTS: (usize, usize) = (120, 1);
/// The same for other stacks: with these numbers a hundred seeds take 40 s of one processor (an
/// EPYC).
const OTHER_RESTARTS: (usize, usize) = (1_600, 6);
/// The longest absence of a thread from its context in a start after a cut.
const AWAY_NS: Ns = 1_000;

/// Run a seed.
pub fn run(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::small(&mut rng);
    run_plan(order, plan, &mut rng)
}

/// Run a seed of arrays.
pub fn run_raid(order: &Order) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let plan = Plan::small_array(&mut rng);
    run_plan(order, plan, &mut rng)
}

/// Run a plan: of [`Plan::small`] or [`Plan::small_array`], or one whose disks are not as their
/// stack believes.
pub fn run_plan(order: &Order, plan: Plan, rng: &mut Rng) -> Outcome {
    let (policy, contexts) = (plan.policy, plan.contexts);
    let stack = stack_file(&plan.text, &plan.volumes);
    let volumes = Rc::new(Volumes::new(plan, order.keep.clone(), rng.u64(..)));
    let outcome = crash::run(order, &volumes, policy, rng.u64(..));
    Outcome { stack, contexts, ..outcome }
}

/// The knowledge at one moment.
#[derive(Clone)]
struct Known {
    oracles: Vec<Oracle>,
    /// True if the stack had been started. An array whose creation was cut off need not start
    /// again.
    is_made: bool,
    health: HealthSnapshot,
}

/// The subject of both scenarios: a plan whose targets keep data.
struct Volumes {
    plan: Rc<Plan>,
    /// The plan of a short use after a cut.
    short: Rc<Plan>,
    keep: Option<Keep>,
    seed: u64,
    run: RefCell<Option<Rc<Run>>>,
    /// Counts of what the starts after a cut have met.
    met: Rc<RefCell<Counts>>,
}

impl Volumes {
    fn new(plan: Plan, keep: Option<Keep>, seed: u64) -> Self {
        let array_event = ArrayEvent::Nothing;
        let mut short = Plan { ios: USE, contexts: 1, array_event, ..plan.clone() };
        short.mix.away_ns = AWAY_NS;
        let (run, met) = (RefCell::default(), Rc::default());
        Volumes { plan: Rc::new(plan), short: Rc::new(short), keep, seed, run, met }
    }

    /// Oracles of zeroes. They know the large block as atomic if all disks have one.
    fn oracles(&self) -> Vec<Oracle> {
        let large = format!("physical_block_size = {}\n", LARGE_BLOCK * 512);
        let all_large = self.plan.text.matches(&large).count() == self.plan.disks.len();
        let mut oracles: Vec<_> =
            (0..self.plan.targets.len()).map(|n| fresh(&self.plan, n)).collect();
        if all_large {
            oracles.iter_mut().for_each(|oracle| oracle.set_atomic(LARGE_BLOCK));
        }
        oracles
    }

    fn first(&self) -> Rc<Run> {
        self.run.borrow().clone().expect("its work has begun")
    }
}

impl Subject for Volumes {
    type Known = Known;

    fn disks(&self) -> Vec<Disk> {
        let mut rng = Rng::with_seed(self.seed);
        let disk = |options: &_| Disk::new(Clone::clone(options), rng.u64(..));
        self.plan.disks.iter().map(disk).collect()
    }

    fn work(&self, world: &World) -> Body {
        let (plan, keep) = (self.plan.clone(), self.keep.clone());
        let run = Run::over(world.clone(), plan, keep, self.oracles());
        *self.run.borrow_mut() = Some(run.clone());
        let rng = Rng::with_seed(self.seed);
        Box::new(move || work(&run, rng))
    }

    fn known(&self) -> Known {
        let run = self.first();
        Known {
            oracles: run.oracles.borrow().clone(),
            is_made: run.counts.borrow().get("stack made") > 0,
            health: run.health.snapshot(run.progress.open() > 0),
        }
    }

    fn judge(&self, world: &World, mut known: Known, then_use: bool) -> Body {
        known.oracles.iter_mut().for_each(Oracle::power_cut);
        let is_array = self.plan.targets.iter().any(|target| target.redundancy.is_some());
        if is_array && !known.is_made {
            return Box::new(|| ());
        }
        let run = Run::over(world.clone(), self.short.clone(), None, known.oracles);
        if let Some(what) = run.health.restore(known.health) {
            run.counts.borrow_mut().add(&format!("crash: restart, {what} beside writes"), 1);
        }
        let (rng, met) = (Rng::with_seed(self.seed), self.met.clone());
        Box::new(move || {
            judge(&run, rng, then_use);
            met.borrow_mut().add_all(&run.counts.borrow());
        })
    }

    fn restarts(&self) -> (usize, usize) {
        match self.plan.targets.iter().any(|target| target.redundancy.is_some()) {
            true => ARRAY_RESTARTS,
            false => OTHER_RESTARTS,
        }
    }

    fn ios(&self) -> u64 {
        self.first().progress.begun()
    }

    fn counts(&self) -> Counts {
        let mut counts = self.first().counts.borrow().clone();
        counts.add_all(&self.met.borrow());
        counts
    }
}

/// Runs one start, until its work is done and durable.
fn work(run: &Rc<Run>, mut rng: Rng) {
    let Some(start) = start_stack(run, &mut rng, false) else { return };
    if let Some(admin) = Admin::new(run, &start) {
        match run.plan.array_event {
            ArrayEvent::Degraded => degrade(&admin, &mut rng),
            event => await_empty_bitmap(&admin, event != ArrayEvent::Nothing),
        }
    }
    run.counts.borrow_mut().add("stack made", 1);
    start.set_limit(run.plan.ios);
    spawn_maintenance(run, &start, &mut rng);
    spawn_loads(run, &start, &mut rng);
    Shutdown::new(run, &start).finish_work();
    Admin::new(run, &start).inspect(Admin::count_stripes);
    start.stack().stop();
    end(run, start);
}

/// Starts after a cut and compares all data. If `then_use` is set, it then uses the stack, compares
/// again, and examines an array closely.
fn judge(run: &Rc<Run>, mut rng: Rng, then_use: bool) {
    let Some(start) = start_stack(run, &mut rng, true) else { return };
    Admin::new(run, &start).inspect(|admin| examine_cut(admin, &mut rng));
    if then_use && run.world.failure().is_none() {
        start.set_limit(run.plan.ios);
        spawn_loads(run, &start, &mut rng);
        Shutdown::new(run, &start).finish_work();
        compare(run, &start);
        Admin::new(run, &start).inspect(|admin| examine(admin, &mut rng));
    }
    start.stack().stop();
    end(run, start);
}
