//! The ring on io_uring.
//!
//! Invariants:
//! * Memory that the kernel refers to stays in `slots` until its completion entry came.
//! * No `SINGLE_ISSUER`, `DEFER_TASKRUN` or `COOP_TASKRUN`: a visitor must be able to submit
//!   and reap while the owner's thread is away, and completions must be posted although it
//!   makes no system call.
//! * While other rings are watched the owner sleeps on `watches`, where they hang beside
//!   this ring's descriptor, which shows no news but its own.
//! * Outcomes of helper threads lie in `outbox` until a reap after their wake-up. Without jobs
//!   there nothing looks into it, so no lock is taken.
//! * Sends and receives of a front end may be in `direct`, and writes in `local`, of which the
//!   kernel knows nothing; before the owner sleeps it is handed the receive that is held there.
//! * The wake-up descriptor has one multishot poll in the ring, so a wake-up is an entry like
//!   any other, and the ring's own descriptor shows it to watchers.

use super::direct::Direct;
use super::entries::file_entry;
use super::eventfd::{EventFd, clear_and_look};
use super::helpers::{Job, Outbox, Pool};
use super::local::Local;
use super::registered::Registered;
use super::slots::Slots;
use super::sockets::has_pipe;
use super::watches::Watches;
use super::{Buffers, FileOp, NetOp, Query, Ring, RingEvent, RingFile, Token, Waker};
use crate::buf::Arena;
use crate::clock::{Clock, Ns};
use crate::error::{Error, Result};
use crate::sync::LockCounters;
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

const SQ_ENTRIES: u32 = 256;
const CQ_ENTRIES: u32 = 4096;
/// How long a receive is held while writes are under way on the same core.
const KEPT_NS: Ns = 200_000;

/// Owner numbers of tokens that never leave this module.
const SLOT: u16 = Token::CONTEXT - 1;
const WAKE: u16 = Token::CONTEXT - 2;
const IGNORE: u16 = Token::CONTEXT - 3;

/// A ring on io_uring.
pub struct UringRing {
    uring: IoUring,
    waker: Arc<EventFd>,
    slots: Slots,
    /// Entries that found the submission queue full.
    backlog: VecDeque<squeue::Entry>,
    in_flight: usize,
    unsubmitted: bool,
    /// Sends for [`UringRing::wait_again`]; empty between calls.
    again: Vec<(RawFd, NetOp, Token)>,
    direct: Direct,
    local: Local,
    watches: Watches,
    /// Events of watches.
    news: Vec<RingEvent>,
    registered: Registered,
    /// The outcomes of helper threads.
    outbox: Arc<Outbox>,
    /// Jobs that the next submit hands to them.
    unasked: Vec<Job>,
    /// Jobs that have had no event.
    jobs: usize,
    locks: Arc<LockCounters>,
    clock: Arc<dyn Clock>,
}

// SAFETY: the ring is used by one thread at a time (the context's gate), and the kernel does not
// mind which, since the ring was not set up for a single issuer.
unsafe impl Send for UringRing {}

impl UringRing {
    /// A ring, if the kernel permits io_uring.
    ///
    /// # Errors
    /// When it does not: forbidden by seccomp or `kernel.io_uring_disabled`, too old, or the
    /// memory or descriptor limit is too low.
    pub fn open(clock: Arc<dyn Clock>) -> Result<Box<dyn Ring>> {
        let uring = IoUring::builder()
            .setup_cqsize(CQ_ENTRIES)
            .setup_clamp()
            .setup_submit_all()
            .dontfork()
            .build(SQ_ENTRIES)
            .map_err(|e| Error::os("io_uring cannot be set up", e))?;
        if !uring.params().is_feature_ext_arg() || !uring.params().is_feature_nodrop() {
            return Err(Error::new(
                crate::error::ErrorKind::NotSupported,
                "this kernel's io_uring is too old (5.11 or later is needed)",
            ));
        }
        let waker = EventFd::new()?;
        let mut ring = UringRing {
            watches: Watches::new(uring.as_raw_fd()),
            registered: Registered::new(&uring),
            uring,
            again: Vec::new(),
            direct: Direct::new(),
            local: Local::default(),
            outbox: Outbox::new(waker.clone()),
            waker,
            unasked: Vec::new(),
            jobs: 0,
            locks: LockCounters::new(clock.clone()),
            slots: Slots::new(),
            backlog: VecDeque::new(),
            in_flight: 0,
            unsubmitted: false,
            news: Vec::new(),
            clock,
        };
        // Handed to the kernel by the first wait: it has work done for an entry by the thread that
        // handed it in, which is perhaps not the one that opens the ring, and each wake-up would
        // wake that, too.
        ring.arm_waker();
        Ok(Box::new(ring))
    }

