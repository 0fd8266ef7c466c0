//! An array that is stopped in order (`md stop`), also while it is rebuilt, and started again.

use super::array::Admin;
use super::boot::is_hurt;
use super::fault_injection::is_recovering;
use super::redundancy::parity_fits;
use super::run::Run;
use super::shutdown::Shutdown;
use super::started::Started;
use drystone_raid::array::{ArrayStatus, Command, DiskState};
use fastrand::Rng;
use std::rc::Rc;

/// KiB a second of a rebuild that is stopped in the middle: two seconds, with the disks that there
/// are.
const SLOW: u64 = 500;

/// No power cut ends this start: the array is stopped when its work is done, and half of the
/// times while a member is being rebuilt.
pub(super) fn stop_in_order(run: &Rc<Run>, start: &Rc<Started>, rng: &mut Rng) {
    Shutdown::new(run, start).finish_work();
    if rng.bool()
        && let Some(admin) = Admin::new(run, start)
    {
        begin_rebuild(&admin, rng);
    }
    // Nothing is being written: only what a crash left before can be spoilt where it lacks
    // members.
    let status = Admin::new(run, start).map(|admin| admin.status());
    let fits = status.is_none_or(|status| parity_fits(&status));
    run.health.set_was_hurt(!fits && is_hurt(run, start.stack()));
    run.counts.borrow_mut().add("array: stopped", 1);
}

/// Have a member rebuilt on a new disk, and wait until some of that is done.
fn begin_rebuild(admin: &Admin, rng: &mut Rng) {
    let run = &admin.run;
    let disk = rng.u64(0..run.world.disks() as u64) as usize;
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
    let found = (0..run.world.disks())
        .find(|disk| Admin::state(&status, *disk).is_some_and(|(state, _)| is_rebuilt(&state)));
    if let Some(disk) = found.filter(|_| is_recovering(&status) && done(&status) > 0) {
        run.health.stop_rebuild(disk, done(&status));
    }
}
