//! The end of a start: its work ends and becomes durable, and the stack leaves nothing behind.
//!
//! Invariants:
//! * A wait that makes no progress ends with a failure of the run, so no wait lasts for ever.
//! * A start that failed is never torn down: fibers may still be inside.

use super::nbd::end_server;
use super::plan::DeviceKind;
use super::run::Run;
use super::started::Started;
use crate::stack::one;
use drystone_core::clock::Ns;
use drystone_core::{Bio, Status};
use drystone_stack::live::SleepFn;
use std::rc::Rc;
use std::sync::{Arc, Weak};

/// The time without an ended I/O after which the run counts as hung: longer than the longest stall
/// and the slowest limit together.
const PATIENCE_NS: Ns = 600_000_000_000;
/// The pauses of fibers that must also have passed: time may jump while no event happens, and a
/// jump does not mean that a fiber hangs.
const PATIENCE_PAUSES: u64 = 2_000_000;
/// The pause between two checks.
const LOOK_NS: Ns = 200_000;
/// The tries to stop an array.
const STOPS: u32 = 10;

/// See the module's text.
pub(super) struct Shutdown<'a> {
    run: &'a Run,
    start: &'a Started,
}

impl<'a> Shutdown<'a> {
    pub(super) fn new(run: &'a Run, start: &'a Started) -> Self {
        Shutdown { run, start }
    }

    /// Wait until all work has ended, then flush.
    pub(super) fn finish_work(&self) {
        let limit = self.start.limit();
        self.watch(|run| run.progress.begun() >= limit);
        self.watch(|_| self.start.controls() == 0);
        if !self.run.plan.nbd.as_ref().is_some_and(|plan| plan.stops_early) {
            self.watch(|_| self.start.loads() == 0);
        }
        self.stop_serving();
        self.settle();
        self.flush();
    }

    /// Stops the server in order, if there is one. All that it has acknowledged has happened then.
    fn stop_serving(&self) {
        if self.run.plan.nbd.is_some() {
            self.start.stack().stop();
            self.start.served().stop();
        }
        self.watch(|_| self.start.loads() == 0 && self.start.served().workers() == 0);
    }

    /// Waits until nothing is in flight, I/Os of dropped contexts included.
    fn settle(&self) {
        self.watch(|_| self.start.free_idle_orphans() == 0);
        self.settle_orphans();
    }

    /// Settles the orphans if their contexts are idle: then they have ended.
    fn settle_orphans(&self) {
        let orphans = self.start.take_orphans();
        if orphans.is_empty() || self.run.off.get() {
            return;
        }
        // Another context may have been dropped meanwhile.
        if self.start.free_idle_orphans() > 0 {
            return self.start.add_orphans(orphans);
        }
        if !self.run.off.get() && self.run.world.failure().is_none() {
            orphans.into_iter().for_each(|io| io.lost(self.run));
        }
    }

    fn flush(&self) {
        let run = self.run;
        let mut cx = self.start.context(&run.world);
        for (number, target) in run.plan.targets.iter().enumerate() {
            let keeps = target.device_kind == DeviceKind::Keeps;
            let Some(device) = keeps.then(|| self.start.device(&target.name)) else { continue };
            let Ok(index) = cx.open(&device) else { continue };
            let id = run.oracles.borrow_mut()[number].flush_begins();
            let status = one(&mut cx, index, Bio::flush()).status;
            run.oracles.borrow_mut()[number].flush_ends(id, status == Status::Ok);
            if status != Status::Ok && !run.has_failed(target) && !target.fails {
                run.world.fail(format!("{}: the last flush ended with {status:?}", target.name));
            }
        }
    }

    /// Wait until `over`, and fail the run if there is no progress.
    pub(super) fn watch(&self, over: impl Fn(&Run) -> bool) {
        let run = self.run;
        run.progress.note();
        while !over(run) && run.world.failure().is_none() {
            // The requests of a client that left may stay in flight as long as the server likes.
            if run.plan.nbd.is_none() {
                self.settle_orphans();
            }
            // The pause grows with the time without progress.
            let (idle, _) = run.progress.idle();
            run.world.sleep(LOOK_NS.max((idle / 8).min(PATIENCE_NS / 8)));
            if idle > PATIENCE_NS && run.progress.idle().1 > PATIENCE_PAUSES {
                let (loads, controls) = (self.start.loads(), self.start.controls());
                let open = run.progress.open();
                run.world.fail(format!(
                    "no I/O has ended for {} s: {open} are open, {loads} threads and {controls} \
                     changes have not come to an end",
                    PATIENCE_NS / 1_000_000_000
                ));
            }
        }
    }

    /// Stops the arrays. They must become clean, unless the power has gone.
    fn stop_arrays(&self) {
        let run = self.run;
        if run.world.failure().is_some() {
            return;
        }
        let world = run.world.clone();
        let pause = Box::new(move |ns| world.sleep(ns)) as SleepFn;
        // With very slow threads a synchronisation may outlast one try.
        let mut stopped = self.start.stack().stop_arrays(&pause);
        for _ in 0..STOPS {
            if stopped.is_err() {
                stopped = self.start.stack().stop_arrays(&pause);
            }
        }
        if let (Err(why), false) = (stopped, run.off.get()) {
            run.world.fail(format!("an array does not stop: {why}"));
        }
    }

