//! A context's ring in a simulation: file operations go to simulated disks.
//!
//! Invariants:
//! * An operation that was started and not submitted has reached no disk, so a layer that forgets
//!   to submit hangs.
//! * A dropped ring gets no more events, and its operations write to no memory: its context has
//!   made sure that nobody waits for them.

use super::{DiskId, Due, FiberId, Memory, RingId, State, World};
use crate::disk::DiskOp;
use drystone_core::Pipe;
use drystone_core::buf::Segment;
use drystone_core::clock::Ns;
use drystone_core::ring::{FileOp, NetOp, Query, Ring, RingEvent, RingFile, Token, Waker};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

/// Descriptors of simulated things begin far above those that a process has.
const DISKS: RawFd = 1 << 28;
const RINGS: RawFd = 1 << 29;

pub(super) fn disk_descriptor(disk: DiskId) -> RawFd {
    DISKS + disk as RawFd
}

/// Everything that the world knows of a ring.
pub(super) struct RingState {
    pub(super) alive: bool,
    /// True if its process has ended: it reaches no disk any more.
    pub(super) severed: bool,
    pub(super) events: Vec<RingEvent>,
    pub(super) in_flight: usize,
    woken: bool,
    sleeper: Option<FiberId>,
    /// Rings that watch this one, and the token of the event that each gets.
    watchers: Vec<(RingId, Token)>,
}

impl State {
    /// Wake a ring's sleeper, and tell its watchers.
    pub(super) fn ring_has_news(&mut self, ring: RingId) {
        let state = &mut self.rings[ring];
        if let Some(fiber) = state.sleeper {
            self.sleepers[fiber].awake = true;
        }
        for (watcher, token) in self.rings[ring].watchers.clone() {
            self.tell(watcher, token);
        }
    }

    /// Gives a watcher its event. A watch is no operation: it does not count as in flight, and ends
    /// with its ring.
    fn tell(&mut self, watcher: RingId, token: Token) {
        let state = &mut self.rings[watcher];
        if !state.alive || state.events.iter().any(|event| event.token == token) {
            return;
        }
        state.events.push(RingEvent { token, result: 1, buffers: Default::default() });
        if let Some(fiber) = state.sleeper {
            self.sleepers[fiber].awake = true;
        }
    }

    /// Writes into the trace what each ring waits for.
    pub(super) fn describe_rings(&mut self, now: Ns) {
        for id in 0..self.rings.len() {
            let RingState { alive, events, in_flight, woken, sleeper, watchers, .. } =
                &self.rings[id];
            if !alive {
                continue;
            }
            let (events, sleeper, watchers) = (events.len(), *sleeper, watchers.clone());
            let line = format!(
                "ring {id}: {in_flight} in flight, {events} events, woken {woken}, fiber \
                 {sleeper:?} sleeps there, watched by {watchers:?}"
            );
            self.note(now, || line);
        }
    }

    fn has_news(&self, ring: RingId) -> bool {
        self.rings[ring].woken || !self.rings[ring].events.is_empty()
    }

    fn begin(&mut self, now: Ns, ring: RingId, started: Started) {
        let Started { file, op, from, memory, token } = started;
        let Some(disk) = disk_of(file).filter(|disk| *disk < self.disks.len()) else {
            return self.end(ring, token, -libc::EBADF);
        };
        if self.rings[ring].severed {
            return self.at(now, Due::Gone { ring, token });
        }
        let text = self.trace.is_some().then(|| self.whose(&op, from));
        let (op, at) = self.disks[disk].begin(now, op);
        self.add(now ^ at.rotate_left(20) ^ ((disk as u64) << 56));
        self.note(now, || format!("disk {disk}: {op:?}: {}", text.unwrap_or_default()));
        self.at(at.max(now), Due::Disk { disk, op, ring, token, memory });
    }

