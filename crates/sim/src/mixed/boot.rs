//! Starts a stack: for the first time, or on the disks that a power cut left. The power may go
//! again during the start.
//!
//! Invariants:
//! * Each start begins with all disks on, without faults, and with fault counts from zero.
//! * [`start_stack`] returns a start only while the power is on.
//! * A start that a power cut ended is torn down before the next one begins.

use super::array::SUPERBLOCK;
use super::compare::compare;
use super::plan::{DeviceKind, stack_file};
use super::records::Records;
use super::run::{Run, fresh};
use super::shutdown::end;
use super::started::Started;
use crate::stack;
use drystone_core::clock::Ns;
use drystone_stack::live::LiveStack;
use fastrand::Rng;
use std::cell::Cell;
use std::rc::Rc;

/// The latest time at which a power cut interrupts the start of an array.
const STORM_NS: Ns = 30_000_000;

/// Start the stack; compare all data if this is a start `again`. Now and then a power cut
/// interrupts the start of an array, and the start begins again.
pub(super) fn start_stack(run: &Rc<Run>, rng: &mut Rng, again: bool) -> Option<Rc<Started>> {
    loop {
        let was_hurt = run.health.was_hurt();
        let storm = (again && run.has_array() && rng.u32(0..4) == 0).then(|| gather(run, rng));
        let started = start_once(run, again, was_hurt);
        storm.inspect(|storm| storm.set(false));
        if !run.off.get() {
            return started;
        }
        let is_hurt = started.as_ref().is_some_and(|start| is_hurt(run, start.stack()));
        run.health.set_was_hurt(was_hurt || is_hurt);
        if let Some(start) = started {
            start.stack().stop();
            end(run, start);
        }
        if run.world.failure().is_some() {
            return None;
        }
    }
}

/// Spawns a fiber that cuts the power at a random time, unless the caller clears the flag before.
fn gather(run: &Rc<Run>, rng: &mut Rng) -> Rc<Cell<bool>> {
    let is_coming = Rc::new(Cell::new(true));
    let (there, ns) = (is_coming.clone(), rng.u64(0..STORM_NS));
    let run = run.clone();
    run.world.clone().spawn("storm", move || {
        run.world.sleep(ns);
        if there.get() && run.world.failure().is_none() {
            run.counts.borrow_mut().add("power cut while a stack starts", 1);
            run.power_off(false);
        }
    });
    is_coming
}

/// Starts the stack once. If a power cut ends the start, the result is `None` or `off` is set.
pub(super) fn start_once(run: &Rc<Run>, again: bool, was_hurt: bool) -> Option<Rc<Started>> {
    switch_on(run);
    let mut records = (again && run.has_array()).then(|| Records::read(run));
    let stack = match open_or_force(run, was_hurt) {
        Ok(stack) => stack,
        Err(_) if run.off.get() => return None,
        Err(report) => {
            run.world.fail(format!("the stack does not start: {report}"));
            return None;
        }
    };
    records.iter_mut().for_each(|records| records.opened(run));
    let start = Started::new(run, stack);
    if again {
        forget(run);
        compare(run, &start);
        // A forced start may have to use an old member if the power went before all superblocks
        // were read. So no records are judged then.
        let is_on = !run.off.get();
        records.filter(|_| is_on).inspect(|records| records.judge(run, &start));
    }
    Some(start)
}

/// Switches all disks on, without faults.
fn switch_on(run: &Run) {
    run.off.set(false);
    *run.sizes.borrow_mut() = run.plan.targets.iter().map(|target| target.sectors).collect();
    for disk in 0..run.world.disks() {
        run.world.disk(disk, |disk| {
            disk.power_on();
            *disk.faults() = Default::default();
        });
        run.replace_cut_off(disk);
    }
    run.health.heal_all();
    run.faults.restart_counts();
    run.world.note(|| "the stack is started".to_owned());
    run.counts.borrow_mut().add("start", 1);
}

/// Resets the oracles of devices in memory, which have lost their data.
fn forget(run: &Run) {
    let mut oracles = run.oracles.borrow_mut();
    for (number, target) in run.plan.targets.iter().enumerate() {
        if target.device_kind == DeviceKind::Forgets {
            oracles[number] = fresh(&run.plan, number);
        }
    }
}

/// Open the stack. An array that lacked a member or a block of one when the power went may have
/// lost data. If the array knows that, it refuses to start, and this function forces it.
fn open_or_force(run: &Run, was_hurt: bool) -> Result<LiveStack, String> {
    let mut text = stack_file(&run.plan.text, &run.volumes.borrow());
    let wiped = run.health.retain_wiped(|disk| is_superblock_on(run, disk));
    for disk in &wiped {
        text = text.replace(&format!("\"d{disk}\", "), "").replace(&format!(", \"d{disk}\""), "");
    }
    let mut opened = stack::open(&run.world, text.clone());
    let is_early = opened.as_ref().is_err_and(|why| why.contains("`run = true`"));
    if is_early && run.health.is_adding() && !wiped.is_empty() {
        // The other superblocks call the wiped disk a member, but its own is empty: no data was
        // ever read from it.
        text = text.replace("[device.a]\n", "[device.a]\nrun = true\n");
        run.counts.borrow_mut().add("array: run", 1);
        opened = stack::open(&run.world, text.clone());
    }
    if !run.off.get() {
        run.health.end_adding(None);
    }
    if !was_hurt || run.off.get() {
        return opened;
    }
    let is_refused = opened.as_ref().is_err_and(|why| why.contains("`force = true`"));
    let has_bad_blocks = opened.as_ref().is_ok_and(has_bad_blocks);
    for (target, of) in run.plan.targets.iter().enumerate() {
        let logged = of.redundancy.is_some_and(|of| of.logged);
        if is_refused || has_bad_blocks || logged {
            run.admit_write_hole(target);
        }
    }
    if !is_refused {
        return opened;
    }
    run.counts.borrow_mut().add("array: forced", 1);
    stack::open(&run.world, text.replace("[device.a]\n", "[device.a]\nforce = true\n"))
}

