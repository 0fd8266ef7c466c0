//! Synchronisation of the whole array, region by region (Linux `md_do_sync`).
//!
//! Invariants:
//! * Regions are begun in order; what is done is the longest run of ended ones from the start. Only
//!   that is told to contexts, and written to superblocks.
//! * One thing is synchronised at a time: what a crash left, then new members, then what was asked
//!   for.
//! * By a bitmap only chunks are synchronised whose word says that they need it. For a member that
//!   came back these are all that are set once no write goes past it any more.

use super::{ArrayEvent, Disk, Manager, QUIET_PAUSE_NS, REGION_SECTORS};
use crate::array::io::Ticket;
use crate::array::status::SyncStatus;
use crate::engine::SyncAction;
use crate::ids::MemberNumber;
use crate::metadata::superblock::CLEAN;
use drystone_core::clock::Ns;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Bio, Op, SECTOR_SIZE, Sector, Status};
use std::collections::VecDeque;

/// Regions under way at once.
const DEPTH: usize = 16;
/// Progress is written to the superblocks after this share of the whole, or this time.
const CHECKPOINT_SHARE: u64 = 16;
const CHECKPOINT_NS: Ns = 300_000_000_000;
/// How often it is looked whether others use the array.
const LOOK_NS: Ns = 100_000_000;
const SECOND_NS: u128 = 1_000_000_000;

/// Limits, in KiB a second of each member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Speed {
    /// Reached though others use the array.
    pub(super) min: u64,
    pub(super) max: u64,
}

impl Default for Speed {
    fn default() -> Self {
        Speed { min: 1000, max: 200_000 }
    }
}

/// A synchronisation under way.
pub(super) struct Sync {
    pub(super) action: SyncAction,
    /// Begun and not known to be done: the end of each, and how it has ended.
    window: VecDeque<(u64, Ticket, Option<Status>)>,
    /// Member sectors.
    next: u64,
    done: u64,
    end: u64,
    /// Only what the bitmap says.
    by_bitmap: bool,
    /// Numbers of the devices that are rebuilt: those that there were when it began.
    rebuilt: Vec<MemberNumber>,
    /// Nothing is begun before all shards work by the configuration of this epoch.
    awaits: Option<u64>,
    /// Words of the bitmap that were told that they are done.
    told: usize,
    /// Nothing new is begun; it is given up when what is under way has ended.
    is_interrupted: bool,
    /// Progress that superblocks know of, and since when.
    checkpoint: (u64, Ns),
    /// Where and when the present pace began, and its KiB a second.
    pace: (u64, Ns, u64),
    /// I/O of the array when it was looked last, and when that was.
    seen: (u64, Ns),
    /// For the average: where it was, and when.
    mark: (u64, Ns),
    speed: u64,
}

impl Sync {
    fn new(action: SyncAction, start: u64, end: u64, now: Ns) -> Self {
        let start = start - start % REGION_SECTORS;
        Sync {
            action,
            window: VecDeque::new(),
            next: start,
            done: start,
            end,
            by_bitmap: false,
            rebuilt: Vec::new(),
            awaits: None,
            told: 0,
            is_interrupted: false,
            checkpoint: (start, now),
            pace: (start, now, 0),
            seen: (u64::MAX, 0),
            mark: (start, now),
            speed: 0,
        }
    }

    pub(super) fn status(&self, total: u64, now: Ns) -> SyncStatus {
        // Before the first second is over: since it began.
        let speed = if self.speed > 0 { self.speed } else { self.speed_since_mark(now) };
        SyncStatus { action: self.action, done: self.done, total, speed }
    }

    /// Sectors a second.
    fn speed_since_mark(&self, now: Ns) -> u64 {
        let (from, since) = self.mark;
        let sectors = u128::from(self.done.saturating_sub(from));
        (sectors * SECOND_NS / u128::from(now.saturating_sub(since).max(1))) as u64
    }

    /// When the next region may be begun, at `rate` KiB a second; now, if that has passed.
    fn due(&mut self, rate: u64, now: Ns) -> Ns {
        if self.pace.2 != rate {
            self.pace = (self.next, now, rate);
        }
        let (from, since, rate) = self.pace;
        let kib = u128::from((self.next - from) * SECTOR_SIZE / 1024);
        since + (kib * SECOND_NS / u128::from(rate.max(1))) as Ns
    }

    /// Take what has ended, and see how far it is done.
    fn advance(&mut self, mut take: impl FnMut(Ticket) -> Option<Status>) {
        for (_, ticket, ended) in &mut self.window {
            *ended = ended.or_else(|| take(*ticket));
        }
        while let Some((end, _, Some(status))) = self.window.front() {
            // What was not looked at is not done, nor is what comes after it.
            self.is_interrupted |= *status == Status::Cancelled;
            if !self.is_interrupted {
                self.done = *end;
            }
            self.window.pop_front();
        }
    }

    /// How far it is done.
    fn percent(&self) -> u8 {
        (u128::from(self.done) * 100 / u128::from(self.end.max(1))) as u8
    }

