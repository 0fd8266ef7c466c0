//! The array of a run: its administrator, and the checks of its state.
//!
//! Invariants:
//! * The number of hurt members never exceeds what parity makes up for, and is zero while parity
//!   may not fit. So no error of a disk excuses an error of the array.
//! * A disk counts as hurt from before its first fault until it is known to be a whole member
//!   again.

use super::redundancy::{DiskCondition, has_hurt_spare, parity_fits, safe_roles};
use super::run::Run;
use super::started::Started;
use crate::disk::Disk;
use crate::stack::one;
use drystone_core::clock::Ns;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioFlags, IoBuf, Sector, Status};
use drystone_raid::SyncAction;
use drystone_raid::array::{Array, ArrayStatus, Command, DiskState};
use drystone_raid::metadata::Uuid;
use fastrand::Rng;
use std::rc::Rc;
use std::sync::Arc;

/// The pause between two looks of the administrator at the array.
const LOOK_NS: Ns = 1_000_000;
/// The time after which all operations on a disk have ended and the manager knows the results.
const ECHO_NS: Ns = 300_000_000;
/// The longest that a synchronisation may take before it counts as hung.
const PATIENCE_NS: Ns = 3_600_000_000_000;
/// The sector of a superblock 1.2, and its length in sectors.
pub(super) const SUPERBLOCK: (u64, usize) = (8, 8);

/// The administrator of an array.
pub(super) struct Admin {
    pub(super) run: Rc<Run>,
    start: Rc<Started>,
    array: Array,
    parity: u64,
    locks: Arc<LockCounters>,
}

impl Admin {
    /// The administrator of the plan's array, if the plan has one.
    pub(super) fn new(run: &Rc<Run>, start: &Rc<Started>) -> Option<Self> {
        let parity = run.plan.targets.iter().find_map(|target| target.redundancy)?.parity;
        let array = start.stack().devices().iter().find_map(|live| live.array.clone())?;
        let locks = LockCounters::new(run.world.clock());
        Some(Admin { run: run.clone(), start: start.clone(), array, parity, locks })
    }

    /// The start whose array it is.
    pub(super) fn start(&self) -> &Rc<Started> {
        &self.start
    }

    pub(super) fn status(&self) -> Arc<ArrayStatus> {
        self.array.status()
    }

    fn is_over(&self) -> bool {
        self.run.off.get() || self.run.world.failure().is_some()
    }

    /// Give a command, and wait for its outcome.
    pub(super) fn order(&self, what: &str, command: Command) -> Result<(), String> {
        let request = self.array.request(command);
        let outcome = loop {
            match request.outcome(&self.locks) {
                Some(outcome) => break outcome.map_err(|error| error.message),
                None if self.is_over() => break Err("the power is off".to_owned()),
                None => self.run.world.sleep(LOOK_NS),
            }
        };
        self.run.world.note(|| format!("{what}: {outcome:?}"));
        let refused = if outcome.is_ok() { "" } else { " refused" };
        self.run.counts.borrow_mut().add(&format!("array: {what}{refused}"), 1);
        outcome
    }

    /// Wait until `is_so` holds for the status. False if the power goes before.
    pub(super) fn wait(&self, what: &str, is_so: impl Fn(&ArrayStatus) -> bool) -> bool {
        let begin = self.run.world.now();
        loop {
            if self.is_over() {
                return false;
            }
            if is_so(&self.status()) {
                return true;
            }
            if self.run.world.now() > begin + PATIENCE_NS {
                let status = self.status();
                let (disks, sync) = (&status.disks, &status.sync);
                self.run.world.fail(format!("not {what} within an hour: {disks:?}, {sync:?}"));
                return false;
            }
            self.run.world.sleep(LOOK_NS);
        }
    }

    /// Wait until no synchronisation runs or is pending.
    pub(super) fn wait_until_settled(&self) -> bool {
        self.wait("settled", |status| status.sync.is_none() && !status.resync_pending)
    }

    pub(super) fn echo(&self) {
        self.run.world.sleep(ECHO_NS);
    }

    pub(super) fn name(disk: usize) -> String {
        format!("d{disk}")
    }

    pub(super) fn state(status: &ArrayStatus, disk: usize) -> Option<(DiskState, bool)> {
        let found = status.disks.iter().find(|d| *d.name == *Self::name(disk));
        found.map(|found| (found.state, found.has_bad_blocks))
    }

    /// True if the disk is a member without a known fault.
    fn is_good(&self, status: &ArrayStatus, disk: usize) -> bool {
        let DiskCondition { state, is_good } = self.conditions(status, None)[disk];
        is_good && matches!(state, Some(DiskState::InSync(_)))
    }

