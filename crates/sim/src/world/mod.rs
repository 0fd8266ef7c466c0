//! The world that a simulated stack runs in: time, disks, rings, and sleeping fibers.
//!
//! Invariants:
//! * One thread at a time is in a world. A fiber never pauses while it has the lock, and calls
//!   nothing of the block layer under it. So the lock is never contended. It exists only because
//!   rings, clocks and wakers must be `Send`.
//! * `events` is ordered by time, and at the same time by number, so the order is the same in every
//!   run.

#![allow(unsafe_code, reason = "a simulated ring reads and writes the memory of its operations")]
#![expect(
    clippy::disallowed_types,
    reason = "a world belongs to one thread and must only be movable: its lock is never waited for"
)]

mod clock;
mod files;
mod net;
mod ring;

pub use clock::START_NS;
pub use net::{ClientSocket, Gone, ListenerId, NetCounts, NetOptions};

use crate::disk::{Disk, OpId};
use crate::fiber::{self, Body, Pause};
use clock::SimClock;
use drystone_core::buf::Segment;
use drystone_core::clock::{Clock, Ns};
use drystone_core::ring::{Ring, RingEvent, Token};
use net::{ConnectionId, Net, NetDue, To};
use ring::{RingState, SimRing};
use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Number of a fiber.
pub type FiberId = usize;
/// Number of a disk.
pub type DiskId = usize;
type RingId = usize;
/// A function that is called just before each change of a disk.
pub type Observer = Rc<dyn Fn(DiskId)>;

/// An event that is due at a time.
enum Due {
    /// An operation of a disk is over.
    Disk { disk: DiskId, op: OpId, ring: RingId, token: Token, memory: Memory },
    /// An operation of a severed ring, which ends with ENODEV.
    Gone { ring: RingId, token: Token },
    /// A timer of a ring.
    Timer { ring: RingId, token: Token },
    /// Bytes arrive at an end of a connection, or it ends.
    Net { connection: ConnectionId, to: To, due: NetDue },
}

impl Due {
    /// The disk that the event changes, or whose data it makes durable.
    fn changes(&self) -> Option<DiskId> {
        match self {
            Due::Disk { disk, memory, .. } if memory.is_none() => Some(*disk),
            _ => None,
        }
    }
}

/// The place for the data of a read; no segments for other operations.
enum Memory {
    Segments(Vec<Segment>),
    /// The end of a pipe.
    Pipe(RawFd),
}

impl Memory {
    const NONE: Self = Memory::Segments(Vec::new());

    /// True for operations other than reads.
    fn is_none(&self) -> bool {
        matches!(self, Memory::Segments(segments) if segments.is_empty())
    }
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Segments(Vec::new())
    }
}

/// A fiber that sleeps.
#[derive(Clone, Copy, Debug, Default)]
struct Sleeper {
    /// The end of its sleep; `None` is never.
    until: Option<Ns>,
    awake: bool,
}

struct State {
    events: BTreeMap<(Ns, u64), Due>,
    /// Numbers of events so far.
    numbers: u64,
    disks: Vec<Disk>,
    rings: Vec<RingState>,
    net: Net,
    /// The state of each fiber; one that does not sleep is `awake`.
    sleepers: Vec<Sleeper>,
    spawned: Vec<(String, Body)>,
    running: FiberId,
    failure: Option<String>,
    /// Lines of the trace, if one is wanted.
    trace: Option<Vec<(Ns, FiberId, String)>>,
    /// The memory of each I/O, for the trace: first address, length in bytes, number of the I/O.
    memory: BTreeMap<usize, (usize, u64)>,
    /// A hash of all events: identical runs have the same digest.
    digest: u64,
    happened: u64,
    pauses: u64,
    observer: Option<Observer>,
}

// SAFETY: everything in here that is not `Send` (bodies of fibers, memory of reads, the observer)
// is used by the one thread that runs the simulation.
unsafe impl Send for State {}

struct Shared {
    clock: Arc<SimClock>,
    state: Mutex<State>,
}

/// The world. Clones are the same one.
#[derive(Clone)]
pub struct World(Arc<Shared>);

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

