//! A running stack, and the fibers that use it.
//!
//! Invariants:
//! * A start ends when no load, control or worker is left. Each counts from before its fiber begins
//!   until the fiber has dropped all that it holds of the stack.
//! * An I/O whose context is dropped is an orphan until its end is certain.

use super::io::Io;
use super::nbd::Served;
use super::run::Run;
use crate::world::World;
use drystone_core::context::Handle;
use drystone_core::{Context, ContextSet, Device};
use drystone_stack::live::LiveStack;
use std::cell::{Cell, Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;

/// Paths of throttle groups: a start has all but the last.
pub(super) const PATHS: [&str; 4] = ["a", "a/b", "c", "t"];

/// See the module's text.
pub(super) struct Started {
    stack: LiveStack,
    set: Arc<ContextSet>,
    handles: RefCell<Vec<Arc<Handle>>>,
    /// Numbers of throttle groups; some groups may be deleted.
    groups: RefCell<Vec<u32>>,
    /// Fibers that have not ended.
    loads: Cell<u64>,
    controls: Cell<u64>,
    served: Served,
    /// I/Os of contexts that were dropped.
    orphans: RefCell<Vec<Io>>,
    /// The number of begun I/Os at which the start's share is done.
    limit: Cell<u64>,
}

impl Started {
    /// A start with the opened stack.
    pub(super) fn new(run: &Run, stack: LiveStack) -> Rc<Self> {
        let groups = make_groups(&stack);
        count_schedulers(run, &stack);
        let set = stack.contexts().clone();
        Rc::new(Started {
            stack,
            set,
            handles: RefCell::default(),
            groups: RefCell::new(groups),
            loads: Cell::new(0),
            controls: Cell::new(0),
            served: Served::default(),
            orphans: RefCell::default(),
            limit: Cell::new(0),
        })
    }

    pub(super) fn stack(&self) -> &LiveStack {
        &self.stack
    }

    /// The server of the start.
    pub(super) fn served(&self) -> &Served {
        &self.served
    }

    /// A device of the plan.
    pub(super) fn device(&self, name: &str) -> Arc<dyn Device> {
        let all = self.stack.devices();
        all.iter().find(|live| live.name == name).expect("a device of the plan").device.clone()
    }

    /// Sets how many I/Os have begun when its share is done.
    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.set(limit);
    }

    /// The number of begun I/Os at which the start's share is done.
    pub(super) fn limit(&self) -> u64 {
        self.limit.get()
    }

    /// True while threads should go on with their work.
    pub(super) fn goes_on(&self, run: &Run) -> bool {
        !run.off.get() && run.progress.begun() < self.limit.get()
    }

    /// The running fiber sleeps until so many I/Os have begun, or this start's work is over.
    pub(super) fn wait_for(&self, run: &Run, begun: u64) {
        run.progress.wait_for(begun, || self.goes_on(run));
    }

    /// A new context.
    pub(super) fn context(&self, world: &World) -> Context {
        self.set.context(world.ring())
    }

    /// Frees the dropped contexts that are idle. Returns how many are left.
    pub(super) fn free_idle_orphans(&self) -> usize {
        self.set.free_idle_orphans()
    }

    /// Adds the context of a fiber, which the end of the start wakes.
    pub(super) fn add_handle(&self, handle: Arc<Handle>) {
        self.handles.borrow_mut().push(handle);
    }

    /// Wakes all contexts.
    pub(super) fn wake_all(&self) {
        // A woken fiber may add a handle meanwhile.
        let handles = self.handles.borrow().clone();
        handles.iter().for_each(|handle| handle.wake());
    }

    /// Numbers of throttle groups; some groups may be deleted.
    pub(super) fn groups(&self) -> Ref<'_, [u32]> {
        Ref::map(self.groups.borrow(), |groups| &groups[..])
    }

    /// A throttle group was made.
    pub(super) fn add_group(&self, group: u32) {
        self.groups.borrow_mut().push(group);
    }

    /// So many fibers that load the stack begin.
    pub(super) fn begin_loads(&self, loads: u64) {
        self.loads.set(loads);
    }

    /// A load has ended.
    pub(super) fn end_load(&self) {
        self.loads.set(self.loads.get() - 1);
    }

    /// Loads that have not ended.
    pub(super) fn loads(&self) -> u64 {
        self.loads.get()
    }

    /// The fiber that changes the stack begins.
    pub(super) fn begin_control(&self) {
        self.controls.set(1);
    }

    /// The fiber that changes the stack has ended.
    pub(super) fn end_control(&self) {
        self.controls.set(self.controls.get() - 1);
    }

    /// Fibers that change the stack and have not ended.
    pub(super) fn controls(&self) -> u64 {
        self.controls.get()
    }

    /// Adds I/Os that have lost their context: their results are lost.
    pub(super) fn add_orphans(&self, orphans: impl IntoIterator<Item = Io>) {
        self.orphans.borrow_mut().extend(orphans);
    }

    /// Takes all orphans.
    pub(super) fn take_orphans(&self) -> Vec<Io> {
        self.orphans.take()
    }
}

/// Makes the groups of a start. Returns their numbers.
fn make_groups(stack: &LiveStack) -> Vec<u32> {
    let made = PATHS[..3].iter().filter_map(|path| stack.groups().create(path).ok());
    made.map(|group| group.id().as_u32()).collect()
}

fn count_schedulers(run: &Run, stack: &LiveStack) {
    for live in stack.devices() {
        let attribute = live.device.attribute("queue/scheduler").unwrap_or_default();
        for name in ["none", "mq-deadline"] {
            if attribute.contains(&format!("[{name}]")) {
                run.counts.borrow_mut().add(&format!("scheduler {name}"), 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::boot::start_once;
    use super::super::shutdown::end;
    use super::super::testing::{on_fiber, run_of, two_disks};
    use super::*;

    /// Runs `body` with a start of two disks.
    fn with_start(body: impl FnOnce(&Rc<Run>, &Rc<Started>) + 'static) {
        let run = run_of(two_disks());
        let ended = on_fiber(&run, |run| {
            let start = start_once(run, false, false).expect("it starts");
            body(run, &start);
            end(run, start);
        });
        ended.expect("all is well");
    }

    #[test]
    fn a_start_goes_on_until_its_share_has_begun_or_the_power_goes() {
        with_start(|run, start| {
            start.set_limit(2);
            run.progress.begin();
            assert!(start.goes_on(run));
            run.power_off(true);
            assert!(!start.goes_on(run), "the power is off");
            run.off.set(false);
            run.progress.begin();
            assert!(!start.goes_on(run), "its share has begun");
            start.wait_for(run, 1000);
        });
    }

    #[test]
    fn a_start_has_its_groups_and_learns_of_more() {
        with_start(|_, start| {
            let made = start.groups().len();
            assert_eq!(made, PATHS.len() - 1);
            assert!(start.stack().groups().create(PATHS[3]).is_ok(), "it is not there yet");
            start.add_group(77);
            assert_eq!(start.groups()[made..], [77]);
        });
    }

    #[test]
    fn a_load_counts_until_it_has_ended() {
        with_start(|_, start| {
            start.begin_loads(2);
            start.begin_control();
            start.end_load();
            assert_eq!((start.loads(), start.controls()), (1, 1));
            start.end_load();
            start.end_control();
            assert_eq!((start.loads(), start.controls()), (0, 0));
        });
    }
}
