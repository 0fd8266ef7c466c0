//! The ring on io_uring.
//!
//! Invariants:
//! * Memory that the kernel refers to stays: buffers of socket operations and time specifications
//!   live in `slots` until their completion entry came. A ring that is dropped with operations in
//!   flight leaks them on purpose.
//! * No `SINGLE_ISSUER`, `DEFER_TASKRUN` or `COOP_TASKRUN`: a visitor must be able to submit
//!   and reap while the owner's thread is away, and completions must be posted although it
//!   makes no system call.
//! * While other rings are watched the owner sleeps on `watches`, where they hang beside
//!   this ring's descriptor, which shows no news but its own.
//! * Outcomes of helper threads lie in `outbox` until a reap after their wake-up. Without jobs
//!   there nothing looks into it, so no lock is taken.
//! * Sends and receives of a front end may be in `direct`, of which the kernel knows nothing;
//!   before the owner sleeps it is handed what is held there.
//! * The wake-up descriptor has one multishot poll in the ring, so a wake-up is an entry like
//!   any other, and the ring's own descriptor shows it to watchers.

use super::direct::Direct;
use super::eventfd::EventFd;
use super::helpers::{Job, Outbox, Pool};
use super::watches::Watches;
use super::{Buffers, FileOp, NetOp, Query, Ring, RingEvent, RingFile, Token, Waker};
use crate::buf::Arena;
use crate::clock::{Clock, Ns};
use crate::error::{Error, Result};
use crate::sync::LockCounters;
use io_uring::{IoUring, opcode, squeue, types};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

const SQ_ENTRIES: u32 = 256;
const CQ_ENTRIES: u32 = 4096;
/// Places in the table of registered memory.
const ARENAS: u32 = 16;
/// Places in the table of registered files.
const FILES: u32 = 256;

/// Of several rings that wait for one descriptor a single one is woken, where its driver wakes so.
const POLL_IN_ALONE: u32 = libc::POLLIN as u32 | libc::EPOLLEXCLUSIVE as u32;

/// Owner numbers of tokens that never leave this module.
const SLOT: u16 = Token::CONTEXT - 1;
const WAKE: u16 = Token::CONTEXT - 2;
const IGNORE: u16 = Token::CONTEXT - 3;

/// Memory that the kernel may still refer to for one operation.
enum Slot {
    Free { next: u32 },
    Net { token: Token, buffers: Buffers, message: Box<Message>, accept: bool },
    Timer { token: Token, at: Box<types::Timespec> },
}

/// Header and vectors of a gathered send; kept with its slot to save the allocations.
struct Message {
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the pointers lead to memory that the same slot owns.
unsafe impl Send for Message {}

impl Default for Message {
    fn default() -> Self {
        // SAFETY: a msghdr of zeroes is a message without anything.
        Message { header: unsafe { std::mem::zeroed() }, vectors: Vec::new() }
    }
}

const NO_SLOT: u32 = u32::MAX;

/// A ring on io_uring.
pub struct UringRing {
    uring: IoUring,
    waker: Arc<EventFd>,
    slots: Vec<Slot>,
    free: u32,
    #[allow(clippy::vec_box, reason = "the kernel has their addresses while they are in slots")]
    spare_messages: Vec<Box<Message>>,
    /// Entries that found the submission queue full.
    backlog: VecDeque<squeue::Entry>,
    in_flight: usize,
    unsubmitted: bool,
    direct: Direct,
    watches: Watches,
    /// Events of watches.
    news: Vec<RingEvent>,
    free_files: Vec<u32>,
    /// The descriptors of the registered files, by place.
    files: Vec<RawFd>,
    /// Registered memory, by its place in the ring's table.
    memory: Vec<Arc<Arena>>,
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
        let registered = uring.submitter().register_files_sparse(FILES).is_ok();
        // Without the table, registering memory is refused later, with the kernel's reason.
        let _ = uring.submitter().register_buffers_sparse(ARENAS);
        let waker = EventFd::new()?;
        let mut ring = UringRing {
            watches: Watches::new(uring.as_raw_fd()),
            uring,
            direct: Direct::new(),
            outbox: Outbox::new(waker.clone()),
            waker,
            unasked: Vec::new(),
            jobs: 0,
            locks: LockCounters::new(clock.clone()),
            slots: Vec::new(),
            free: NO_SLOT,
            spare_messages: Vec::new(),
            backlog: VecDeque::new(),
            in_flight: 0,
            unsubmitted: false,
            news: Vec::new(),
            memory: Vec::new(),
            files: vec![-1; FILES as usize],
            free_files: if registered { (0..FILES).rev().collect() } else { Vec::new() },
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

    /// The registered memory that an operation's segment lies in.
    fn place_of(&self, op: &FileOp) -> Option<u16> {
        let (FileOp::Read { segment, .. } | FileOp::Write { segment, .. }) = op else {
            return None;
        };
        let inside = |arena: &Arc<Arena>| {
            let all = arena.segment();
            let start = (segment.ptr as usize).wrapping_sub(all.ptr as usize);
            start < all.len && segment.len <= all.len - start
        };
        self.memory.iter().position(inside).map(|place| place as u16)
    }

    fn take_slot(&mut self, slot: Slot) -> u32 {
        if self.free == NO_SLOT {
            self.slots.push(slot);
            return self.slots.len() as u32 - 1;
        }
        let index = self.free;
        let Slot::Free { next } = self.slots[index as usize] else { unreachable!("free list") };
        self.free = next;
        self.slots[index as usize] = slot;
        index
    }

    fn free_slot(&mut self, index: u32) -> Slot {
        let slot =
            std::mem::replace(&mut self.slots[index as usize], Slot::Free { next: self.free });
        self.free = index;
        slot
    }

    fn slot_event(&mut self, index: u32, result: i32) -> RingEvent {
        match self.free_slot(index) {
            Slot::Net { token, message, accept: true, .. } if result >= 0 => {
                self.spare_messages.push(message);
                // SAFETY: the kernel made this descriptor for us alone.
                let socket = unsafe { OwnedFd::from_raw_fd(result) };
                RingEvent { token, result: 0, buffers: Buffers::Socket(socket) }
            }
            Slot::Net { token, buffers, mut message, .. } => {
                message.vectors.clear();
                self.spare_messages.push(message);
                RingEvent { token, result, buffers }
            }
            Slot::Timer { token, at } => {
                drop(at);
                let result = if result == -libc::ETIME { 0 } else { result };
                RingEvent { token, result, buffers: Buffers::None }
            }
            Slot::Free { .. } => unreachable!("an entry for a slot comes once"),
        }
    }

    /// Hand a socket operation to the kernel.
    fn push_net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        let message = self.spare_messages.pop().unwrap_or_default();
        let accept = matches!(op, NetOp::Accept);
        let index = self.take_slot(Slot::Net { token, buffers: Buffers::None, message, accept });
        let entry = self.net_entry(index, fd, op);
        self.in_flight += 1;
        self.push(entry.user_data(Token::new(SLOT, index.into()).0));
    }

