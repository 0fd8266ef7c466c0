//! One run: the state that outlives the starts of one stack on one set of disks.
//!
//! Invariants:
//! * `off` is raised in the same instant in which the disks lose their power: nobody hears what the
//!   block layer does after that; it only has to come to an end.
//! * Nothing borrowed from here is kept across a pause.

use super::disk_faults::DiskFaults;
use super::health::ArrayHealth;
use super::plan::{DeviceKind, Plan, Target};
use super::progress::Progress;
use crate::counts::Counts;
use crate::disk::Disk;
use crate::oracle::{Grown, Oracle};
use crate::order::Keep;
use crate::world::World;
use fastrand::Rng;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The state that all fibers of a run share.
pub(super) struct Run {
    pub(super) world: World,
    pub(super) plan: Rc<Plan>,
    pub(super) oracles: RefCell<Vec<Oracle>>,
    /// The volumes with the tables that a start gives them.
    pub(super) volumes: RefCell<Vec<(String, String)>>,
    /// Sectors of each target by now.
    pub(super) sizes: RefCell<Vec<u64>>,
    /// The power is off.
    pub(super) off: Cell<bool>,
    pub(super) counts: RefCell<Counts>,
    pub(super) progress: Progress,
    pub(super) faults: DiskFaults,
    pub(super) health: ArrayHealth,
    /// The I/O that something is wrong with.
    pub(super) culprit: Cell<Option<u64>>,
}

impl Run {
    pub(super) fn new(world: World, plan: Plan, keep: Option<Keep>, seed: u64) -> Rc<Self> {
        let mut rng = Rng::with_seed(seed);
        for options in &plan.disks {
            world.add_disk(Disk::new(options.clone(), rng.u64(..)));
        }
        if let Some(nbd) = &plan.nbd {
            world.set_net(nbd.net, rng.u64(..));
        }
        let oracles = (0..plan.targets.len()).map(|n| fresh(&plan, n)).collect();
        Self::over(world, Rc::new(plan), keep, oracles)
    }

    /// A run on the disks that the world has, of which the oracles know.
    pub(super) fn over(
        world: World,
        plan: Rc<Plan>,
        keep: Option<Keep>,
        oracles: Vec<Oracle>,
    ) -> Rc<Self> {
        let sizes = plan.targets.iter().map(|target| target.sectors).collect();
        Rc::new(Run {
            progress: Progress::new(world.clone(), keep),
            faults: DiskFaults::new(world.clone()),
            health: ArrayHealth::default(),
            world,
            oracles: RefCell::new(oracles),
            sizes: RefCell::new(sizes),
            volumes: RefCell::new(plan.volumes.clone()),
            plan,
            off: Cell::new(false),
            counts: RefCell::default(),
            culprit: Cell::new(None),
        })
    }

    pub(super) fn sectors(&self, target: usize) -> u64 {
        self.sizes.borrow()[target]
    }

    /// The table that a start gives a volume.
    pub(super) fn table_of(&self, volume: &str) -> String {
        let volumes = self.volumes.borrow();
        let found = volumes.iter().find(|(name, _)| name == volume);
        found.map(|(_, table)| table.clone()).unwrap_or_default()
    }

    /// The table that a start gives a volume from now on.
    pub(super) fn set_table(&self, volume: &str, table: &str) {
        for (name, of) in self.volumes.borrow_mut().iter_mut() {
            if name == volume {
                table.clone_into(of);
            }
        }
    }

    /// A target has become longer.
    pub(super) fn grown(&self, target: usize, sectors: u64) {
        let oracle = &mut self.oracles.borrow_mut()[target];
        if sectors > oracle.sectors() {
            oracle.grow(sectors, Grown::Zeroes);
        }
        self.sizes.borrow_mut()[target] = sectors;
    }

    /// A failed flush may have lost what was written before it, on its own disk.
    pub(super) fn admit_losses(&self) {
        for disk in 0..self.world.disks() {
            if !self.faults.take_dropped(disk) {
                continue;
            }
            let mut oracles = self.oracles.borrow_mut();
            let all = oracles.iter_mut().zip(&self.plan.targets);
            for (oracle, _) in all.filter(|(_, target)| target.disks.contains(&disk)) {
                oracle.drop_undurable(0..oracle.sectors());
            }
        }
    }

    /// True if there is a reason for an error of a target.
    pub(super) fn has_failed(&self, target: &Target) -> bool {
        self.faults.may_fail(target, 0..u64::MAX)
    }

    /// True if the plan has an array.
    pub(super) fn has_array(&self) -> bool {
        self.plan.targets.iter().any(|target| target.redundancy.is_some())
    }

    /// The power goes, or the process is killed.
    pub(super) fn power_off(&self, kill: bool) {
        let run = self;
        run.off.set(true);
        run.progress.wake_waiter(u64::MAX);
        run.admit_losses();
        run.counts.borrow_mut().add(if kill { "kill" } else { "power cut" }, 1);
        run.world.note(|| if kill { "the process is killed" } else { "the power goes" }.to_owned());
        for disk in 0..run.world.disks() {
            run.world
                .disk(disk, |disk| if kill { disk.process_killed() } else { disk.power_cut() });
        }
        run.world.sever();
        for oracle in run.oracles.borrow_mut().iter_mut() {
            if kill { oracle.process_killed() } else { oracle.power_cut() }
        }
    }
}

/// An oracle of zeroes.
pub(super) fn fresh(plan: &Plan, target: usize) -> Oracle {
    let Target { sectors, device_kind, .. } = plan.targets[target];
    let mut oracle = Oracle::new(target as u32, sectors);
    if device_kind == DeviceKind::Lies {
        oracle.distrust_flushes(0..sectors);
    }
    oracle
}
