//! The superblocks on the disks just before an array is started, read without the array's own
//! assembly. The start must respect them: it must never read a member that has missed writes.
//!
//! Invariants:
//! * Reading changes nothing: the superblocks are copied from the disks' contents, without an
//!   operation.
//! * `old` has only disks that still call themselves active members. Reads of them count from the
//!   moment when the array is open.

use super::run::Run;
use super::started::Started;
use drystone_raid::array::DiskState;
use drystone_raid::metadata::superblock::{
    DevRole, Features, SUPERBLOCK_BYTES_MAX, Superblock, probe,
};

/// Disks that are old members, which the start must not read.
pub(super) struct Records {
    /// Each disk with its count of reads when the array had been opened.
    old: Vec<(usize, u64)>,
}

impl Records {
    /// Reads the disks of the run.
    pub(super) fn read(run: &Run) -> Self {
        let found: Vec<_> = (0..run.world.disks()).map(|disk| superblock(run, disk)).collect();
        let active = |own: &&Superblock| matches!(own.role(), DevRole::Active(_));
        let most = found.iter().flatten().filter(active).map(|own| own.events).max();
        let fresh = found.iter().flatten().filter(active).find(|own| Some(own.events) == most);
        let mut records = Records { old: Vec::new() };
        let Some(fresh) = fresh else { return records };
        for (disk, own) in found.iter().enumerate() {
            let Some(own) = own.as_ref().filter(active) else { continue };
            if is_old(own, fresh) {
                run.world.note(|| format!("d{disk} is old: {} of {}", own.events, fresh.events));
                records.old.push((disk, 0));
            } else {
                count_rebuilt(run, own);
            }
        }
        records.count(run);
        judge_stopped(run, &found);
        records
    }

    fn count(&self, run: &Run) {
        let beside = u64::from(!self.old.is_empty());
        run.counts.borrow_mut().add("array: started beside an old member", beside);
    }

    /// The array has been opened: all reads that find the members' roles are done.
    pub(super) fn opened(&mut self, run: &Run) {
        self.old.iter_mut().for_each(|(disk, seen)| *seen = reads(run, *disk));
    }

    /// Judges a start after all its data was compared: an old member must have taken no part.
    pub(super) fn judge(&self, run: &Run, start: &Started) {
        let devices = start.stack().devices();
        let Some(array) = devices.iter().find_map(|live| live.array.as_ref()) else { return };
        let status = array.status();
        for (disk, seen) in &self.old {
            let name = format!("d{disk}");
            let found = status.disks.iter().find(|found| *found.name == *name);
            if found.is_some_and(|found| matches!(found.state, DiskState::InSync(_))) {
                run.world.fail(format!("{name} has missed writes, and was taken for a member"));
            }
            if found.is_none() && reads(run, *disk) > *seen {
                run.world.fail(format!("{name} has missed writes, and is read"));
            }
        }
    }
}

/// True if the freshest superblock says that the member has failed, or if the member has missed an
/// update that all others have.
fn is_old(own: &Superblock, fresh: &Superblock) -> bool {
    fresh.role_of(own.dev_number) == DevRole::Faulty || own.events.saturating_add(1) < fresh.events
}

pub(super) fn superblock(run: &Run, disk: usize) -> Option<Superblock> {
    run.world.disk(disk, |disk| {
        let read = |sector: u64| {
            let from = sector as usize * 512;
            Ok::<_, ()>(disk.contents_of(from..from + SUPERBLOCK_BYTES_MAX))
        };
        let found = probe(disk.options().size / 512, read).ok()?;
        found.ok().map(|(_, found)| found)
    })
}

/// Counts a member that a crash interrupted in its recovery.
fn count_rebuilt(run: &Run, own: &Superblock) {
    let map = own.feature_map;
    let mut counts = run.counts.borrow_mut();
    let mut met = |what: &str, is_so: bool| counts.add(what, u64::from(is_so));
    let (rebuilds, by_bitmap) =
        (map.contains(Features::RECOVERY_OFFSET), map.contains(Features::RECOVERY_BITMAP));
    met("array: started in a recovery", rebuilds && !by_bitmap);
    met("array: started in a recovery by bitmap", rebuilds && by_bitmap);
    met("array: started in a recovery, after a checkpoint", rebuilds && own.recovery_offset > 0);
}

