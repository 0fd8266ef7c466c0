//! Bits of the write-intent bitmap. The manager sets a bit before its chunk is written, and clears
//! it when the chunk has not been written for a while (`md-bitmap.c`, `md_bitmap_daemon_work`).
//!
//! Invariant: while a member is missing or being rebuilt, no bit is cleared and `events_cleared`
//! does not change. So the bits mark everything that such a member has missed.

use super::{Failed, Manager};
use drystone_core::clock::Ns;

const SECOND_NS: Ns = 1_000_000_000;

impl Manager {
    /// Set the bits for which writers wait.
    pub(super) fn set_wanted_bits(&mut self) {
        let wanted = self.shared.take_words();
        let bitmap = self.records.bitmap_mut().filter(|_| !wanted.is_empty());
        let Some(bitmap) = bitmap else { return };
        wanted.iter().for_each(|word| bitmap.put(*word, true));
        let words = bitmap.words.clone();
        self.write_bitmap();
        if self.members.is_changed() {
            // The superblocks must record a member that failed the bitmap write before anything
            // relies on the bitmap.
            self.write_superblocks();
        }
        wanted.iter().for_each(|word| words.set(*word));
        self.publish();
    }

    /// Clear bits that are not used any more. Returns the time of the next check.
    pub(super) fn tend_bitmap(&mut self, now: Ns) -> Option<Ns> {
        let is_degraded = self.members.is_degraded();
        let bitmap = self.records.bitmap_mut()?;
        if is_degraded || !bitmap.has_set() {
            bitmap.next_pass = None;
            return None;
        }
        let pause = SECOND_NS.saturating_mul(bitmap.header().daemon_sleep.into());
        let due = *bitmap.next_pass.get_or_insert(now.saturating_add(pause));
        if now < due {
            return Some(due);
        }
        bitmap.next_pass = None;
        self.clear_unused_bits();
        Some(now)
    }

    /// One pass: clear the bits that were not used since the previous pass.
    pub(super) fn clear_unused_bits(&mut self) {
        let bitmap = self.records.bitmap().filter(|_| !self.members.is_degraded());
        let Some(bitmap) = bitmap else { return };
        let words = bitmap.words.clone();
        let unused: Vec<usize> = (0..words.len()).filter(|w| words.is_unused(*w)).collect();
        if unused.is_empty() {
            return;
        }
        self.shared.keep_under_way(&words, self.io.ctx.locks());
        // Data must be durable on all members before any of them clears its bit.
        let failed = self.records().1.flush_members();
        if !failed.is_empty() {
            // The data of these chunks may be lost on that member, so the bits stay.
            failed.iter().for_each(|position| self.members.fail(*position, Failed::Flush));
            self.write_superblocks();
            self.publish();
            return;
        }
        if !self.tell_of_whole() {
            return;
        }
        let cleared = unused.into_iter().filter(|word| words.clear(*word));
        if let Some(bitmap) = self.records.bitmap_mut() {
            cleared.for_each(|word| bitmap.put(word, false));
        }
        self.write_bitmap();
    }

    /// Record that no member lacks a write from before now. False if a member failed by that.
    fn tell_of_whole(&mut self) -> bool {
        let events = self.records.common().events;
        let bitmap = self.records.bitmap_mut();
        let is_news = bitmap.is_some_and(|bitmap| bitmap.note_whole(events));
        !is_news || self.write_bitmap()
    }

    /// Clear all bits: no I/O is in flight, and none will come.
    pub(super) fn clear_all_bits(&mut self) {
        // The first pass marks the bits as unused; the second one clears them.
        self.clear_unused_bits();
        self.clear_unused_bits();
    }

    /// Mark all chunks with a set bit as in need of synchronisation: a member may lack their data.
    pub(super) fn need_all_set(&mut self) {
        let Some(bitmap) = self.records.bitmap() else { return };
        let words = &bitmap.words;
        (0..words.len()).filter(|w| words.is_set(*w)).for_each(|w| words.set_needed(w, true));
    }
}
