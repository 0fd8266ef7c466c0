//! Requests for data become bios, completed bios become answers.

use super::cut::Cut;
use super::interrupt::is_long;
use super::mount::group_of;
use super::ragged::Ragged;
use super::seek::Seek;
use super::session::{Op, Session};
use crate::fuse::proto::init::{MAX_WRITE, MAX_WRITE_OVER_RING};
use crate::fuse::proto::{self, Request, falloc, open_flags};
use crate::server::{Blocks, DATA_AT, Geometry, Work as Round, errno};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector, Status};
use std::ops::Range;

/// Data of a write at least this long stays where it was read, and the session reads the next
/// request elsewhere. Shorter data is copied, so that a buffer for the longest write is not held by it.
const HAND_OVER_BYTES: u32 = 64 << 10;

/// What an operation does.
pub(super) enum Work {
    /// A read whose data begins `skip` bytes behind that of the bio.
    Read { skip: usize, length: u32 },
    /// A write of whole blocks.
    Write { length: u32 },
    /// Anything that is answered with success alone.
    Bare,
    /// The end of a file becomes zeroes.
    Cut(Cut),
    /// Data or a hole is looked for.
    Seek(Seek),
    /// A write, or zeroing, of parts of blocks.
    Ragged(Box<Ragged>),
}

/// Where I/O of a request goes.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) volume: usize,
    pub(super) size: u64,
    pub(super) block: u64,
    pub(super) read_only: bool,
}

impl Place {
    pub(super) fn of(volume: usize, geometry: Geometry) -> Self {
        let Geometry { size, block, read_only } = geometry;
        Place { volume, size, block, read_only }
    }

    /// The blocks of `range`.
    pub(super) fn blocks(&self, range: &Range<u64>) -> Blocks {
        Blocks::of(range.clone(), self.block)
    }
}

impl Session {
    /// Where the I/O of `request` goes, whose range ends at `end`.
    #[inline]
    pub(super) fn place(&mut self, request: &Request<'_>, end: u64) -> Result<Place, i32> {
        let volume = self.mount.volume_at(request.node).ok_or(errno::EINVAL)?;
        let used = &self.used[volume];
        if used.device.is_none() {
            return Err(errno::EIO);
        }
        let mut geometry = used.geometry;
        if end > geometry.size {
            geometry = self.refresh(volume);
        }
        Ok(Place::of(volume, geometry))
    }

    pub(super) fn new_op(
        &mut self,
        op: Work,
        request: &Request<'_>,
        volume: usize,
        handle: u64,
    ) -> Op {
        Op {
            unique: request.unique,
            asker: request.task,
            volume,
            group: group_of(handle),
            what: op,
            pending: 1,
            status: Status::Ok,
            entry: self.answering,
            buf: None,
            locked: false,
            is_long: is_long(request),
            interrupted: false,
        }
    }

    /// An idle bio with the marks of the operation.
    pub(super) fn bio(
        &mut self,
        volume: usize,
        group: u32,
        op: BioOp,
        flags: BioFlags,
    ) -> Box<Bio> {
        let mut bio = self.pool.bio();
        (bio.priority, bio.group) = (self.mount.shared(volume).volume.priority, group);
        (bio.op, bio.flags) = (op, flags);
        bio
    }

    #[inline]
    pub(super) fn start_read(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        offset: u64,
        length: u32,
        round: &mut Round,
    ) {
        let end = offset.saturating_add(length.into());
        let place = match self.place(request, end) {
            Ok(_) if length > self.longest(self.answering) => {
                return self.answer(request.unique, errno::EINVAL);
            }
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        let range = offset.min(place.size)..end.min(place.size);
        if range.is_empty() {
            return self.answer(request.unique, 0);
        }
        let blocks = place.blocks(&range);
        let bytes = blocks.all_bytes();
        let Some(buf) = self.take_room(bytes) else {
            return self.answer(request.unique, errno::ENOMEM);
        };
        let what = Work::Read { skip: blocks.skip(), length: blocks.bytes() as u32 };
        let op = self.new_op(what, request, place.volume, handle);
        let mut bio = self.bio(place.volume, op.group, BioOp::Read, BioFlags::SYNC);
        bio.sector = Sector::from_bytes(blocks.all().start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes));
        let index = self.add(op);
        bio.user_data = self.user_data(index, 0);
        self.submit(place.volume, bio, round);
    }

