//! Files that are cut: `ftruncate`, and `open` with `O_TRUNC`.
//!
//! ```text
//!             size asked for       end of the device
//!   |.............[rrrrr|wwwwwwwwwwwwwwww]     r: the rest of a block, w: whole blocks
//! ```
//!
//! A device keeps its size. But whoever cuts a file, and perhaps makes it long again, relies on zeroes
//! behind the cut: a copy leaves out what is zero. So these are written before the answer, but for a file
//! whose export says that opening it to be overwritten changes nothing ([`super::MountOptions::ignore_truncate`]).
//!
//! Invariants:
//! * The answer has the size that was asked for, and must not be relied upon. Because it differs from the
//!   size before, the kernel drops the pages behind it from its cache; the next question is answered
//!   with the device's size.
//! * Where the device has no way of its own to write zeroes one buffer of them is written again and
//!   again, so that the memory of a session suffices.

use super::io::{Place, Work};
use super::mount::handle_in;
use super::ragged::Ragged;
use super::session::{Life, Op, Session};
use crate::fuse::proto::{self, Request};
use crate::server::{DATA_AT, Geometry, Work as Round, ZeroWrites, errno};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector, Status};
use std::ops::Range;

/// How far a cut has come.
#[derive(Clone)]
pub(super) struct Cut {
    /// The size asked for.
    size: u64,
    /// Whole blocks that no bio has been made for.
    rest: ZeroWrites,
    /// The device cannot zero by itself.
    by_writes: bool,
}

impl Op {
    /// It is a cut that is not complete.
    fn is_cut_short(&self) -> bool {
        matches!(&self.what, Work::Cut(cut) if !cut.rest.is_over())
    }
}

impl Session {
    /// Another size, asked for by `request`.
    pub(super) fn start_cut(
        &mut self,
        request: &Request<'_>,
        handle: Option<u64>,
        size: u64,
        round: &mut Round,
    ) {
        // At the end of all numbers, so that the size is looked at.
        let place = match self.place(request, u64::MAX) {
            Ok(place) if place.read_only => return self.answer(request.unique, errno::EROFS),
            Ok(place) if size > place.size => return self.answer(request.unique, errno::EFBIG),
            Ok(place) if size == place.size => return self.attributes(request),
            // No handle: `open`, whose `O_TRUNC` the kernel makes a request of its own, or `truncate`.
            Ok(_) if size == 0 && handle.is_none() && self.mount.options().ignore_truncate => {
                return self.attributes(request);
            }
            Ok(place) => place,
            Err(error) => return self.answer(request.unique, error),
        };
        let handle = self.handle_of_cut(request, handle, place.volume);
        let edge = size..size.next_multiple_of(place.block);
        if !edge.is_empty() {
            return self.start_ragged_cut(request, handle, &place, place.blocks(&edge));
        }
        let what = Work::Cut(self.cut(&place, size, size, self.answering));
        let op = self.new_op(what, request, place.volume, handle);
        self.cut_blocks(op, round);
    }

    fn cut(&self, place: &Place, size: u64, from: u64, entry: Option<usize>) -> Cut {
        let limits = self.mount.shared(place.volume).volume.shape().limits;
        let by_writes = limits.max_write_zeroes_bytes == 0;
        // By itself it takes all at once.
        let longest = if by_writes { u64::from(self.longest(entry)) } else { u64::MAX };
        Cut { size, rest: ZeroWrites::new(from..place.size, longest), by_writes }
    }

    /// `O_TRUNC` and `truncate` come without a handle: they belong to the throttle group that a handle of
    /// the asker would have.
    fn handle_of_cut(&self, request: &Request<'_>, handle: Option<u64>, volume: usize) -> u64 {
        handle.unwrap_or_else(|| handle_in(self.mount.group_for(volume, request.uid)))
    }

    /// The rest of a block is zeroed: whole blocks follow.
    pub(super) fn cut_rest(&mut self, mut op: Op, mut ragged: Box<Ragged>, round: &mut Round) {
        let Range { start, end } = ragged.blocks.range();
        self.give_all(&mut ragged.edges);
        self.spare.push(ragged);
        let place = Place::of(op.volume, self.refresh(op.volume));
        op.what = Work::Cut(self.cut(&place, start, end, op.entry));
        self.cut_blocks(op, round);
    }

    /// Begin with whole blocks, as any write of such.
    fn cut_blocks(&mut self, mut op: Op, round: &mut Round) {
        let Work::Cut(cut) = &op.what else { return };
        let range = cut.rest.range();
        op.stop_if_interrupted();
        if !op.status.is_ok() {
            return self.answer_op(op);
        }
        match self.next_zeroes(&mut op) {
            Ok(Some(bio)) => {
                op.pending = 1;
                self.submit_write(op, bio, &range, round);
            }
            Ok(None) => self.answer_op(op),
            Err(status) => {
                op.status = status;
                self.answer_op(op);
            }
        }
    }

    /// A bio of a cut is back: the next one, or the answer.
    pub(super) fn step_cut(&mut self, index: u32, round: &mut Round) {
        let Some(mut op) = self.ops[index as usize].take() else { return };
        if op.is_cut_short() {
            op.stop_if_interrupted();
        }
        let goes_on = op.status.is_ok() && self.life == Life::Open;
        let next = if goes_on { self.next_zeroes(&mut op) } else { Ok(None) };
        let volume = op.volume;
        if let Err(status) = next {
            op.status = status;
        }
        let bio = next.ok().flatten();
        op.pending = u32::from(bio.is_some());
        self.ops[index as usize] = Some(op);
        match bio {
            Some(mut bio) => {
                bio.user_data = self.user_data(index, 0);
                self.submit(volume, bio, round);
            }
            None => self.finish(index),
        }
    }

    /// The bio for the next of its blocks, or for all of them.
    fn next_zeroes(&mut self, op: &mut Op) -> Result<Option<Box<Bio>>, Status> {
        let Work::Cut(cut) = &mut op.what else { return Ok(None) };
        if cut.rest.is_over() {
            return Ok(None);
        }
        if !cut.by_writes {
            let Range { start, end } = cut.rest.take();
            let mut bio = self.bio(op.volume, op.group, BioOp::WriteZeroes, BioFlags::empty());
            (bio.sector, bio.bytes) = (Sector::from_bytes(start), end - start);
            return Ok(Some(bio));
        }
        let room = cut.rest.room();
        let buf = op.buf.take().or_else(|| self.take_zeroes(op.entry, room));
        let buf = buf.ok_or(Status::Resource)?;
        let mut bio = self.bio(op.volume, op.group, BioOp::Write, BioFlags::empty());
        cut.rest.fill(&mut bio, buf, BioFlags::empty());
        Ok(Some(bio))
    }

    fn take_zeroes(&mut self, entry: Option<usize>, bytes: usize) -> Option<IoBuf> {
        let before = std::mem::replace(&mut self.answering, entry);
        let buf = self.take_room(bytes);
        self.answering = before;
        let mut buf = buf?;
        buf[DATA_AT..DATA_AT + bytes].fill(0);
        Some(buf)
    }

    pub(super) fn answer_cut(&mut self, unique: u64, volume: usize, cut: &Cut) {
        self.mount.note_cut(volume);
        let geometry = Geometry { size: cut.size, ..self.used[volume].geometry };
        let attributes = self.mount.file_attributes(self.mount.node_of(volume), &geometry);
        self.answer_with(unique, |out| proto::passing_attributes(out, &attributes));
    }
}