    /// The condition of each disk by the status; the disk `lost` counts as not good.
    fn conditions(&self, status: &ArrayStatus, lost: Option<usize>) -> Vec<DiskCondition> {
        let condition = |disk: usize| {
            let state = Self::state(status, disk);
            let is_good = lost != Some(disk)
                && state.is_some_and(|(_, has_bad_blocks)| !has_bad_blocks)
                && self.run.world.disk(disk, |disk| disk.is_on() && disk.cut_at().is_none())
                && !self.run.health.is_hurt(disk);
            DiskCondition { state: state.map(|(state, _)| state), is_good }
        };
        (0..self.run.world.disks()).map(condition).collect()
    }

    fn makes_up_for(&self, status: &ArrayStatus, safe_roles: u64) -> bool {
        safe_roles + self.parity >= u64::from(status.layout.disks())
    }

    /// Counts the disk as hurt if the array can also make up for its loss. False if it cannot.
    pub(super) fn hurt_if_spared(&self, disk: usize) -> bool {
        let status = self.status();
        let safe = safe_roles(&self.conditions(&status, Some(disk)));
        let is_spared = parity_fits(&status) && self.makes_up_for(&status, safe);
        if is_spared {
            self.run.health.hurt(disk);
        }
        is_spared
    }

    /// Lets a spare take the disk's place. False if the array refuses. Does not ask if a spare is
    /// hurt and the array could not make up for the loss of the disk.
    pub(super) fn replace(&self, disk: usize) -> bool {
        let status = self.status();
        let safe = safe_roles(&self.conditions(&status, Some(disk)));
        let is_spared =
            self.makes_up_for(&status, safe) || !has_hurt_spare(&self.conditions(&status, None));
        is_spared && self.order("replace", Command::Replace(Self::name(disk))).is_ok()
    }

    /// End the disk's faults, and bring it back into the array.
    pub(super) fn heal(&self, disk: usize) {
        self.run.world.disk(disk, |disk| *disk.faults() = Default::default());
        self.echo();
        // When the manager answers, it has handled all earlier news.
        let answered = self.order("asked", Command::Speed { min: None, max: None });
        let is_whole = |disk: &mut Disk| disk.is_on() && disk.cut_at().is_none();
        if answered.is_err() || !self.run.world.disk(disk, is_whole) {
            return;
        }
        let name = Self::name(disk);
        match Self::state(&self.status(), disk) {
            Some((DiskState::Faulty(_), has_bad_blocks)) => self.back(disk, has_bad_blocks),
            Some((_, true)) => {
                if self.order("fail", Command::Fail(name)).is_ok() {
                    self.back(disk, true);
                }
            }
            Some((_, false)) => {}
            None => self.add(disk),
        }
        self.run.health.heal(disk);
    }

    pub(super) fn back(&self, disk: usize, is_new: bool) {
        if self.order("remove", Command::Remove(Self::name(disk))).is_ok() {
            // A disk that fails even this write stays out until the next start.
            if !is_new || self.wipe(disk) {
                self.add(disk);
            }
        }
    }

    fn add(&self, disk: usize) {
        let name = Self::name(disk);
        let device = self.start.device(&name);
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&self.run.world.now().to_le_bytes());
        // The command may take effect although its answer comes after the power has gone.
        self.run.health.begin_adding();
        let added = self.order("add", Command::Add { name, device, uuid: Uuid(uuid) });
        if !self.is_over() {
            self.run.health.end_adding(added.is_ok().then_some(disk));
        }
    }

    /// Overwrite the superblock, so that the disk looks like one that was never a member. False if
    /// the write fails.
    fn wipe(&self, disk: usize) -> bool {
        let mut cx = self.start.context(&self.run.world);
        let Ok(index) = cx.open(&self.start.device(&Self::name(disk))) else { return false };
        let mut bio = Bio::write(Sector(SUPERBLOCK.0), IoBuf::zeroed(SUPERBLOCK.1 * 512));
        bio.flags |= BioFlags::FUA;
        self.run.health.wipe(disk);
        one(&mut cx, index, bio).status == Status::Ok
    }

    /// Bring all disks back, and wait until no member is missing.
    pub(super) fn heal_all(&self) -> bool {
        for disk in 0..self.run.world.disks() {
            if self.is_over() {
                return false;
            }
            if !self.is_good(&self.status(), disk) {
                self.heal(disk);
            }
            if !self.wait_until_settled() {
                return false;
            }
        }
        true
    }

    /// Has the array checked: parity must fit everywhere.
    pub(super) fn check(&self) {
        let mut checked = self.order("check", Command::Sync(SyncAction::Check));
        while checked.is_err() && self.wait_until_settled() {
            let status = self.status();
            if status.degraded() >= status.layout.level().parity_disks() as usize {
                // The array refuses: without redundancy a check has nothing to compare.
                return;
            }
            // A synchronisation was about to begin.
            self.run.world.sleep(LOOK_NS);
            checked = self.order("check", Command::Sync(SyncAction::Check));
        }
        let status = match self.wait_until_settled() {
            true => self.status(),
            false => return,
        };
        match checked {
            Ok(()) if status.mismatch_cnt > 0 => {
                let count = status.mismatch_cnt;
                self.run.world.fail(format!("a check finds {count} sectors that do not fit"));
            }
            _ => {}
        }
    }

    /// Fails as many members as the array can lose. Returns their disks.
    pub(super) fn degrade(&self, rng: &mut Rng) -> Vec<usize> {
        let mut failed = Vec::new();
        let disks = self.run.world.disks();
        let first = rng.u64(0..disks as u64) as usize;
        for disk in (first..first + disks).map(|disk| disk % disks) {
            let is_member = self.is_good(&self.status(), disk);
            if is_member && self.hurt_if_spared(disk) {
                failed.push(disk);
                let _ = self.order("fail", Command::Fail(Self::name(disk)));
            }
        }
        failed
    }

    /// Adds the array's counts of stripe writes, by method.
    pub(super) fn count_stripes(&self) {
        let counts = self.array.counts();
        let mut all = self.run.counts.borrow_mut();
        all.add("stripe: read-modify-write", counts.rmw);
        all.add("stripe: reconstruct-write", counts.rcw);
        all.add("stripe: full write", counts.full);
        all.add("stripe: bitmap", counts.marked);
        all.add("stripe: partial parity log", counts.logged);
    }
}