impl World {
    /// An empty world at its begin; `trace` keeps a trace of its events.
    pub fn new(trace: bool) -> Self {
        let state = State {
            events: BTreeMap::new(),
            numbers: 0,
            disks: Vec::new(),
            rings: Vec::new(),
            net: Net::new(0),
            sleepers: Vec::new(),
            spawned: Vec::new(),
            running: 0,
            failure: None,
            trace: trace.then(Vec::new),
            memory: BTreeMap::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            happened: 0,
            pauses: 0,
            observer: None,
        };
        World(Arc::new(Shared { clock: Arc::new(SimClock::new()), state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        match self.0.state.try_lock() {
            Ok(state) => state,
            // A fiber panicked while it had the lock. The panic ends the run and is reported.
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                unreachable!("nobody is in the world while somebody else is")
            }
        }
    }

    /// The simulated time.
    pub fn now(&self) -> Ns {
        self.0.clock.now()
    }

    /// The clock, for contexts.
    pub fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock.clone()
    }

    /// Move the clock forward.
    pub(crate) fn pass(&self, ns: Ns) {
        self.0.clock.move_to(self.now() + ns);
    }

    /// Have `body` run as a fiber from now on.
    pub fn spawn(&self, name: impl Into<String>, body: impl FnOnce() + 'static) {
        self.state().spawned.push((name.into(), Box::new(body)));
    }

    pub(crate) fn take_spawned(&self) -> Vec<(String, Body)> {
        std::mem::take(&mut self.state().spawned)
    }

    /// Write into the trace what each ring waits for.
    pub(crate) fn describe_rings(&self) {
        self.state().describe_rings(self.now());
    }

    /// Report a fault: the simulation ends at the next point, with this sentence. Only the first
    /// fault counts.
    pub fn fail(&self, sentence: impl Into<String>) {
        let mut state = self.state();
        let sentence = sentence.into();
        state.describe_rings(self.now());
        state.note(self.now(), || format!("FAILED: {sentence}"));
        state.failure.get_or_insert(sentence);
    }

    /// The fault that was found, if one was.
    pub fn failure(&self) -> Option<String> {
        self.state().failure.clone()
    }

    /// Mix `value` into the digest of the run, and count an event.
    pub fn digest(&self, value: u64) {
        self.state().add(value);
    }

    /// The digest of all events, and their number.
    pub fn sum(&self) -> (u64, u64) {
        let state = self.state();
        (state.digest, state.happened)
    }

    /// The number of times that fibers have paused.
    pub fn pauses(&self) -> u64 {
        self.state().pauses
    }

    /// Add a line to the trace, if one is wanted.
    pub fn note(&self, line: impl FnOnce() -> String) {
        self.state().note(self.now(), line);
    }

    /// Tell the trace which memory I/O `number` uses, so that disk operations can name the I/O;
    /// `None` once it has ended.
    pub fn memory_of(&self, number: u64, memory: Option<&[u8]>) {
        let mut state = self.state();
        if state.trace.is_none() {
            return;
        }
        match memory {
            Some(memory) => {
                state.memory.insert(memory.as_ptr().addr(), (memory.len(), number));
            }
            None => state.memory.retain(|_, (_, of)| *of != number),
        }
    }

    /// The lines so far: time, fiber, what happened.
    pub fn trace(&self) -> Vec<(Ns, FiberId, String)> {
        self.state().trace.clone().unwrap_or_default()
    }

    /// The fiber that runs.
    pub fn running(&self) -> FiberId {
        self.state().running
    }

    /// Note that a fiber goes on.
    pub(crate) fn set_running(&self, fiber: FiberId) {
        let mut state = self.state();
        state.running = fiber;
        state.pauses += 1;
        state.sleepers[fiber] = Sleeper { until: None, awake: true };
    }

    /// Add a new fiber, which does not sleep.
    pub(crate) fn add_sleeper(&self) {
        self.state().sleepers.push(Sleeper { until: None, awake: true });
    }

    /// Let all due events happen. `able` then has the `living` fibers that can go on.
    pub(crate) fn round(&self, living: &[FiberId], able: &mut Vec<FiberId>) -> Round {
        let now = self.now();
        let state = self.deliver(now);
        let sleepers = &state.sleepers;
        let is_awake = |fiber: &&FiberId| {
            let sleeper = sleepers[**fiber];
            sleeper.awake || sleeper.until.is_some_and(|until| until <= now)
        };
        able.clear();
        able.extend(living.iter().filter(is_awake));
        Round {
            spawned: !state.spawned.is_empty(),
            failed: state.failure.is_some(),
            happened: state.happened,
        }
    }

    /// Let all due events happen. The observer is called without the lock.
    fn deliver(&self, now: Ns) -> MutexGuard<'_, State> {
        let mut state = self.state();
        while let Some(first) = state.events.first_entry().filter(|first| first.key().0 <= now) {
            let due = first.remove();
            if let Some(disk) = due.changes()
                && let Some(observer) = state.observer.clone()
            {
                drop(state);
                observer(disk);
                state = self.state();
            }
            state.happen(now, due);
        }
        state
    }

