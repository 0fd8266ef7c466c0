//! Stops an array in order (`md stop`), sometimes during a rebuild.
//!
//! Invariants:
//! * All work of the start is done and durable before the array stops.
//! * The rebuilt member counts as hurt from before it is failed.
//! * The position of a rebuild is noted only while the rebuild still runs.

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

/// KiB a second of a rebuild that is stopped in the middle: it lasts two seconds with these disks.
const SLOW: u64 = 500;

/// Ends a start without a power cut: the array is stopped when its work is done, and in half of the
/// cases while a member is being rebuilt.
pub(super) fn stop_in_order(run: &Rc<Run>, start: &Rc<Started>, rng: &mut Rng) {
    Shutdown::new(run, start).finish_work();
    if rng.bool()
        && let Some(admin) = Admin::new(run, start)
    {
        begin_rebuild(&admin, rng);
    }
    // No write is in flight now. So a missing member can only have lost data if parity does not fit
    // since an earlier crash.
    let status = Admin::new(run, start).map(|admin| admin.status());
    let fits = status.is_none_or(|status| parity_fits(&status));
    run.health.set_was_hurt(!fits && is_hurt(run, start.stack()));
    run.counts.borrow_mut().add("array: stopped", 1);
}

/// Rebuilds a member on a new disk, and waits until a part is done.
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

#[cfg(test)]
mod tests {
    use super::super::boot::start_once;
    use super::super::shutdown::end;
    use super::super::testing::{array, on_fiber, run_of};
    use super::*;

    /// Stops an array, and starts it again. Returns how often it was stopped in a rebuild: by the
    /// notes at the stop, and by the records that the next start found.
    fn stopped(seed: u64) -> (u64, u64) {
        let run = run_of(array());
        let ended = on_fiber(&run, move |run| {
            let start = start_once(run, false, false).expect("it starts");
            Admin::new(run, &start).expect("an array").wait_until_settled();
            stop_in_order(run, &start, &mut Rng::with_seed(seed));
            end(run, start);
            if let Some((disk, done)) = run.health.take_rebuilt() {
                run.counts.borrow_mut().add("known", 1);
                run.health.stop_rebuild(disk, done);
            }
            end(run, start_once(run, true, false).expect("it starts again"));
            assert_eq!(run.health.take_rebuilt(), None, "the start has looked at it");
        });
        ended.expect("all is well");
        let counts = run.counts.borrow();
        (counts.get("known"), counts.get("array: stopped in a rebuild"))
    }

    #[test]
    fn a_rebuild_goes_on_from_where_it_was_stopped() {
        let all: Vec<_> = (0..6).map(stopped).collect();
        assert!(all.contains(&(1, 1)) && all.contains(&(0, 0)), "{all:?}");
        assert!(all.iter().all(|(known, found)| known == found), "{all:?}");
    }
}