    #[inline]
    pub(super) fn start_write(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        (offset, length, flags): (u64, u32, u32),
        round: &mut Round,
    ) {
        let end = offset.saturating_add(length.into());
        // Of a file that is opened past the page cache this is all that tells of O_DSYNC: no sync follows.
        let is_synced = flags & open_flags::DSYNC != 0;
        let durable = if is_synced { BioFlags::FUA } else { BioFlags::empty() };
        let place = match self.place(request, end) {
            Ok(place) if place.read_only => return self.answer(request.unique, errno::EROFS),
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        if offset >= place.size && length > 0 {
            return self.answer(request.unique, errno::ENOSPC);
        }
        let range = offset..end.min(place.size);
        if length == 0 {
            return self.answer_with(request.unique, |out| proto::written(out, 0));
        }
        let blocks = place.blocks(&range);
        if !blocks.is_whole() {
            return self.start_ragged_write(request, handle, &place, (blocks, durable));
        }
        let bytes = (range.end - range.start) as u32;
        let Some(buf) = self.take_data(bytes) else {
            return self.answer(request.unique, errno::ENOMEM);
        };
        let op = self.new_op(Work::Write { length: bytes }, request, place.volume, handle);
        let flags = BioFlags::STABLE | durable;
        let mut bio = self.bio(place.volume, op.group, BioOp::Write, flags);
        bio.sector = Sector::from_bytes(range.start);
        bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes as usize));
        self.submit_write(op, bio, &range, round);
    }

    /// The first bytes of the data that was read; `None` when memory is short.
    fn take_data(&mut self, bytes: u32) -> Option<IoBuf> {
        if self.answering.is_some() {
            return self.take_room(bytes as usize);
        }
        if bytes >= HAND_OVER_BYTES {
            let next = self.pool.take(MAX_WRITE as usize)?;
            return Some(std::mem::replace(&mut self.data, next));
        }
        let range = DATA_AT..DATA_AT + bytes as usize;
        let mut buf = self.pool.take(bytes as usize)?;
        buf[range.clone()].copy_from_slice(&self.data[range]);
        Some(buf)
    }

    /// Submit the first bio of an operation that changes `range`, whole blocks, unless it has to wait for others
    /// that write parts of them.
    #[inline]
    pub(super) fn submit_write(
        &mut self,
        op: Op,
        mut bio: Box<Bio>,
        range: &Range<u64>,
        round: &mut Round,
    ) {
        let volume = op.volume;
        let index = self.add(Op { locked: true, ..op });
        bio.user_data = self.user_data(index, 0);
        if self.used[volume].locks.lock_shared(index as usize, range) {
            return self.submit(volume, bio, round);
        }
        self.waiting += 1;
        self.used[volume].stayed.push_back((index, bio));
        self.watch_if_interrupted(index);
    }

    pub(super) fn start_sync(&mut self, request: &Request<'_>, handle: u64, round: &mut Round) {
        let place = match self.place(request, 0) {
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        if place.read_only {
            return self.answer(request.unique, 0);
        }
        let op = self.new_op(Work::Bare, request, place.volume, handle);
        let mut bio = self.bio(place.volume, op.group, BioOp::Flush, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector(0), 0);
        let index = self.add(op);
        bio.user_data = self.user_data(index, 0);
        self.submit(place.volume, bio, round);
    }

    pub(super) fn start_allocate(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        range: Range<u64>,
        mode: u32,
        round: &mut Round,
    ) {
        let place = match self.place(request, range.end) {
            Ok(place) if place.read_only => return self.answer(request.unique, errno::EROFS),
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        let flags = match zeroing(mode) {
            _ if range.is_empty() => return self.answer(request.unique, errno::EINVAL),
            Err(error) => return self.answer(request.unique, error),
            Ok(_) if mode & falloc::PUNCH_HOLE != 0 && self.mount.refuses_holes() => {
                return self.answer(request.unique, errno::EOPNOTSUPP);
            }
            Ok(_) if grows(mode) && range.end > place.size => {
                return self.answer(request.unique, errno::ENOSPC);
            }
            Ok(None) => return self.answer(request.unique, 0),
            Ok(Some(flags)) => flags,
        };
        let range = range.start.min(place.size)..range.end.min(place.size);
        if range.is_empty() {
            return self.answer(request.unique, 0);
        }
        let blocks = place.blocks(&range);
        if !blocks.is_whole() {
            return self.start_ragged_zeroes(request, handle, &place, blocks, flags);
        }
        let op = self.new_op(Work::Bare, request, place.volume, handle);
        let mut bio = self.bio(place.volume, op.group, BioOp::WriteZeroes, flags);
        (bio.sector, bio.bytes) = (Sector::from_bytes(range.start), range.end - range.start);
        self.submit_write(op, bio, &range, round);
    }

    /// The longest read or write of a request that came in that entry of the ring, if in any.
    pub(super) fn longest(&self, entry: Option<usize>) -> u32 {
        if entry.is_some() { MAX_WRITE_OVER_RING } else { MAX_WRITE }
    }

    /// All bios of an operation are back: answer.
    #[inline]
    pub(super) fn finish(&mut self, index: u32) {
        let Some(op) = self.remove(index) else { return };
        if op.locked {
            self.used[op.volume].locks.unlock(index as usize);
        }
        self.answer_op(op);
    }

    #[inline]
    pub(super) fn answer_op(&mut self, op: Op) {
        self.answering = op.entry;
        self.answer_it(op);
        self.answering = None;
    }

    #[inline]
    fn answer_it(&mut self, op: Op) {
        let unique = op.unique;
        let interrupted = op.is_interrupted_by(op.status);
        if op.status.is_ok() {
            match (op.what, op.buf) {
                (Work::Read { skip, length }, Some(buf)) => {
                    let start = DATA_AT + skip;
                    return self.answer_data(unique, buf, start..start + length as usize);
                }
                (Work::Write { length }, buf) => {
                    buf.into_iter().for_each(|buf| self.give(buf));
                    return self.answer_with(unique, |out| proto::written(out, length));
                }
                (Work::Ragged(ragged), buf) => {
                    buf.into_iter().for_each(|buf| self.give(buf));
                    return self.answer_ragged(unique, ragged);
                }
                (Work::Cut(cut), buf) => {
                    buf.into_iter().for_each(|buf| self.give(buf));
                    return self.answer_cut(unique, op.volume, &cut);
                }
                (Work::Seek(seek), _) => return self.answer_seek(unique, &seek),
                (Work::Read { .. } | Work::Bare, _) => self.answer(unique, 0),
            }
            return;
        }
        op.buf.into_iter().for_each(|buf| self.give(buf));
        if let Work::Ragged(mut ragged) = op.what {
            self.give_all(&mut ragged.edges);
            self.spare.push(ragged);
        }
        self.answer(unique, if interrupted { errno::EINTR } else { errno_of(op.status) });
    }
}

/// How `fallocate`'s mode zeroes: the flags of a bio, or not at all.
fn zeroing(mode: u32) -> Result<Option<BioFlags>, i32> {
    let punch = falloc::PUNCH_HOLE | falloc::KEEP_SIZE;
    match mode {
        0 | falloc::KEEP_SIZE => Ok(None),
        _ if mode == punch => Ok(Some(BioFlags::empty())),
        _ if mode & !falloc::KEEP_SIZE == falloc::ZERO_RANGE => Ok(Some(BioFlags::NOUNMAP)),
        _ => Err(errno::EOPNOTSUPP),
    }
}

/// Whether the mode would make a file longer, which a volume cannot be made. To keep space ready
/// behind its end makes no sense either.
fn grows(mode: u32) -> bool {
    mode == falloc::KEEP_SIZE || mode & falloc::KEEP_SIZE == 0
}

/// What a program is told of an I/O that failed.
fn errno_of(status: Status) -> i32 {
    match status {
        Status::Permission => errno::EROFS,
        Status::Cancelled | Status::Medium | Status::Offline | Status::Invalid => errno::EIO,
        status => status.errno(),
    }
}