    /// The time of the next event, or of the next end of a sleep.
    pub(crate) fn next_time(&self) -> Option<Ns> {
        let state = self.state();
        let event = state.events.keys().next().map(|(at, _)| *at);
        let asleep = state.sleepers.iter().filter(|s| !s.awake).filter_map(|s| s.until);
        asleep.chain(event).min()
    }

    /// True if a disk has an operation that will end.
    pub(crate) fn has_disk_operations(&self) -> bool {
        self.state().events.values().any(|due| matches!(due, Due::Disk { .. }))
    }

    /// Begin a read of a ring that only the caller has.
    #[cfg(test)]
    pub(crate) fn begin_read(&self, disk: DiskId) -> Box<dyn Ring> {
        let (now, ring) = (self.now(), self.ring());
        let mut state = self.state();
        let (op, at) =
            state.disks[disk].begin(now, crate::disk::DiskOp::Read { offset: 0, length: 512 });
        let number = state.rings.len() - 1;
        state.rings[number].in_flight += 1;
        let (token, memory) = (Token(0), Memory::NONE);
        state.at(at, Due::Disk { disk, op, ring: number, token, memory });
        ring
    }

    /// The running fiber sleeps until the clock shows `at`.
    pub fn sleep_until(&self, at: Ns) {
        while self.now() < at {
            self.doze(Some(at));
        }
    }

    /// The running fiber sleeps for `ns`.
    pub fn sleep(&self, ns: Ns) {
        self.sleep_until(self.now() + ns);
    }

    /// The running fiber polls: let others go on first. Outside a fiber this does nothing.
    pub(crate) fn give_way(&self) {
        if fiber::is_inside() {
            fiber::pause(Pause::Spin);
        }
    }

    /// The running fiber sleeps until it is woken or the time has come.
    pub(crate) fn doze(&self, until: Option<Ns>) {
        self.lie_down(until);
        fiber::pause(Pause::Sleep);
        self.get_up();
    }

    /// Wake a sleeping fiber.
    pub(crate) fn wake(&self, fiber: FiberId) {
        self.state().sleepers[fiber].awake = true;
    }

    fn lie_down(&self, until: Option<Ns>) {
        let mut state = self.state();
        let fiber = state.running;
        state.sleepers[fiber] = Sleeper { until, awake: false };
    }

    /// Stall a fiber until `until`, although it could go on.
    pub(crate) fn stall(&self, fiber: FiberId, until: Ns) {
        self.state().sleepers[fiber] = Sleeper { until: Some(until), awake: false };
    }

    fn get_up(&self) {
        let mut state = self.state();
        let fiber = state.running;
        state.sleepers[fiber] = Sleeper { until: None, awake: true };
    }

    /// Set the observer. It is called just before an operation of a disk other than a read begins,
    /// ends or is cancelled. It may look at the world, and must not pause.
    pub fn observe(&self, observer: Option<Observer>) {
        let before = std::mem::replace(&mut self.state().observer, observer);
        drop(before);
    }

