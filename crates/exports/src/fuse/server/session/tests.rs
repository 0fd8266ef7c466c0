//! Tests of one session, step by step: its bios end when and how the test wants, also in orders
//! that are rare with a device and another thread.

use super::Session;
use crate::fuse::proto::{Operation, Request};
use crate::fuse::server::op::Caller;
use crate::fuse::server::testing::{BLOCK, SIZE, incoming, work};
use crate::fuse::server::{IN_FLIGHT_MAX, Sessions};
use crate::server::{FrontEnd, Reserve, SessionId, Work};
use drystone_core::clock::ManualClock;
use drystone_core::range_lock::{RangeLock, RangeUser};
use drystone_core::sync::LockCounters;
use drystone_core::{Arena, Bio, Op, Status};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

const EINTR: i32 = 4;

/// A session of a file, its surroundings, and the kernel's end of its descriptor.
struct Alone {
    session: Session,
    work: Work,
    lock: Arc<RangeLock>,
    kernel: OwnedFd,
}

/// Makes another user hold `range` of the volume exclusively.
fn hold(lock: &Arc<RangeLock>, work: &Work, range: Range<u64>) -> RangeUser {
    let thread = work.cx.handle().clone();
    let mut user = lock.join(1, thread, LockCounters::new(ManualClock::new(1)));
    assert!(user.lock_exclusive(0, &range));
    user
}

impl Alone {
    fn new() -> Self {
        Alone::with(|work| work.reserve.clone())
    }

    fn with(reserve: impl FnOnce(&Work) -> Arc<Reserve>) -> Self {
        let (mut work, lock) = (work(), RangeLock::new());
        work.reserve = reserve(&work);
        let (incoming, kernel) = incoming(&lock);
        let session = Session::new(incoming, SessionId(0), &mut work);
        Alone { session: session.expect("memory"), work, lock, kernel }
    }

    fn hold(&self, range: Range<u64>) -> RangeUser {
        hold(&self.lock, &self.work, range)
    }

    fn start(&mut self, unique: u64, operation: Operation<'_>) {
        let request = Request { unique, node: 1, uid: 0, task: 1, operation };
        self.session.start(&request, &Caller::of(&request, None), &mut self.work);
        self.session.step(&mut self.work);
    }

    fn cut(&mut self, unique: u64, size: u64) {
        let (mode, owner, size) = (false, false, Some(size));
        self.start(unique, Operation::SetAttributes { mode, owner, size, handle: Some(0) });
    }

    fn write(&mut self, unique: u64, offset: u64, length: u32) {
        self.start(unique, Operation::Write { handle: 0, offset, length, flags: 0 });
    }

    fn end_early(&mut self, unique: u64) {
        let id = self.session.ops.find(unique).expect("it is under way");
        self.session.end_early(id, &mut self.work);
    }

    /// The only bio that waits to be submitted.
    fn bio(&mut self) -> Box<Bio> {
        let mut bios = self.work.take_queued();
        assert_eq!(bios.len(), 1);
        bios.remove(0)
    }

    /// Gives a bio back to the session.
    fn end(&mut self, mut bio: Box<Bio>) {
        bio.status = Status::Ok;
        self.session.completed(bio);
    }

    fn step(&mut self) {
        self.session.step(&mut self.work);
    }

    /// The next answer, which must be there: its request and its errno.
    fn answer(&self) -> (u64, i32) {
        let mut bytes = [0; 256];
        let length = rustix::io::read(&self.kernel, &mut bytes).expect("an answer");
        assert!(length >= 16);
        let error = i32::from_ne_bytes(bytes[4..8].try_into().expect("four bytes"));
        (u64::from_ne_bytes(bytes[8..16].try_into().expect("eight bytes")), -error)
    }
}

/// The next operation gets the number before the withdrawal takes effect.
#[test]
fn what_is_interrupted_as_it_ends_takes_no_other_with_it() {
    let mut alone = Alone::new();
    alone.cut(2, 0);
    let bio = alone.bio();
    assert_eq!(bio.op, Op::WriteZeroes);
    let user_data = bio.user_data;
    alone.end(bio);
    alone.end_early(2);
    alone.step();
    assert_eq!(alone.answer(), (2, 0), "it was complete");
    alone.write(4, 0, 4096);
    let bio = alone.bio();
    assert_eq!(bio.user_data, user_data, "the number is used again");
    let withdrawn = alone.work.take_withdrawn();
    assert!(withdrawn.iter().all(|range| !range.contains(&user_data)), "{withdrawn:?}");
    alone.end(bio);
    assert_eq!(alone.answer(), (4, 0));
}

#[test]
fn what_a_limit_may_hold_is_withdrawn() {
    let mut alone = Alone::new();
    alone.cut(2, 0);
    let mut bio = alone.bio();
    alone.end_early(2);
    assert!(alone.work.take_withdrawn().iter().any(|range| range.contains(&bio.user_data)));
    bio.status = Status::Cancelled;
    alone.session.completed(bio);
    alone.step();
    assert_eq!(alone.answer(), (2, EINTR));
}