#[cfg(test)]
mod tests {
    use super::super::boot::start_once;
    use super::super::shutdown::end;
    use super::super::testing::{array, on_fiber, run_of};
    use super::*;
    use crate::schedule::Stuck;

    /// Runs `body` with the administrator of a whole RAID-5 of three disks.
    fn with_array(body: impl FnOnce(&Admin) + 'static) -> Result<(), Stuck> {
        let run = run_of(array());
        on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            let admin = Admin::new(run, &start).expect("an array");
            assert!(admin.wait_until_settled());
            body(&admin);
            drop(admin);
            end(run, start);
        })
    }

    fn state(admin: &Admin, disk: usize) -> Option<DiskState> {
        Admin::state(&admin.status(), disk).map(|(state, _)| state)
    }

    #[test]
    fn no_more_disks_are_hurt_than_parity_makes_up_for() {
        let ended = with_array(|admin| {
            assert!(admin.hurt_if_spared(2) && admin.hurt_if_spared(2), "it is hurt already");
            assert!(!admin.hurt_if_spared(0) && !admin.run.health.is_hurt(0));
            admin.heal(2);
            assert!(admin.hurt_if_spared(0));
        });
        ended.expect("all is well");
    }

    #[test]
    fn no_disk_is_hurt_while_another_is_gone_or_cut_off() {
        let ended = with_array(|admin| {
            admin.run.world.disk(1, |disk| disk.cut_off(4096));
            assert!(!admin.hurt_if_spared(0) && admin.hurt_if_spared(1));
        });
        ended.expect("all is well");
    }

    #[test]
    fn a_member_that_failed_is_healed_to_a_whole_one() {
        let ended = with_array(|admin| {
            assert!(admin.hurt_if_spared(1));
            admin.order("fail", Command::Fail(Admin::name(1))).expect("it fails");
            assert!(matches!(state(admin, 1), Some(DiskState::Faulty(_))));
            assert!(admin.heal_all() && !admin.run.health.is_hurt(1));
            assert!(matches!(state(admin, 1), Some(DiskState::InSync(_))));
        });
        ended.expect("all is well");
    }

    #[test]
    fn a_disk_is_wiped_from_its_wipe_until_it_was_added() {
        let ended = with_array(|admin| {
            let health = &admin.run.health;
            admin.order("fail", Command::Fail(Admin::name(1))).expect("it fails");
            admin.order("remove", Command::Remove(Admin::name(1))).expect("it is removed");
            assert!(admin.wipe(1));
            assert_eq!(health.retain_wiped(|_| false), [1]);
            admin.add(1);
            assert!(health.retain_wiped(|_| false).is_empty() && !health.is_adding());
            assert!(admin.wait_until_settled());
        });
        ended.expect("all is well");
    }

    #[test]
    fn a_check_tells_of_parity_that_does_not_fit() {
        with_array(Admin::check).expect("parity fits");
        let ended = with_array(|admin| {
            // Data begins behind the metadata; the array uses a sector in the middle of the disk.
            admin.run.world.disk(0, |disk| disk.poke(disk.size() / 2, &[1; 512]));
            admin.check();
        });
        let found = ended.expect_err("it is told").to_string();
        assert!(found.starts_with("a check finds ") && found.contains("do not fit"), "{found}");
    }

    #[test]
    fn nothing_is_waited_for_once_the_power_is_off() {
        let ended = with_array(|admin| {
            admin.run.power_off(false);
            assert!(!admin.wait("so", |_| true) && !admin.heal_all());
            admin.start().stack().stop();
        });
        ended.expect("all is well");
    }
}
