//! The ring without io_uring: epoll for sockets, helper threads for files.
//!
//! Invariants:
//! * A socket operation is tried when it is started. If it would block it waits in `fds`, by
//!   descriptor and direction, in the order of starting, and the descriptor is armed for one
//!   report (`EPOLLONESHOT`). The kernel holds no pointer between tries, so the buffers of
//!   waiting operations are simply dropped with the ring.
//! * A file operation runs on a helper; its memory is the driver's until the event.
//! * Everything that can become an event makes the epoll descriptor `inner` readable: sockets,
//!   the timers (a timerfd armed for the earliest) and wake-ups, which are also how helpers
//!   announce outcomes. So a watcher needs `inner` alone.
//! * Watched rings hang on an epoll above `inner` (`watches`): epoll refuses cycles, and
//!   contexts do watch each other.
//! * `ready` holds events that were not reaped; an operation counts as in flight until then.

use super::epoll::{add, control, new_epoll, new_timerfd, sleep, source, timespec};
use super::eventfd::EventFd;
use super::helpers::{Job, Outbox, Outcome, Pool};
use super::sockets::{attempt, buffers_of, set_nonblocking};
use super::watches::Watches;
use super::{Buffers, NetOp, Query, Ring, RingEvent, RingFile, Token, Waker};
use crate::clock::{Clock, Ns};
use crate::error::Result;
use crate::sync::LockCounters;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Kernel reports taken with one call; more are taken by the next.
const REPORTS: usize = 64;

/// A socket operation that waits until its descriptor is ready.
struct Waiting {
    token: Token,
    op: NetOp,
}

/// The operations on one descriptor.
#[derive(Default)]
struct Use {
    read: VecDeque<Waiting>,
    write: VecDeque<Waiting>,
    /// File operations that have no outcome yet.
    jobs: usize,
    /// To be closed when the last of them has ended.
    closing: Option<OwnedFd>,
}

impl Use {
    fn is_idle(&self) -> bool {
        self.read.is_empty() && self.write.is_empty() && self.jobs == 0
    }

    fn interest(&self) -> i32 {
        let read = if self.read.is_empty() { 0 } else { libc::EPOLLIN | libc::EPOLLRDHUP };
        let write = if self.write.is_empty() { 0 } else { libc::EPOLLOUT };
        read | write
    }
}

/// A ring on epoll and helper threads.
pub struct PlainRing {
    inner: OwnedFd,
    timerfd: OwnedFd,
    /// Of the process that opened it.
    helpers: &'static Pool,
    outbox: Arc<Outbox>,
    fds: BTreeMap<RawFd, Use>,
    /// Operations that wait in `fds`.
    waiting: usize,
    /// File operations that [`Ring::submit`] hands on.
    unsubmitted: Vec<Job>,
    timers: BinaryHeap<Reverse<(Ns, u64, u64)>>,
    /// Tells timers of the same moment apart, in the order of starting.
    timer_serial: u64,
    /// The time that the timerfd is set to.
    armed: Option<Ns>,
    watches: Watches,
    ready: Vec<RingEvent>,
    in_flight: usize,
    /// The wake-up descriptor was seen readable.
    woken: bool,
    /// The kernel was asked by a wait, so the reap that follows need not.
    collected: bool,
    /// Scratch, swapped with the outbox's to save allocations.
    outcomes: Vec<Outcome>,
    /// Scratch for gathered sends.
    vectors: Vec<libc::iovec>,
    clock: Arc<dyn Clock>,
    locks: Arc<LockCounters>,
}

// SAFETY: the only field that is not Send is the scratch of iovecs, which is empty between calls.
unsafe impl Send for PlainRing {}