    fn push_held(&mut self) {
        if let Some((fd, op, token)) = self.direct.take_held() {
            self.push_net(fd, op, token);
        }
    }

    /// Build the entry of a socket operation whose buffers rest in slot `index`.
    fn net_entry(&mut self, index: u32, fd: RawFd, op: NetOp) -> squeue::Entry {
        let fd = types::Fd(fd);
        let Slot::Net { buffers, message, .. } = &mut self.slots[index as usize] else {
            unreachable!("just made")
        };
        match op {
            NetOp::Accept => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
                .flags(libc::SOCK_CLOEXEC)
                .build(),
            NetOp::PollIn => opcode::PollAdd::new(fd, POLL_IN_ALONE).build(),
            NetOp::Recv { buf, range } => {
                let segment = buf.segment(range);
                *buffers = Buffers::One(buf);
                opcode::Recv::new(fd, segment.ptr, segment.len as u32).build()
            }
            NetOp::Send { parts } if parts.len() == 1 => {
                let segment = parts[0].buf.segment(parts[0].range.clone());
                *buffers = Buffers::Parts(parts);
                opcode::Send::new(fd, segment.ptr, segment.len as u32)
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
            }
            NetOp::Send { parts } => {
                message.vectors.extend(parts.iter().map(|p| {
                    let s = p.buf.segment(p.range.clone());
                    libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len }
                }));
                message.header.msg_iov = message.vectors.as_mut_ptr();
                message.header.msg_iovlen = message.vectors.len();
                *buffers = Buffers::Parts(parts);
                opcode::SendMsg::new(fd, &message.header).flags(libc::MSG_NOSIGNAL as u32).build()
            }
        }
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
                    let event = self.slot_event(token.value() as u32, result);
                    out.push(event);
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

/// Build the entry for `op`; a macro, because descriptor and registered index differ in type
/// and the crate's trait for both is sealed.
macro_rules! file_entry {
    ($fd:expr, $op:expr, $memory:expr) => {
        match $op {
            FileOp::Read { segment, offset } => match $memory {
                Some(place) => opcode::ReadFixed::new($fd, segment.ptr, segment.len as u32, place)
                    .offset(offset)
                    .build(),
                None => {
                    opcode::Read::new($fd, segment.ptr, segment.len as u32).offset(offset).build()
                }
            },
            FileOp::Write { segment, offset, dsync } if $memory.is_some() => {
                let place = $memory.unwrap_or_default();
                opcode::WriteFixed::new($fd, segment.ptr, segment.len as u32, place)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::Write { segment, offset, dsync } => {
                opcode::Write::new($fd, segment.ptr, segment.len as u32)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::Readv { iovecs, count, offset } => {
                opcode::Readv::new($fd, iovecs, count).offset(offset).build()
            }
            FileOp::Writev { iovecs, count, offset, dsync } => {
                opcode::Writev::new($fd, iovecs, count)
                    .offset(offset)
                    .rw_flags(sync_flag(dsync))
                    .build()
            }
            FileOp::DataSync => opcode::Fsync::new($fd).flags(types::FsyncFlags::DATASYNC).build(),
            FileOp::Allocate { mode, offset, length } => {
                opcode::Fallocate::new($fd, length).offset(offset).mode(mode).build()
            }
            FileOp::Discard { .. } => unreachable!("a helper does it"),
        }
    };
}

fn sync_flag(dsync: bool) -> i32 {
    if dsync { libc::RWF_DSYNC } else { 0 }
}

pub(super) fn file_entry(file: RingFile, op: FileOp, memory: Option<u16>) -> squeue::Entry {
    match file {
        RingFile::Fd(fd) => file_entry!(types::Fd(fd), op, memory),
        RingFile::Registered(index) => file_entry!(types::Fixed(index), op, memory),
    }
}

impl Ring for UringRing {
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token) {
        if let FileOp::Discard { .. } = op {
            let fd = match file {
                RingFile::Fd(fd) => fd,
                RingFile::Registered(index) => self.files[index as usize],
            };
            return self.hand_over(Job::file(fd, op, token, &self.outbox));
        }
        self.in_flight += 1;
        let memory = self.place_of(&op);
        self.push(file_entry(file, op, memory).user_data(token.0));
    }

    fn register(&mut self, fd: RawFd) -> RingFile {
        let Some(index) = self.free_files.pop() else { return RingFile::Fd(fd) };
        match self.uring.submitter().register_files_update(index, &[fd]) {
            Ok(_) => {
                self.files[index as usize] = fd;
                RingFile::Registered(index)
            }
            Err(_) => {
                self.free_files.push(index);
                RingFile::Fd(fd)
            }
        }
    }

    fn register_memory(&mut self, arena: Arc<Arena>) -> Result<()> {
        let place = self.memory.len() as u32;
        if place == ARENAS {
            return Err(Error::invalid(format!("a ring registers memory {ARENAS} times")));
        }
        let all = arena.segment();
        let vector = libc::iovec { iov_base: all.ptr.cast(), iov_len: all.len };
        // SAFETY: the arena's memory stays as long as the ring, which keeps a reference.
        unsafe { self.uring.submitter().register_buffers_update(place, &[vector], None) }
            .map_err(|e| Error::os("memory cannot be registered with io_uring", e))?;
        self.memory.push(arena);
        Ok(())
    }

    fn unregister(&mut self, file: RingFile) {
        if let RingFile::Registered(index) = file {
            let _ = self.uring.submitter().register_files_update(index, &[-1]);
            self.free_files.push(index);
        }
    }

    fn net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        if let Some((fd, op, token)) = self.direct.take_other(fd) {
            self.push_net(fd, op, token);
        }
        if let Some(op) = self.direct.start(fd, op, token) {
            self.push_net(fd, op, token);
        }
    }

    fn query(&mut self, query: Query, token: Token) {
        self.hand_over(Job::query(query, token, &self.outbox));
    }

    fn timer(&mut self, at: Ns, token: Token) {
        let spec = types::Timespec::new().sec(at / 1_000_000_000).nsec((at % 1_000_000_000) as u32);
        let index = self.take_slot(Slot::Timer { token, at: Box::new(spec) });
        // The address that the kernel gets is taken where the box stays until it is done: a box
        // that moves ends the right to addresses that were taken before.
        let Slot::Timer { at, .. } = &self.slots[index as usize] else { unreachable!("just made") };
        let entry = opcode::Timeout::new(&raw const **at).flags(types::TimeoutFlags::ABS).build();
        self.in_flight += 1;
        self.push(entry.user_data(Token::new(SLOT, index.into()).0));
    }

    fn cancel(&mut self, token: Token) {
        if self.direct.cancel(|_, other| other == token) {
            return;
        }
        let slot = self.slots.iter().position(|s| match s {
            Slot::Net { token: t, .. } | Slot::Timer { token: t, .. } => *t == token,
            Slot::Free { .. } => false,
        });
        let user_data = slot.map_or(token.0, |index| Token::new(SLOT, index as u64).0);
        let entry = opcode::AsyncCancel::new(user_data).build();
        self.push(entry.user_data(Token::new(IGNORE, 0).0));
    }

    fn close(&mut self, fd: OwnedFd) {
        self.direct.cancel(|other, _| other == fd.as_raw_fd());
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
        self.submit();
    }

    fn end_round(&mut self) {
        if let Some((fd, op, token)) = self.direct.take_old() {
            self.push_net(fd, op, token);
        }
        self.submit();
    }

    fn set_polling(&mut self, polls: bool) {
        self.direct.set_polling(polls);
    }

    fn wait(&mut self, deadline: Option<Ns>) {
        let has_news = !self.news.is_empty() || self.direct.has_ended();
        if has_news || !self.uring.completion().is_empty() {
            return self.submit();
        }
        self.push_held();
        let timeout = deadline.map(|at| at.saturating_sub(self.clock.now()));
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
        if !self.uring.completion().is_empty() {
            self.reap_entries(out);
        }
    }

    fn in_flight(&self) -> usize {
        self.in_flight + self.direct.in_flight()
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
        let busy = |s: &Slot| !matches!(s, Slot::Free { .. });
        // The kernel may still use what these slots own.
        self.slots.extract_if(.., |s| busy(s)).for_each(std::mem::forget);
    }
}