    /// Tell the observer, if there is one.
    fn before_change(&self, disk: Option<DiskId>) {
        let observer = self.state().observer.clone();
        if let (Some(disk), Some(observer)) = (disk, observer) {
            observer(disk);
        }
    }

    /// Lines that the trace has so far.
    pub fn trace_len(&self) -> usize {
        self.state().trace.as_ref().map_or(0, Vec::len)
    }

    /// A ring for a new context.
    pub fn ring(&self) -> Box<dyn Ring> {
        Box::new(SimRing::new(self.clone()))
    }

    /// Bring a disk into the world.
    pub fn add_disk(&self, disk: Disk) -> DiskId {
        let mut state = self.state();
        state.disks.push(disk);
        state.disks.len() - 1
    }

    /// The number of disks.
    pub fn disks(&self) -> usize {
        self.state().disks.len()
    }

    /// Call `act` with a disk. `act` must not call the block layer, because the world is locked.
    pub fn disk<R>(&self, disk: DiskId, act: impl FnOnce(&mut Disk) -> R) -> R {
        act(&mut self.state().disks[disk])
    }

    /// The process of all present rings has ended: no disk answers them any more, and all their
    /// operations end with ENODEV now.
    pub fn sever(&self) {
        let now = self.now();
        let mut state = self.state();
        let is_disk = |due: &Due| matches!(due, Due::Disk { .. });
        let keys: Vec<_> =
            state.events.iter().filter(|(_, due)| is_disk(due)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(Due::Disk { disk, op, ring, token, .. }) = state.events.remove(&key) {
                if state.disks[disk].is_in_flight(op) {
                    state.disks[disk].finish(op);
                }
                state.at(now, Due::Gone { ring, token });
            }
        }
        state.rings.iter_mut().for_each(|ring| ring.severed = true);
        state.net_sever(now);
    }

    /// The number of rings in use, if there are any.
    pub fn rings_alive(&self) -> Option<usize> {
        let alive = self.state().rings.iter().filter(|ring| ring.alive).count();
        (alive > 0).then_some(alive)
    }
}

/// The result of a round of the world.
pub(crate) struct Round {
    /// True if there are new fibers.
    pub(crate) spawned: bool,
    /// True if a fault was found.
    pub(crate) failed: bool,
    /// The count of events so far.
    pub(crate) happened: u64,
}

impl State {
    fn at(&mut self, at: Ns, due: Due) {
        self.numbers += 1;
        self.events.insert((at, self.numbers), due);
    }

    fn add(&mut self, value: u64) {
        self.happened += 1;
        self.digest = (self.digest ^ value).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }

    fn note(&mut self, now: Ns, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push((now, self.running, line()));
        }
    }

    fn happen(&mut self, now: Ns, due: Due) {
        match due {
            Due::Disk { disk, op, ring, token, memory } => {
                let result = self.finish(disk, op, ring, &memory);
                self.add(now ^ ((disk as u64) << 48) ^ result as u64);
                self.note(now, || format!("disk {disk}: {op:?} ends with {result}"));
                self.end(ring, token, result);
            }
            Due::Timer { ring, token } => {
                self.add(now);
                self.end(ring, token, 0);
            }
            Due::Gone { ring, token } => self.end(ring, token, -libc::ENODEV),
            Due::Net { connection, to, due } => self.net_happen(now, connection, to, due),
        }
    }

    fn finish(&mut self, disk: DiskId, op: OpId, ring: RingId, memory: &Memory) -> i32 {
        let done = self.disks[disk].finish(op);
        if self.rings[ring].alive {
            memory.write(done.data);
        }
        done.result as i32
    }

    /// Ends an operation of a ring.
    fn end(&mut self, ring: RingId, token: Token, result: i32) {
        self.push(ring, RingEvent { token, result, buffers: Default::default() });
    }

    /// Give a ring an event; wakes its sleeper and its watchers.
    pub(super) fn push(&mut self, ring: RingId, event: RingEvent) {
        let state = &mut self.rings[ring];
        if !state.alive {
            return;
        }
        state.in_flight -= 1;
        state.events.push(event);
        self.ring_has_news(ring);
    }
}
