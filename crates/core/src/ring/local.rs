//! A thread of the ring's own for short writes that the kernel does not do without waiting.
//!
//! ext4, for one, takes no write to the page cache without waiting (`RWF_NOWAIT`), so io_uring
//! hands each to a thread, on another core, which is asleep: to wake that costs many times the
//! write. The helper here runs on the core of the ring's thread instead, while that sleeps: to
//! change from one to the other on the same core costs 1 to 2 us.
//!
//! That is for a front end's only client ([`super::direct`]): several keep the cores awake.
//!
//! The scheduler would place the two on different cores. So both are bound to one for some sleeps
//! in a row ([`Bound`]), and then the scheduler may choose another.
//!
//! Invariants:
//! * A write is held until the owner sleeps. If it does not sleep at the end of the second round,
//!   or polls, the ring gets back what is held.
//! * All writes that are here are of one file: a file system that does not answer holds up nobody
//!   else. In the kernel, too, writes to one file wait for each other.
//! * Nothing is held before the owner has said that its thread returns to its sleep
//!   ([`super::Ring::own_thread`]).

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a thread of the ring's own, which parks"
)]
use super::cores::Bound;
use super::eventfd::EventFd;
use super::handover::{Giver, Taker, handover};
use super::helpers::run;
use super::{Buffers, FileOp, RingEvent, Token, Waker};
use crate::signals::blocked;
use crate::threads;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Most writes that are held or given, a power of two.
const PLACES: usize = 16;
/// Longest write. A longer one is done on another core, while the owner receives the next.
const LONGEST_BYTES: usize = 64 << 10;
/// After so many sleeps on one core the scheduler may choose another one.
const SLEEPS_MAX: u32 = 256;
/// Stack of the helper; its deepest call is a system call.
const STACK_BYTES: usize = 128 << 10;

/// A write on its way to the helper or back.
struct Job {
    fd: RawFd,
    op: FileOp,
    token: Token,
    result: i32,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Local {
    has_own_thread: bool,
    /// No helper could be started, or it cannot be bound to a core.
    is_useless: bool,
    /// The file of all writes that are here.
    fd: RawFd,
    held: Vec<Job>,
    /// A round has ended since the first of these was held.
    is_old: bool,
    helper: Option<Helper>,
    bound: Option<Bound>,
    /// Sleeps since it was bound.
    sleeps: u32,
}

impl Local {
    /// The ring is used by a thread that returns to its sleep, or not any more.
    pub(super) fn own_thread(&mut self, owns: bool) {
        self.has_own_thread = owns;
        self.unbind();
    }

    /// The owner may run on all its cores.
    pub(super) fn unbind(&mut self) {
        self.bound = None;
    }

    /// A write takes too long: no further one is held.
    pub(super) fn give_up(&mut self) {
        self.is_useless |= self.in_flight() > 0;
    }

    /// Holds the write. False if the ring has to do it.
    pub(super) fn hold(&mut self, fd: RawFd, op: FileOp, token: Token) -> bool {
        let here = self.in_flight();
        let is_welcome = self.has_own_thread && !self.is_useless && is_short(&op);
        let fits = is_welcome && (here == 0 || fd == self.fd && here < PLACES);
        if fits {
            self.fd = fd;
            self.held.push(Job { fd, op, token, result: 0 });
        }
        fits
    }

    /// Writes that have had no event.
    pub(super) fn in_flight(&self) -> usize {
        self.held.len() + self.helper.as_ref().map_or(0, |helper| helper.giver.in_flight())
    }

    /// Takes a write out that the ring has to do after all.
    pub(super) fn take_held(&mut self) -> Option<(RawFd, FileOp, Token)> {
        self.held.pop().map(|job| (job.fd, job.op, job.token))
    }

    /// A round has ended in which the owner neither slept nor polled. True if there was something
    /// at the end of the round before.
    pub(super) fn end_round(&mut self) -> bool {
        !self.held.is_empty() && std::mem::replace(&mut self.is_old, true)
    }

    /// The owner sleeps now: gives writes to the helper. False if there is none, so that the ring
    /// has to do what is held.
    pub(super) fn give(&mut self, waker: &Arc<EventFd>) -> bool {
        self.is_old = false;
        let stays = self.count_sleep();
        if self.in_flight() == 0 {
            return true;
        }
        if self.helper.is_none() {
            self.helper = Helper::start(waker.clone());
        }
        let Some(helper) = &mut self.helper else {
            self.is_useless = true;
            return false;
        };
        if self.bound.is_none() && stays {
            self.bound = Bound::new(&helper.thread);
            self.is_useless |= self.bound.is_none();
        }
        helper.give(&mut self.held);
        true
    }

    /// Each change of the cores takes system calls, so the threads stay bound for a while. The
    /// scheduler may choose another core in a sleep without a write, and in one of many. False if
    /// it does.
    fn count_sleep(&mut self) -> bool {
        self.sleeps += 1;
        let stays = self.in_flight() > 0 && self.sleeps < SLEEPS_MAX;
        if !stays {
            self.sleeps = 0;
            self.unbind();
        }
        stays
    }

    /// Moves the ends of writes to `out`.
    pub(super) fn reap(&mut self, out: &mut Vec<RingEvent>) {
        let Some(helper) = &mut self.helper else { return };
        while let Some(Job { token, result, .. }) = helper.giver.take_done() {
            out.push(RingEvent { token, result, buffers: Buffers::None });
        }
    }
}

fn is_short(op: &FileOp) -> bool {
    match op {
        FileOp::Write { segment, dsync: false, .. } => segment.len <= LONGEST_BYTES,
        _ => false,
    }
}

/// The thread, seen from the owner.
struct Helper {
    giver: Giver<Job>,
    thread: JoinHandle<()>,
}

impl Helper {
    #[cold]
    fn start(waker: Arc<EventFd>) -> Option<Self> {
        let (giver, taker) = handover(PLACES);
        let work = move || help(taker, &waker);
        let thread = blocked(|| threads::start_with_stack("drystone-write", STACK_BYTES, work));
        Some(Helper { giver, thread: thread.ok()? })
    }

    /// Takes the jobs out of `held` and lets the thread do them.
    fn give(&mut self, held: &mut Vec<Job>) {
        for job in held.drain(..) {
            let put = self.giver.put(job);
            debug_assert!(put.is_ok(), "no more are held than there are places");
        }
        self.giver.tell();
        self.thread.thread().unpark();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.giver.end();
        self.thread.thread().unpark();
    }
}

fn help(mut taker: Taker<Job>, waker: &EventFd) {
    while !taker.is_over() {
        match taker.next() {
            Some(mut job) => {
                job.result = run(job.fd, job.op);
                taker.finish(job);
                waker.wake();
            }
            None => std::thread::park(),
        }
    }
}