    /// The operation in words, and the workload's I/O that it serves, if its memory tells.
    fn whose(&self, op: &DiskOp, from: usize) -> String {
        let (what, bytes) = match op {
            DiskOp::Read { offset, length } => (format!("read at {offset}"), *length),
            DiskOp::Write { offset, data, fua } => {
                let fua = if *fua { " with FUA" } else { "" };
                (format!("write{fua} at {offset}"), data.len() as u64)
            }
            DiskOp::Flush => return "flush".to_owned(),
            DiskOp::Discard { offset, length } => (format!("discard at {offset}"), *length),
            DiskOp::WriteZeroes { offset, length } => (format!("zeroes at {offset}"), *length),
        };
        let owner = self.memory.range(..=from).next_back();
        let owner = owner.filter(|(at, (length, _))| from < **at + length);
        let whose = owner.map_or_else(String::new, |(_, (_, io))| format!(", for I/O {io}"));
        format!("{what}, {bytes} bytes{whose}")
    }

    /// The event of the operation that a ring started with `token`, if it has not ended.
    fn started(&self, ring: RingId, token: Token) -> Option<(Ns, u64)> {
        let of_ring = |due: &Due| match due {
            Due::Disk { ring: r, token: t, .. }
            | Due::Timer { ring: r, token: t }
            | Due::Gone { ring: r, token: t } => (*r, *t) == (ring, token),
            Due::Net { .. } => false,
        };
        self.events.iter().find(|(_, due)| of_ring(due)).map(|(key, _)| *key)
    }

    /// The disk that the operation with `token` changes.
    fn disk_in_use(&self, ring: RingId, token: Token) -> Option<DiskId> {
        self.events[&self.started(ring, token)?].changes()
    }

    /// Cancel the operation with `token`, if possible.
    fn cancel(&mut self, ring: RingId, token: Token) {
        let Some(key) = self.started(ring, token) else {
            return self.net_cancel(ring, token);
        };
        match &self.events[&key] {
            Due::Timer { .. } | Due::Gone { .. } => {
                self.events.remove(&key);
                self.end(ring, token, -libc::ECANCELED);
            }
            Due::Disk { disk, op, .. } => {
                let (disk, op) = (*disk, *op);
                if self.disks[disk].cancel(op) {
                    self.events.remove(&key);
                    self.end(ring, token, -libc::ECANCELED);
                }
            }
            Due::Net { .. } => {}
        }
    }
}

fn disk_of(file: RingFile) -> Option<DiskId> {
    match file {
        RingFile::Fd(fd) if (DISKS..RINGS).contains(&fd) => Some((fd - DISKS) as DiskId),
        _ => None,
    }
}

/// An operation that was started and not yet submitted.
enum Begun {
    File(Started),
    Net { fd: RawFd, op: NetOp, token: Token },
    Query(Query, Token),
}

/// An operation of a disk.
struct Started {
    file: RingFile,
    op: DiskOp,
    /// The address of its memory.
    from: usize,
    memory: Memory,
    token: Token,
}

/// The simulated ring of one context.
pub(super) struct SimRing {
    world: World,
    id: RingId,
    started: Vec<Begun>,
    waker: Arc<SimWaker>,
}

// SAFETY: the callers that started the reads vouch for the memory that these name.
unsafe impl Send for SimRing {}

impl SimRing {
    pub(super) fn new(world: World) -> Self {
        let mut state = world.state();
        let id = state.rings.len();
        state.rings.push(RingState {
            alive: true,
            severed: false,
            events: Vec::new(),
            in_flight: 0,
            woken: false,
            sleeper: None,
            watchers: Vec::new(),
        });
        drop(state);
        let waker = Arc::new(SimWaker { world: world.clone(), ring: id });
        SimRing { world, id, started: Vec::new(), waker }
    }

    /// Notice closes and shutdowns of sockets that the owner did without the ring.
    fn look(&self) {
        let now = self.world.now();
        self.world.state().net_look(now, Some(self.id));
    }

