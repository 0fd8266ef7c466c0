//! One session: requests read from its descriptor, and their answers written to it.
//!
//! Invariants:
//! * A session is dropped only when no poll and no bio of it is under way.
//! * `flow` counts the requests that have bios until they are answered. At its bound, and without a
//!   buffer that any request fits into, nothing more is read.
//! * Nothing is allocated for a read or write: what it takes is there when the session begins.
//! * An operation ([`Op`]) lives from its request until its answer; its bios name it by its number, so
//!   a number is not used again before all of them are back.
//! * Exactly one answer is written for each request that has one. An answer never waits: the kernel
//!   copies it at once, or refuses it because nobody waits for it any more.

use super::askers::Askers;
use super::buffers::Buffers;
use super::look::Look;
use super::mount::Mount;
use super::over_ring::OverRing;
use super::ragged::{Edges, Ragged};
use super::{Incoming, io::Work as OpWork};
use crate::fuse::proto::init::MAX_WRITE;
use crate::fuse::proto::{self, OUT_HEADER_BYTES, WRITE_HEAD_BYTES};
use crate::server::{DATA_AT, FUSE, Flow, Geometry, Tag, Work};
use drystone_core::range_lock::RangeUser;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, DevIndex, IoBuf, Status};
use std::collections::VecDeque;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// Most requests in flight of a session.
pub const IN_FLIGHT_MAX: u32 = 128;
/// Longest answer without data of a file.
pub(super) const SMALL_BYTES: usize = 256;

/// Bits of `user_data` for the part and the operation.
const PART_BITS: u32 = 4;
const OP_BITS: u32 = 20;

/// How far a session's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Open,
    /// The mount is gone, or given up: end once nothing is under way.
    Over,
}

/// An operation that is being carried out.
pub(super) struct Op {
    pub(super) unique: u64,
    /// The thread that waits for the answer.
    pub(super) asker: u32,
    pub(super) volume: usize,
    pub(super) group: u32,
    pub(super) what: OpWork,
    /// Bios that are not back.
    pub(super) pending: u32,
    pub(super) status: Status,
    /// The entry of the ring that it came in.
    pub(super) entry: Option<usize>,
    /// Its data, once the bio is back.
    pub(super) buf: Option<IoBuf>,
    /// It has a range of its volume locked, or waits for that.
    pub(super) locked: bool,
    /// It may take long, so it ends early when its asker is killed.
    pub(super) is_long: bool,
    /// Which is so.
    pub(super) interrupted: bool,
}

/// A volume as this session uses it.
pub(super) struct Used {
    pub(super) device: Option<DevIndex>,
    pub(super) geometry: Geometry,
    /// The ranges that operations write, at places of their numbers.
    pub(super) locks: RangeUser,
    /// Writes that wait for their range, each with its bio.
    pub(super) stayed: VecDeque<(u32, Box<Bio>)>,
    /// Operations on parts of blocks, in the order in which they came. The first has its range locked, or waits
    /// for that.
    pub(super) ragged: VecDeque<u32>,
    /// The first of them has begun.
    pub(super) begun: bool,
}

impl Used {
    fn new(mount: &Mount, volume: usize, work: &mut Work) -> Self {
        let of = &mount.shared(volume).volume;
        let (thread, counters) = (work.cx.handle().clone(), work.locks.clone());
        Used {
            device: work.cx.open(&of.device).ok(),
            geometry: mount.geometry(volume),
            locks: of.write_lock.join(IN_FLIGHT_MAX as usize, thread, counters),
            stayed: VecDeque::with_capacity(IN_FLIGHT_MAX as usize),
            ragged: VecDeque::with_capacity(IN_FLIGHT_MAX as usize),
            begun: false,
        }
    }
}

