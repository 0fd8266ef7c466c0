//! An array that is stopped in order (`md stop`), also while it is rebuilt, and started again.

use super::array::Admin;
use super::boot::is_hurt;
use super::fault_injection::is_recovering;
use super::redundancy::parity_fits;
use super::run::{Operator, Started};
use drystone_raid::array::{ArrayStatus, Command, DiskState};
use std::rc::Rc;

/// KiB a second of a rebuild that is stopped in the middle: two seconds, with the disks that there
/// are.
const SLOW: u64 = 500;

impl Operator {
    /// No power cut ends this start: the array is stopped when its work is done, and half of the
    /// times while a member is being rebuilt.
    pub(super) fn stop_in_order(&mut self, start: &Rc<Started>) {
        self.finish_work(start);
        if self.rng.bool() {
            self.begin_rebuild(start);
        }
        // Nothing is being written: only what a crash left before can be spoilt where it lacks
        // members.
        let status = Admin::new(&self.run, start).map(|admin| admin.status());
        let fits = status.is_none_or(|status| parity_fits(&status));
        self.run.health.set_was_hurt(!fits && is_hurt(&self.run, &start.stack));
        self.run.counts.borrow_mut().add("array: stopped", 1);
    }

    /// Have a member rebuilt on a new disk, and wait until some of that is done.
    fn begin_rebuild(&mut self, start: &Rc<Started>) {
        let Some(admin) = Admin::new(&self.run, start) else { return };
        let disk = self.rng.u64(0..self.run.world.disks() as u64) as usize;
        if !admin.wait_until_settled() || !admin.hurt_if_spared(disk) {
            return;
        }
        let _ = admin.order("speed", Command::Speed { min: Some(SLOW), max: Some(SLOW) });
        let _ = admin.order("fail", Command::Fail(Admin::name(disk)));
        admin.back(disk, true);
        let done = |status: &ArrayStatus| status.sync.map_or(0, |sync| sync.done);
        admin.wait("rebuilt in part", |status| {
            done(status) > 0 || !is_recovering(status) && !status.resync_pending
        });
        let status = admin.status();
        let is_rebuilt = |found: &DiskState| matches!(found, DiskState::Rebuilding(_));
        let found = (0..self.run.world.disks())
            .find(|disk| Admin::state(&status, *disk).is_some_and(|(state, _)| is_rebuilt(&state)));
        if let Some(disk) = found.filter(|_| is_recovering(&status) && done(&status) > 0) {
            self.run.health.stop_rebuild(disk, done(&status));
        }
    }
}