    fn ring_of(others: [RawFd; 2]) -> RingId {
        ((others[0] - RINGS) / 2) as RingId
    }
}

impl Drop for SimRing {
    fn drop(&mut self) {
        let mut state = self.world.state();
        let ring = &mut state.rings[self.id];
        ring.alive = false;
        let events = std::mem::take(&mut ring.events);
        let buffers = state.net_forget(self.id);
        for other in &mut state.rings {
            other.watchers.retain(|(watcher, _)| *watcher != self.id);
        }
        drop(state);
        drop((events, buffers));
    }
}

impl Ring for SimRing {
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token) {
        // SAFETY: the caller's promise.
        let (op, from, memory) = unsafe { disk_op(op) };
        self.started.push(Begun::File(Started { file, op, from, memory, token }));
        self.world.state().rings[self.id].in_flight += 1;
    }

    fn register(&mut self, fd: RawFd) -> RingFile {
        RingFile::Fd(fd)
    }

    fn unregister(&mut self, _: RingFile) {}

    fn net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        self.started.push(Begun::Net { fd, op, token });
        self.world.state().rings[self.id].in_flight += 1;
    }

    fn query(&mut self, query: Query, token: Token) {
        self.started.push(Begun::Query(query, token));
        self.world.state().rings[self.id].in_flight += 1;
    }

    fn timer(&mut self, at: Ns, token: Token) {
        let now = self.world.now();
        let mut state = self.world.state();
        state.rings[self.id].in_flight += 1;
        let ring = self.id;
        state.at(at.max(now), Due::Timer { ring, token });
    }

    fn cancel(&mut self, token: Token) {
        self.submit();
        let disk = self.world.state().disk_in_use(self.id, token);
        self.world.before_change(disk);
        self.world.state().cancel(self.id, token);
    }

    fn close(&mut self, fd: OwnedFd) {
        self.submit();
        drop(fd);
        self.look();
    }

    fn submit(&mut self) {
        let now = self.world.now();
        for begun in self.started.drain(..) {
            match begun {
                Begun::File(started) => {
                    let is_read = matches!(started.op, DiskOp::Read { .. });
                    self.world.before_change(disk_of(started.file).filter(|_| !is_read));
                    self.world.state().begin(now, self.id, started);
                }
                Begun::Net { fd, op, token } => {
                    self.world.state().net_begin(now, self.id, fd, op, token);
                }
                // A query may call the world, so the world must not be locked here.
                Begun::Query(query, token) => {
                    let (result, buffers) = query.run();
                    self.world.state().push(self.id, RingEvent { token, result, buffers });
                }
            }
        }
    }

    fn wait(&mut self, deadline: Option<Ns>) {
        self.submit();
        self.look();
        // A system call takes time even if an event is there already.
        self.world.give_way();
        let is_over = |at: Ns| deadline.is_some_and(|deadline| deadline <= at);
        while !self.world.state().has_news(self.id) && !is_over(self.world.now()) {
            let mut state = self.world.state();
            state.rings[self.id].sleeper = Some(state.running);
            drop(state);
            self.world.doze(deadline);
            self.world.state().rings[self.id].sleeper = None;
        }
    }

    fn reap(&mut self, out: &mut Vec<RingEvent>) {
        let mut state = self.world.state();
        let ring = &mut state.rings[self.id];
        ring.woken = false;
        out.append(&mut ring.events);
    }

    fn in_flight(&self) -> usize {
        self.world.state().rings[self.id].in_flight
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.waker.clone()
    }

    fn watch(&mut self, others: [RawFd; 2], token: Token) {
        let other = Self::ring_of(others);
        let mut state = self.world.state();
        state.rings[other].watchers.push((self.id, token));
        if state.has_news(other) {
            state.tell(self.id, token);
        }
    }

    fn unwatch(&mut self, others: [RawFd; 2], token: Token) {
        let other = Self::ring_of(others);
        let mut state = self.world.state();
        state.rings[other].watchers.retain(|watcher| *watcher != (self.id, token));
    }

    fn descriptors(&self) -> [RawFd; 2] {
        let first = RINGS + 2 * self.id as RawFd;
        [first, first + 1]
    }

    fn engine(&self) -> &'static str {
        "simulated"
    }
}

