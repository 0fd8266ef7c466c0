//! Writes and zeroing that do not cover whole blocks.
//!
//! ```text
//!   block      |.........|.........|.........|
//!   range           [=================)
//!   edges      |r...wwwww|         |wwww...r.|   read, changed, written
//!   middle               |wwwwwwwww|             written as it is
//! ```
//!
//! The rest of an edge block is what others wrote. So while one is at work nothing else is written to
//! the volume, by whatever session: it closes the volume's passage
//! ([`drystone_core::passage::Passage`]), through which writes of whole blocks go.
//!
//! Invariant: at most one of a volume is at work, and it is the first in its session's list.

use super::io::{Place, Work};
use super::session::{Life, Op, Session};
use crate::fuse::proto::{self, Request};
use crate::server::{DATA_AT, Work as Round, errno};
use drystone_core::{Bio, BioFlags, IoBuf, Op as BioOp, Sector};
use std::ops::Range;

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
    range: Range<u64>,
    /// The blocks that it touches.
    blocks: Range<u64>,
    block: u64,
    step: Step,
    pub(super) edges: Edges,
}

impl Ragged {
    fn new(kind: Kind, place: &Place, range: Range<u64>) -> Self {
        let blocks = place.blocks(&range);
        let (block, edges) = (place.block, Edges::default());
        Ragged { kind, range, blocks, block, step: Step::Waiting, edges }
    }

    /// The bytes that it changes.
    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// First bytes of the edge blocks. If there is one block only, it is the first edge.
    fn edge_blocks(&self) -> [Option<u64>; 2] {
        let last = self.blocks.end - self.block;
        let one = self.blocks.start == last;
        let first = self.range.start != self.blocks.start || one;
        let second = self.range.end != self.blocks.end && !one;
        [first.then_some(self.blocks.start), second.then_some(last)]
    }

    /// The whole blocks between the edges.
    fn middle(&self) -> Range<u64> {
        let [first, last] = self.edge_blocks();
        let start = first.map_or(self.blocks.start, |at| at + self.block);
        start..last.unwrap_or(self.blocks.end)
    }

    /// The part of an edge block, in bytes from its beginning, that the range covers.
    fn covered(&self, block: u64) -> Range<usize> {
        let start = self.range.start.max(block) - block;
        let end = self.range.end.min(block + self.block) - block;
        start as usize..end as usize
    }