impl PlainRing {
    /// A ring for any Linux.
    ///
    /// # Errors
    /// When the kernel has no descriptor left for us.
    pub fn open(clock: Arc<dyn Clock>) -> Result<Box<dyn Ring>> {
        let waker = EventFd::new()?;
        let inner = new_epoll()?;
        let ring = PlainRing {
            watches: Watches::new(inner.as_raw_fd()),
            inner,
            timerfd: new_timerfd()?,
            helpers: Pool::ours(),
            outbox: Outbox::new(waker),
            fds: BTreeMap::new(),
            waiting: 0,
            unsubmitted: Vec::new(),
            timers: BinaryHeap::new(),
            timer_serial: 0,
            armed: None,
            ready: Vec::new(),
            in_flight: 0,
            woken: false,
            collected: false,
            outcomes: Vec::new(),
            vectors: Vec::new(),
            locks: LockCounters::new(clock.clone()),
            clock,
        };
        let inner = ring.inner.as_raw_fd();
        add(inner, ring.outbox.waker.fd(), libc::EPOLLIN, source::WAKER, 0)?;
        add(inner, ring.timerfd.as_raw_fd(), libc::EPOLLIN, source::TIMERS, 0)?;
        Ok(Box::new(ring))
    }

    fn end(&mut self, token: Token, result: i32, buffers: Buffers) {
        self.ready.push(RingEvent { token, result, buffers });
    }

    // --- sockets

    /// Arm `fd` for what waits on it. If the kernel refuses, what waits ends with its reason.
    fn arm(&mut self, fd: RawFd) {
        let Some(interest) = self.fds.get(&fd).map(Use::interest) else { return };
        if interest == 0 {
            return self.drop_if_idle(fd);
        }
        let events = interest | libc::EPOLLONESHOT;
        let inner = self.inner.as_raw_fd();
        // Modifying is the common case. A descriptor that is new, or whose number was used
        // before by one that was closed behind our back, is not there yet.
        let mut result = control(inner, libc::EPOLL_CTL_MOD, fd, events, source::SOCKET, fd as u32);
        if result == -libc::ENOENT {
            result = control(inner, libc::EPOLL_CTL_ADD, fd, events, source::SOCKET, fd as u32);
        }
        if result < 0 {
            self.end_waiting(fd, result);
        }
    }

    fn end_waiting(&mut self, fd: RawFd, result: i32) {
        let Some(used) = self.fds.get_mut(&fd) else { return };
        for w in used.read.drain(..).chain(used.write.drain(..)) {
            self.waiting -= 1;
            self.ready.push(RingEvent {
                token: w.token,
                result,
                buffers: buffers_of(w.op, result),
            });
        }
        self.drop_if_idle(fd);
    }

    fn drop_if_idle(&mut self, fd: RawFd) {
        if self.fds.get(&fd).is_some_and(Use::is_idle) {
            // Closes the descriptor if that was asked for.
            self.fds.remove(&fd);
        }
    }

    /// `fd` is ready for something: try what waits on it, in order, as far as it goes.
    fn try_waiting(&mut self, fd: RawFd) {
        let Some(used) = self.fds.get_mut(&fd) else { return };
        for queue in [&mut used.read, &mut used.write] {
            while let Some(first) = queue.front_mut() {
                let Some(result) = attempt(fd, &first.op, &mut self.vectors) else { break };
                let Some(w) = queue.pop_front() else { break };
                self.waiting -= 1;
                self.ready.push(RingEvent {
                    token: w.token,
                    result,
                    buffers: buffers_of(w.op, result),
                });
            }
        }
        self.arm(fd);
    }

    // --- timers

    fn arm_timer(&mut self) {
        let first = self.timers.peek().map(|Reverse((at, ..))| *at);
        if first == self.armed {
            return;
        }
        self.armed = first;
        // A time of 0 would disarm; 1 ns after the start of the clock is as much in the past.
        let spec = first.map_or(timespec(0), |at| timespec(at.max(1)));
        let value = libc::itimerspec { it_interval: timespec(0), it_value: spec };
        // SAFETY: the specification lives for the call; no old value is asked for.
        let result = unsafe {
            let null = std::ptr::null_mut();
            libc::timerfd_settime(self.timerfd.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &value, null)
        };
        debug_assert_eq!(result, 0, "a valid time on our own timerfd");
    }

    /// The timerfd has expired: the timers that are due become events.
    fn expire(&mut self) {
        drain_counter(self.timerfd.as_raw_fd());
        let due = self.clock.now().max(self.armed.take().unwrap_or(0));
        while let Some(Reverse((at, _, token))) = self.timers.peek().copied() {
            if at > due {
                break;
            }
            self.timers.pop();
            self.end(Token(token), 0, Buffers::None);
        }
        self.arm_timer();
    }