/// Wakes a simulated ring.
struct SimWaker {
    world: World,
    ring: RingId,
}

impl Waker for SimWaker {
    fn wake(&self) {
        let mut state = self.world.state();
        state.rings[self.ring].woken = true;
        state.ring_has_news(self.ring);
    }
}

/// The disk operation of `op`, the address of its memory, and where the data of a read goes.
///
/// # Safety
/// The operation's memory is valid now, and that of a read until it ends.
unsafe fn disk_op(op: FileOp) -> (DiskOp, usize, Memory) {
    // SAFETY: the caller's promise; `Segment` and `iovec` are pieces of that memory.
    unsafe {
        match op {
            FileOp::Read { segment, offset } => read(offset, vec![segment]),
            FileOp::Readv { iovecs, count, offset } => read(offset, segments(iovecs, count)),
            FileOp::Write { segment, offset, dsync } => write(offset, &[segment], dsync),
            FileOp::Writev { iovecs, count, offset, dsync } => {
                write(offset, &segments(iovecs, count), dsync)
            }
            FileOp::Splice { pipe, offset, length } => {
                let op = DiskOp::Read { offset, length: length.into() };
                (op, 0, Memory::Pipe(pipe))
            }
            FileOp::DataSync => (DiskOp::Flush, 0, Memory::NONE),
            FileOp::Allocate { mode, offset, length } => {
                let punch = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
                let op = match punch {
                    true => DiskOp::Discard { offset, length },
                    false => DiskOp::WriteZeroes { offset, length },
                };
                (op, 0, Memory::NONE)
            }
            FileOp::Discard { offset, length } => {
                (DiskOp::Discard { offset, length }, 0, Memory::NONE)
            }
        }
    }
}

fn beginning(memory: &[Segment]) -> usize {
    memory.first().map_or(0, |segment| segment.ptr.addr())
}

unsafe fn segments(iovecs: *const libc::iovec, count: u32) -> Vec<Segment> {
    // SAFETY: the caller's promise.
    let iovecs = unsafe { std::slice::from_raw_parts(iovecs, count as usize) };
    iovecs.iter().map(|v| Segment { ptr: v.iov_base.cast(), len: v.iov_len }).collect()
}

fn read(offset: u64, memory: Vec<Segment>) -> (DiskOp, usize, Memory) {
    let length = memory.iter().map(|segment| segment.len as u64).sum();
    (DiskOp::Read { offset, length }, beginning(&memory), Memory::Segments(memory))
}

unsafe fn write(offset: u64, from: &[Segment], fua: bool) -> (DiskOp, usize, Memory) {
    let mut data = Vec::with_capacity(from.iter().map(|segment| segment.len).sum());
    for segment in from {
        // SAFETY: the caller's promise.
        data.extend_from_slice(unsafe { std::slice::from_raw_parts(segment.ptr, segment.len) });
    }
    (DiskOp::Write { offset, data, fua }, beginning(from), Memory::NONE)
}

impl Memory {
    /// Copy `data` to the memory of the read, or into its pipe.
    pub(super) fn write(&self, mut data: &[u8]) {
        let segments = match self {
            Memory::Segments(segments) => segments,
            // Open until the event, like the memory.
            Memory::Pipe(pipe) => {
                let n = Pipe::copy_in(*pipe, data);
                assert_eq!(n, data.len(), "a pipe has room for what the driver asks for");
                return;
            }
        };
        for segment in segments {
            let n = data.len().min(segment.len);
            // SAFETY: the memory of a read is valid until the event of its end, which comes after
            // this.
            unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), segment.ptr, n) };
            data = &data[n..];
        }
    }
}
