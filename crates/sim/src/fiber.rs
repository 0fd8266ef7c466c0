//! Fibers: contexts of the simulation with a stack of their own, all on one thread.
//!
//! Invariants:
//! * A fiber runs until it pauses; nothing else runs meanwhile.
//! * `pause` is called on a fiber only; `is_inside` tells.
//! * A fiber that never ends is never unwound: everything on its stack is left there for ever. That
//!   happens only after a failure, when the simulation is given up.

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
    /// Others may go on first.
    Step,
    /// It polls for the work of others, without success so far.
    Spin,
    /// It waits for what was noted with the world.
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
    /// It is over.
    Ended,
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

thread_local! {
    /// The running fiber's way back.
    static YIELDER: Cell<Option<*const Yielder<(), Pause>>> = const { Cell::new(None) };
    /// Fibers that go on only tell where they are.
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

    /// Let it run until it pauses or ends.
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

    /// The place where it pauses: the functions of ours on its stack, the innermost first. It
    /// cannot go on after this.
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
        // Unwinding it would run code of a stack that has failed.
        std::mem::forget(self.coroutine.take());
    }
}

/// True on a fiber.
pub(crate) fn is_inside() -> bool {
    YIELDER.get().is_some()
}

/// Let others go on; returns when the fiber's turn has come again.
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
        // SAFETY: as above. Nobody resumes it any more.
        unsafe { (*yielder).suspend(why) };
    }
}

/// The part of a backtrace that is about functions of ours.
fn own_functions(backtrace: &str) -> String {
    let ours = backtrace.lines().map(str::trim).filter(|line| {
        line.contains("drystone_")
            && !line.contains("drystone_sim::fiber")
            && !line.starts_with("at ")
    });
    let names = ours.map(|line| line.split_once(": ").map_or(line, |(_, name)| name));
    names.collect::<Vec<_>>().join(" < ")
}
