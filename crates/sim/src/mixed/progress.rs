//! The progress of the load: the I/Os that have begun and ended, which are left out, and the time
//! of the last end.
//!
//! Invariants:
//! * An I/O that is left out counts as begun and ended at once. So an I/O has the same number
//!   whichever others are left out.
//! * One fiber at a time waits for I/Os to begin.

use crate::order::Keep;
use crate::world::{FiberId, World};
use drystone_core::clock::Ns;
use std::cell::Cell;

/// See the module's text.
pub(super) struct Progress {
    world: World,
    keep: Option<Keep>,
    begun: Cell<u64>,
    ended: Cell<u64>,
    /// The time of the last progress, and the number of pauses until then.
    last_end: Cell<(Ns, u64)>,
    /// The fiber that waits, and the number of I/Os that must have begun.
    waiter: Cell<Option<(u64, FiberId)>>,
}

impl Progress {
    /// The progress of a run that does all I/Os, or those in `keep`.
    pub(super) fn new(world: World, keep: Option<Keep>) -> Self {
        let last_end = Cell::new((world.now(), 0));
        let (begun, ended) = (Cell::new(0), Cell::new(0));
        Progress { world, keep, begun, ended, last_end, waiter: Cell::new(None) }
    }

    /// I/Os that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun.get()
    }

    /// I/Os that have begun and not ended.
    pub(super) fn open(&self) -> u64 {
        self.begun.get() - self.ended.get()
    }

    /// The number of the next I/O; none if it is left out.
    pub(super) fn begin(&self) -> Option<u64> {
        let number = self.begun.get() + 1;
        self.begun.set(number);
        self.wake_waiter(number);
        let kept = self.keep.as_ref().is_none_or(|keep| keep.contains(&number));
        if !kept {
            self.ended.set(self.ended.get() + 1);
        }
        kept.then_some(number)
    }

    /// An I/O has ended.
    pub(super) fn end(&self) {
        self.ended.set(self.ended.get() + 1);
        self.note();
    }

    /// All I/Os have ended, also those of dropped contexts.
    pub(super) fn end_all(&self) {
        self.ended.set(self.begun.get());
    }

    /// Counts as progress, although no I/O has ended.
    pub(super) fn note(&self) {
        self.last_end.set((self.world.now(), self.world.pauses()));
    }

    /// Time and pauses of fibers since the last progress.
    pub(super) fn idle(&self) -> (Ns, u64) {
        let (since, pauses) = self.last_end.get();
        (self.world.now() - since, self.world.pauses() - pauses)
    }

    /// The running fiber sleeps until so many I/Os have begun or `goes_on` is false.
    pub(super) fn wait_for(&self, begun: u64, goes_on: impl Fn() -> bool) {
        while self.begun.get() < begun && goes_on() {
            self.waiter.set(Some((begun, self.world.running())));
            self.world.doze(None);
        }
        self.waiter.set(None);
    }

    /// Wakes the waiting fiber if so many I/Os are enough for it.
    pub(super) fn wake_waiter(&self, begun: u64) {
        if let Some((at, fiber)) = self.waiter.get()
            && begun >= at
        {
            self.world.wake(fiber);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Policy, Scheduler};
    use std::rc::Rc;

    #[test]
    fn what_is_left_out_has_begun_and_ended() {
        let progress = Progress::new(World::new(false), Some(Keep::from([2])));
        assert_eq!((progress.begin(), progress.open()), (None, 0));
        assert_eq!((progress.begin(), progress.open()), (Some(2), 1));
        progress.end();
        assert_eq!((progress.begun(), progress.open()), (2, 0));
    }

    #[test]
    fn the_last_end_is_the_last_progress() {
        let world = World::new(false);
        let progress = Progress::new(world.clone(), None);
        assert_eq!((progress.begin(), progress.begin()), (Some(1), Some(2)));
        world.pass(70);
        assert_eq!(progress.idle().0, 70, "a begin is no progress");
        progress.end();
        assert_eq!((progress.idle().0, progress.open()), (0, 1));
        world.pass(30);
        progress.end_all();
        assert_eq!((progress.idle().0, progress.open()), (30, 0));
        progress.note();
        assert_eq!(progress.idle().0, 0);
    }

    /// Runs fibers: one that waits for three I/Os while `goes_on`, and `other`. Returns how many
    /// had begun when the first one went on.
    fn begun_at_the_end(
        goes_on: Rc<Cell<bool>>,
        other: impl FnOnce(&Progress, &World) + 'static,
    ) -> u64 {
        let world = World::new(false);
        let progress = Rc::new(Progress::new(world.clone(), None));
        let seen = Rc::new(Cell::new(u64::MAX));
        let (waits, saw) = (progress.clone(), seen.clone());
        world.spawn("waiter", move || {
            waits.wait_for(3, || goes_on.get());
            saw.set(waits.begun());
        });
        let inside = world.clone();
        world.spawn("other", move || {
            inside.sleep(1000);
            other(&progress, &inside);
        });
        let policy = Policy { points: 0, stalls_ppm: 0, stall_max_ns: 1, pause_max_ns: 20 };
        Scheduler::new(world, policy, 1).run(None).expect("all fibers end");
        seen.get()
    }

    #[test]
    fn a_fiber_sleeps_until_so_many_have_begun() {
        let begun = begun_at_the_end(Rc::new(Cell::new(true)), |progress, world| {
            for _ in 0..5 {
                progress.begin();
                world.sleep(1000);
            }
        });
        assert_eq!(begun, 3);
    }

    #[test]
    fn a_fiber_that_is_woken_ends_its_wait_if_it_does_not_go_on() {
        let goes_on = Rc::new(Cell::new(true));
        let over = goes_on.clone();
        let begun = begun_at_the_end(goes_on, move |progress, _| {
            over.set(false);
            progress.wake_waiter(u64::MAX);
        });
        assert_eq!(begun, 0);
    }
}
