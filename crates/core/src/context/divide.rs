//! Cutting bios in two and dividing them into parts, with the idle boxes of a context.
//!
//! Invariant: a part is linked to its parent (`End::Chain`), which its count `remaining` keeps from
//! ending. A part that is cut again gets a sibling with the same parent, never a parent of its own,
//! unless a volume or a channel waits for its end.

use super::env::Env;
use super::parts::Parts;
use crate::bio::{Bio, End};
use crate::mistake;
use crate::op::{BioFlags, Op};
use crate::status::Status;
use crate::units::{SECTOR_SIZE, Sector};
use std::ptr::NonNull;

impl Env {
    /// A part that covers the whole of `bio`, which ends with it.
    #[cold]
    pub(super) fn part_instead(&mut self, bio: Box<Bio>) -> Box<Bio> {
        let mut parts = self.divide(bio);
        let bytes = parts.left();
        let part = parts.next(self, bytes);
        self.divided(parts);
        part
    }

    /// Cut `bio`, which is in flight, in two: its first `bytes` bytes and the rest. Both borrow
    /// its memory; the original ends when all its parts have (Linux `bio_split`, `bio_chain`).
    /// A part that is cut again gets a sibling, unless a volume or a channel waits for its end.
    pub fn split(&mut self, bio: Box<Bio>, bytes: u64) -> (Box<Bio>, Box<Bio>) {
        let (mut front, mut rest, parent) = match bio.end {
            End::Chain(parent) if !bio.is_watched() => (self.part(), bio, parent),
            _ => self.whole_as_part(bio),
        };
        // SAFETY: the parent is in flight and held by `remaining`, which `rest` counts in.
        unsafe { front.sibling_of(&rest, parent) };
        front.truncate(bytes);
        rest.advance(bytes);
        if mistake!("split_off_by_one") {
            rest.sector = rest.sector.after(SECTOR_SIZE);
        }
        front.flags |= BioFlags::NOMERGE;
        (front, rest)
    }

    /// A part that covers the whole of `bio`, and an idle box for its sibling.
    fn whole_as_part(&mut self, bio: Box<Bio>) -> (Box<Bio>, Box<Bio>, NonNull<Bio>) {
        let (front, mut whole) = (self.part(), self.part());
        let parent = NonNull::from(Box::leak(bio));
        // SAFETY: the original's box is released until `remaining` is 0 again.
        unsafe { whole.whole_of(parent) };
        (front, whole, parent)
    }

    /// Divide `bio`, which is in flight: it ends when all parts that [`Parts`] makes of it have,
    /// and [`Env::divided`] was called.
    pub fn divide(&mut self, bio: Box<Bio>) -> Parts {
        Parts::of(bio)
    }

    /// Make more parts of the bio that `part` is a part of.
    ///
    /// # Panics
    /// If it is not a part.
    pub fn divide_again(&mut self, part: &Bio) -> Parts {
        let End::Chain(parent) = part.end else { panic!("not a part of another bio") };
        Parts::again(parent)
    }

    /// No more parts are made; if all have ended (or there are none), so does their bio.
    #[inline]
    pub fn divided(&mut self, parts: Parts) {
        if let Some(ended) = self.count_down(parts.into_parent(), Status::Ok) {
            self.end_bio(ended);
        }
    }
}

impl Parts {
    /// A part of the next `bytes` bytes: their place, memory, operation, flags.
    #[inline]
    pub fn next(&mut self, env: &mut Env, bytes: u64) -> Box<Bio> {
        let mut part = env.part();
        self.make_next(&mut part, bytes);
        part
    }

    /// A part of the bio's operation, which must be one without data, over other sectors.
    pub fn elsewhere(&mut self, env: &mut Env, sector: Sector, bytes: u64) -> Box<Bio> {
        debug_assert!(!self.whole().op.has_data());
        let mut part = env.part();
        self.make_empty(&mut part);
        (part.sector, part.bytes) = (sector, bytes);
        part
    }

    /// A part that is a flush.
    pub fn flush(&mut self, env: &mut Env) -> Box<Bio> {
        let mut part = env.part();
        self.make_empty(&mut part);
        (part.op, part.sector) = (Op::Flush, Sector(0));
        part.flags.remove(BioFlags::FUA | BioFlags::PREFLUSH | BioFlags::POLLED);
        part
    }
}
