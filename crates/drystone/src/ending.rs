//! The end of the process: the request for it, and all that must be taken away before.
//!
//! Invariants:
//! - Things of the process that others can see (a socket, a mount, a loop device) are made while
//!   [`Ending::making`] holds the process, and by the end of that it is said how each is taken
//!   away: a process that ends in a hurry waits for it, so nothing unknown is left.
//! - That wait is bounded: a second signal ends a process also when what it makes does not come
//!   about, or what it takes away does not go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use drystone_core::clock::SystemClock;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::threads;

/// Takes something away that others can see: a socket, a mount. May be called when it has gone.
pub type Leaver = Box<dyn FnOnce() + Send>;

/// The checks of an end in a hurry whether something is still being made, and the pause between
/// two.
const LOOKS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(10);
/// The time that what is taken away may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The end of the process. Clones are the same; any thread may use them.
#[derive(Clone)]
pub struct Ending(Arc<Inner>);

struct Inner {
    asked: AtomicBool,
    making: Lock<()>,
    leavers: Lock<Vec<Leaver>>,
    locks: Arc<LockCounters>,
}

impl Default for Ending {
    fn default() -> Self {
        Ending(Arc::new(Inner {
            asked: AtomicBool::new(false),
            making: Lock::new(LockClass::Control, ()),
            leavers: Lock::new(LockClass::Control, Vec::new()),
            locks: LockCounters::new(SystemClock::new()),
        }))
    }
}

impl Ending {
    /// True if the process was asked to end.
    pub fn is_asked(&self) -> bool {
        self.0.asked.load(SeqCst)
    }

    /// The process must end.
    pub fn ask(&self) {
        self.0.asked.store(true, SeqCst);
    }

    /// Does what makes something that others can see. Not inside itself.
    pub fn making<T>(&self, make: impl FnOnce() -> T) -> T {
        let _making = self.0.making.lock(&self.0.locks);
        make()
    }

    /// Has this done when the process ends in a hurry.
    pub fn add(&self, leaver: Leaver) {
        self.0.leavers.lock(&self.0.locks).push(leaver);
    }

    /// Takes everything away, the latest first, as soon as nothing is being made any more. While
    /// what is returned lives nothing more is made. A step that takes too long is not waited for:
    /// to detach a loop device must write back what it has, to a server that may not answer.
    pub fn leave(&self) -> impl Sized + '_ {
        let making = self.wait_for_makers();
        let (done, is_done) = channel();
        let own = self.clone();
        let take_away = move || {
            own.take_all_away();
            let _ = done.send(());
        };
        match threads::start("leaving", take_away) {
            Ok(_) => _ = is_done.recv_timeout(PATIENCE),
            Err(_) => self.take_all_away(),
        }
        making
    }

    fn take_all_away(&self) {
        let next = || self.0.leavers.lock(&self.0.locks).pop();
        while let Some(leave) = next() {
            leave();
        }
    }

    /// Nobody makes anything while this is held; `None` if that takes too long.
    fn wait_for_makers(&self) -> Option<impl Sized + '_> {
        let look = |_| {
            let free = self.0.making.try_lock(&self.0.locks);
            if free.is_none() {
                thread::sleep(PAUSE);
            }
            free
        };
        (0..LOOKS).find_map(look)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_is_not_waited_for() {
        let (ending, (go_on, told)) = (Ending::default(), channel::<()>());
        let (gone, is_gone) = channel();
        ending.add(Box::new(move || gone.send(()).unwrap()));
        ending.add(Box::new(move || told.recv().unwrap_err().to_string().clear()));
        drop(ending.leave());
        assert!(is_gone.try_recv().is_err(), "it is left after one that is stuck");
        drop(go_on);
        is_gone.recv().unwrap();
    }

    #[test]
    fn what_is_being_made_is_taken_away_too() {
        let (ending, (began, has_begun)) = (Ending::default(), channel());
        let (gone, is_gone) = channel();
        let maker = {
            let (ending, gone) = (ending.clone(), gone.clone());
            move || {
                ending.making(|| {
                    began.send(()).unwrap();
                    thread::sleep(10 * PAUSE);
                    ending.add(Box::new(move || gone.send("second").unwrap()));
                });
            }
        };
        ending.add(Box::new(move || gone.send("first").unwrap()));
        let maker = thread::spawn(maker);
        has_begun.recv().unwrap();
        assert!(!ending.is_asked());
        let held = ending.leave();
        assert_eq!(is_gone.try_iter().collect::<Vec<_>>(), ["second", "first"]);
        drop(held);
        maker.join().unwrap();
    }

    #[test]
    fn what_is_never_made_is_not_waited_for() {
        let (ending, (began, has_begun)) = (Ending::default(), channel());
        let (go_on, told) = channel::<()>();
        let maker = {
            let ending = ending.clone();
            move || {
                ending.making(|| {
                    began.send(()).unwrap();
                    told.recv().unwrap_err();
                });
            }
        };
        let maker = thread::spawn(maker);
        has_begun.recv().unwrap();
        drop(ending.leave());
        drop(go_on);
        maker.join().unwrap();
    }
}