/// It is interrupted while its edge is read, and while the edge is written.
#[test]
fn a_cut_that_is_interrupted_within_a_block_ends_there() {
    for last in [Op::Read, Op::Write] {
        let mut alone = Alone::new();
        alone.cut(2, 4096 + 100);
        if last == Op::Write {
            let read = alone.bio();
            alone.end(read);
            alone.step();
        }
        let bio = alone.bio();
        assert_eq!(bio.op, last);
        alone.end_early(2);
        alone.end(bio);
        alone.step();
        assert_eq!(alone.answer(), (2, EINTR));
        assert!(alone.work.take_queued().is_empty(), "nothing of it follows");
        alone.cut(4, 4096 + 100);
        assert_eq!(alone.bio().op, Op::Read, "the block is free");
    }
}

/// Covers each kind of waiting write, first in the line and behind another.
#[test]
fn what_waits_for_others_leaves_the_line() {
    type Start = fn(&mut Alone, u64);
    let whole: Start = |alone, unique| alone.write(unique, 0, 4096);
    let part: Start = |alone, unique| alone.write(unique, 100, 100);
    let cut: Start = |alone, unique| alone.cut(unique, 0);
    let cut_part: Start = |alone, unique| alone.cut(unique, 100);
    for start in [whole, part, cut, cut_part] {
        for before in [whole, part] {
            let mut alone = Alone::new();
            let mut holder = alone.hold(0..BLOCK);
            before(&mut alone, 2);
            start(&mut alone, 4);
            before(&mut alone, 6);
            let id = alone.session.ops.find(4).expect("it waits");
            assert!(alone.session.locks.is_blocked(0, id));
            alone.end_early(4);
            assert_eq!(alone.answer(), (4, EINTR), "while the block is another's");
            alone.end_early(2);
            assert_eq!(alone.answer(), (2, EINTR));
            assert!(alone.work.take_queued().is_empty());
            assert!(alone.work.take_withdrawn().is_empty());
            holder.unlock(0);
            alone.step();
            // The last one has its turn.
            let bio = alone.bio();
            let is_part = bio.op == Op::Read;
            alone.end(bio);
            alone.step();
            if is_part {
                let bio = alone.bio();
                alone.end(bio);
                alone.step();
            }
            assert_eq!(alone.answer(), (6, 0));
            assert!(!alone.session.locks.is_waiting());
            assert!(holder.lock_exclusive(0, &(0..SIZE)), "nothing is locked any more");
        }
    }
}

/// Buffers of operations that never began go back to their lenders.
#[test]
fn a_session_that_ends_gives_back_what_waits() {
    let reserve = Reserve::new(Arena::new(8 << 20), LockCounters::new(ManualClock::new(1)));
    let mut alone = Alone::with(|_| reserve.clone());
    assert_eq!(reserve.idle_count(), 0);
    let mut holder = alone.hold(0..SIZE);
    for unique in 0..u64::from(IN_FLIGHT_MAX) / 2 {
        alone.write(4 * unique + 2, unique * 4096, 4096);
        alone.write(4 * unique + 4, 100, 100);
    }
    let lent = alone.session.buffers.lent() + IN_FLIGHT_MAX as usize;
    alone.session.give_up();
    assert!(!alone.session.locks.is_waiting());
    assert!(alone.session.is_over(), "nothing of it is under way");
    let Alone { session, mut work, .. } = alone;
    assert!(work.take_queued().is_empty());
    drop(session.end());
    assert_eq!(reserve.idle_count(), lent, "all that it had");
    holder.unlock(0);
    assert!(holder.lock_exclusive(0, &(0..SIZE)));
}

/// A write of a part of a block, as the kernel sends it.
fn part_of_a_block() -> Vec<u8> {
    let (length, unique, node) = (40_u32 + 40 + 100, 2_u64, 1_u64);
    let mut bytes = [length.to_ne_bytes(), 16_u32.to_ne_bytes()].concat();
    bytes.extend([unique.to_ne_bytes(), node.to_ne_bytes()].concat());
    bytes.extend([0; 16]);
    let (handle, offset, length) = (0_u64, 100_u64, 100_u32);
    bytes.extend([handle.to_ne_bytes(), offset.to_ne_bytes()].concat());
    bytes.extend(length.to_ne_bytes());
    bytes.extend([0; 20 + 100]);
    bytes
}

/// A thread that always finds something to do never enters its ring.
#[test]
fn a_session_that_waits_for_others_is_nothing_to_do() {
    let (mut work, lock) = (work(), RangeLock::new());
    let mut holder = hold(&lock, &work, 0..BLOCK);
    let (incoming, kernel) = incoming(&lock);
    rustix::io::write(&kernel, &part_of_a_block()).expect("room in the socket");
    let mut sessions = Sessions::default();
    sessions.admit(&mut work, incoming);
    while sessions.has_work() {
        sessions.advance(&mut work);
    }
    assert!(work.take_queued().is_empty(), "the block is another's");
    sessions.collected(&mut work);
    assert!(!sessions.has_work());
    holder.unlock(0);
    sessions.collected(&mut work);
    assert!(sessions.has_work());
    sessions.advance(&mut work);
    let bios = work.take_queued();
    assert_eq!(bios.iter().map(|bio| bio.op).collect::<Vec<_>>(), [Op::Read]);
}