    /// The ring's clock may be one that is moved by hand: what is due by it has expired, whatever
    /// the timerfd says.
    fn expire_by_clock(&mut self) {
        if self.timers.peek().is_some_and(|Reverse((at, ..))| *at <= self.clock.now()) {
            self.expire();
        }
    }

    fn cancel_timer(&mut self, token: Token) -> bool {
        let Some(timer) = self.timers.iter().find(|Reverse((.., t))| *t == token.0).copied() else {
            return false;
        };
        self.timers.retain(|t| *t != timer);
        self.arm_timer();
        true
    }

    // --- collecting

    /// Ask the kernel what is ready, sleeping until `deadline` at the most (`Some(0)`: not at
    /// all), and make it events.
    fn collect(&mut self, deadline: Option<Ns>) {
        let inner = self.inner.as_raw_fd();
        let mut timeout = deadline.map(|at| match at {
            0 => 0,
            at => at.saturating_sub(self.clock.now()),
        });
        if !self.watches.is_empty() {
            self.watches.sleep(timeout, &mut self.ready);
            timeout = Some(0);
        }
        self.collect_from(inner, timeout);
    }

    /// The kernel may have more reports as long as it fills the list, and does not tell watchers of
    /// them again.
    fn collect_from(&mut self, epoll: RawFd, mut timeout: Option<Ns>) {
        let mut reports = [libc::epoll_event { events: 0, u64: 0 }; REPORTS];
        loop {
            let n = sleep(epoll, &mut reports, timeout);
            reports[..n].iter().for_each(|report| self.reported(*report));
            if n < REPORTS {
                return;
            }
            timeout = Some(0);
        }
    }

    fn reported(&mut self, report: libc::epoll_event) {
        let (kind, which) = ((report.u64 >> 32) as u32, report.u64 as u32);
        match kind {
            source::SOCKET => self.try_waiting(which as RawFd),
            source::TIMERS => self.expire(),
            source::WAKER => self.woken = true,
            _ => unreachable!("nothing else hangs on it"),
        }
    }

    /// Make the outcomes that helpers left events.
    fn take_outcomes(&mut self) {
        let mut outcomes = std::mem::take(&mut self.outcomes);
        std::mem::swap(&mut outcomes, &mut *self.outbox.outcomes.lock(&self.locks));
        for outcome in outcomes.drain(..) {
            self.job_over(outcome.fd);
            self.end(outcome.token, outcome.result, outcome.buffers);
        }
        self.outcomes = outcomes;
    }

    fn job_over(&mut self, fd: Option<RawFd>) {
        if let Some(fd) = fd
            && let Some(used) = self.fds.get_mut(&fd)
        {
            used.jobs -= 1;
            self.drop_if_idle(fd);
        }
    }

    fn cancel_job(&mut self, token: Token) {
        let ours = self.unsubmitted.iter().position(|j| j.token == token);
        let job = match ours {
            Some(index) => Some(self.unsubmitted.remove(index)),
            None => self.helpers.take_back(&self.outbox, token, &self.locks),
        };
        if let Some(job) = job {
            self.job_over(job.fd());
            self.end(token, -libc::ECANCELED, Buffers::None);
        }
    }

    /// Take the operation out of its queue; true if it was waiting.
    fn cancel_waiting(&mut self, token: Token) -> bool {
        let queues = self.fds.values_mut().flat_map(|used| [&mut used.read, &mut used.write]);
        let found = { queues }.find_map(|queue| {
            let index = queue.iter().position(|w| w.token == token)?;
            queue.remove(index)
        });
        let Some(w) = found else { return false };
        self.waiting -= 1;
        self.end(token, -libc::ECANCELED, buffers_of(w.op, -libc::ECANCELED));
        true
    }
}

impl Ring for PlainRing {
    unsafe fn file(&mut self, file: RingFile, op: super::FileOp, token: Token) {
        self.in_flight += 1;
        let RingFile::Fd(fd) = file else {
            debug_assert!(false, "this ring registers no files");
            return self.end(token, -libc::EBADF, Buffers::None);
        };
        self.fds.entry(fd).or_default().jobs += 1;
        self.unsubmitted.push(Job::file(fd, op, token, &self.outbox));
    }

