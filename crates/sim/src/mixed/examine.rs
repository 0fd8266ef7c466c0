//! Arrays under examination: degraded, healed, checked and compared.

use super::array::Admin;
use super::compare::compare;
use super::run::Run;
use drystone_raid::array::{ArrayStatus, Command};
use fastrand::Rng;

/// Sectors of a stripe's block.
const BLOCK: u64 = 8;

/// One member fails, which is on record when this returns.
pub(super) fn degrade(admin: &Admin, rng: &mut Rng) {
    let run = &admin.run;
    let disk = rng.u64(0..run.world.disks() as u64) as usize;
    run.health.hurt(disk);
    if let Err(why) = admin.order("fail", Command::Fail(Admin::name(disk))) {
        run.world.fail(format!("a member cannot be failed: {why}"));
    }
}

/// Bits of the bitmap that were set when the array was made are cleared, so that the next write has
/// to set them. If `is_settled`, nothing has to be synchronised, either.
pub(super) fn await_empty_bitmap(admin: &Admin, is_settled: bool) {
    let is_empty = |status: &ArrayStatus| status.bitmap.is_none_or(|bitmap| bitmap.pages_used == 0);
    admin.wait("an empty bitmap", is_empty);
    _ = is_settled && admin.wait_until_settled();
}

/// Examines an array that lost its power: once it is synchronised parity fits, and without as many
/// members as it may lose it holds the same.
pub(super) fn examine_cut(admin: &Admin, rng: &mut Rng) {
    if admin.wait_until_settled() {
        admin.check();
        compare_degraded(admin, rng);
    }
}

/// Examines an array with no load on it: it becomes whole, parity fits, and without as many members
/// as it may lose it holds the same.
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

/// Compares everything without as many members as may fail: these.
fn compare_degraded(admin: &Admin, rng: &mut Rng) -> Vec<usize> {
    let failed = admin.degrade(rng);
    let counts = &admin.run.counts;
    counts.borrow_mut().add("array: compared without members", failed.len() as u64);
    compare(&admin.run, admin.start());
    failed
}

impl Run {
    /// An array lacked a member when the power went: the data of that member is spoilt where others
    /// were being written, unless a log was kept, which saves what was not itself being written.
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

    /// Blocks of a row and a half of an array, chunks of two blocks, that a write hole may have
    /// spoilt while block 5 was written.
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
