//! Examines arrays: degrades, heals, checks and compares them.
//!
//! Invariants:
//! * A disk counts as hurt before this module fails it.
//! * Members are failed for a comparison only while parity fits, and never more than it makes up
//!   for.
//! * An array has settled before members are failed for a comparison.

use super::array::Admin;
use super::compare::compare;
use super::run::Run;
use drystone_raid::array::{ArrayStatus, Command};
use fastrand::Rng;

/// Sectors of a stripe's block.
const BLOCK: u64 = 8;

/// Fails one member. The other superblocks record the failure before this returns.
pub(super) fn degrade(admin: &Admin, rng: &mut Rng) {
    let run = &admin.run;
    let disk = rng.u64(0..run.world.disks() as u64) as usize;
    run.health.hurt(disk);
    if let Err(why) = admin.order("fail", Command::Fail(Admin::name(disk))) {
        run.world.fail(format!("a member cannot be failed: {why}"));
    }
}

/// Waits until the bitmap has no bit from the creation of the array, so that the next write must
/// set one. If `is_settled`, waits for synchronisations, too.
pub(super) fn await_empty_bitmap(admin: &Admin, is_settled: bool) {
    let is_empty = |status: &ArrayStatus| status.bitmap.is_none_or(|bitmap| bitmap.pages_used == 0);
    admin.wait("an empty bitmap", is_empty);
    _ = is_settled && admin.wait_until_settled();
}

/// Examines an array that lost its power: once it is synchronised, parity must fit, and the data
/// must be the same without as many members as it may lose.
pub(super) fn examine_cut(admin: &Admin, rng: &mut Rng) {
    if admin.wait_until_settled() {
        admin.check();
        compare_degraded(admin, rng);
    }
}

/// Examines an array without load: it must become whole, parity must fit, and the data must be the
/// same without as many members as it may lose.
pub(super) fn examine(admin: &Admin, rng: &mut Rng) {
    if !admin.wait_until_settled() || !admin.heal_all() {
        return;
    }
    // A disk that vanished is not back before the next start.
    if admin.status().degraded() == 0 {
        admin.check();
    }
    let failed = compare_degraded(admin, rng);
    failed.iter().for_each(|disk| admin.heal(*disk));
    admin.wait_until_settled();
}

/// Fails as many members as the array may lose, and compares all data. Returns the disks of these
/// members.
fn compare_degraded(admin: &Admin, rng: &mut Rng) -> Vec<usize> {
    let failed = admin.degrade(rng);
    let counts = &admin.run.counts;
    counts.borrow_mut().add("array: compared without members", failed.len() as u64);
    compare(&admin.run, admin.start());
    failed
}

impl Run {
    /// Tells the oracle of a write hole: an array lacked a member when the power went. In each
    /// stripe that was being written, the block of that member may hold anything. With a partial
    /// parity log, only the blocks that were being written may.
    pub(super) fn admit_write_hole(&self, target: usize) {
        let Some(of) = self.plan.targets[target].redundancy else { return };
        let oracle = &mut self.oracles.borrow_mut()[target];
        let row = of.chunk * of.data;
        let blocks = 0..oracle.sectors().div_ceil(BLOCK);
        let open: Vec<u64> =
            blocks.map(|block| block * BLOCK).filter(|at| oracle.is_open(*at, BLOCK)).collect();
        for at in open {
            if of.logged {
                oracle.permit_anything(at, BLOCK);
                continue;
            }
            let in_row = at % row % of.chunk;
            for chunk in 0..of.data {
                oracle.permit_anything(at - at % row + chunk * of.chunk + in_row, BLOCK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Plan, Target};
    use super::super::redundancy::Redundancy;
    use super::super::testing::{array, run_of};
    use super::*;

    /// The blocks that a write hole may have spoilt while block 5 was written, in an array of one
    /// and a half rows with chunks of two blocks.
    fn spoilt_blocks(logged: bool) -> Vec<u64> {
        let mut plan: Plan = array();
        let redundancy = Some(Redundancy { parity: 1, data: 2, chunk: 2 * BLOCK, logged });
        plan.targets[0] = Target { redundancy, ..plan.targets[0].clone() };
        let run = run_of(plan);
        run.oracles.borrow_mut()[0].write_begins(5 * BLOCK..6 * BLOCK, false);
        run.admit_write_hole(0);
        let mut oracle = run.oracles.borrow()[0].clone();
        let mut is_spoilt = |block: &u64| {
            let id = oracle.read_begins(block * BLOCK..block * BLOCK + 1);
            oracle.read_ends_ok(id, &[1; 512]).is_ok()
        };
        (0..8).filter(|block| is_spoilt(block)).collect()
    }

    /// ```text
    /// row 0 | 0 1 | 2 3 |     the fifth block and the seventh share a stripe
    /// row 1 | 4 5 | 6 7 |
    /// ```
    #[test]
    fn a_write_hole_spoils_the_blocks_of_one_stripe() {
        assert_eq!(spoilt_blocks(false), [5, 7]);
    }

    #[test]
    fn a_log_saves_the_blocks_beside_a_write() {
        assert_eq!(spoilt_blocks(true), [5]);
    }
}
