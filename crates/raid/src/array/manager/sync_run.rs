//! One synchronisation of the array: how far it is, and how fast it goes.
//!
//! Invariants:
//! * Regions are begun in order. The done part is the longest run of ended regions from the start.
//! * After an interruption nothing is begun and nothing more counts as done.
//! * With a bitmap, only chunks whose word says that they need it are synchronised.

use crate::array::io::Ticket;
use crate::array::status::SyncStatus;
use crate::engine::{Bitmap, REGION_SECTORS, SyncAction};
use crate::ids::MemberNumber;
use drystone_core::clock::Ns;
use drystone_core::{SECTOR_SIZE, Status};
use std::collections::VecDeque;
use std::ops::Range;

/// The number of regions under way at the same time.
const DEPTH: usize = 16;
/// Progress is written to the superblocks after this share of the whole, or after this time.
const CHECKPOINT_SHARE: u64 = 16;
const CHECKPOINT_NS: Ns = 300_000_000_000;
/// The time between two checks whether others use the array.
pub(super) const LOOK_NS: Ns = 100_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// Limits, in KiB a second of each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Speed {
    /// Kept even while others use the array.
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Default for Speed {
    fn default() -> Self {
        Speed { min: 1000, max: 200_000 }
    }
}

/// The I/O that others do on the array.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// The number of bios that were started.
    pub(super) started: u64,
    pub(super) in_flight: u64,
}

/// A region whose synchronisation was begun.
struct Region {
    end: u64,
    ticket: Ticket,
    ended: Option<Status>,
}

/// See the module's text. All sectors are member sectors.
pub(super) struct SyncRun {
    action: SyncAction,
    /// Regions that were begun and are not known to be done.
    window: VecDeque<Region>,
    next: u64,
    done: u64,
    end: u64,
    by_bitmap: bool,
    /// The devices that are rebuilt: those that had to be when the run began.
    rebuilt: Vec<MemberNumber>,
    /// No region is begun before all shards work by the configuration of this epoch.
    awaits: Option<u64>,
    /// The number of words of the bitmap that are marked as done.
    words_done: usize,
    /// The run ends when the regions under way have ended.
    is_interrupted: bool,
    /// The progress in the superblocks, and the time of that record.
    checkpoint: (u64, Ns),
    /// The sector and time at which the present pace began, and its KiB a second.
    pace: (u64, Ns, u64),
    /// The bios of others at the last look at the load, and the time of that.
    seen: (u64, Ns),
    /// The sector and time from which the average speed counts.
    mark: (u64, Ns),
    speed: u64,
}

impl SyncRun {
    /// A run from `start` to `end`. With `by_bitmap`, only chunks that the bitmap marks are
    /// synchronised.
    pub(super) fn new(
        action: SyncAction,
        Range { start, end }: Range<u64>,
        by_bitmap: bool,
        rebuilt: Vec<MemberNumber>,
        now: Ns,
    ) -> Self {
        let start = start - start % REGION_SECTORS;
        SyncRun {
            action,
            window: VecDeque::new(),
            next: start,
            done: start,
            end,
            by_bitmap,
            rebuilt,
            awaits: None,
            words_done: 0,
            is_interrupted: false,
            checkpoint: (start, now),
            pace: (start, now, 0),
            seen: (u64::MAX, 0),
            mark: (start, now),
            speed: 0,
        }
    }

    pub(super) fn action(&self) -> SyncAction {
        self.action
    }

    pub(super) fn rebuilt(&self) -> &[MemberNumber] {
        &self.rebuilt
    }

    pub(super) fn is_by_bitmap(&self) -> bool {
        self.by_bitmap
    }

    pub(super) fn done(&self) -> u64 {
        self.done
    }

