//! A list of bios that any thread may add to and one at a time takes from: how a submitter hands
//! a batch over without waiting. A Treiber stack of batches that is taken as a whole (Linux:
//! `llist_add_batch`, `llist_del_all`).
//!
//! Invariants:
//! * A batch is added as a whole, with one compare-and-swap, and stays in its order; batches stay
//!   in the order in which they were added. Neither side allocates.
//! * Every bio in it is owned by the list until somebody takes it.
//!
//! Memory order: `add` releases with its compare-and-swap, `take` acquires with its swap, so
//! the taker sees everything that was written to the bios before they were added. A thread that
//! adds and then reads whether another is at work must pass a full fence between, and so must a
//! thread that ends its work and then reads the list (the list does not: not every user needs
//! it).

#![allow(unsafe_code, reason = "an intrusive list that many threads add to")]

use crate::bio::Bio;
use crate::list::BioList;
use crate::mistake;
use crate::primitive::{AtomicPtr, Ordering};
use crate::sync::{LockClass, LockCounters};
use std::ptr;

/// See the module's text.
pub struct SharedBioList {
    /// The bio added last; links lead to older ones.
    newest: AtomicPtr<Bio>,
}

impl Default for SharedBioList {
    fn default() -> Self {
        Self::new()
    }
}

impl SharedBioList {
    /// An empty list.
    pub fn new() -> Self {
        SharedBioList { newest: AtomicPtr::new(ptr::null_mut()) }
    }

    /// True when there was nothing at the moment of the read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.newest.load(Ordering::Relaxed).is_null()
    }

    /// Add all of `bios` (emptied), in their order, behind what is there. From any thread.
    pub fn add(&self, bios: &mut BioList) {
        self.add_with(bios, |again| again());
    }

    /// The same; an exchange that has to be tried again is counted for `user` as a wait of `class`.
    pub fn add_counted(&self, bios: &mut BioList, user: &LockCounters, class: LockClass) {
        self.add_with(bios, |again| user.waited(class, again));
    }

    #[inline]
    fn add_with(&self, bios: &mut BioList, contended: impl FnOnce(&mut dyn FnMut())) {
        if bios.is_empty() {
            return;
        }
        let (first, last, _) = bios.take().into_raw();
        // SAFETY: `into_raw` made the chain ours.
        unsafe { reverse(first) };
        let mut newest = self.newest.load(Ordering::Relaxed);
        let mut is_added = || {
            // SAFETY: not visible to others before the exchange below succeeds.
            unsafe { (*first).next = newest };
            let added =
                self.newest.compare_exchange_weak(newest, last, add_order(), Ordering::Relaxed);
            newest = added.err().unwrap_or(newest);
            added.is_ok()
        };
        if !is_added() {
            contended(&mut || while !is_added() {});
        }
    }

    /// Take everything, first added first.
    pub fn take(&self) -> BioList {
        let newest = match mistake!("take_in_two_steps") {
            true => {
                let newest = self.newest.load(Ordering::Acquire);
                self.newest.store(ptr::null_mut(), Ordering::Relaxed);
                newest
            }
            false => self.newest.swap(ptr::null_mut(), Ordering::Acquire),
        };
        if newest.is_null() {
            return BioList::new();
        }
        // SAFETY: the swap made the chain ours; reversed it begins with the oldest.
        unsafe {
            let (oldest, len) = reverse(newest);
            BioList::from_raw(oldest, newest, len)
        }
    }
}

/// Turn the links of a chain round; gives its new first and its length.
///
/// # Safety
/// The caller owns the whole chain from `at`.
unsafe fn reverse(mut at: *mut Bio) -> (*mut Bio, usize) {
    let (mut done, mut len) = (ptr::null_mut(), 0);
    while !at.is_null() {
        // SAFETY: the caller's promise.
        unsafe {
            let next = (*at).next;
            (*at).next = done;
            (done, at) = (at, next);
        }
        len += 1;
    }
    (done, len)
}

/// Order of the exchange that adds; the mutation check weakens it.
#[inline(always)]
fn add_order() -> Ordering {
    if crate::mutated!("shared_list_add") { Ordering::Relaxed } else { Ordering::Release }
}

impl Drop for SharedBioList {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn batch(numbers: &[u64]) -> BioList {
        let bio = |n: &u64| {
            let mut bio = Bio::flush();
            bio.user_data = *n;
            bio
        };
        let mut list = BioList::new();
        list.extend(numbers.iter().map(bio));
        list
    }

    fn numbers(list: &BioList) -> Vec<u64> {
        list.iter().map(|bio| bio.user_data).collect()
    }

    #[test]
    fn first_added_first_taken() {
        let shared = SharedBioList::new();
        assert!(shared.is_empty() && shared.take().is_empty());
        shared.add(&mut BioList::new());
        assert!(shared.is_empty());
        for numbers in [&[1, 2, 3][..], &[4], &[5, 6]] {
            let mut added = batch(numbers);
            shared.add(&mut added);
            assert!(added.is_empty() && !shared.is_empty());
        }
        let mut taken = shared.take();
        assert_eq!((numbers(&taken), taken.len()), (vec![1, 2, 3, 4, 5, 6], 6));
        taken.append(&mut batch(&[7]));
        assert_eq!(taken.back().map(|bio| bio.user_data), Some(7), "the tail is right");
        shared.add(&mut batch(&[8, 9]));
        assert_eq!(numbers(&shared.take()), [8, 9]);
        shared.add(&mut taken);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::primitive::Arc;
    use loom::cell::UnsafeCell;

    /// Two threads add batches while one takes: each batch arrives whole and in order, with what
    /// was written before it was added.
    #[test]
    fn loom_shared_list_delivers_all() {
        loom::model(|| {
            let shared = Arc::new(SharedBioList::new());
            let written = Arc::new([UnsafeCell::new(0), UnsafeCell::new(0)]);
            let adders: Vec<_> = (0..2)
                .map(|number| {
                    let (shared, written) = (shared.clone(), written.clone());
                    loom::thread::spawn(move || {
                        // SAFETY: the taker looks only after it has the batch.
                        written[number].with_mut(|w| unsafe { *w = 7 });
                        let mut batch = BioList::new();
                        for n in 0..2 {
                            let mut bio = Bio::flush();
                            bio.user_data = number as u64 * 2 + n;
                            batch.push(bio);
                        }
                        shared.add(&mut batch);
                    })
                })
                .collect();
            let mut got = Vec::new();
            let take = |got: &mut Vec<u64>| {
                for bio in shared.take().iter() {
                    // SAFETY: ordered after the write by add and take.
                    written[bio.user_data as usize / 2].with(|w| assert_eq!(unsafe { *w }, 7));
                    got.push(bio.user_data);
                }
            };
            take(&mut got);
            adders.into_iter().for_each(|a| a.join().unwrap());
            take(&mut got);
            assert!(got == [0, 1, 2, 3] || got == [2, 3, 0, 1], "{got:?}");
        });
    }
}
