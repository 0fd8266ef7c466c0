//! Writes and zeroing that do not cover whole blocks: [`crate::server::Blocks`] draws them.
//!
//! The blocks are locked meanwhile, for all front ends of the device ([`drystone_core::range_lock`]).
//!
//! Invariant: at most one of a session and volume is at work, and it is the first in the session's list.

use super::io::{Place, Work};
use super::session::{Life, Op, Session};
use crate::fuse::proto::{self, Request};
use crate::server::{Blocks, DATA_AT, Work as Round, errno};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector, Status};

/// Buffers of the two edge blocks and, of a write, of all its blocks.
#[derive(Default)]
pub(super) struct Edges {
    bufs: [Option<IoBuf>; 2],
    whole: Option<IoBuf>,
}

/// The part of a ragged operation that a bio is: an edge, or everything.
const WHOLE: usize = 2;

impl Edges {
    pub(super) fn put(&mut self, part: usize, buf: Option<IoBuf>) {
        match self.bufs.get_mut(part) {
            Some(place) => *place = buf,
            None => self.whole = buf.or(self.whole.take()),
        }
    }

    pub(super) fn take_bufs(&mut self) -> impl Iterator<Item = IoBuf> {
        self.bufs.each_mut().into_iter().filter_map(Option::take).chain(self.whole.take())
    }
}

/// What is done to the range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With these flags.
    Write(BioFlags),
    Zeroes(BioFlags),
    /// Zeroes from where a file is cut to the end of the block: whole blocks follow.
    Cut,
}

impl Default for Kind {
    fn default() -> Self {
        Kind::Write(BioFlags::empty())
    }
}

impl Kind {
    /// How whole blocks are zeroed, if they are.
    fn zeroes(self) -> Option<BioFlags> {
        match self {
            Kind::Write(_) => None,
            Kind::Zeroes(flags) => Some(flags),
            Kind::Cut => Some(BioFlags::empty()),
        }
    }
}

/// How far it has come.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Step {
    #[default]
    Waiting,
    Reading,
    Writing,
}

/// A write, or zeroing, of parts of blocks.
#[derive(Default)]
pub(super) struct Ragged {
    kind: Kind,
    pub(super) blocks: Blocks,
    step: Step,
    pub(super) edges: Edges,
}

impl Ragged {
    fn new(kind: Kind, blocks: Blocks) -> Self {
        Ragged { kind, blocks, step: Step::Waiting, edges: Edges::default() }
    }

    /// Bring what was read of the edges and what is to be written together.
    fn merge(&mut self) {
        let Ragged { blocks, edges, kind, .. } = self;
        for (block, place) in blocks.edges().into_iter().zip(0..) {
            let Some(block) = block else { continue };
            let Some(edge) = &mut edges.bufs[place] else { continue };
            let edge = &mut edge[DATA_AT..DATA_AT + blocks.block()];
            match (*kind, &mut edges.whole) {
                (Kind::Write(_), Some(whole)) => {
                    let whole = &mut whole[DATA_AT..DATA_AT + blocks.all_bytes()];
                    blocks.complete(whole, block, edge);
                }
                _ => edge[blocks.covered(block)].fill(0),
            }
        }
    }
}

impl Session {
    pub(super) fn start_ragged_write(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        place: &Place,
        (blocks, flags): (Blocks, BioFlags),
    ) {
        let (bytes, skip) = (blocks.bytes(), blocks.skip());
        let Some(mut buf) = self.take_room(blocks.all_bytes()) else {
            return self.answer(request.unique, errno::ENOMEM);
        };
        let data = DATA_AT..DATA_AT + bytes;
        match self.answering {
            // It lies in there, where the request begins.
            Some(_) => buf.copy_within(data, DATA_AT + skip),
            None => buf[DATA_AT + skip..DATA_AT + skip + bytes].copy_from_slice(&self.data[data]),
        }
        let mut ragged = Ragged::new(Kind::Write(flags), blocks);
        ragged.edges.whole = Some(buf);
        let ragged = self.boxed(ragged);
        let op = self.new_op(Work::Ragged(ragged), request, place.volume, handle);
        self.get_into_line(op);
    }

    pub(super) fn start_ragged_zeroes(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        place: &Place,
        blocks: Blocks,
        flags: BioFlags,
    ) {
        let ragged = self.boxed(Ragged::new(Kind::Zeroes(flags), blocks));
        let op = self.new_op(Work::Ragged(ragged), request, place.volume, handle);
        self.get_into_line(op);
    }

    pub(super) fn start_ragged_cut(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        place: &Place,
        blocks: Blocks,
    ) {
        let ragged = self.boxed(Ragged::new(Kind::Cut, blocks));
        let op = self.new_op(Work::Ragged(ragged), request, place.volume, handle);
        self.get_into_line(op);
    }

    /// In a box that is idle.
    fn boxed(&mut self, ragged: Ragged) -> Box<Ragged> {
        let mut place = self.spare.pop().unwrap_or_default();
        *place = ragged;
        place
    }