    fn arm_waker(&mut self) {
        let fd = types::Fd(self.waker.fd());
        let poll = opcode::PollAdd::new(fd, libc::POLLIN as u32).multi(true).build();
        self.push(poll.user_data(Token::new(WAKE, 0).0));
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.unsubmitted = true;
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
            self.submit();
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: everything the entry points at is kept until its completion: by the driver
        // (promised to `file`) or by its slot.
        unsafe { self.uring.submission().push(entry) }.is_ok()
    }

    /// Hand a socket operation to the kernel; of a send with a pipe, the wait for room.
    fn push_net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        let (index, entry) = match is_of_pipe(&op) {
            true => self.slots.room(fd, op, token),
            false => self.slots.net(fd, op, token),
        };
        self.in_flight += 1;
        self.push(entry.user_data(Token::new(SLOT, index.into()).0));
    }

    /// The owner sleeps. The kernel gets the held receive, unless a write ends in a moment: then it
    /// stays for [`KEPT_NS`]. Returns for how long to sleep.
    fn keep_receive(&mut self, timeout: Option<Ns>) -> Option<Ns> {
        let is_long = timeout.is_none_or(|ns| ns > KEPT_NS);
        if is_long && self.local.in_flight() > 0 && self.direct.keeps() {
            return Some(KEPT_NS);
        }
        self.push_held();
        timeout
    }

    fn push_held(&mut self) {
        if let Some((fd, op, token)) = self.direct.take_held() {
            self.push_net(fd, op, token);
        }
    }

    /// The wait for room in the socket of a send has ended.
    fn go_on(&mut self, (fd, op, token): (RawFd, NetOp, Token), room: i32) {
        if room < 0 {
            return self.direct.end(op, token, room);
        }
        if let Some(op) = self.direct.try_now(fd, op, token) {
            self.again.push((fd, op, token));
        }
    }

    /// Sends that found no room after all wait for it once more: one try for each reap. Whoever
    /// reaps may poll next, and submits only what it starts itself.
    #[cold]
    fn wait_again(&mut self) {
        while let Some((fd, op, token)) = self.again.pop() {
            self.push_net(fd, op, token);
        }
        self.submit();
    }

    /// Hand the writes to the kernel that no helper got.
    fn push_writes(&mut self) {
        while let Some((fd, op, token)) = self.local.take_held() {
            self.push_file(RingFile::Fd(fd), op, token);
        }
    }

    /// The owner does not sleep after this round.
    fn push_old_writes(&mut self) {
        if self.local.end_round() {
            self.push_writes();
        }
    }

    fn push_file(&mut self, file: RingFile, op: FileOp, token: Token) {
        self.in_flight += 1;
        let memory = self.registered.place_of(&op);
        self.push(file_entry(file, op, memory).user_data(token.0));
    }

    /// A job for the helper threads.
    #[cold]
    fn hand_over(&mut self, job: Job) {
        self.in_flight += 1;
        self.jobs += 1;
        self.unasked.push(job);
        self.unsubmitted = true;
    }

    /// Jobs begin with the other operations that were started.
    fn hand_jobs_on(&mut self) {
        if !self.unasked.is_empty() {
            // A helper that starts has the cores of the thread that starts it.
            self.local.unbind();
            Pool::ours().submit(&mut self.unasked, &self.locks);
        }
    }

    /// Make what helpers did events.
    #[cold]
    fn take_outcomes(&mut self, out: &mut Vec<RingEvent>) {
        let outcomes = std::mem::take(&mut *self.outbox.outcomes.lock(&self.locks));
        self.jobs -= outcomes.len();
        self.in_flight -= outcomes.len();
        out.extend(outcomes.into_iter().map(|outcome| RingEvent {
            token: outcome.token,
            result: outcome.result,
            buffers: outcome.buffers,
        }));
    }

    fn enter(&mut self, wait: bool, timeout: Option<Ns>) {
        let submitter = self.uring.submitter();
        let spec = timeout.map(|ns| {
            types::Timespec::new().sec(ns / 1_000_000_000).nsec((ns % 1_000_000_000) as u32)
        });
        let result = match (&spec, wait) {
            (None, false) => submitter.submit(),
            (None, true) => submitter.submit_and_wait(1),
            (Some(ts), _) => submitter.submit_with_args(1, &types::SubmitArgs::new().timespec(ts)),
        };
        // EINTR, ETIME: go on. EBUSY, EAGAIN: entries wait until events were reaped. Anything
        // else would be a broken ring, which shows as events that never come.
        if let Err(e) = result {
            let expected = [libc::EINTR, libc::ETIME, libc::EBUSY, libc::EAGAIN];
            debug_assert!(e.raw_os_error().is_some_and(|e| expected.contains(&e)), "{e}");
        }
    }

    fn reap_entries(&mut self, out: &mut Vec<RingEvent>) {
        loop {
            let Some(entry) = self.uring.completion().next() else { return };
            let (token, result) = (Token(entry.user_data()), entry.result());
            let more = io_uring::cqueue::more(entry.flags());
            match token.owner() {
                WAKE => {
                    self.waker.clear();
                    if !more {
                        self.arm_waker();
                    }
                    if self.jobs > 0 {
                        self.take_outcomes(out);
                    }
                }
                IGNORE => {}
                SLOT => {
                    self.in_flight -= 1;
                    match self.slots.take_send(token.value() as u32) {
                        Some((send, true)) => self.go_on(send, -libc::ECANCELED),
                        Some((send, false)) => self.go_on(send, result),
                        None => out.push(self.slots.end(token.value() as u32, result)),
                    }
                }
                _ => {
                    self.in_flight -= 1;
                    out.push(RingEvent { token, result, buffers: Buffers::None });
                }
            }
        }
    }

    fn drain_backlog(&mut self) {
        while let Some(entry) = self.backlog.front() {
            let entry = entry.clone();
            if !self.try_push(&entry) {
                return;
            }
            self.backlog.pop_front();
        }
    }
}

