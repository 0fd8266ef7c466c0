//! An owning first-in-first-out list of bios, linked through the bios themselves.
//!
//! Invariants: `head` and `tail` are both null or both set; every linked bio was a `Box` and is
//! owned by the list; `tail.next` is null; `len` counts them.

#![allow(unsafe_code, reason = "the intrusive lists themselves")]

use crate::bio::Bio;
use crate::op::BioFlags;

/// A list of bios without allocation of its own. Dropping it drops the bios in it.
pub struct BioList {
    head: *mut Bio,
    tail: *mut Bio,
    len: usize,
}

// SAFETY: the list owns its bios, and a Bio is Send.
unsafe impl Send for BioList {}

impl BioList {
    /// An empty list.
    pub const fn new() -> Self {
        BioList { head: std::ptr::null_mut(), tail: std::ptr::null_mut(), len: 0 }
    }

    /// Number of bios.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without bios.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    /// Append `bio`.
    #[inline]
    pub fn push(&mut self, bio: Box<Bio>) {
        let bio = Box::into_raw(bio);
        // SAFETY: `bio` was just released from its box; `tail`, if set, is ours.
        unsafe {
            (*bio).next = std::ptr::null_mut();
            if self.tail.is_null() {
                self.head = bio;
            } else {
                (*self.tail).next = bio;
            }
        }
        self.tail = bio;
        self.len += 1;
    }

    /// Put `bio` into this list, which is empty.
    #[inline]
    pub fn set_only(&mut self, bio: Box<Bio>) {
        debug_assert!(self.is_empty());
        let bio = Box::into_raw(bio);
        // SAFETY: `bio` was just released from its box.
        unsafe { (*bio).next = std::ptr::null_mut() };
        (self.head, self.tail, self.len) = (bio, bio, 1);
    }

    /// Take the only bio of this list; `None` if there are none or several.
    #[inline]
    pub fn take_only(&mut self) -> Option<Box<Bio>> {
        if self.len != 1 {
            return None;
        }
        let bio = self.head;
        (self.head, self.tail, self.len) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: head was a released box that only this list owned; it is unlinked now.
        Some(unsafe { Box::from_raw(bio) })
    }

    /// Put `bio` in front.
    pub fn push_front(&mut self, bio: Box<Bio>) {
        let bio = Box::into_raw(bio);
        // SAFETY: as in push.
        unsafe { (*bio).next = self.head };
        if self.tail.is_null() {
            self.tail = bio;
        }
        self.head = bio;
        self.len += 1;
    }

    /// Take the first bio.
    #[inline]
    pub fn pop(&mut self) -> Option<Box<Bio>> {
        if self.head.is_null() {
            return None;
        }
        // SAFETY: head is a released box that only this list owns; it is unlinked here.
        let bio = unsafe {
            let bio = Box::from_raw(self.head);
            self.head = bio.next;
            bio
        };
        if self.head.is_null() {
            self.tail = std::ptr::null_mut();
        }
        self.len -= 1;
        Some(bio)
    }

    /// Take the bios at the beginning for which `f` says true, which may change them.
    #[inline(always)]
    pub fn take_while(&mut self, mut f: impl FnMut(&mut Bio) -> bool) -> BioList {
        self.take_while_next(|bio, _| f(bio))
    }

    /// The same; `f` also gets the bio behind each.
    #[inline(always)]
    pub fn take_while_next(
        &mut self,
        mut f: impl FnMut(&mut Bio, Option<&Bio>) -> bool,
    ) -> BioList {
        let (mut at, mut last, mut len) = (self.head, std::ptr::null_mut::<Bio>(), 0);
        // SAFETY: every bio of the list is owned by it, which is borrowed exclusively.
        while let Some(bio) = unsafe { at.as_mut() } {
            let next = bio.next;
            // SAFETY: as above; it is another bio than the one that is borrowed to be changed.
            if !f(bio, unsafe { next.as_ref() }) {
                break;
            }
            (last, at, len) = (at, next, len + 1);
        }
        if last.is_null() {
            return BioList::new();
        }
        let taken = BioList { head: self.head, tail: last, len };
        // SAFETY: the last bio taken is one of ours.
        unsafe { (*last).next = std::ptr::null_mut() };
        (self.head, self.len) = (at, self.len - len);
        if at.is_null() {
            self.tail = std::ptr::null_mut();
        }
        taken
    }