/// True if a wiped disk has a superblock: it became a member before the power went, and its
/// operator never learned of it.
fn is_superblock_on(run: &Run, disk: usize) -> bool {
    let from = SUPERBLOCK.0 as usize * 512;
    let range = from..from + SUPERBLOCK.1 * 512;
    run.world.disk(disk, |disk| disk.contents_of(range)).iter().any(|byte| *byte != 0)
}

fn has_bad_blocks(stack: &LiveStack) -> bool {
    let arrays = stack.devices();
    let mut arrays = arrays.iter().filter_map(|live| live.array.as_ref());
    arrays.any(|array| array.status().disks.iter().any(|disk| disk.has_bad_blocks))
}

/// True if an array of the stack lacks a member, or may be about to.
pub(super) fn is_hurt(run: &Run, stack: &LiveStack) -> bool {
    let arrays = stack.devices();
    let mut arrays = arrays.iter().filter_map(|live| live.array.as_ref());
    !run.health.hurt_disks().is_empty()
        || has_bad_blocks(stack)
        || arrays.any(|array| array.status().degraded() > 0)
}

#[cfg(test)]
mod tests {
    use super::super::array::Admin;
    use super::super::plan::Target;
    use super::super::testing::{
        SECTORS, array, io, on_fiber, plan, run_of, sentence, target, two_disks,
    };
    use super::*;
    use crate::oracle::{Ended, fill};
    use crate::schedule::Stuck;
    use drystone_core::{Bio, IoBuf, Sector, Status};

    /// Writes the first sector of a target. The oracle learns of the write if it `is_told`.
    fn write(run: &Run, start: &Started, target: usize, is_told: bool) {
        let id = run.oracles.borrow_mut()[target].write_begins(0..1, is_told);
        let mut data = IoBuf::zeroed(512);
        fill(&mut data, target as u32, 0, id.stamp());
        let name = &run.plan.targets[target].name;
        assert_eq!(io(run, start, name, Bio::write(Sector(0), data)), Status::Ok);
        let ended = if is_told { Ended::Ok } else { Ended::Failed };
        run.oracles.borrow_mut()[target].write_ends(id, ended);
    }

    #[test]
    fn a_start_gives_disks_their_power_and_takes_their_faults() {
        let run = run_of(two_disks());
        let ended = on_fiber(&run, |run| {
            run.world.disk(1, |disk| disk.faults().reads_fail = true);
            run.power_off(false);
            run.health.hurt(1);
            let start = start_once(run, false, false).expect("it starts");
            assert!(!run.off.get() && !run.health.is_hurt(1));
            let read = Bio::read(Sector(0), IoBuf::zeroed(512));
            assert_eq!(io(run, &start, "d1", read), Status::Ok);
            end(run, start);
        });
        ended.expect("all is well");
    }

    /// Starts a stack, lets `work` happen, and starts it again.
    fn start_again(
        run: &Rc<Run>,
        work: impl FnOnce(&Run, &Started) + 'static,
    ) -> Result<(), Stuck> {
        on_fiber(run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            work(run, &start);
            end(run, start);
            end(run, start_once(run, true, false).expect("it starts again"));
        })
    }

    #[test]
    fn a_start_after_another_compares_all() {
        let run = run_of(two_disks());
        start_again(&run, |run, start| write(run, start, 1, true)).expect("all is well");
        let again = start_again(&run, |run, _| {
            run.world.disk(1, |disk| disk.poke(SECTORS / 2 * 512, &[9]));
        });
        assert!(sentence(again).starts_with("after a start, d1: "));
    }

    #[test]
    fn a_device_in_memory_starts_with_zeroes() {
        let ram = Target { device_kind: DeviceKind::Forgets, ..target("r", &[0]) };
        let text = "[device.r]\ntype = \"ram\"\nsize = \"1MiB\"\n";
        let run = run_of(plan(1, text, vec![ram]));
        start_again(&run, |run, start| write(run, start, 0, true)).expect("all is well");
    }

    #[test]
    fn a_power_cut_while_a_stack_is_compared_is_no_fault_of_it() {
        let run = run_of(two_disks());
        let ended = on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            end(run, start);
            let cut = run.clone();
            run.world.spawn("storm", move || {
                cut.world.sleep(500);
                cut.power_off(false);
            });
            let start = start_once(run, true, false).expect("it was open");
            assert!(run.off.get());
            start.stack().stop();
            end(run, start);
        });
        ended.expect("all is well");
    }

    /// The other superblocks give the disk the place of a member; its own superblock is empty.
    #[test]
    fn an_array_starts_without_a_disk_that_was_being_added() {
        let run = run_of(array());
        let ended = on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            Admin::new(run, &start).expect("an array").wait_until_settled();
            end(run, start);
            run.world.disk(1, |disk| disk.poke(0, &[0; 1 << 20]));
            run.health.wipe(1);
            run.health.begin_adding();
            let start = start_once(run, true, true).expect("it starts again");
            assert_eq!(run.counts.borrow().get("array: run"), 1);
            assert!(is_hurt(run, start.stack()) && !run.health.is_adding());
            end(run, start);
        });
        ended.expect("all is well");
    }
}