/// True for a send that has a pipe, which io_uring would hand to a thread.
fn is_of_pipe(op: &NetOp) -> bool {
    matches!(op, NetOp::Send { parts } if has_pipe(parts))
}

impl Ring for UringRing {
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token) {
        if let FileOp::Discard { .. } = op {
            return self.hand_over(Job::file(
                self.registered.descriptor(file),
                op,
                token,
                &self.outbox,
            ));
        }
        self.push_file(file, op, token);
    }

    unsafe fn waiting_file(&mut self, file: RingFile, op: FileOp, token: Token) {
        let fd = self.registered.descriptor(file);
        let may_hold = self.direct.is_alone() && !self.direct.is_polled();
        if !may_hold || !self.local.hold(fd, op, token) {
            self.push_file(file, op, token);
        }
    }

    fn own_thread(&mut self, owns: bool) {
        self.local.own_thread(owns);
    }

    fn needs_core(&self) -> bool {
        self.local.in_flight() > 0
    }

    fn register(&mut self, fd: RawFd) -> RingFile {
        self.registered.file(&self.uring, fd)
    }

    fn register_memory(&mut self, arena: Arc<Arena>) -> Result<()> {
        self.registered.memory(&self.uring, arena)
    }

    fn unregister(&mut self, file: RingFile) {
        self.registered.forget(&self.uring, file);
    }

    fn net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        if let Some((fd, op, token)) = self.direct.take_other(fd) {
            self.push_net(fd, op, token);
        }
        let op = match is_of_pipe(&op) {
            true => self.direct.try_now(fd, op, token),
            false => self.direct.start(fd, op, token),
        };
        if let Some(op) = op {
            self.push_net(fd, op, token);
        }
    }

    fn query(&mut self, query: Query, token: Token) {
        self.hand_over(Job::query(query, token, &self.outbox));
    }

    fn timer(&mut self, at: Ns, token: Token) {
        let (index, entry) = self.slots.timer(at, token);
        self.in_flight += 1;
        self.push(entry.user_data(Token::new(SLOT, index.into()).0));
    }

    fn cancel(&mut self, token: Token) {
        if self.direct.cancel(|_, other| other == token) {
            return;
        }
        // A file that does not answer: the kernel can cancel its other writes.
        if token.owner() != Token::FRONT_END {
            self.local.give_up();
            self.push_writes();
        }
        let slot = self.slots.find(token);
        slot.into_iter().for_each(|index| self.slots.cancel(index));
        let user_data = slot.map_or(token.0, |index| Token::new(SLOT, index.into()).0);
        let entry = opcode::AsyncCancel::new(user_data).build();
        self.push(entry.user_data(Token::new(IGNORE, 0).0));
    }

    fn close(&mut self, fd: OwnedFd) {
        self.direct.cancel(|other, _| other == fd.as_raw_fd());
        debug_assert!(!self.slots.has_send(fd.as_raw_fd()), "its owner cancels it first");
        self.submit();
        let entry = opcode::Close::new(types::Fd(fd.into_raw_fd())).build();
        self.push(entry.user_data(Token::new(IGNORE, 0).0));
    }

    #[inline]
    fn submit(&mut self) {
        if !self.unsubmitted {
            return;
        }
        self.hand_jobs_on();
        loop {
            self.enter(false, None);
            if self.backlog.is_empty() {
                self.unsubmitted = !self.uring.submission().is_empty();
                return;
            }
            let before = self.backlog.len();
            self.drain_backlog();
            if self.backlog.len() == before {
                return;
            }
        }
    }

    fn submit_all(&mut self) {
        self.push_held();
        self.push_writes();
        self.submit();
    }

    fn end_round(&mut self) {
        if let Some((fd, op, token)) = self.direct.take_old() {
            self.push_net(fd, op, token);
        }
        self.push_old_writes();
        self.submit();
    }

    fn set_polling(&mut self, polls: bool) {
        self.direct.set_polling(polls);
        self.push_writes();
        self.submit();
    }

    fn wait(&mut self, deadline: Option<Ns>) {
        let has_news = !self.news.is_empty() || self.direct.has_ended();
        if has_news || !self.uring.completion().is_empty() {
            self.push_old_writes();
            return self.submit();
        }
        let timeout = deadline.map(|at| at.saturating_sub(self.clock.now()));
        if timeout == Some(0) || !self.local.give(&self.waker) {
            self.push_writes();
        }
        let timeout = self.keep_receive(timeout);
        if !self.watches.is_empty() {
            self.submit();
            return self.watches.sleep(timeout, &mut self.news);
        }
        self.hand_jobs_on();
        self.drain_backlog();
        self.enter(timeout != Some(0), timeout);
        self.unsubmitted = !self.uring.submission().is_empty() || !self.backlog.is_empty();
    }

    fn reap(&mut self, out: &mut Vec<RingEvent>) {
        if !self.watches.is_empty() {
            if self.news.is_empty() {
                self.watches.sleep(Some(0), &mut self.news);
            }
            out.append(&mut self.news);
        }
        if self.direct.in_flight() > 0 {
            self.direct.reap(out);
        }
        clear_and_look(
            &mut (&mut *self, &mut *out),
            |(ring, out)| {
                if !ring.uring.completion().is_empty() {
                    ring.reap_entries(out);
                }
            },
            |(ring, out)| ring.local.reap(out),
        );
        // Sends that found room.
        if self.direct.has_ended() {
            self.direct.reap(out);
        }
        if !self.again.is_empty() {
            self.wait_again();
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight + self.direct.in_flight() + self.local.in_flight()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }

    fn watch(&mut self, others: [RawFd; 2], token: Token) {
        self.watches.watch(others, token);
    }

    fn unwatch(&mut self, others: [RawFd; 2], token: Token) {
        self.watches.unwatch(others, token);
        if self.watches.is_empty() {
            self.news.clear();
        }
    }

    fn descriptors(&self) -> [RawFd; 2] {
        [self.uring.as_raw_fd(), self.waker.fd()]
    }

    fn count_locks_for(&mut self, user: &Arc<LockCounters>) {
        self.locks = user.clone();
    }

    fn engine(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for UringRing {
    fn drop(&mut self) {
        if self.jobs > 0 {
            Pool::ours().forget(&self.outbox, &self.locks);
        }
        if self.in_flight == 0 {
            // The kernel takes a ring apart later, and keeps the registered files open till then:
            // though the process has ended they would be locked, and their file system be in use.
            let _ = self.uring.submitter().unregister_files();
        }
    }
}