    /// Bring what was read of the edges and what is to be written together.
    fn merge(&mut self) {
        let edge_blocks = self.edge_blocks();
        for (block, place) in edge_blocks.into_iter().zip(0..) {
            let Some(block) = block else { continue };
            let covered = self.covered(block);
            let (blocks_at, bytes) = ((block - self.blocks.start) as usize, self.block as usize);
            let Some(edge) = &mut self.edges.bufs[place] else { continue };
            let edge = &mut edge[DATA_AT..DATA_AT + bytes];
            match (self.kind, &mut self.edges.whole) {
                (Kind::Write(_), Some(whole)) => {
                    let whole = &mut whole[DATA_AT + blocks_at..DATA_AT + blocks_at + bytes];
                    whole[..covered.start].copy_from_slice(&edge[..covered.start]);
                    whole[covered.end..].copy_from_slice(&edge[covered.end..]);
                }
                _ => edge[covered].fill(0),
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
        (range, flags): (Range<u64>, BioFlags),
    ) {
        let bytes = (range.end - range.start) as usize;
        let mut ragged = Ragged::new(Kind::Write(flags), place, range);
        let blocks = (ragged.blocks.end - ragged.blocks.start) as usize;
        let skip = (ragged.range.start - ragged.blocks.start) as usize;
        let Some(mut buf) = self.take_room(blocks) else {
            return self.answer(request.unique, errno::ENOMEM);
        };
        let data = DATA_AT..DATA_AT + bytes;
        match self.answering {
            // It lies in there, where the request begins.
            Some(_) => buf.copy_within(data, DATA_AT + skip),
            None => buf[DATA_AT + skip..DATA_AT + skip + bytes].copy_from_slice(&self.data[data]),
        }
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
        range: Range<u64>,
        flags: BioFlags,
    ) {
        let ragged = self.boxed(Ragged::new(Kind::Zeroes(flags), place, range));
        let op = self.new_op(Work::Ragged(ragged), request, place.volume, handle);
        self.get_into_line(op);
    }

    pub(super) fn start_ragged_cut(
        &mut self,
        request: &Request<'_>,
        handle: u64,
        place: &Place,
        range: Range<u64>,
    ) {
        let ragged = self.boxed(Ragged::new(Kind::Cut, place, range));
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
        let used = &mut self.used[volume];
        used.ragged.push_back(index);
        if used.ragged.len() == 1 {
            self.mount.shared(volume).passage.ask(self.number, &self.locks);
        }
    }

    /// Let go on what waited for passages, and what has come a step further.
    pub(super) fn step(&mut self, round: &mut Round) {
        while let Some(index) = self.steps.pop() {
            self.step_op(index, round);
        }
        if self.waiting > 0 {
            for volume in 0..self.used.len() {
                self.let_go(volume, round);
                while self.try_alone(volume, round) {}
            }
            self.mount.wake(&mut self.wake);
        }
    }

    fn step_op(&mut self, index: u32, round: &mut Round) {
        match self.ops[index as usize].as_ref().map(|op| &op.what) {
            Some(Work::Cut(_)) => self.step_cut(index, round),
            Some(Work::Seek(_)) => self.step_seek(index, round),
            _ => self.step_ragged(index, round),
        }
    }

    /// Submit the writes that stayed, if the passage is open to them.
    fn let_go(&mut self, volume: usize, round: &mut Round) {
        let used = &mut self.used[volume];
        let (count, passage) = (used.stayed.len() as u32, &self.mount.shared(volume).passage);
        if count == 0 || !passage.go_on(self.number, count, &self.locks) {
            return;
        }
        self.waiting -= used.stayed.len();
        let mut stayed = std::mem::take(&mut used.stayed);
        for (index, bio) in stayed.drain(..) {
            if let Some(op) = &mut self.ops[index as usize] {
                op.passed = true;
            }
            self.submit(volume, bio, round);
        }
        self.used[volume].stayed = stayed;
    }

    /// Begin with the first ragged operation, if nothing else is going on with the volume. True if it
    /// has begun.
    fn try_alone(&mut self, volume: usize, round: &mut Round) -> bool {
        let used = &mut self.used[volume];
        let Some(index) = used.ragged.front().copied() else { return false };
        let passage = &self.mount.shared(volume).passage;
        if used.alone || !passage.is_alone(self.number, &self.locks) {
            return false;
        }
        used.alone = true;
        self.step_ragged(index, round);
        true
    }

    fn step_ragged(&mut self, index: u32, round: &mut Round) {
        let Some(op) = self.ops[index as usize].as_mut() else { return };
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
        let (edge_blocks, bytes) = (ragged.edge_blocks(), ragged.block as usize);
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
        let (blocks, kind, bytes) = (ragged.blocks.clone(), ragged.kind, ragged.block as usize);
        let (edge_blocks, middle) = (ragged.edge_blocks(), ragged.middle());
        if let Kind::Write(flags) = kind
            && let Some(buf) = ragged.edges.whole.take()
        {
            let Some(mut bio) = self.ragged_bio(index, WHOLE, BioOp::Write, blocks.start) else {
                return;
            };
            bio.flags = flags;
            bio.set_buf(buf, Some(DATA_AT..DATA_AT + (blocks.end - blocks.start) as usize));
            return self.submit(volume, bio, round);
        }
        for (part, block) in edge_blocks.into_iter().enumerate() {
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

    /// It is done: others may write to the volume.
    fn end_ragged(&mut self, index: u32, round: &mut Round) {
        let Some(op) = self.remove(index) else { return };
        self.waiting -= 1;
        let passage = &self.mount.shared(op.volume).passage;
        let used = &mut self.used[op.volume];
        used.alone = false;
        used.ragged.pop_front();
        passage.end(&mut self.wake, &self.locks);
        if self.life == Life::Over {
            passage.abandon(self.number, &mut self.wake, &self.locks);
        } else if !used.ragged.is_empty() {
            passage.ask(self.number, &self.locks);
        }
        self.mount.wake(&mut self.wake);
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
        let bytes = (ragged.range.end - ragged.range.start) as u32;
        let kind = ragged.kind;
        self.give_all(&mut ragged.edges);
        self.spare.push(ragged);
        match kind {
            Kind::Write(_) => self.answer_with(unique, |out| proto::written(out, bytes)),
            Kind::Zeroes(_) | Kind::Cut => self.answer(unique, 0),
        }
    }

    /// The session is over: what has not begun never does.
    pub(super) fn drop_waiting(&mut self) {
        for volume in 0..self.used.len() {
            let used = &mut self.used[volume];
            let begun = usize::from(used.alone);
            self.waiting -= used.ragged.len() - begun + used.stayed.len();
            let waiting: Vec<u32> = used.ragged.drain(begun..).collect();
            let stayed: Vec<_> = used.stayed.drain(..).collect();
            if begun == 0 {
                let passage = &self.mount.shared(volume).passage;
                passage.abandon(self.number, &mut self.wake, &self.locks);
            }
            for index in waiting.into_iter().chain(stayed.into_iter().map(|(index, _)| index)) {
                self.remove(index);
            }
        }
        self.mount.wake(&mut self.wake);
    }
}
