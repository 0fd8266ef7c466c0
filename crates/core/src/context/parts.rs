//! Dividing a bio into parts for other devices.
//!
//! Invariants:
//! * While a [`Parts`] exists it holds its bio, counted like a part; so the bio cannot end while
//!   parts are being made, even if those made so far end at once.
//! * A `Parts` is given to [`crate::Env::divided`], which lets go; to drop it is a mistake of ours.

use crate::bio::Bio;
use crate::status::Status;
use crate::units::Sector;
use std::ptr::NonNull;

/// A bio that is being divided. Made by [`crate::Env::divide`]; given to [`crate::Env::divided`] in
/// the end.
#[must_use]
pub struct Parts {
    parent: NonNull<Bio>,
    /// Bytes that parts were made of.
    done: u64,
}

impl Parts {
    pub(super) fn of(bio: Box<Bio>) -> Self {
        let parent = NonNull::from(Box::leak(bio));
        // SAFETY: the box was just released; no other code has it. Its status becomes the first
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

    /// Make `part`, an idle box, a part of the next `bytes` bytes.
    #[inline]
    pub(super) fn make_next(&mut self, part: &mut Bio, bytes: u64) {
        // SAFETY: the parent is held by its count.
        unsafe { part.part_of(self.parent, self.done, bytes) };
        self.done += bytes;
    }

    /// Make `part`, an idle box, a part without data.
    pub(super) fn make_empty(&mut self, part: &mut Bio) {
        // SAFETY: the parent is held by its count.
        unsafe { part.part_of(self.parent, 0, 0) };
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        debug_assert!(std::thread::panicking(), "a bio is divided to the end");
    }
}
