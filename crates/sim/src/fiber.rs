//! Fibers: contexts of the simulation with a stack of their own, all on one thread.
//!
//! Invariants:
//! * A fiber runs until it pauses; nothing else runs meanwhile.
//! * Only a fiber may call `pause`; `is_inside` says whether the caller runs on one.
//! * A fiber that does not end is never unwound: the values on its stack are leaked. This happens
//!   only after a failure, when the simulation is abandoned.

#![allow(unsafe_code, reason = "a fiber leaves its stack by a pointer to what called it")]

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use std::any::Any;
use std::backtrace::Backtrace;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Bytes of a fiber's stack.
const STACK: usize = 256 << 10;

/// Why a fiber pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// It lets other fibers go on first.
    Step,
    /// It polls for the work of others and has found none so far.
    Spin,
    /// It sleeps until the world wakes it, or until the time that it told the world.
    Sleep,
}

/// The function that a fiber runs.
pub type Body = Box<dyn FnOnce()>;

/// A fiber that has not ended.
pub(crate) struct Fiber {
    coroutine: Option<Coroutine<(), Pause, (), DefaultStack>>,
}

/// The outcome of letting a fiber run.
pub(crate) enum Ran {
    /// It paused.
    Paused(Pause),
    /// It ended.
    Ended,
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

thread_local! {
    /// The yielder of the running fiber, by which it returns to the scheduler.
    static YIELDER: Cell<Option<*const Yielder<(), Pause>>> = const { Cell::new(None) };
    /// Set while a resumed fiber must only report where it paused.
    static ASKED: Cell<bool> = const { Cell::new(false) };
    static TOLD: RefCell<Option<String>> = const { RefCell::new(None) };
    /// Stacks of fibers that have ended.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

impl Fiber {
    /// A fiber that has not begun.
    pub(crate) fn new(body: Body) -> Self {
        let stack = STACKS.with_borrow_mut(Vec::pop);
        let stack = stack.unwrap_or_else(|| DefaultStack::new(STACK).expect("memory for a stack"));
        let coroutine = Coroutine::with_stack(stack, |yielder: &Yielder<(), Pause>, ()| {
            YIELDER.set(Some(yielder));
            body();
        });
        Fiber { coroutine: Some(coroutine) }
    }

    /// Let the fiber run until it pauses or ends.
    pub(crate) fn resume(&mut self) -> Ran {
        let coroutine = self.coroutine.as_mut().expect("it has not ended");
        let ran = catch_unwind(AssertUnwindSafe(|| coroutine.resume(())));
        YIELDER.set(None);
        match ran {
            Ok(CoroutineResult::Yield(pause)) => Ran::Paused(pause),
            Ok(CoroutineResult::Return(())) => {
                self.keep_stack();
                Ran::Ended
            }
            Err(panic) => {
                self.keep_stack();
                Ran::Panicked(panic)
            }
        }
    }

    /// The place where the fiber pauses: the functions of our crates on its stack, the innermost
    /// first. The fiber cannot go on after this call.
    pub(crate) fn where_it_is(&mut self) -> String {
        ASKED.set(true);
        let _ = self.resume();
        ASKED.set(false);
        TOLD.take().unwrap_or_default()
    }

    fn keep_stack(&mut self) {
        if let Some(coroutine) = self.coroutine.take().filter(Coroutine::done) {
            STACKS.with_borrow_mut(|stacks| stacks.push(coroutine.into_stack()));
        }
    }
}

impl Drop for Fiber {
    fn drop(&mut self) {
        // Unwinding would run destructors on a stack that has failed.
        std::mem::forget(self.coroutine.take());
    }
}

/// True on a fiber.
pub(crate) fn is_inside() -> bool {
    YIELDER.get().is_some()
}

/// Let other fibers go on; returns when this fiber's turn has come again.
///
/// # Panics
/// Outside a fiber.
pub(crate) fn pause(why: Pause) {
    let yielder = YIELDER.get().expect("only fibers pause");
    // SAFETY: the yielder lives on the running fiber's own stack for as long as the fiber runs.
    unsafe { (*yielder).suspend(why) };
    YIELDER.set(Some(yielder));
    if ASKED.get() {
        TOLD.set(Some(own_functions(&Backtrace::force_capture().to_string())));
        // SAFETY: as above. The scheduler never resumes this fiber again.
        unsafe { (*yielder).suspend(why) };
    }
}

/// The functions of our crates in a backtrace.
fn own_functions(backtrace: &str) -> String {
    let ours = backtrace.lines().map(str::trim).filter(|line| {
        line.contains("drystone_")
            && !line.contains("drystone_sim::fiber")
            && !line.starts_with("at ")
    });
    let names = ours.map(|line| line.split_once(": ").map_or(line, |(_, name)| name));
    names.collect::<Vec<_>>().join(" < ")
}