/// A session.
pub(super) struct Session {
    pub(super) mount: Arc<Mount>,
    pub(super) number: usize,
    pub(super) device: OwnedFd,
    pub(super) life: Life,
    /// A poll is with the ring.
    pub(super) polling: bool,
    /// There may be requests to read.
    pub(super) readable: bool,
    /// Whether it looks for requests before it sleeps.
    pub(super) look: Look,
    /// Most requests that are read before those so far are carried out.
    pub(super) batch: u32,
    /// The first bytes of the request that is being read.
    pub(super) head: [u8; WRITE_HEAD_BYTES],
    /// The others, from [`DATA_AT`] on.
    pub(super) data: IoBuf,
    pub(super) pool: Buffers,
    /// Its ring, if requests come over one or may.
    pub(super) over_ring: Option<OverRing>,
    /// The entry of the ring that the request came in that is being dealt with.
    pub(super) answering: Option<usize>,
    /// Idle ones; operations carry them about as boxes.
    #[allow(clippy::vec_box)]
    pub(super) spare: Vec<Box<Ragged>>,
    pub(super) used: Vec<Used>,
    pub(super) ops: Vec<Option<Op>>,
    free: Vec<u32>,
    /// Operations whose next step is to be taken.
    pub(super) steps: Vec<u32>,
    /// Writes that wait for their range, and operations on parts of blocks.
    pub(super) waiting: usize,
    /// Places that hold what they waited for, while they are looked at.
    pub(super) granted: Vec<usize>,
    flow: Flow,
    pub(super) requests: u64,
    /// Interrupts of the mount that it has looked at.
    pub(super) interrupts_seen: u64,
    pub(super) askers: Askers,
    pub(super) locks: Arc<LockCounters>,
    /// Tag for `user_data`: the session's place.
    tag: u64,
    withdrawn: bool,
    /// Its polls were asked to end.
    cancelled: bool,
}

/// The place of the session in a bio's `user_data`.
pub(super) fn session_of(bio: &Bio) -> usize {
    (Tag::rest_of_bio(bio.user_data) >> (PART_BITS + OP_BITS)) as usize
}

/// The `user_data` of all bios of the session at `place`.
pub(super) fn user_data_of(place: usize) -> Range<u64> {
    let bits = PART_BITS + OP_BITS;
    FUSE.bio() | (place as u64) << bits..FUSE.bio() | (place as u64 + 1) << bits
}

impl Session {
    /// A session at `place` of its worker; `None` when memory is short.
    pub(super) fn new(incoming: Incoming, place: usize, work: &mut Work) -> Option<Self> {
        let Incoming { mount, number, device } = incoming;
        let mut pool = Buffers::new(work.reserve.clone(), mount.volume_count())?;
        let data = pool.take(MAX_WRITE as usize)?;
        let volumes = 0..mount.volume_count();
        let used = volumes.map(|volume| Used::new(&mount, volume, work)).collect();
        let over_ring = match mount.options().over_ring {
            true => OverRing::open(number, mount.session_count()),
            false => None,
        };
        mount.begin(number, work.cx.handle(), over_ring.is_some());
        Some(Session {
            used,
            mount,
            number,
            device,
            life: Life::Open,
            polling: false,
            readable: true,
            look: Look::default(),
            batch: 1,
            head: [0; WRITE_HEAD_BYTES],
            data,
            pool,
            over_ring,
            answering: None,
            ops: Vec::with_capacity(IN_FLIGHT_MAX as usize),
            free: Vec::with_capacity(IN_FLIGHT_MAX as usize),
            steps: Vec::with_capacity(IN_FLIGHT_MAX as usize),
            spare: (0..IN_FLIGHT_MAX).map(|_| Box::default()).collect(),
            waiting: 0,
            granted: Vec::with_capacity(IN_FLIGHT_MAX as usize),
            flow: Flow::new(IN_FLIGHT_MAX, u64::MAX),
            requests: 0,
            interrupts_seen: 0,
            askers: Askers::new(),
            locks: work.locks.clone(),
            tag: FUSE.bio() | (place as u64) << (PART_BITS + OP_BITS),
            withdrawn: false,
            cancelled: false,
        })
    }