    fn measure(&mut self, now: Ns) {
        if now >= self.mark.1 + SECOND_NS as Ns {
            self.speed = self.speed_since_mark(now);
            self.mark = (self.done, now);
        }
    }

    fn wants_checkpoint(&self, now: Ns) -> bool {
        let (at, since) = self.checkpoint;
        let step = (self.end / CHECKPOINT_SHARE).max(REGION_SECTORS);
        self.done >= at + step || self.done > at && now >= since + CHECKPOINT_NS
    }
}

impl Manager {
    /// Go on with what is to be synchronised. When it is to be looked again.
    pub(super) fn synchronise(&mut self, now: Ns) -> Option<Ns> {
        if self.sync.is_none() {
            self.begin_sync(now);
        }
        self.interrupt_rebuild_if_changed();
        let io = &mut self.io;
        self.sync.as_mut()?.advance(|ticket| io.take(ticket).map(|bio| bio.status));
        // What could not be computed is on record before it counts as done.
        self.take_reports();
        self.interrupt_rebuild_if_changed();
        let mut sync = self.sync.take()?;
        sync.measure(now);
        self.skip_clean(&mut sync);
        self.note_progress(&mut sync);
        let over = sync.window.is_empty() && (sync.is_interrupted || sync.done >= sync.end);
        if over {
            self.end_sync(sync);
            // There may be more to be synchronised: nobody sees the array idle in between.
            self.begin_sync(now);
            return Some(now);
        }
        let checkpoint = sync.wants_checkpoint(now) && !sync.is_interrupted;
        let may_begin = !sync.is_interrupted && self.all_know(&mut sync);
        let deadline = match may_begin {
            true => self.begin_regions(&mut sync, now),
            false => sync.awaits.map(|_| now + QUIET_PAUSE_NS),
        };
        self.sync = Some(sync);
        if checkpoint {
            self.checkpoint(now);
        }
        deadline
    }

    /// Other devices are to be rebuilt than when a rebuild under way began: it begins again, with them.
    fn interrupt_rebuild_if_changed(&mut self) {
        if self.members.take_rebuild_change()
            && let Some(sync) = &mut self.sync
            && sync.action == SyncAction::Recover
        {
            sync.is_interrupted = true;
        }
    }

    /// Give up what is under way, as soon as may be.
    pub(super) fn interrupt_sync(&mut self) {
        if let Some(sync) = &mut self.sync {
            sync.is_interrupted = true;
        }
    }

    fn begin_sync(&mut self, now: Ns) {
        if self.read_only || self.frozen || self.requests.is_stopping() {
            return;
        }
        let fits_below = self.shared.fits_below.load(Acquire);
        let (action, start) = if fits_below != CLEAN {
            (SyncAction::Resync, fits_below)
        } else if let Some(start) = self.find_rebuild() {
            (SyncAction::Recover, start)
        } else if let Some(action) = self.sync_asked.take() {
            (action, 0)
        } else {
            return;
        };
        self.shared.mismatches.store(0, Relaxed);
        let mut sync = Sync::new(action, start.min(self.used), self.used, now);
        sync.by_bitmap = self.records.bitmap().is_some() && self.is_by_bitmap(action);
        sync.rebuilt = self.members.rebuilt().map(Disk::number).collect();
        // All of them are in it.
        self.members.take_rebuild_change();
        self.members.emit(ArrayEvent::SyncBegan {
            action,
            members: self.members.names_of(&sync.rebuilt),
            percent: sync.percent(),
        });
        self.sync = Some(sync);
        let epoch = self.publish();
        if let Some(sync) = &mut self.sync {
            sync.awaits = Some(epoch);
        }
    }

    fn is_by_bitmap(&self, action: SyncAction) -> bool {
        match action {
            SyncAction::Resync => true,
            SyncAction::Recover => self.members.rebuilt().all(|disk| disk.by_bitmap),
            SyncAction::Check | SyncAction::Repair => false,
        }
    }

    /// All contexts write by the configuration of the synchronisation, so that nothing more is missed
    /// by who is to be given what it has missed.
    fn all_know(&mut self, sync: &mut Sync) -> bool {
        let Some(epoch) = sync.awaits else { return true };
        if !self.shared.shards_are_at(epoch, self.io.ctx.locks()) {
            return false;
        }
        if sync.action == SyncAction::Recover && sync.by_bitmap {
            self.need_all_set();
        }
        sync.awaits = None;
        true
    }