    fn get_into_line(&mut self, mut op: Op) {
        let volume = op.volume;
        op.pending = 0;
        let index = self.add(op);
        self.waiting += 1;
        self.used[volume].ragged.push_back(index);
        if self.used[volume].ragged.len() == 1 {
            self.lock_first(volume);
        }
        if self.place_in_line(volume, index).is_some() {
            self.watch_if_interrupted(index);
        }
    }

    /// Lock the blocks of the first operation on parts of blocks, if there is one.
    fn lock_first(&mut self, volume: usize) {
        let Some(index) = self.used[volume].ragged.front().copied() else { return };
        let Some((_, ragged)) = self.ragged(index) else { return };
        let all = ragged.blocks.all();
        if self.used[volume].locks.lock_exclusive(index as usize, &all) {
            self.begin_first(volume);
        }
    }

    /// Its blocks are locked.
    fn begin_first(&mut self, volume: usize) {
        let used = &mut self.used[volume];
        used.begun = true;
        self.steps.extend(used.ragged.front());
    }

    /// Let go on what waited for others, and what has come a step further.
    pub(super) fn step(&mut self, round: &mut Round) {
        if self.waiting > 0 {
            (0..self.used.len()).for_each(|volume| self.let_go(volume, round));
        }
        while let Some(index) = self.steps.pop() {
            self.step_op(index, round);
        }
    }

    fn step_op(&mut self, index: u32, round: &mut Round) {
        match self.ops[index as usize].as_ref().map(|op| &op.what) {
            Some(Work::Cut(_)) => self.step_cut(index, round),
            Some(Work::Seek(_)) => self.step_seek(index, round),
            _ => self.step_ragged(index, round),
        }
    }

    /// Go on with what holds its range now.
    fn let_go(&mut self, volume: usize, round: &mut Round) {
        if !self.used[volume].locks.has_news() {
            return;
        }
        let mut granted = std::mem::take(&mut self.granted);
        self.used[volume].locks.take_granted(&mut granted);
        for place in granted.drain(..) {
            let stayed = &mut self.used[volume].stayed;
            let waited = stayed.iter().position(|(index, _)| *index as usize == place);
            match waited.and_then(|at| stayed.remove(at)) {
                Some((_, bio)) => {
                    self.waiting -= 1;
                    self.submit(volume, bio, round);
                }
                None => self.begin_first(volume),
            }
        }
        self.granted = granted;
    }

    fn step_ragged(&mut self, index: u32, round: &mut Round) {
        let Some(op) = self.ops[index as usize].as_mut() else { return };
        if !matches!(&op.what, Work::Ragged(ragged) if ragged.step == Step::Writing) {
            op.stop_if_interrupted();
        }
        let Work::Ragged(ragged) = &mut op.what else { return };
        let failed = !op.status.is_ok() || self.life == Life::Over;
        match ragged.step {
            Step::Waiting if !failed => {
                ragged.step = Step::Reading;
                self.read_edges(index, round);
            }
            Step::Reading if !failed => {
                ragged.step = Step::Writing;
                ragged.merge();
                self.write_back(index, round);
            }
            _ => self.end_ragged(index, round),
        }
    }

    /// A bio of the operation, over blocks from `start` on.
    fn ragged_bio(&mut self, index: u32, part: usize, op: BioOp, start: u64) -> Option<Box<Bio>> {
        let of = self.ops[index as usize].as_mut()?;
        of.pending += 1;
        let (volume, group) = (of.volume, of.group);
        let mut bio = self.bio(volume, group, op, BioFlags::empty());
        bio.sector = Sector::from_bytes(start);
        bio.user_data = self.user_data(index, part);
        Some(bio)
    }

    fn ragged(&mut self, index: u32) -> Option<(usize, &mut Ragged)> {
        let op = self.ops[index as usize].as_mut()?;
        match &mut op.what {
            Work::Ragged(ragged) => Some((op.volume, ragged)),
            _ => None,
        }
    }

