//! The points, in builds that have them.

use std::cell::Cell;

/// The step that the caller of a point is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// A write that others can see, or a read of their writes.
    Step,
    /// Look once more for what somebody else has to do first.
    Spin,
}

/// The hook of a point that is not passed. It may let others go on before it returns.
pub type Hook = fn(Point);

thread_local! {
    static HOOK: Cell<Option<Hook>> = const { Cell::new(None) };
    /// Steps that are passed before the hook is called.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    static BROKEN: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Have `hook` called at points of this thread from now on, or none.
pub fn set_hook(hook: Option<Hook>) {
    HOOK.set(hook);
    LEFT.set(if hook.is_some() { LEFT.get() } else { u64::MAX });
}

/// Pass `steps` steps of this thread before the hook is called.
pub fn stop_after(steps: u64) {
    LEFT.set(steps);
}

/// A point at which another context may go on.
#[inline]
pub fn step() {
    let left = LEFT.get();
    if left > 0 {
        return LEFT.set(left - 1);
    }
    stop(Point::Step);
}

/// A wait for what others do: they go on first.
#[cold]
pub fn spin() {
    stop(Point::Spin);
}

#[cold]
fn stop(point: Point) {
    match HOOK.get() {
        Some(hook) => hook(point),
        None => std::thread::yield_now(),
    }
}

/// Make the mistake of that name on this thread from now on, or none.
pub fn set_broken(name: Option<&'static str>) {
    BROKEN.set(name);
}

/// True if the mistake of that name must be made.
#[inline]
pub fn broken(name: &str) -> bool {
    BROKEN.get().is_some_and(|broken| broken == name)
}
