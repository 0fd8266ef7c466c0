//! Array faults beyond the failure of one disk: errors during a rebuild, and full disks.

use super::array::Admin;
use super::life::Life;
use crate::disk::{DiskCounts, Faults};
use drystone_core::clock::Ns;
use drystone_raid::SyncAction;
use drystone_raid::array::{ArrayStatus, Command, DiskState};

/// KiB a second of a rebuild that must last: half a second with these disks.
const SLOW: u64 = 2_000;
/// The pause between two checks of a fault's effect.
const LOOK_NS: Ns = 10_000_000;
/// Most checks.
const LOOKS: u64 = 40;
/// The longest time that disks are full; the array tries again each second.
const FULL_NS: Ns = 4_000_000_000;
/// The sectors of a member that hold data.
const DATA: std::ops::Range<u64> = 2048..4096;

/// The disk that has errors in a rebuild.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Source,
    Target,
}

pub(super) fn is_recovering(status: &ArrayStatus) -> bool {
    status.sync.is_some_and(|sync| sync.action == SyncAction::Recover)
}

fn is_rebuilt(state: DiskState) -> bool {
    matches!(state, DiskState::Rebuilding(_) | DiskState::Replacement(_))
}

impl Life {
    /// Rebuilds a member on a new disk, and puts errors on that disk or on one that the rebuild
    /// reads.
    pub(super) fn rebuild_with_errors(&mut self) {
        let lost = self.disk();
        self.speed_of(SLOW);
        if self.begin_rebuild(lost) {
            self.spoil_rebuild(lost);
        }
        self.speed_of(100_000);
        self.admin.heal(lost);
    }

    fn speed_of(&self, kib: u64) {
        self.order("speed", Command::Speed { min: Some(kib), max: Some(kib) });
    }

    /// Begin to replace the member, or fail it and begin to rebuild it. False if no rebuild has
    /// begun.
    fn begin_rebuild(&mut self, lost: usize) -> bool {
        let name = Admin::name(lost);
        let replaced = self.rng.bool() && self.admin.replace(lost);
        if !replaced {
            if !self.admin.hurt_if_spared(lost) {
                return false;
            }
            self.order("fail", Command::Fail(name));
            self.admin.back(lost, true);
        }
        (0..LOOKS).any(|_| {
            self.run.world.sleep(LOOK_NS / 10);
            is_recovering(&self.admin.status())
        })
    }

    fn spoil_rebuild(&mut self, lost: usize) {
        let status = self.admin.status();
        let state = |disk: usize| Admin::state(&status, disk).map(|(state, _)| state);
        let disks = 0..self.run.world.disks();
        let target = disks.clone().find(|disk| state(*disk).is_some_and(is_rebuilt));
        // The first source is `lost` itself: a replacement copies from the member that it replaces.
        let mut sources = disks.map(|disk| (lost + disk) % self.run.world.disks());
        let source = sources
            .find(|disk| matches!(state(*disk), Some(DiskState::InSync(_))))
            .filter(|source| self.rng.u32(0..3) > 0 && self.admin.hurt_if_spared(*source));
        match (source, target) {
            (Some(source), _) => self.spoil(source, Side::Source),
            (None, Some(target)) if self.admin.hurt_if_spared(target) => {
                self.spoil(target, Side::Target)
            }
            (None, _) => {}
        }
    }

    /// Puts errors on the disk for a while, perhaps until the rebuild ends.
    fn spoil(&mut self, disk: usize, side: Side) {
        let (ppm, all) = (1 + self.rng.u32(0..300_000), self.rng.u32(0..3) == 0);
        let sectors: Vec<u64> = (0..30).map(|_| self.rng.u64(DATA)).collect();
        let change = move |faults: &mut Faults| match (side, all) {
            (Side::Source, true) => faults.reads_fail = true,
            (Side::Source, false) => {
                faults.read_error_ppm = ppm;
                faults.bad_reads.extend(&sectors);
            }
            (Side::Target, true) => faults.writes_fail = true,
            (Side::Target, false) => {
                faults.write_error_ppm = ppm;
                faults.bad_writes.extend(&sectors);
            }
        };
        self.run.world.disk(disk, |disk| {
            disk.faults().write_repairs = true;
            change(disk.faults());
        });
        if self.wait_for_errors(disk, side) {
            let what = match side {
                Side::Source => "array: read errors of a source in a rebuild",
                Side::Target => "array: write errors of the target in a rebuild",
            };
            self.run.counts.borrow_mut().add(what, 1);
        }
        self.admin.heal(disk);
    }