    fn query(&mut self, query: Query, token: Token) {
        self.in_flight += 1;
        self.unsubmitted.push(Job::query(query, token, &self.outbox));
    }

    fn register(&mut self, fd: RawFd) -> RingFile {
        RingFile::Fd(fd)
    }

    fn unregister(&mut self, _file: RingFile) {}

    fn net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        self.in_flight += 1;
        if matches!(op, NetOp::Accept) {
            set_nonblocking(fd);
        }
        let used = self.fds.entry(fd).or_default();
        let queue = if matches!(op, NetOp::Send { .. }) { &mut used.write } else { &mut used.read };
        let first = queue.is_empty();
        if first && let Some(result) = attempt(fd, &op, &mut self.vectors) {
            self.end(token, result, buffers_of(op, result));
            return self.drop_if_idle(fd);
        }
        queue.push_back(Waiting { token, op });
        self.waiting += 1;
        if first {
            self.arm(fd);
        }
    }

    fn timer(&mut self, at: Ns, token: Token) {
        self.in_flight += 1;
        self.timer_serial += 1;
        self.timers.push(Reverse((at, self.timer_serial, token.0)));
        self.arm_timer();
    }

    fn cancel(&mut self, token: Token) {
        if self.cancel_waiting(token) {
            return;
        }
        if self.cancel_timer(token) {
            return self.end(token, -libc::ECANCELED, Buffers::None);
        }
        self.cancel_job(token);
    }

    fn close(&mut self, fd: OwnedFd) {
        self.submit();
        let raw = fd.as_raw_fd();
        self.end_waiting(raw, -libc::ECANCELED);
        // Jobs refer to the descriptor by its number, so it is kept for them.
        if let Some(used) = self.fds.get_mut(&raw) {
            used.closing = Some(fd);
        }
    }

    fn submit(&mut self) {
        if !self.unsubmitted.is_empty() {
            self.helpers.submit(&mut self.unsubmitted, &self.locks);
        }
    }

    fn wait(&mut self, deadline: Option<Ns>) {
        self.submit();
        if self.ready.is_empty() {
            self.collect(deadline);
            self.collected = true;
        }
    }

    fn reap(&mut self, out: &mut Vec<RingEvent>) {
        let armed = self.waiting > 0 || !self.timers.is_empty() || !self.watches.is_empty();
        if armed && !self.collected {
            self.collect(Some(0));
        }
        self.collected = false;
        self.expire_by_clock();
        if self.woken || self.outbox.waker.is_pending() {
            self.woken = false;
            self.outbox.waker.clear();
            self.take_outcomes();
        }
        let of_watches = |e: &&RingEvent| e.token.owner() == Token::CONTEXT;
        self.in_flight -= self.ready.len() - self.ready.iter().filter(of_watches).count();
        out.append(&mut self.ready);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.outbox.waker.clone()
    }

    fn watch(&mut self, others: [RawFd; 2], token: Token) {
        self.watches.watch(others, token);
    }

    fn unwatch(&mut self, others: [RawFd; 2], token: Token) {
        self.watches.unwatch(others, token);
    }

    fn descriptors(&self) -> [RawFd; 2] {
        [self.inner.as_raw_fd(), self.outbox.waker.fd()]
    }

    fn engine(&self) -> &'static str {
        "plain"
    }

    fn count_locks_for(&mut self, user: &Arc<LockCounters>) {
        self.locks = user.clone();
    }
}

impl Drop for PlainRing {
    fn drop(&mut self) {
        self.helpers.forget(&self.outbox, &self.locks);
        for used in std::mem::take(&mut self.fds).into_values() {
            // A helper may be inside an operation on this number: it must not become another
            // file's. So the descriptor is leaked.
            if let (Some(fd), true) = (used.closing, used.jobs > 0) {
                let _ = fd.into_raw_fd();
            }
        }
    }
}

/// Read the 8 bytes of a timerfd, which then is no longer readable.
fn drain_counter(fd: RawFd) {
    let mut count = 0u64;
    // SAFETY: reads 8 bytes into a u64; the descriptor does not block.
    unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
}