    /// Go on to the next sector that has to be synchronised. How many sectors do from there on.
    fn skip_clean(&self, sync: &mut Sync) -> u64 {
        let to_region = |next: u64| next - next % REGION_SECTORS + REGION_SECTORS;
        let Some(bitmap) = self.records.bitmap().filter(|_| sync.by_bitmap) else {
            return to_region(sync.next).min(sync.end) - sync.next;
        };
        let words = &bitmap.words;
        let after =
            |at: u64| (at - at % words.chunk_sectors()).saturating_add(words.chunk_sectors());
        let is_needed = |at: u64| words.is_needed(words.word_of(at));
        let from = sync.next;
        while sync.awaits.is_none() && sync.next < sync.end && !is_needed(sync.next) {
            sync.next = after(sync.next).min(sync.end);
        }
        // What is skipped is not done, so it does not count for the pace.
        sync.pace.0 += sync.next - from;
        if sync.window.is_empty() && !sync.is_interrupted {
            sync.done = sync.next;
        }
        let limit = to_region(sync.next).min(sync.end);
        let mut end = sync.next;
        while end < limit && is_needed(end) {
            end = after(end).min(limit);
        }
        end - sync.next
    }

    /// From where on members have to be rebuilt, if any do; spares take vacant places before.
    fn find_rebuild(&mut self) -> Option<u64> {
        if self.shared.conf().is_broken {
            return None;
        }
        if self.members.assign_spares() && self.members.is_changed() {
            self.write_superblocks();
        }
        self.members.rebuilt().map(|disk| disk.in_sync_below.load(Acquire)).min()
    }

    fn begin_regions(&mut self, sync: &mut Sync, now: Ns) -> Option<Ns> {
        let rate = self.rate(sync, now);
        while sync.window.len() < DEPTH && sync.next < sync.end {
            let due = sync.due(rate, now);
            if due > now {
                return Some(due.min(now + LOOK_NS));
            }
            let sectors = self.skip_clean(sync);
            if sectors == 0 {
                break;
            }
            let (end, bytes) = (sync.next + sectors, sectors * SECTOR_SIZE);
            let bio = Bio::without_data(Op::Discard, Sector(sync.next), bytes);
            let ticket = self.io.start(self.sync_device, bio);
            sync.window.push_back((end, ticket, None));
            sync.next = end;
        }
        // All that was left had been skipped.
        sync.window.is_empty().then_some(now)
    }

    /// KiB a second at which to go on: slower while others use the array.
    fn rate(&mut self, sync: &mut Sync, now: Ns) -> u64 {
        let (seen, since) = sync.seen;
        let is_first = seen == u64::MAX;
        if !is_first && now < since + LOOK_NS {
            return if sync.pace.2 == 0 { self.speed.max } else { sync.pace.2 };
        }
        let stats = self.shared.stats.sum();
        let (reads, writes) = stats.in_flight();
        let started = stats.groups.iter().map(|group| group.started).sum();
        sync.seen = (started, now);
        let is_busy = reads + writes > 0 || !is_first && started != seen;
        if is_busy { self.speed.min } else { self.speed.max }
    }

    /// Tell contexts how far it is done.
    fn note_progress(&mut self, sync: &mut Sync) {
        match sync.action {
            SyncAction::Resync => self.shared.fits_below.store(sync.done, Release),
            SyncAction::Recover => {
                let is_meant = |disk: &&Disk| sync.rebuilt.contains(&disk.number());
                for disk in self.members.iter().filter(is_meant) {
                    if disk.state.is_rebuilt() && disk.in_sync_below.load(Acquire) < sync.done {
                        disk.in_sync_below.store(sync.done, Release);
                    }
                }
            }
            SyncAction::Check | SyncAction::Repair => {}
        }
        let words = self.records.bitmap().map(|bitmap| &bitmap.words);
        if let Some(words) = words.filter(|_| sync.by_bitmap) {
            let done = match sync.done >= self.used {
                true => words.len(),
                false => words.word_of(sync.done),
            };
            (sync.told..done).for_each(|word| words.set_needed(word, false));
            sync.told = done;
        }
    }

    fn checkpoint(&mut self, now: Ns) {
        if let Some(sync) = &mut self.sync {
            sync.checkpoint = (sync.done, now);
            if matches!(sync.action, SyncAction::Resync | SyncAction::Recover) {
                self.members.mark_changed();
                if self.write_superblocks() {
                    self.publish();
                }
            }
        }
    }

    fn end_sync(&mut self, sync: Sync) {
        let is_whole = sync.done >= sync.end && !sync.is_interrupted;
        match sync.action {
            SyncAction::Resync if is_whole => {
                self.shared.fits_below.store(CLEAN, Release);
                self.members.mark_changed();
            }
            SyncAction::Recover if is_whole => {
                // Each says itself that it has everything, before the others count on it.
                self.members.mark_changed();
                self.write_superblocks();
                self.members.promote_rebuilt(&sync.rebuilt);
            }
            // It goes on from there, also after a stop.
            SyncAction::Resync | SyncAction::Recover => {
                if sync.done > sync.checkpoint.0 {
                    self.members.mark_changed();
                }
            }
            SyncAction::Check | SyncAction::Repair => {}
        }
        if self.members.is_changed() {
            self.write_superblocks();
        }
        self.publish();
        self.members.emit(ArrayEvent::SyncEnded {
            action: sync.action,
            members: self.members.names_of(&sync.rebuilt),
            stopped_at: (!is_whole).then(|| sync.percent()),
            mismatches: self.shared.mismatches.load(Relaxed),
            left: self.members.strength(),
        });
    }
}