    pub(super) fn fd(&self) -> i32 {
        self.device.as_raw_fd()
    }

    /// True at a bound: nothing new is read.
    pub(super) fn is_paused(&self) -> bool {
        self.flow.is_full() || !self.pool.has_room()
    }

    /// True when only a poll with the ring would tell of requests, and there is none.
    pub(super) fn needs_poll(&self) -> bool {
        self.life == Life::Open && (!self.readable && !self.polling || self.ring_needs_poll())
    }

    /// The same for its ring.
    pub(super) fn ring_needs_poll(&self) -> bool {
        let needs = |over: &OverRing| over.registered && !over.readable && !over.polling;
        self.over_ring.as_ref().is_some_and(needs)
    }

    /// True when nothing refers to the session and it can be dropped.
    pub(super) fn is_over(&self) -> bool {
        let polling = self.polling || self.over_ring.as_ref().is_some_and(|over| over.polling);
        self.life == Life::Over && !polling && !self.askers.is_asking() && self.flow.is_idle()
    }

    /// Others have done what it waited for, or may have: something of it holds its range of a volume now, or it is
    /// not known how requests come.
    ///
    /// Not as long as it waits: what is always to be looked at keeps a thread that looks for requests from its ring.
    pub(super) fn has_news_of_others(&self) -> bool {
        let has_range = |used: &Used| used.locks.has_news();
        self.waiting > 0 && self.used.iter().any(has_range)
            || self.waits_for_transport()
            || self.has_failed()
    }

    /// Nobody is to be answered any more.
    pub(super) fn give_up(&mut self) {
        if self.life == Life::Open {
            self.life = Life::Over;
            self.drop_waiting();
        }
    }

    /// Once, when it is over and bios of it are with a device: nobody wants them any more.
    pub(super) fn withdraws(&mut self) -> bool {
        let withdraws = self.life == Life::Over && !self.flow.is_idle() && !self.withdrawn;
        self.withdrawn |= withdraws;
        withdraws
    }

    /// Once, when it is over and has polls with the context's ring, of which nothing may come any more.
    pub(super) fn cancels(&mut self) -> bool {
        let cancels = self.life == Life::Over && !self.cancelled;
        self.cancelled |= cancels;
        cancels
    }

    /// Everything about it has ended.
    pub(super) fn end(self) -> OwnedFd {
        self.mount.end(&self.locks);
        self.device
    }

    // --- operations

    pub(super) fn add(&mut self, op: Op) -> u32 {
        self.flow.begin(0);
        let is_long = op.is_long;
        let index = match self.free.pop() {
            Some(index) => {
                self.ops[index as usize] = Some(op);
                index
            }
            None => {
                self.ops.push(Some(op));
                self.ops.len() as u32 - 1
            }
        };
        if is_long {
            self.watch_if_interrupted(index);
        }
        index
    }

    /// The operation is over; its answer is written next.
    pub(super) fn remove(&mut self, index: u32) -> Option<Op> {
        let op = self.ops[index as usize].take()?;
        self.free.push(index);
        self.flow.end(1, 0);
        Some(op)
    }

    pub(super) fn user_data(&self, op: u32, part: usize) -> u64 {
        debug_assert!(part < 1 << PART_BITS && op < 1 << OP_BITS);
        self.tag | u64::from(op) << PART_BITS | part as u64
    }

    /// The `user_data` of all bios of an operation.
    pub(super) fn user_data_of_op(&self, op: u32) -> Range<u64> {
        let first = self.user_data(op, 0);
        first..first + (1 << PART_BITS)
    }

    /// The operation of a bio.
    pub(super) fn op_of(bio: &Bio) -> u32 {
        (bio.user_data >> PART_BITS) as u32 & ((1 << OP_BITS) - 1)
    }

