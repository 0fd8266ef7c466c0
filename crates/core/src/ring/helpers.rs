//! The helper threads of all rings of the process (a worker pool; Linux: io-wq). They do the work
//! that would block a context's thread: file operations of the plain engine and, for both engines,
//! queries ([`Query`]) and discards of block devices, for which the kernel keeps its caller
//! waiting. (io_uring has a command for discards since Linux 6.12, which a helper makes needless.)
//!
//! Invariants:
//! * A [`Job`] holds what running it needs: a descriptor and memory that the starter vouches
//!   for, and a reference to the [`Outbox`] of its ring. Nobody looks into the outbox of a ring
//!   that is gone, so the result is dropped with the last job.
//! * At most one query of a device is asked at a time, and [`QUERIES`] of all: a file system that
//!   does not answer holds one helper, and a client that only asks keeps one busy.
//! * Helpers start when jobs wait and none is idle, at most [`HELPERS`] of them, and never end:
//!   they hold nothing while idle. A forked child has none of them: it gets a pool of its own.
//! * They serve all rings, but each counts its locks for ever with those of the ring that had it
//!   started: where there is one stack in a process, that is its.

use super::eventfd::EventFd;
use super::{Buffers, FileOp, Query, Token, Waker};
use crate::buf::Segment;
use crate::signals::blocked;
use crate::sync::{Lock, LockClass, LockCounters, Signal};
use crate::threads;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering::*};

/// Most queries that are asked at a time. They are rare, and none is for a disk that is slow to
/// read.
const QUERIES: usize = 4;

/// Most helper threads of the process. A helper is one file operation in flight: 16 of them
/// are about where the random reads of one disk stop gaining, and reads of cached data need
/// no more than there are cores. Queries take none of these away.
pub(super) const HELPERS: usize = 16 + QUERIES;

/// Stack of a helper; its deepest call is a system call.
const STACK_BYTES: usize = 128 << 10;

/// The work of a helper.
pub(super) enum Work {
    /// A file operation.
    File { fd: RawFd, op: FileOp },
    /// A question.
    Query(Query),
    /// Nothing but to drop it, which may block.
    Drop(#[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Send>),
}

/// Work on its way to a helper.
pub(super) struct Job {
    pub(super) work: Work,
    pub(super) token: Token,
    /// The outbox of the ring that wants to know of the end.
    outbox: Option<Arc<Outbox>>,
}

/// The end of a job.
pub(super) struct Outcome {
    /// The file of a file operation.
    pub(super) fd: Option<RawFd>,
    pub(super) token: Token,
    pub(super) result: i32,
    pub(super) buffers: Buffers,
}

/// The outcomes of one ring's jobs.
pub(super) struct Outbox {
    pub(super) outcomes: Lock<Vec<Outcome>>,
    pub(super) waker: Arc<EventFd>,
}

impl Outbox {
    pub(super) fn new(waker: Arc<EventFd>) -> Arc<Self> {
        let outcomes = Lock::new(LockClass::PlainRing, Vec::new());
        Arc::new(Outbox { outcomes, waker })
    }
}

impl Job {
    pub(super) fn file(fd: RawFd, op: FileOp, token: Token, outbox: &Arc<Outbox>) -> Self {
        Job { work: Work::File { fd, op }, token, outbox: Some(outbox.clone()) }
    }

    pub(super) fn query(query: Query, token: Token, outbox: &Arc<Outbox>) -> Self {
        Job { work: Work::Query(query), token, outbox: Some(outbox.clone()) }
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        match self.work {
            Work::File { fd, .. } => Some(fd),
            Work::Query(_) | Work::Drop(_) => None,
        }
    }

    fn is_of(&self, outbox: &Arc<Outbox>) -> bool {
        self.outbox.as_ref().is_some_and(|own| Arc::ptr_eq(own, outbox))
    }

    fn lane(&self) -> Option<usize> {
        match &self.work {
            Work::File { .. } | Work::Drop(_) => None,
            Work::Query(query) => Some(query.lane()),
        }
    }

    fn run(&self) -> (i32, Buffers) {
        match &self.work {
            Work::File { fd, op } => (run(*fd, *op), Buffers::None),
            Work::Query(query) => query.run(),
            Work::Drop(_) => (0, Buffers::None),
        }
    }

