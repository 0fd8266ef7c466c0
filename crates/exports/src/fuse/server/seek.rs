//! `lseek` with `SEEK_DATA` and `SEEK_HOLE`.
//!
//! ```text
//!   request -> bio of no bytes -> query (a helper thread asks the device) -> answer
//!                   ^                              |
//!                   +------- not found yet --------+
//! ```
//!
//! The bio lets the throttle group count each look as an I/O. While a query is asked its operation counts
//! as pending, so its session stays.

use super::io::Work;
use super::session::{Life, Session};
use crate::fuse::proto::{self, Request, seek};
use crate::server::{FUSE, Work as Round, errno};
use drystone_core::extent::{Extent, ExtentQuery};
use drystone_core::{BioFlags, Op as BioOp, Sector};

/// Extents asked of the device at once: neighbours of a kind are one, so few tell.
const EXTENTS_MAX: usize = 16;
/// How often the device is asked to find data or a hole.
const LOOKS_MAX: u32 = 256;

/// In the value of an event: the answer of a query.
pub(super) const QUERY: u64 = 1 << 42;
/// Where its operation stands in the value; below it is the place of the session.
const OP_SHIFT: u32 = 22;

/// The place of the session, and the operation, in the value of a query's event.
pub(super) fn query_of(value: u64) -> (usize, u32) {
    let rest = value & (QUERY - 1);
    ((rest & ((1 << OP_SHIFT) - 1)) as usize, (rest >> OP_SHIFT) as u32)
}

/// How far a search has come.
pub(super) struct Seek {
    /// Nothing was found before this.
    at: u64,
    /// A hole is looked for, not data.
    hole: bool,
    /// The size of the file: behind it there is a hole.
    size: u64,
    looks: u32,
    found: Option<u64>,
}

impl Seek {
    /// Look through what the device told of the range from `at`. True when the search is over.
    /// Where the device does not know there is data.
    fn look(&mut self, extents: &[Extent]) -> bool {
        self.looks += 1;
        if let Some(found) = extents.iter().find(|extent| extent.zero == self.hole) {
            self.found = Some(found.offset.max(self.at));
            return true;
        }
        let end = extents.last().map_or(self.at, |last| last.offset.saturating_add(last.length));
        if end >= self.size {
            self.found = self.hole.then_some(self.size);
        } else if end <= self.at || self.looks == LOOKS_MAX {
            // It does not know, or there is no end to small pieces: all of it counts as data.
            self.found = Some(if self.hole { self.size } else { self.at });
        } else {
            self.at = end;
            return false;
        }
        true
    }
}

impl Session {
    /// The next byte from `offset` on that is in a hole, or is not.
    pub(super) fn start_seek(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        offset: u64,
        whence: u32,
        round: &mut Round,
    ) {
        if whence != seek::DATA && whence != seek::HOLE {
            return self.answer(request.unique, errno::EINVAL);
        }
        // At the end of all numbers, so that the size is looked at.
        let place = match self.place(request, u64::MAX) {
            Ok(place) if offset >= place.size => return self.answer(request.unique, errno::ENXIO),
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        let hole = whence == seek::HOLE;
        let what = Seek { at: offset, hole, size: place.size, looks: 0, found: None };
        let op = self.new_op(Work::Seek(what), request, place.volume, handle);
        let index = self.add(op);
        self.count_look(index, round);
    }

    /// Let a look pass the limits of its group, as an I/O of no bytes.
    fn count_look(&mut self, index: u32, round: &mut Round) {
        let Some(op) = &self.ops[index as usize] else { return };
        let (volume, group) = (op.volume, op.group);
        let mut bio = self.bio(volume, group, BioOp::Read, BioFlags::empty());
        (bio.sector, bio.bytes) = (Sector(0), 0);
        bio.user_data = self.user_data(index, 0);
        self.submit(volume, bio, round);
    }

    /// A look may be taken.
    pub(super) fn step_seek(&mut self, index: u32, round: &mut Round) {
        let Some(op) = &mut self.ops[index as usize] else { return };
        let Work::Seek(seek) = &op.what else { return };
        if !op.status.is_ok() || self.life == Life::Over {
            return self.finish(index);
        }
        op.pending = 1;
        let (offset, length) = (seek.at, seek.size - seek.at);
        let device = self.mount.shared(op.volume).volume.device.clone();
        let query = ExtentQuery { device, offset, length, max: EXTENTS_MAX };
        let value = FUSE.event() | QUERY | u64::from(index) << OP_SHIFT | self.place_in_worker();
        round.cx.start_query(query, value);
    }

    /// The device told what it knows.
    pub(super) fn sought(&mut self, index: u32, extents: &[Extent], round: &mut Round) {
        let Some(op) = &mut self.ops[index as usize] else { return };
        let Work::Seek(seek) = &mut op.what else { return };
        if seek.look(extents) || self.life == Life::Over {
            self.finish(index);
        } else {
            self.count_look(index, round);
        }
    }

    pub(super) fn answer_seek(&mut self, unique: u64, seek: &Seek) {
        match seek.found {
            Some(at) => self.answer_with(unique, |out| proto::number(out, at)),
            None => self.answer(unique, errno::ENXIO),
        }
    }
}