    /// Waits for a while. True if the disk had errors during a rebuild.
    fn wait_for_errors(&mut self, disk: usize, side: Side) -> bool {
        let errors = || self.run.world.disk(disk, |disk| errors(disk.counts(), side));
        let before = errors();
        let mut met = false;
        for _ in 0..self.rng.u64(1..LOOKS) {
            if !is_recovering(&self.admin.status()) {
                break;
            }
            self.run.world.sleep(LOOK_NS);
            met |= errors() > before;
        }
        met
    }

    /// Makes disks full for a while: writes must wait for room, and no member may fail.
    pub(super) fn fill(&mut self) {
        let Some(disks) = self.disks_to_fill() else { return };
        let set = |is_full: bool| {
            let set_one = |disk: &usize| {
                self.run.world.disk(*disk, |disk| disk.faults().full = is_full);
            };
            disks.iter().for_each(set_one);
        };
        let good = self.in_sync();
        set(true);
        self.run.counts.borrow_mut().add("array: disks full", 1);
        let until = self.run.world.now() + self.rng.u64(0..FULL_NS);
        let mut waits = false;
        while self.run.world.now() < until && !self.run.off.get() {
            self.run.world.sleep(LOOK_NS);
            waits |= self.admin.status().disks.iter().any(|disk| disk.lacks_room);
        }
        set(false);
        self.run.counts.borrow_mut().add("array: waited for room", u64::from(waits));
        self.judge_full(&good);
    }

    /// The disks to fill. With a partial parity log it is only a disk that the array can lose: a
    /// member fails if its log finds no room.
    fn disks_to_fill(&mut self) -> Option<Vec<usize>> {
        let logged = self.run.plan.targets.iter().any(|t| t.redundancy.is_some_and(|of| of.logged));
        if !logged {
            let all: Vec<usize> = (0..self.run.world.disks()).collect();
            return Some(if self.rng.bool() { all } else { vec![self.disk()] });
        }
        let disk = self.disk();
        self.admin.hurt_if_spared(disk).then(|| vec![disk])
    }

    /// Members without a known fault that must remain members.
    fn in_sync(&self) -> Vec<usize> {
        let status = self.admin.status();
        let is_good = |disk: &usize| {
            let is_on = self.run.world.disk(*disk, |disk| disk.is_on());
            let state = Admin::state(&status, *disk);
            let Some((DiskState::InSync(role), false)) = state else { return false };
            let replacement = DiskState::Replacement(role);
            let is_replaced = status.disks.iter().any(|disk| disk.state == replacement);
            is_on && !self.run.health.is_hurt(*disk) && !is_replaced
        };
        (0..self.run.world.disks()).filter(is_good).collect()
    }

    fn judge_full(&self, good: &[usize]) {
        let answered = self.admin.order("asked", Command::Speed { min: None, max: None });
        let now = self.in_sync();
        // Without power the state of the array says nothing.
        if self.run.off.get() || answered.is_err() {
            return;
        }
        if let Some(disk) = good.iter().find(|disk| !now.contains(disk)) {
            self.run.world.fail(format!("d{disk} had no room for a while, and was failed for it"));
        }
        self.run.health.hurt_disks().into_iter().for_each(|disk| self.admin.heal(disk));
    }
}

/// The number of the disk's errors that count for this side.
fn errors(counts: &DiskCounts, side: Side) -> u64 {
    match side {
        Side::Source => counts.read_errors + counts.bad_reads + counts.device_read_errors,
        Side::Target => counts.write_errors + counts.bad_writes + counts.device_write_errors,
    }
}