    fn read_edges(&mut self, index: u32, round: &mut Round) {
        let Some((volume, ragged)) = self.ragged(index) else { return };
        let (edge_blocks, bytes) = (ragged.blocks.edges(), ragged.blocks.block());
        for (part, block) in edge_blocks.into_iter().enumerate() {
            let Some(block) = block else { continue };
            let buf =
                self.pool.take_edge().expect("there are two for the one at work of each volume");
            let Some(mut bio) = self.ragged_bio(index, part, BioOp::Read, block) else { return };
            bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes));
            self.submit(volume, bio, round);
        }
    }

    fn write_back(&mut self, index: u32, round: &mut Round) {
        let Some((volume, ragged)) = self.ragged(index) else { return };
        let (blocks, kind) = (ragged.blocks.clone(), ragged.kind);
        let (bytes, middle) = (blocks.block(), blocks.inside());
        if let Kind::Write(flags) = kind
            && let Some(buf) = ragged.edges.whole.take()
        {
            let Some(mut bio) = self.ragged_bio(index, WHOLE, BioOp::Write, blocks.all().start)
            else {
                return;
            };
            bio.flags = flags;
            bio.set_buf(buf, Some(DATA_AT..DATA_AT + blocks.all_bytes()));
            return self.submit(volume, bio, round);
        }
        for (part, block) in blocks.edges().into_iter().enumerate() {
            let Some(block) = block else { continue };
            let buf = self.ragged(index).and_then(|(_, ragged)| ragged.edges.bufs[part].take());
            let Some(buf) = buf else { continue };
            let Some(mut bio) = self.ragged_bio(index, part, BioOp::Write, block) else { return };
            bio.set_buf(buf, Some(DATA_AT..DATA_AT + bytes));
            self.submit(volume, bio, round);
        }
        if let (Some(flags), false) = (kind.zeroes(), middle.is_empty()) {
            let zeroes = self.ragged_bio(index, WHOLE, BioOp::WriteZeroes, middle.start);
            let Some(mut bio) = zeroes else { return };
            (bio.flags, bio.bytes) = (flags, middle.end - middle.start);
            self.submit(volume, bio, round);
        }
    }

    /// It is done: others may write its blocks.
    fn end_ragged(&mut self, index: u32, round: &mut Round) {
        let Some(op) = self.remove(index) else { return };
        self.waiting -= 1;
        let used = &mut self.used[op.volume];
        used.begun = false;
        used.ragged.pop_front();
        used.locks.unlock(index as usize);
        if self.life == Life::Open {
            self.lock_first(op.volume);
        }
        self.answer_or_go_on(op, round);
    }

    /// A cut of parts of a block is not over with them.
    fn answer_or_go_on(&mut self, mut op: Op, round: &mut Round) {
        let goes_on = op.status.is_ok() && self.life == Life::Open;
        match op.what {
            Work::Ragged(ragged) if goes_on && ragged.kind == Kind::Cut => {
                op.what = Work::Bare;
                self.cut_rest(op, ragged, round);
            }
            what => self.answer_op(Op { what, ..op }),
        }
    }

    pub(super) fn answer_ragged(&mut self, unique: u64, mut ragged: Box<Ragged>) {
        let bytes = ragged.blocks.bytes() as u32;
        let kind = ragged.kind;
        self.give_all(&mut ragged.edges);
        self.spare.push(ragged);
        match kind {
            Kind::Write(_) => self.answer_with(unique, |out| proto::written(out, bytes)),
            Kind::Zeroes(_) | Kind::Cut => self.answer(unique, 0),
        }
    }

    /// Where operation `index` stands in the line of those on parts of blocks, if it has not begun.
    fn place_in_line(&self, volume: usize, index: u32) -> Option<usize> {
        let used = &self.used[volume];
        let at = used.ragged.iter().position(|of| *of == index)?;
        (at >= usize::from(used.begun)).then_some(at)
    }

    /// Whether operation `index` waits for its range.
    pub(super) fn is_in_line(&self, index: u32) -> bool {
        let Some(op) = &self.ops[index as usize] else { return false };
        let stayed = self.used[op.volume].stayed.iter();
        stayed.map(|(of, _)| of).any(|of| *of == index)
            || self.place_in_line(op.volume, index).is_some()
    }

    /// End operation `index` if it waits for its range: it leaves the line, and is answered as one that is
    /// interrupted. False if it does not wait.
    pub(super) fn leave_line(&mut self, index: u32) -> bool {
        let Some(op) = &self.ops[index as usize] else { return false };
        let volume = op.volume;
        let stayed = &mut self.used[volume].stayed;
        let bio = stayed.iter().position(|(of, _)| *of == index).and_then(|at| stayed.remove(at));
        if bio.is_none() && !self.leave_ragged(volume, index) {
            return false;
        }
        self.waiting -= 1;
        let buf = bio.and_then(|(_, bio)| self.pool.give_bio(bio));
        if let Some(op) = self.ops[index as usize].as_mut() {
            (op.interrupted, op.status) = (true, Status::Cancelled);
            op.buf = buf.or(op.buf.take());
        }
        self.finish(index);
        true
    }

    fn leave_ragged(&mut self, volume: usize, index: u32) -> bool {
        let Some(at) = self.place_in_line(volume, index) else { return false };
        self.used[volume].ragged.remove(at);
        // Of them only the first waits for the lock.
        if at == 0 {
            self.used[volume].locks.unlock(index as usize);
            if self.life == Life::Open {
                self.lock_first(volume);
            }
        }
        true
    }

    /// The session is over: what has not begun never does.
    pub(super) fn drop_waiting(&mut self) {
        for volume in 0..self.used.len() {
            // From the end, so that none gets its turn.
            while let Some(index) = self.used[volume].ragged.back().copied()
                && self.leave_line(index)
            {}
            while let Some((index, _)) = self.used[volume].stayed.back()
                && self.leave_line(*index)
            {}
        }
    }
}