/// Judges the record of a rebuild that was stopped in order: it must reach as far as the rebuild
/// had got.
fn judge_stopped(run: &Run, found: &[Option<Superblock>]) {
    let Some((disk, done)) = run.health.take_rebuilt() else { return };
    let own = found[disk].as_ref().map(|own| (own.feature_map, own.recovery_offset));
    match own {
        Some((map, recovered)) if map.contains(Features::RECOVERY_OFFSET) && recovered >= done => {
            run.counts.borrow_mut().add("array: stopped in a rebuild", 1);
        }
        // The rebuild was complete before the array stopped.
        Some((map, _)) if !map.contains(Features::RECOVERY_OFFSET) => {}
        own => run.world.fail(format!(
            "d{disk} was rebuilt up to sector {done} when the array was stopped, on record is \
             {own:?}"
        )),
    }
}

fn reads(run: &Run, disk: usize) -> u64 {
    run.world.disk(disk, |disk| disk.counts().reads)
}

#[cfg(test)]
mod tests {
    use super::super::array::Admin;
    use super::super::boot::start_once;
    use super::super::shutdown::end;
    use super::super::testing::{array, on_fiber, run_of};
    use super::*;
    use drystone_raid::array::Command;
    use std::rc::Rc;

    /// Runs an array, of which member 0 fails if `fails`. Returns the run, stopped in order.
    fn stopped(fails: bool) -> Rc<Run> {
        let run = run_of(array());
        let ended = on_fiber(&run, move |run| {
            let start = start_once(run, false, false).expect("it starts");
            let admin = Admin::new(run, &start).expect("an array");
            assert!(admin.wait_until_settled());
            if fails {
                admin.order("fail", Command::Fail(Admin::name(0))).expect("it fails");
            }
            drop(admin);
            end(run, start);
        });
        ended.expect("all is well");
        run
    }

    #[test]
    fn a_member_that_failed_is_old_by_what_others_say() {
        let run = stopped(true);
        let records = Records::read(&run);
        assert_eq!(records.old.iter().map(|(disk, _)| *disk).collect::<Vec<_>>(), [0]);
        assert!(Records::read(&stopped(false)).old.is_empty());
    }

    #[test]
    fn a_member_that_missed_one_event_may_be_read_and_one_that_missed_two_may_not() {
        let run = stopped(false);
        let fresh = Superblock { events: 10, ..superblock(&run, 0).expect("a superblock") };
        let with = |events| Superblock { events, ..superblock(&run, 1).expect("a superblock") };
        assert!(!is_old(&with(fresh.events), &fresh) && !is_old(&with(fresh.events - 1), &fresh));
        assert!(is_old(&with(fresh.events - 2), &fresh));
    }

    #[test]
    fn a_rebuild_that_is_not_on_record_is_told() {
        let run = stopped(false);
        let own = superblock(&run, 1).expect("a superblock");
        let put = |feature_map, recovery_offset| {
            let own = Superblock { feature_map, recovery_offset, ..own.clone() };
            run.world.disk(1, |disk| disk.poke(8 * 512, &own.to_bytes()));
        };
        run.health.stop_rebuild(1, 800);
        put(own.feature_map | Features::RECOVERY_OFFSET, 800);
        Records::read(&run);
        assert_eq!(run.counts.borrow().get("array: stopped in a rebuild"), 1);
        run.health.stop_rebuild(1, 800);
        put(own.feature_map, 0);
        Records::read(&run);
        assert_eq!(run.world.failure(), None, "it went on to its end");
        run.health.stop_rebuild(1, 800);
        put(own.feature_map | Features::RECOVERY_OFFSET, 792);
        Records::read(&run);
        assert!(run.world.failure().is_some_and(|found| found.contains("up to sector 800")));
    }
}
