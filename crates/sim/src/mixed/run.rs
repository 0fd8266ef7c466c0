//! One run: the state that outlives the starts of one stack on one set of disks.
//!
//! Invariants:
//! * `off` is set in the same instant in which the disks lose their power. No result of the block
//!   layer counts after that; its work only has to end.
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
    /// The present number of sectors of each target.
    pub(super) sizes: RefCell<Vec<u64>>,
    /// The power is off.
    pub(super) off: Cell<bool>,
    pub(super) counts: RefCell<Counts>,
    pub(super) progress: Progress,
    pub(super) faults: DiskFaults,
    pub(super) health: ArrayHealth,
    /// The I/O that failed.
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

    /// A run on the world's disks, whose contents the oracles know.
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

    /// Tells the oracles that a failed flush may have lost earlier writes to the same disk.
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

    /// True if a fault explains an error of a target.
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

#[cfg(test)]
mod tests {
    use super::super::testing::{SECTORS, operate, run_of, two_disks};
    use super::*;
    use crate::disk::DiskOp;
    use crate::oracle::Ended;

    const ZEROES: [u8; 512] = [0; 512];

    impl Run {
        /// A write of the first sector of a target is acknowledged.
        fn acknowledge(&self, target: usize) {
            let mut oracles = self.oracles.borrow_mut();
            let id = oracles[target].write_begins(0..1, false);
            oracles[target].write_ends(id, Ended::Ok);
        }

        /// Whether the first sector of a target may hold zeroes.
        fn may_hold_zeroes(&self, target: usize) -> bool {
            let mut oracle = self.oracles.borrow()[target].clone();
            let id = oracle.read_begins(0..1);
            oracle.read_ends_ok(id, &ZEROES).is_ok()
        }

        fn are_disks_on(&self) -> Vec<bool> {
            let is_on = |disk| self.world.disk(disk, |disk| disk.is_on());
            (0..self.world.disks()).map(is_on).collect()
        }
    }

    #[test]
    fn all_disks_lose_their_power_with_the_stack() {
        let run = run_of(two_disks());
        run.acknowledge(1);
        assert!(!run.off.get() && !run.may_hold_zeroes(1));
        run.power_off(false);
        assert!(run.off.get());
        assert_eq!(run.are_disks_on(), [false, false]);
        assert!(run.may_hold_zeroes(1), "the write was not durable");
    }

    #[test]
    fn a_process_that_is_killed_leaves_its_disks_and_their_data() {
        let run = run_of(two_disks());
        run.acknowledge(1);
        run.power_off(true);
        assert!(run.off.get());
        assert_eq!(run.are_disks_on(), [true, true]);
        assert!(!run.may_hold_zeroes(1));
    }

    #[test]
    fn a_failed_flush_loses_data_of_its_own_disk() {
        let run = run_of(two_disks());
        run.acknowledge(0);
        run.acknowledge(1);
        run.world.disk(1, |disk| {
            (disk.faults().flush_error_ppm, disk.faults().flush_error_drops) = (1_000_000, true);
        });
        // A failed flush may drop nothing by chance.
        for _ in 0..20 {
            operate(&run.world, 1, DiskOp::Write { offset: 0, data: vec![1; 4096], fua: false });
            operate(&run.world, 1, DiskOp::Flush);
        }
        assert!(!run.may_hold_zeroes(1));
        run.admit_losses();
        assert!(!run.may_hold_zeroes(0) && run.may_hold_zeroes(1));
    }

    #[test]
    fn a_start_gives_a_volume_the_table_that_was_set_last() {
        let volumes = ["v", "w"].map(|name| (name.to_owned(), "0 8 zero\n".to_owned()));
        let run = run_of(Plan { volumes: volumes.to_vec(), ..two_disks() });
        run.set_table("w", "0 16 zero\n");
        assert_eq!((&*run.table_of("v"), &*run.table_of("w")), ("0 8 zero\n", "0 16 zero\n"));
    }

    /// A start opens the device with its former size, and it grows once more.
    #[test]
    fn what_was_written_behind_the_former_end_is_remembered() {
        let run = run_of(two_disks());
        run.grown(0, 2 * SECTORS);
        assert_eq!((run.sectors(0), run.sectors(1)), (2 * SECTORS, SECTORS));
        let id = run.oracles.borrow_mut()[0].write_begins(SECTORS..SECTORS + 1, true);
        run.oracles.borrow_mut()[0].write_ends(id, Ended::Ok);
        run.grown(0, SECTORS);
        run.grown(0, 2 * SECTORS);
        let mut oracles = run.oracles.borrow_mut();
        let id = oracles[0].read_begins(SECTORS..SECTORS + 1);
        assert!(oracles[0].read_ends_ok(id, &ZEROES).is_err());
    }
}