    /// Where the next region begins.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn status(&self, total: u64, now: Ns) -> SyncStatus {
        // The speed since the start, before the first second is over.
        let speed = if self.speed > 0 { self.speed } else { self.speed_since_mark(now) };
        SyncStatus { action: self.action, done: self.done, total, speed }
    }

    /// The progress in percent.
    pub(super) fn percent(&self) -> u8 {
        (u128::from(self.done) * 100 / u128::from(self.end.max(1))) as u8
    }

    /// Interrupt the run: it ends when the regions under way have ended.
    pub(super) fn interrupt(&mut self) {
        self.is_interrupted = true;
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// No region is under way, and none will be begun.
    pub(super) fn is_over(&self) -> bool {
        self.window.is_empty() && (self.is_interrupted || self.done >= self.end)
    }

    /// All of it is done.
    pub(super) fn is_whole(&self) -> bool {
        self.done >= self.end && !self.is_interrupted
    }

    /// Begin no region before all shards work by the configuration of this epoch.
    pub(super) fn await_epoch(&mut self, epoch: u64) {
        self.awaits = Some(epoch);
    }

    /// The epoch that shards have yet to reach.
    pub(super) fn awaited(&self) -> Option<u64> {
        self.awaits
    }

    /// Note that all shards have reached the epoch.
    pub(super) fn stop_awaiting(&mut self) {
        self.awaits = None;
    }

    /// Take the regions that have ended, and update the progress.
    pub(super) fn advance(&mut self, mut take: impl FnMut(Ticket) -> Option<Status>) {
        for region in &mut self.window {
            region.ended = region.ended.or_else(|| take(region.ticket));
        }
        while let Some(Region { end, ended: Some(status), .. }) = self.window.front() {
            // A cancelled region is not done, and neither are the regions behind it.
            self.is_interrupted |= *status == Status::Cancelled;
            if !self.is_interrupted {
                self.done = *end;
            }
            self.window.pop_front();
        }
    }

    /// Skip to the next sector that must be synchronised. Returns how many sectors must be from
    /// there on, up to the end of the region.
    pub(super) fn skip_clean(&mut self, words: Option<&Bitmap>) -> u64 {
        let to_region = |next: u64| next - next % REGION_SECTORS + REGION_SECTORS;
        let Some(words) = words.filter(|_| self.by_bitmap) else {
            return to_region(self.next).min(self.end) - self.next;
        };
        let after =
            |at: u64| (at - at % words.chunk_sectors()).saturating_add(words.chunk_sectors());
        let is_needed = |at: u64| words.is_needed(words.word_of(at));
        let from = self.next;
        while self.awaits.is_none() && self.next < self.end && !is_needed(self.next) {
            self.next = after(self.next).min(self.end);
        }
        // Skipped sectors took no time, so they do not count in the pace.
        self.pace.0 += self.next - from;
        if self.window.is_empty() && !self.is_interrupted {
            self.done = self.next;
        }
        let limit = to_region(self.next).min(self.end);
        let mut end = self.next;
        while end < limit && is_needed(end) {
            end = after(end).min(limit);
        }
        end - self.next
    }

    /// The words of a bitmap that are done since the previous call; `used` are the sectors of a
    /// member.
    pub(super) fn take_done_words(&mut self, words: &Bitmap, used: u64) -> Range<usize> {
        let done = match self.done >= used {
            true => words.len(),
            false => words.word_of(self.done),
        };
        let before = std::mem::replace(&mut self.words_done, done);
        before..done
    }

    /// Another region may be begun.
    pub(super) fn has_room(&self) -> bool {
        self.window.len() < DEPTH && self.next < self.end
    }

    /// No region is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.window.is_empty()
    }

    /// Note that a region of this many sectors was begun.
    pub(super) fn begin(&mut self, sectors: u64, ticket: Ticket) {
        self.next += sectors;
        self.window.push_back(Region { end: self.next, ticket, ended: None });
    }

    /// The speed in KiB a second: slower while others use the array, as `load` tells.
    pub(super) fn rate(&mut self, speed: Speed, load: impl FnOnce() -> Load, now: Ns) -> u64 {
        let (seen, since) = self.seen;
        let is_first = seen == u64::MAX;
        if !is_first && now < since + LOOK_NS {
            return if self.pace.2 == 0 { speed.max } else { self.pace.2 };
        }
        let Load { started, in_flight } = load();
        self.seen = (started, now);
        let is_busy = in_flight > 0 || !is_first && started != seen;
        if is_busy { speed.min } else { speed.max }
    }

    /// The time at which the next region may be begun at `rate` KiB a second; it may be in the
    /// past.
    pub(super) fn due(&mut self, rate: u64, now: Ns) -> Ns {
        if self.pace.2 != rate {
            self.pace = (self.next, now, rate);
        }
        let (from, since, rate) = self.pace;
        let kib = u128::from((self.next - from) * SECTOR_SIZE / 1024);
        since + (kib * SECOND_NS / u128::from(rate.max(1))) as Ns
    }

    /// The average speed, in sectors a second.
    fn speed_since_mark(&self, now: Ns) -> u64 {
        let (from, since) = self.mark;
        let sectors = u128::from(self.done.saturating_sub(from));
        (sectors * SECOND_NS / u128::from(now.saturating_sub(since).max(1))) as u64
    }

    /// Update the average speed once a second.
    pub(super) fn measure(&mut self, now: Ns) {
        if now >= self.mark.1 + SECOND_NS as Ns {
            self.speed = self.speed_since_mark(now);
            self.mark = (self.done, now);
        }
    }

    /// The progress must be written to the superblocks.
    pub(super) fn wants_checkpoint(&self, now: Ns) -> bool {
        let (at, since) = self.checkpoint;
        let step = (self.end / CHECKPOINT_SHARE).max(REGION_SECTORS);
        let is_due = self.done >= at + step || self.done > at && now >= since + CHECKPOINT_NS;
        is_due && !self.is_interrupted
    }

    /// Note that the progress was written to the superblocks.
    pub(super) fn set_checkpoint(&mut self, now: Ns) {
        self.checkpoint = (self.done, now);
    }

    /// The progress is greater than that in the superblocks.
    pub(super) fn is_past_checkpoint(&self) -> bool {
        self.done > self.checkpoint.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const REGION: u64 = REGION_SECTORS;
    const SECOND: Ns = SECOND_NS as Ns;

    fn run(by_bitmap: bool) -> SyncRun {
        SyncRun::new(SyncAction::Check, 0..32 * REGION, by_bitmap, Vec::new(), 0)
    }

    fn begin(run: &mut SyncRun, regions: u64) {
        (0..regions).for_each(|n| run.begin(REGION, Ticket::of_test(n)));
    }

    /// End the regions of these tickets with `status`.
    fn end(run: &mut SyncRun, tickets: &[u64], status: Status) {
        let is_meant = |ticket| tickets.iter().any(|n| ticket == Ticket::of_test(*n));
        run.advance(|ticket| is_meant(ticket).then_some(status));
    }

    #[test]
    fn what_is_done_has_no_gaps() {
        let mut run = run(false);
        begin(&mut run, 4);
        end(&mut run, &[1, 3], Status::Ok);
        assert_eq!(run.done(), 0);
        end(&mut run, &[0], Status::Ok);
        assert_eq!((run.done(), run.is_idle()), (2 * REGION, false));
        end(&mut run, &[2], Status::Cancelled);
        assert_eq!((run.done(), run.is_over(), run.is_whole()), (2 * REGION, true, false));
    }

    #[test]
    fn so_many_regions_are_under_way_at_most() {
        let mut run = run(false);
        let begun = (0..).take_while(|_| {
            let has_room = run.has_room();
            if has_room {
                begin(&mut run, 1);
            }
            has_room
        });
        assert_eq!(begun.count(), DEPTH);
        run.interrupt();
        assert!(!run.is_over(), "they have to end");
    }

    #[test]
    fn clean_chunks_are_skipped() {
        let mut run = run(true);
        let words = Bitmap::new(32 * REGION, REGION / 2);
        words.set_needed(5, true);
        run.await_epoch(3);
        assert_eq!(run.skip_clean(Some(&words)), 0, "which are clean is not known yet");
        assert_eq!(run.next(), 0);
        run.stop_awaiting();
        assert_eq!(run.skip_clean(Some(&words)), REGION / 2);
        assert_eq!((run.next(), run.done()), (5 * REGION / 2, 5 * REGION / 2));
        assert_eq!(run.take_done_words(&words, 32 * REGION), 0..5);
        words.set_needed(5, false);
        assert_eq!(run.skip_clean(Some(&words)), 0);
        assert!(run.is_over() && run.is_whole());
        assert_eq!(run.take_done_words(&words, 32 * REGION), 5..64);
    }

    #[test]
    fn it_is_slower_while_others_use_the_array() {
        let mut run = run(false);
        let speed = Speed { min: 64, max: 640 };
        let load = |started, in_flight| move || Load { started, in_flight };
        let rate = run.rate(speed, load(7, 0), 0);
        assert_eq!((rate, run.due(rate, 0)), (640, 0));
        begin(&mut run, 1);
        assert_eq!(run.due(rate, 0), SECOND / 10, "64 KiB");
        assert_eq!(run.rate(speed, load(8, 1), 1), 640, "it is not looked at so often");
        assert_eq!(run.rate(speed, load(8, 0), LOOK_NS), 64);
        assert_eq!(run.rate(speed, load(8, 0), 2 * LOOK_NS), 640);
    }

    #[test]
    fn progress_is_recorded_after_a_share_or_a_time() {
        let mut run = run(false);
        begin(&mut run, 3);
        end(&mut run, &[0], Status::Ok);
        assert!(!run.wants_checkpoint(0) && run.is_past_checkpoint());
        assert!(run.wants_checkpoint(CHECKPOINT_NS));
        end(&mut run, &[1], Status::Ok);
        assert!(run.wants_checkpoint(0), "a sixteenth of the whole");
        run.set_checkpoint(0);
        assert!(!run.wants_checkpoint(CHECKPOINT_NS) && !run.is_past_checkpoint());
        run.measure(SECOND);
        assert_eq!(run.status(32 * REGION, SECOND).speed, 2 * REGION);
    }
}