    fn finish(self, (result, buffers): (i32, Buffers), user: &LockCounters) {
        let outcome = Outcome { fd: self.fd(), token: self.token, result, buffers };
        let Job { work, outbox, .. } = self;
        // Before the outcome is seen: its receiver may want the device to be closed.
        drop(work);
        if let Some(outbox) = outbox {
            outbox.outcomes.lock(user).push(outcome);
            outbox.waker.wake();
        }
    }
}

#[derive(Default)]
struct State {
    files: VecDeque<Job>,
    queries: VecDeque<Job>,
    /// Devices and functions that are being asked.
    asked: Vec<usize>,
    threads: usize,
    idle: usize,
}

impl State {
    fn add(&mut self, job: Job) {
        match job.work {
            Work::File { .. } | Work::Drop(_) => self.files.push_back(job),
            Work::Query(_) => self.queries.push_back(job),
        }
    }

    /// Jobs that a helper could begin, or a little more: queries of one device wait for each other.
    fn waiting(&self) -> usize {
        self.files.len() + self.queries.len().min(QUERIES - self.asked.len())
    }

    /// The job to begin next. Queries go first: without that they would wait while there are many
    /// reads, and they hold few helpers.
    fn next(&mut self) -> Option<Job> {
        self.next_query().or_else(|| self.files.pop_front())
    }

    fn next_query(&mut self) -> Option<Job> {
        if self.asked.len() == QUERIES {
            return None;
        }
        let is_free = |job: &Job| job.lane().is_some_and(|lane| !self.asked.contains(&lane));
        let index = self.queries.iter().position(is_free)?;
        let job = self.queries.remove(index)?;
        self.asked.extend(job.lane());
        Some(job)
    }

    fn find(&mut self, ours: impl Fn(&Job) -> bool) -> Option<Job> {
        let queues = [&mut self.files, &mut self.queries].into_iter();
        let mut found = queues.filter_map(|queue| {
            let index = queue.iter().position(&ours)?;
            queue.remove(index)
        });
        found.next()
    }
}

/// The helpers of a process.
pub(super) struct Pool {
    pid: u32,
    state: Lock<State>,
    work: Signal,
}

/// The pool of the process that last asked for one. A child of fork finds its parent's
/// here, whose lock may have been held at the fork, for ever.
static LATEST: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

impl Pool {
    fn new(pid: u32) -> Self {
        let state = Lock::new(LockClass::PlainRing, State::default());
        Pool { pid, state, work: Signal::new(LockClass::PlainIdle) }
    }

    /// The pool of this process.
    pub(super) fn ours() -> &'static Pool {
        let (pid, latest) = (std::process::id(), LATEST.load(Acquire));
        // SAFETY: what is there came from `Box::into_raw` below, and is never freed.
        match unsafe { latest.as_ref() } {
            Some(pool) if pool.pid == pid => pool,
            _ => Self::begin(pid, latest),
        }
    }