    /// Its place in its worker, as events name it.
    pub(super) fn place_in_worker(&self) -> u64 {
        Tag::rest_of_bio(self.tag) >> (PART_BITS + OP_BITS)
    }

    /// A bio came back. When it was the last of its operation that is answered, or goes on.
    #[inline]
    pub(super) fn completed(&mut self, bio: Box<Bio>) {
        let index = Self::op_of(&bio);
        let part = bio.user_data as usize & ((1 << PART_BITS) - 1);
        if !bio.status.is_ok() {
            self.failed(index, &bio);
        }
        let buf = self.pool.give_bio(bio);
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        match &mut op.what {
            OpWork::Ragged(ragged) => ragged.edges.put(part, buf),
            _ => op.buf = buf.or(op.buf.take()),
        }
        op.pending -= 1;
        if op.pending == 0 {
            match op.what {
                OpWork::Ragged(_) | OpWork::Cut(_) | OpWork::Seek(_) => self.steps.push(index),
                _ => self.finish(index),
            }
        }
    }

    /// A bio of operation `index` failed: so does the operation, by the first that does.
    #[cold]
    fn failed(&mut self, index: u32, bio: &Bio) {
        if let Some(op) = self.ops[index as usize].as_mut().filter(|op| op.status.is_ok()) {
            op.status = bio.status;
            if op.is_interrupted_by(bio.status) {
                return;
            }
            self.mount.shared(op.volume).volume.clients.note_failure(bio);
        }
    }

    /// Look again at the size of a volume.
    pub(super) fn refresh(&mut self, volume: usize) -> Geometry {
        let geometry = self.mount.geometry(volume);
        self.used[volume].geometry = geometry;
        geometry
    }

    /// Submit one bio with this round's others.
    pub(super) fn submit(&mut self, volume: usize, bio: Box<Bio>, work: &mut Work) {
        let Some(device) = self.used[volume].device else { return };
        self.withdraw_if_interrupted(&bio, work);
        let mut bios = BioList::new();
        bios.push(bio);
        work.queue(device, &mut bios);
    }

    // --- answers

    /// Answer with an error, or with nothing if it is 0.
    pub(super) fn answer(&mut self, unique: u64, error: i32) {
        if !self.answer_over_ring(unique, error, |_| 0) {
            let header = proto::header(unique, error, 0);
            self.send(&header);
        }
    }

    /// Answer with what `fill` writes.
    pub(super) fn answer_with(&mut self, unique: u64, fill: impl FnOnce(&mut [u8]) -> usize) {
        if self.answering.is_some() {
            self.answer_over_ring(unique, 0, fill);
            return;
        }
        let mut out = [0; SMALL_BYTES];
        let bytes = fill(&mut out[OUT_HEADER_BYTES..]);
        let header = proto::header(unique, 0, bytes);
        out[..OUT_HEADER_BYTES].copy_from_slice(&header);
        self.send(&out[..OUT_HEADER_BYTES + bytes]);
    }

    /// Answer with `range` of a buffer, before which there is room for the header.
    pub(super) fn answer_data(&mut self, unique: u64, mut buf: IoBuf, range: Range<usize>) {
        debug_assert!(range.start >= DATA_AT);
        let Some(left) = self.answer_data_over_ring(unique, buf, range.clone()) else { return };
        buf = left;
        let start = range.start - OUT_HEADER_BYTES;
        let header = proto::header(unique, 0, range.len());
        buf[start..range.start].copy_from_slice(&header);
        self.send(&buf[start..range.end]);
        self.pool.give(buf);
    }

    /// A refusal means that nobody waits for the answer: its asker was killed, or the mount is gone.
    fn send(&mut self, answer: &[u8]) {
        if self.life == Life::Open {
            self.look.answered();
            let _ = rustix::io::write(&self.device, answer);
        }
    }

    /// Give the buffers of a ragged operation back.
    pub(super) fn give_all(&mut self, edges: &mut Edges) {
        edges.take_bufs().for_each(|buf| self.give(buf));
    }
}