    /// The first bio.
    #[inline]
    pub fn front(&self) -> Option<&Bio> {
        // SAFETY: head, if set, is owned by this list.
        unsafe { self.head.as_ref() }
    }

    /// The first bio, to change it in place.
    #[inline]
    pub fn front_mut(&mut self) -> Option<&mut Bio> {
        // SAFETY: head, if set, is owned by this list, which is borrowed exclusively.
        unsafe { self.head.as_mut() }
    }

    /// The last bio.
    #[inline]
    pub fn back(&self) -> Option<&Bio> {
        // SAFETY: tail, if set, is owned by this list.
        unsafe { self.tail.as_ref() }
    }

    /// Move everything of `other` to the end of this list.
    #[inline]
    pub fn append(&mut self, other: &mut BioList) {
        if other.head.is_null() {
            return;
        }
        if self.tail.is_null() {
            self.head = other.head;
        } else {
            // SAFETY: tail is ours.
            unsafe { (*self.tail).next = other.head };
        }
        self.tail = other.tail;
        self.len += other.len;
        (other.head, other.tail, other.len) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
    }

    /// Move everything of `other` before this list's bios.
    pub fn prepend(&mut self, other: &mut BioList) {
        std::mem::swap(self, other);
        self.append(other);
    }

    /// Make every bio one that was just submitted: its time, and no outcome yet.
    #[inline]
    pub fn stamp(&mut self, now: u64) {
        let mut at = self.head;
        // SAFETY: every linked bio is owned by this list, which is borrowed exclusively.
        while let Some(bio) = unsafe { at.as_mut() } {
            bio.stamp(now);
            at = bio.next;
        }
    }

    /// Set `flags` on every bio, or take them off.
    pub fn set_flags(&mut self, flags: BioFlags, on: bool) {
        let mut at = self.head;
        // SAFETY: as above.
        while let Some(bio) = unsafe { at.as_mut() } {
            bio.flags.set(flags, on);
            at = bio.next;
        }
    }

    /// The list's bios as a chain of raw links: first, last, count. The caller owns them now.
    pub(crate) fn into_raw(self) -> (*mut Bio, *mut Bio, usize) {
        let list = std::mem::ManuallyDrop::new(self);
        (list.head, list.tail, list.len)
    }

    /// A list of the chain from `head` to `tail`.
    ///
    /// # Safety
    /// They come from [`BioList::into_raw`] (or a chain of that shape) and no other code owns them.
    pub(crate) unsafe fn from_raw(head: *mut Bio, tail: *mut Bio, len: usize) -> Self {
        BioList { head, tail, len }
    }

    /// Everything, leaving this list empty.
    #[inline]
    pub fn take(&mut self) -> BioList {
        std::mem::take(self)
    }

    /// The bios, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &Bio> {
        let mut at = self.head;
        std::iter::from_fn(move || {
            // SAFETY: every linked bio is owned by this list, borrowed for the iteration.
            let bio = unsafe { at.as_ref() }?;
            at = bio.next;
            Some(bio)
        })
    }
}

impl Default for BioList {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for BioList {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

impl Extend<Box<Bio>> for BioList {
    fn extend<T: IntoIterator<Item = Box<Bio>>>(&mut self, bios: T) {
        bios.into_iter().for_each(|bio| self.push(bio));
    }
}

impl std::fmt::Debug for BioList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Sector;

    fn list(sectors: &[u64]) -> BioList {
        let mut list = BioList::new();
        for s in sectors {
            let mut bio = Bio::flush();
            bio.sector = Sector(*s);
            list.push(bio);
        }
        list
    }

    fn sectors(list: &BioList) -> Vec<u64> {
        list.iter().map(|b| b.sector.0).collect()
    }

    #[test]
    fn keeps_order_and_count() {
        let mut a = list(&[1, 2]);
        a.append(&mut list(&[3]));
        a.append(&mut BioList::new());
        a.prepend(&mut list(&[0]));
        a.push_front(list(&[9]).pop().unwrap());
        assert_eq!(sectors(&a), [9, 0, 1, 2, 3]);
        assert_eq!(a.len(), 5);
        assert_eq!(a.back().unwrap().sector.0, 3);
        assert_eq!(a.pop().unwrap().sector.0, 9);
        let rest = a.take();
        assert!(a.is_empty() && a.pop().is_none());
        assert_eq!(sectors(&rest), [0, 1, 2, 3]);
    }
}
