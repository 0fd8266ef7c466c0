//! Dividing a bio into parts for other devices.
//!
//! Invariants:
//! * While a [`Parts`] exists it holds its bio, counted like a part; so the bio cannot end while
//!   parts are being made, even if those made so far end at once.
//! * A `Parts` is given to [`Env::divided`], which lets go; dropping it is a mistake of ours.

use super::env::Env;
use crate::bio::Bio;
use crate::op::{BioFlags, Op};
use crate::status::Status;
use crate::units::Sector;
use std::ptr::NonNull;

/// A bio that is being divided. Made by [`Env::divide`]; given to [`Env::divided`] in the end.
#[must_use]
pub struct Parts {
    parent: NonNull<Bio>,
    /// Bytes that parts were made of.
    done: u64,
}

impl Parts {
    pub(super) fn of(bio: Box<Bio>) -> Self {
        let parent = NonNull::from(Box::leak(bio));
        // SAFETY: the box was just released; nobody else has it. Its status is to be the first
        // error of its parts, whatever it was used for before.
        unsafe {
            (*parent.as_ptr()).status = Status::Ok;
            (*parent.as_ptr()).remaining = 1;
        }
        Parts { parent, done: 0 }
    }

    /// For a parent that has a part which has not ended.
    pub(super) fn again(parent: NonNull<Bio>) -> Self {
        // SAFETY: the part keeps the parent alive, and it is in this context's hands.
        unsafe { (*parent.as_ptr()).remaining += 1 };
        Parts { parent, done: 0 }
    }

    pub(super) fn into_parent(self) -> NonNull<Bio> {
        let parent = self.parent;
        std::mem::forget(self);
        parent
    }

    /// The bio.
    #[inline]
    pub fn whole(&self) -> &Bio {
        // SAFETY: held by its count, and changed only by `Env`, which is not borrowed with this.
        unsafe { self.parent.as_ref() }
    }

    /// Bytes of the bio that are not yet in a part.
    #[inline]
    pub fn left(&self) -> u64 {
        self.whole().bytes - self.done
    }

    /// First sector that is not yet in a part.
    #[inline]
    pub fn sector(&self) -> Sector {
        self.whole().sector.after(self.done)
    }

    /// A part of the next `bytes` bytes: their place, memory, operation, flags.
    #[inline]
    pub fn next(&mut self, env: &mut Env, bytes: u64) -> Box<Bio> {
        let mut part = env.part();
        // SAFETY: the parent is held by its count.
        unsafe { part.part_of(self.parent, self.done, bytes) };
        self.done += bytes;
        part
    }

    /// A part of the bio's operation, which must be one without data, over other sectors.
    pub fn elsewhere(&mut self, env: &mut Env, sector: Sector, bytes: u64) -> Box<Bio> {
        debug_assert!(!self.whole().op.has_data());
        let mut part = env.part();
        // SAFETY: the parent is held by its count.
        unsafe { part.part_of(self.parent, 0, 0) };
        (part.sector, part.bytes) = (sector, bytes);
        part
    }

    /// A part that is a flush.
    pub fn flush(&mut self, env: &mut Env) -> Box<Bio> {
        let mut part = env.part();
        // SAFETY: the parent is held by its count.
        unsafe { part.part_of(self.parent, 0, 0) };
        (part.op, part.sector) = (Op::Flush, Sector(0));
        part.flags.remove(BioFlags::FUA | BioFlags::PREFLUSH | BioFlags::POLLED);
        part
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a bio is divided to the end");
    }
}
