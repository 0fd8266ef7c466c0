//! Two threads on one core: that of a ring and its helper.
//!
//! Invariant: [`Bound`] gives its thread the cores back that it had, from whichever thread it is
//! dropped, unless somebody else has set them meanwhile (taskset(1)).

#![expect(clippy::disallowed_types, reason = "binds a thread of the ring's own")]
#![allow(unsafe_code, reason = "sets of processors have no safe wrapper here")]

use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

/// A thread that is bound to one core.
pub(super) struct Bound {
    thread: libc::pid_t,
    /// The cores that it had.
    before: libc::cpu_set_t,
    one: libc::cpu_set_t,
}

impl Bound {
    /// Binds the calling thread to the core that it runs on, and `helper` too. `None` if the system
    /// forbids it.
    pub(super) fn new(helper: &JoinHandle<()>) -> Option<Self> {
        // SAFETY: neither takes arguments.
        let (thread, core) = unsafe { (libc::gettid(), libc::sched_getcpu()) };
        let (before, one) = (cores_of(thread)?, only(usize::try_from(core).ok()?)?);
        // SAFETY: a handle that is not joined has a thread; the set lives for the call.
        let refused =
            unsafe { libc::pthread_setaffinity_np(helper.as_pthread_t(), SIZE, &raw const one) };
        (refused == 0 && set(thread, &one)).then_some(Bound { thread, before, one })
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if cores_of(self.thread).is_some_and(|now| is_same(&now, &self.one)) {
            // It was permitted a moment ago, and a thread that stays on its core works, too.
            set(self.thread, &self.before);
        }
    }
}

const SIZE: usize = size_of::<libc::cpu_set_t>();

/// The cores of a thread of this process. `None` if it is gone, or there are too many for the set.
fn cores_of(thread: libc::pid_t) -> Option<libc::cpu_set_t> {
    // SAFETY: a set of zeroes is empty, and the kernel writes at most its size.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(thread, SIZE, &raw mut set) == 0).then_some(set)
    }
}

fn only(core: usize) -> Option<libc::cpu_set_t> {
    if core >= libc::CPU_SETSIZE as usize {
        return None;
    }
    // SAFETY: a set of zeroes is empty; the core is within it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        Some(set)
    }
}

fn set(thread: libc::pid_t, set: &libc::cpu_set_t) -> bool {
    // SAFETY: the set lives for the call.
    unsafe { libc::sched_setaffinity(thread, SIZE, set) == 0 }
}

fn is_same(a: &libc::cpu_set_t, b: &libc::cpu_set_t) -> bool {
    // SAFETY: plain memory.
    unsafe { libc::CPU_EQUAL(a, b) }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn cores() -> Vec<usize> {
        let own = cores_of(0).unwrap();
        // SAFETY: all are within the set.
        (0..libc::CPU_SETSIZE as usize).filter(|c| unsafe { libc::CPU_ISSET(*c, &own) }).collect()
    }

    fn sleeper() -> JoinHandle<()> {
        crate::threads::start("sleeper", std::thread::park).unwrap()
    }

    fn end(sleeper: JoinHandle<()>) {
        sleeper.thread().unpark();
        sleeper.join().unwrap();
    }

    #[test]
    fn a_thread_is_bound_while_the_value_lives() {
        let (before, helper) = (cores(), sleeper());
        let bound = Bound::new(&helper).unwrap();
        assert_eq!(cores().len(), 1);
        drop(bound);
        assert_eq!(cores(), before);
        end(helper);
    }

    #[test]
    fn it_is_given_its_cores_back_by_another_thread() {
        let (before, helper) = (cores(), sleeper());
        let bound = Bound::new(&helper).unwrap();
        crate::threads::start("other", move || drop(bound)).unwrap().join().unwrap();
        assert_eq!(cores(), before);
        end(helper);
    }

    #[test]
    fn cores_that_were_set_meanwhile_stay() {
        let (before, helper) = (cores(), sleeper());
        if before.len() < 2 {
            return eprintln!("SKIPPED: there is only one core");
        }
        let bound = Bound::new(&helper).unwrap();
        let bound_to = cores()[0];
        let other = *before.iter().find(|core| **core != bound_to).unwrap();
        assert!(set(0, &only(other).unwrap()));
        drop(bound);
        assert_eq!(cores(), [other]);
        end(helper);
    }
}
