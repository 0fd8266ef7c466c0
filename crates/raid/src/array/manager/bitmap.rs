//! Bits of the write-intent bitmap: set before what they stand for is written, cleared when nothing
//! has been written there for a while (`md-bitmap.c`, `md_bitmap_daemon_work`).
//!
//! Invariant: no bit is cleared, and `events_cleared` stays, while a member is missing or being
//! rebuilt. So the bits mark all that such a member has missed.

use super::{DiskState, Failed, Manager};
use crate::array::io::Ticket;
use drystone_core::clock::Ns;

const SECOND_NS: Ns = 1_000_000_000;

impl Manager {
    /// Set the bits for which writers wait.
    pub(super) fn set_wanted_bits(&mut self) {
        let wanted = self.shared.take_words();
        let Some(bitmap) = self.bitmap.as_mut().filter(|_| !wanted.is_empty()) else { return };
        wanted.iter().for_each(|word| bitmap.put(*word, true));
        let words = bitmap.words.clone();
        self.write_bitmap();
        if self.members.is_changed() {
            // Who did not take the bitmap is out before anything relies on it.
            self.write_superblocks();
        }
        wanted.iter().for_each(|word| words.set(*word));
        self.publish();
    }

    /// Write what has changed of the bitmap to all who have a role; durable when this returns. False if
    /// a device did not take it, which has failed then.
    pub(super) fn write_bitmap(&mut self) -> bool {
        let mut failed = Vec::new();
        for round in 0..2 {
            let started = self.start_bitmap_writes(round, &failed);
            for (position, tickets) in started {
                if !self.io.wait_for_all(&tickets) {
                    failed.push(position);
                }
            }
        }
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.set_written();
        }
        self.members.iter_mut().for_each(|disk| disk.wants_bitmap = false);
        failed.iter().for_each(|position| self.members.fail(*position, Failed::Bitmap));
        failed.is_empty()
    }

    fn start_bitmap_writes(&mut self, round: usize, failed: &[usize]) -> Vec<(usize, Vec<Ticket>)> {
        let mut started = Vec::new();
        let Some(bitmap) = &mut self.bitmap else { return started };
        let disks = self.members.iter().enumerate();
        let disks =
            disks.filter(|(position, disk)| !disk.is_faulty() && !failed.contains(position));
        for (position, disk) in disks {
            let Some(sector) = disk.bitmap_sector() else { continue };
            if disk.state == DiskState::Spare && !disk.wants_bitmap {
                continue;
            }
            let runs = &bitmap.rounds(disk.wants_bitmap)[round];
            let write =
                |run| self.io.start_write_at(disk.index, sector, run, bitmap.bytes(disk, run));
            started.push((position, runs.iter().map(write).collect()));
        }
        started
    }

    /// Clear bits that are not used any more. When it is to be looked again.
    pub(super) fn tend_bitmap(&mut self, now: Ns) -> Option<Ns> {
        let is_degraded = self.members.is_degraded();
        let bitmap = self.bitmap.as_mut()?;
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

    /// A pass: bits that were not used since the last one are cleared.
    pub(super) fn clear_unused_bits(&mut self) {
        let Some(bitmap) = self.bitmap.as_ref().filter(|_| !self.members.is_degraded()) else {
            return;
        };
        let words = bitmap.words.clone();
        let unused: Vec<usize> = (0..words.len()).filter(|w| words.is_unused(*w)).collect();
        if unused.is_empty() {
            return;
        }
        self.shared.keep_under_way(&words, self.io.ctx.locks());
        // What was written is durable on all members before any of them forgets of it.
        let failed = self.flush_members();
        if !failed.is_empty() {
            // What the bits stand for may be lost there.
            failed.iter().for_each(|position| self.members.fail(*position, Failed::Flush));
            self.write_superblocks();
            self.publish();
            return;
        }
        if !self.tell_of_whole() {
            return;
        }
        let cleared = unused.into_iter().filter(|word| words.clear(*word));
        if let Some(bitmap) = &mut self.bitmap {
            cleared.for_each(|word| bitmap.put(word, false));
        }
        self.write_bitmap();
    }

    /// Put on record that nobody lacks what was written before now. False if somebody does.
    fn tell_of_whole(&mut self) -> bool {
        let events = self.common.events;
        let is_news = self.bitmap.as_mut().is_some_and(|bitmap| bitmap.note_whole(events));
        !is_news || self.write_bitmap()
    }

    /// Nothing is in flight, and nothing will be.
    pub(super) fn clear_all_bits(&mut self) {
        // The first pass finds out that they are not used.
        self.clear_unused_bits();
        self.clear_unused_bits();
    }

    /// All that is marked has to be synchronised: somebody may lack it.
    pub(super) fn need_all_set(&mut self) {
        let Some(bitmap) = &self.bitmap else { return };
        let words = &bitmap.words;
        (0..words.len()).filter(|w| words.is_set(*w)).for_each(|w| words.set_needed(w, true));
    }
}