    /// Waits until nothing uses the stack any more.
    fn finish_use(&self) {
        self.start.served().stop();
        self.start.wake_all();
        self.watch(|_| self.start.loads() == 0 && self.start.controls() == 0);
        self.watch(|_| self.start.served().workers() == 0);
        self.stop_arrays();
        self.watch(|_| self.start.free_idle_orphans() == 0);
    }
}

/// Ends the start: its stack must leave nothing behind.
pub(super) fn end(run: &Run, start: Rc<Started>) {
    Shutdown::new(run, &start).finish_use();
    if run.world.failure().is_some() {
        // Fibers may still use the stack.
        return std::mem::forget(start);
    }
    drop(start.take_orphans());
    end_server(run, &start);
    run.progress.end_all();
    for live in start.stack().devices() {
        let in_flight = live.device.stats().in_flight();
        if in_flight != (0, 0) {
            let name = &live.name;
            run.world.fail(format!("{name} says that {in_flight:?} are in flight in the end"));
        }
    }
    let devices = start.stack().devices().into_iter();
    let devices: Vec<_> = devices.map(|live| Arc::downgrade(&live.device)).collect();
    drop(start);
    if let Some(left) = devices.iter().find_map(Weak::upgrade) {
        run.world.fail(format!("{} is still used in the end", left.info().name));
    }
    if let Some(rings) = run.world.rings_alive() {
        run.world.fail(format!("{rings} rings of contexts are left in the end"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::boot::start_once;
    use super::super::testing::{io, on_fiber, run_of, sentence, two_disks};
    use super::*;
    use crate::schedule::Stuck;
    use drystone_core::{IoBuf, Sector};
    use std::cell::Cell;

    /// Runs `body` with a start of two disks, and ends the start.
    fn with_start(body: impl FnOnce(&Rc<Run>, &Rc<Started>) + 'static) -> Result<(), Stuck> {
        let run = run_of(two_disks());
        on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            body(run, &start);
            end(run, start);
        })
    }

    #[test]
    fn finished_work_is_durable() {
        let is_durable = |run: &Run| run.world.disk(1, |disk| disk.durable()[..512] == [7; 512]);
        let ended = with_start(move |run, start| {
            let mut data = IoBuf::zeroed(512);
            data.fill(7);
            assert_eq!(io(run, start, "d1", Bio::write(Sector(0), data)), Status::Ok);
            assert!(!is_durable(run));
            Shutdown::new(run, start).finish_work();
            assert!(is_durable(run));
        });
        ended.expect("all is well");
    }

    #[test]
    fn work_is_finished_when_loads_and_changes_have_ended() {
        let ended = with_start(|run, start| {
            start.begin_loads(1);
            start.begin_control();
            let (inside, busy, over) =
                (run.world.clone(), start.clone(), Rc::new(Cell::new(false)));
            let ends = over.clone();
            run.world.spawn("load", move || {
                inside.sleep(1_000_000);
                busy.end_load();
                inside.sleep(1_000_000);
                ends.set(true);
                busy.end_control();
            });
            Shutdown::new(run, start).finish_work();
            assert!(over.get());
        });
        ended.expect("all is well");
    }

    #[test]
    fn a_wait_ends_when_a_fault_is_found() {
        let over = Rc::new(Cell::new(false));
        let ends = over.clone();
        let ended = with_start(move |run, start| {
            run.world.fail("a fault");
            Shutdown::new(run, start).watch(|_| false);
            ends.set(true);
        });
        assert_eq!((sentence(ended), over.get()), ("a fault".to_owned(), true));
    }

    #[test]
    fn a_last_flush_that_fails_needs_a_reason() {
        let flush = |may_fail: bool| {
            let ended = with_start(move |run, start| {
                run.world.disk(0, |disk| disk.faults().flush_error_ppm = 1_000_000);
                Shutdown::new(run, start).finish_work();
                // Errors so far belong to earlier starts.
                if !may_fail {
                    run.faults.restart_counts();
                }
                run.world.disk(0, |disk| *disk.faults() = Default::default());
                Shutdown::new(run, start).finish_work();
            });
            ended.is_ok()
        };
        assert!(flush(true) && !flush(false));
    }

    #[test]
    fn a_device_that_is_used_after_the_end_is_told() {
        let ended = with_start(|_, start| std::mem::forget(start.device("d1")));
        assert_eq!(sentence(ended), "d1 is still used in the end");
    }

    #[test]
    fn a_ring_that_is_left_after_the_end_is_told() {
        let ended = with_start(|run, _| std::mem::forget(run.world.ring()));
        assert_eq!(sentence(ended), "1 rings of contexts are left in the end");
    }
}
