//! A stack is started: for the first time, or on what a power cut has left; and the power may go
//! again while it is.

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

/// The latest time of a power cut that comes while an array is started.
const STORM_NS: Ns = 30_000_000;

/// Start the stack; compare everything if it is started `again`. The start of an array is now and
/// then cut off, and begins again.
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

/// A power cut will come, unless it is told not to before.
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

/// One start, which a power cut may end: then there is none, or `off` is set.
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
        // Force may have to take an old member where the power went before all superblocks were
        // read.
        let is_on = !run.off.get();
        records.filter(|_| is_on).inspect(|records| records.judge(run, &start));
    }
    Some(start)
}

/// Disks have their power, and no faults.
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

/// Devices in memory have lost their data.
fn forget(run: &Run) {
    let mut oracles = run.oracles.borrow_mut();
    for (number, target) in run.plan.targets.iter().enumerate() {
        if target.device_kind == DeviceKind::Forgets {
            oracles[number] = fresh(&run.plan, number);
        }
    }
}

/// Open the stack. An array that lacked a member when the power went, or a block of one, may have
/// lost something; where it knows that, it has to be forced.
fn open_or_force(run: &Run, was_hurt: bool) -> Result<LiveStack, String> {
    let mut text = stack_file(&run.plan.text, &run.volumes.borrow());
    let wiped = run.health.retain_wiped(|disk| is_superblock_on(run, disk));
    for disk in &wiped {
        text = text.replace(&format!("\"d{disk}\", "), "").replace(&format!(", \"d{disk}\""), "");
    }
    let mut opened = stack::open(&run.world, text.clone());
    let is_early = opened.as_ref().is_err_and(|why| why.contains("`run = true`"));
    if is_early && run.health.is_adding() && !wiped.is_empty() {
        // Others call it a member, and it knows of nothing: nothing was ever read from it.
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

/// A disk that was made empty has become a member: the power went after that, and before its
/// operator knew.
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

/// An array of the stack lacks a member, or may be about to.
pub(super) fn is_hurt(run: &Run, stack: &LiveStack) -> bool {
    let arrays = stack.devices();
    let mut arrays = arrays.iter().filter_map(|live| live.array.as_ref());
    !run.health.hurt_disks().is_empty()
        || has_bad_blocks(stack)
        || arrays.any(|array| array.status().degraded() > 0)
}