    #[cold]
    fn begin(pid: u32, latest: *mut Pool) -> &'static Pool {
        let new = Box::into_raw(Box::new(Pool::new(pid)));
        // The release hands the new pool to threads that load it; the acquire takes another's.
        match LATEST.compare_exchange(latest, new, AcqRel, Acquire) {
            // SAFETY: it was made just now, and from here on is never freed.
            Ok(_) => unsafe { &*new },
            Err(theirs) => {
                // SAFETY: no other code has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: only other threads of this process put pools there meanwhile, and no pool
                // that was there is freed.
                unsafe { &*theirs }
            }
        }
    }

    /// Hand `jobs` (emptied) to the helpers. Never waits for one.
    pub(super) fn submit(&'static self, jobs: &mut Vec<Job>, user: &LockCounters) {
        let (mut wake, mut start) = (0, 0);
        let mut state = self.state.lock(user);
        jobs.drain(..).for_each(|job| state.add(job));
        let waiting = state.waiting();
        if waiting > 0 {
            wake = waiting.min(state.idle);
            start = (waiting - wake).min(HELPERS - state.threads);
            state.threads += start;
        }
        drop(state);
        (0..wake).for_each(|_| self.work.notify_one());
        for _ in 0..start {
            if !self.start_helper(user) {
                self.start_failed(user);
            }
        }
    }

    fn start_helper(&'static self, user: &LockCounters) -> bool {
        let user = user.sibling();
        let help = move || self.help(&user);
        blocked(|| threads::start_with_stack("drystone-file", STACK_BYTES, help)).is_ok()
    }

    /// The system has no thread left for us. The other helpers do the work; if there are none,
    /// the jobs end for want of a resource.
    fn start_failed(&self, user: &LockCounters) {
        let mut state = self.state.lock(user);
        state.threads -= 1;
        let mut orphaned = Vec::new();
        if state.threads == 0 {
            let State { files, queries, .. } = &mut *state;
            orphaned.extend(files.drain(..).chain(queries.drain(..)));
        }
        drop(state);
        orphaned.into_iter().for_each(|job| job.finish((-libc::ENOMEM, Buffers::None), user));
    }

    fn help(&self, user: &LockCounters) -> ! {
        loop {
            let job = self.next_job(user);
            let (result, lane) = (job.run(), job.lane());
            job.finish(result, user);
            if lane.is_some() {
                self.state.lock(user).asked.retain(|asked| Some(*asked) != lane);
            }
        }
    }

    fn next_job(&self, user: &LockCounters) -> Job {
        let mut state = self.state.lock(user);
        loop {
            if let Some(job) = state.next() {
                return job;
            }
            state.idle += 1;
            state = self.work.wait(state, user);
            state.idle -= 1;
        }
    }

    /// Take back a job that no helper has begun.
    pub(super) fn take_back(
        &self,
        outbox: &Arc<Outbox>,
        token: Token,
        user: &LockCounters,
    ) -> Option<Job> {
        let ours = |j: &Job| j.is_of(outbox) && j.token == token;
        self.state.lock(user).find(ours)
    }

    /// Forget every job of a ring that is dropped and that no helper has begun.
    pub(super) fn forget(&self, outbox: &Arc<Outbox>, user: &LockCounters) {
        let mut state = self.state.lock(user);
        let ours = |j: &Job| j.is_of(outbox);
        let mut gone = Vec::new();
        while let Some(job) = state.find(ours) {
            gone.push(job);
        }
        drop(state);
        // With them may go the last that holds a device.
        drop(gone);
    }
}

/// Have a helper drop `thing`.
#[cold]
pub(crate) fn drop_on_helper(thing: Box<dyn Send>, user: &LockCounters) {
    let job = Job { work: Work::Drop(thing), token: Token(0), outbox: None };
    Pool::ours().submit(&mut vec![job], user);
}

/// Run `op` on `fd` and return what io_uring would: a count, or a negative errno.
pub(super) fn run(fd: RawFd, op: FileOp) -> i32 {
    loop {
        let result = once(fd, op);
        if result != -libc::EINTR {
            return result;
        }
    }
}

/// `_IO(0x12, 119)`, of first byte and length.
const BLKDISCARD: libc::c_ulong = 0x1277;

fn once(fd: RawFd, op: FileOp) -> i32 {
    let flags = |dsync| if dsync { libc::RWF_DSYNC } else { 0 };
    let one = |s: Segment| libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len };
    let at = |offset: u64| offset as libc::off_t;
    // SAFETY: the starter of the operation promised to `Ring::file` that memory and descriptor
    // stay valid until its event, which comes after this; our own iovecs live for the call.
    let result = unsafe {
        match op {
            FileOp::Read { segment, offset } => libc::preadv(fd, &one(segment), 1, at(offset)),
            FileOp::Write { segment, offset, dsync } => {
                libc::pwritev2(fd, &one(segment), 1, at(offset), flags(dsync))
            }
            FileOp::Readv { iovecs, count, offset } => {
                libc::preadv(fd, iovecs, count as i32, at(offset))
            }
            FileOp::Writev { iovecs, count, offset, dsync } => {
                libc::pwritev2(fd, iovecs, count as i32, at(offset), flags(dsync))
            }
            FileOp::Splice { pipe, offset, length } => {
                let (mut from, null) = (at(offset), std::ptr::null_mut());
                let flags = libc::SPLICE_F_NONBLOCK;
                libc::splice(fd, &raw mut from, pipe, null, length as usize, flags)
            }
            FileOp::DataSync => libc::fdatasync(fd) as isize,
            FileOp::Allocate { mode, offset, length } => {
                libc::fallocate(fd, mode, at(offset), length as libc::off_t) as isize
            }
            FileOp::Discard { offset, length } => {
                let range = [offset, length];
                libc::ioctl(fd, BLKDISCARD, &raw const range) as isize
            }
        }
    };
    // A transfer is at most 0x7ffff000 bytes (read(2)), so counts fit.
    if result < 0 { -errno() } else { result as i32 }
}

/// The calling thread's last error.
pub(super) fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}
