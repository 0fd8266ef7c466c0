//! Synchronisation of the whole array, region by region (Linux `md_do_sync`).
//!
//! Invariants:
//! * Contexts and superblocks learn only of progress that has been made.
//! * One synchronisation runs at a time: first a resync after a crash, then a rebuild of new
//!   members, then a check or repair that was asked for.
//! * For a member that came back, the chunks to synchronise are those whose bit is set once no
//!   write can bypass the member any more.

use super::safe_mode::QUIET_PAUSE_NS;
use super::sync_run::{LOOK_NS, Load, SyncRun};
use super::synchronisation::is_asked_for;
use super::{ArrayEvent, Disk, Manager};
use crate::engine::SyncAction;
use crate::metadata::superblock::CLEAN;
use drystone_core::clock::Ns;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Bio, Op, SECTOR_SIZE, Sector};

impl Manager {
    /// Carry on the synchronisation. Returns the time of the next check.
    pub(super) fn synchronise(&mut self, now: Ns) -> Option<Ns> {
        if self.sync.action().is_none() {
            self.begin_sync(now);
        }
        self.interrupt_rebuild_if_changed();
        let io = &mut self.io;
        self.sync.run_mut()?.advance(|ticket| io.take(ticket).map(|bio| bio.status));
        // Blocks that could not be computed must be recorded before they count as done.
        self.take_reports();
        self.interrupt_rebuild_if_changed();
        let mut run = self.sync.take()?;
        run.measure(now);
        self.skip_clean(&mut run);
        self.note_progress(&mut run);
        if run.is_over() {
            self.end_sync(&run);
            // Begin the next synchronisation at once, so that nobody sees the array idle in
            // between.
            self.begin_sync(now);
            return Some(now);
        }
        let checkpoint = run.wants_checkpoint(now);
        let may_begin = !run.is_interrupted() && self.all_know(&mut run);
        let deadline = match may_begin {
            true => self.begin_regions(&mut run, now),
            false => run.awaited().map(|_| now + QUIET_PAUSE_NS),
        };
        self.sync.put_back(run);
        if checkpoint {
            self.checkpoint(now);
        }
        deadline
    }

    /// Begin a rebuild under way again if the set of devices that must be rebuilt has changed.
    fn interrupt_rebuild_if_changed(&mut self) {
        let is_changed = self.members.take_rebuild_change();
        if is_changed && self.sync.action() == Some(SyncAction::Recover) {
            self.sync.interrupt();
        }
    }

    fn begin_sync(&mut self, now: Ns) {
        if self.read_only || self.sync.is_frozen() || self.requests.is_stopping() {
            return;
        }
        let fits_below = self.shared.fits_below.load(Acquire);
        let (action, start) = if fits_below != CLEAN {
            (SyncAction::Resync, fits_below)
        } else if let Some(start) = self.prepare_rebuild() {
            (SyncAction::Recover, start)
        } else if let Some(action) = self.sync.take_asked() {
            (action, 0)
        } else {
            return;
        };
        self.shared.mismatches.store(0, Relaxed);
        let rebuilt = self.members.rebuilt().map(Disk::number).collect();
        let by_bitmap = self.records.bitmap().is_some() && self.is_by_bitmap(action);
        let sectors = start.min(self.used)..self.used;
        let run = SyncRun::new(action, sectors, by_bitmap, rebuilt, now);
        // This rebuild includes all devices that must be rebuilt.
        self.members.take_rebuild_change();
        self.members.emit(ArrayEvent::SyncBegan {
            action,
            members: self.members.names_of(run.rebuilt()),
            percent: run.percent(),
        });
        self.sync.put_back(run);
        let epoch = self.publish();
        if let Some(run) = self.sync.run_mut() {
            run.await_epoch(epoch);
        }
    }

    fn is_by_bitmap(&self, action: SyncAction) -> bool {
        match action {
            SyncAction::Resync => true,
            SyncAction::Recover => self.members.rebuilt().all(|disk| disk.by_bitmap),
            SyncAction::Check | SyncAction::Repair => false,
        }
    }

    /// Check that all contexts write by the configuration of the synchronisation. From then on no
    /// write bypasses a member that is being rebuilt.
    fn all_know(&mut self, run: &mut SyncRun) -> bool {
        let Some(epoch) = run.awaited() else { return true };
        if !self.shared.shards_are_at(epoch, self.io.ctx.locks()) {
            return false;
        }
        if run.action() == SyncAction::Recover && run.is_by_bitmap() {
            self.need_all_set();
        }
        run.stop_awaiting();
        true
    }

    fn skip_clean(&self, run: &mut SyncRun) -> u64 {
        run.skip_clean(self.records.bitmap().map(|bitmap| &*bitmap.words))
    }

    /// Give roles without a member to spares. Returns the member sector from which on members must
    /// be rebuilt, if any must.
    ///
    /// A spare whose role cannot be recorded has failed, and the next one takes its place. The loop
    /// ends: each further round needs another spare.
    fn prepare_rebuild(&mut self) -> Option<u64> {
        loop {
            if self.members.lost() > self.members.tolerated() {
                return None;
            }
            self.members.assign_spares();
            // A spare's role must be recorded before contexts write to it, also while other roles
            // have no member.
            if !self.members.is_changed() {
                break;
            }
            if self.write_superblocks() {
                self.publish();
            }
        }
        self.members.rebuilt().map(|disk| disk.in_sync_below.load(Acquire)).min()
    }

    fn begin_regions(&mut self, run: &mut SyncRun, now: Ns) -> Option<Ns> {
        let load = || {
            let stats = self.shared.stats.sum();
            let (reads, writes) = stats.in_flight();
            let started = stats.groups.iter().map(|group| group.started).sum();
            Load { started, in_flight: reads + writes }
        };
        let rate = run.rate(self.sync.speed(), load, now);
        while run.has_room() {
            let due = run.due(rate, now);
            if due > now {
                return Some(due.min(now + LOOK_NS));
            }
            let sectors = self.skip_clean(run);
            if sectors == 0 {
                break;
            }
            let bio = Bio::without_data(Op::Discard, Sector(run.next()), sectors * SECTOR_SIZE);
            let ticket = self.io.start(self.sync.device(), bio);
            run.begin(sectors, ticket);
        }
        // Everything that was left has been skipped.
        run.is_idle().then_some(now)
    }

    /// Publish how far the synchronisation is done.
    fn note_progress(&mut self, run: &mut SyncRun) {
        let done = run.done();
        match run.action() {
            SyncAction::Resync => self.shared.fits_below.store(done, Release),
            SyncAction::Recover => {
                let is_meant = |disk: &&Disk| run.rebuilt().contains(&disk.number());
                for disk in self.members.rebuilt().filter(is_meant) {
                    if disk.in_sync_below.load(Acquire) < done {
                        disk.in_sync_below.store(done, Release);
                    }
                }
            }
            SyncAction::Check | SyncAction::Repair => {}
        }
        let words = self.records.bitmap().map(|bitmap| &bitmap.words);
        if let Some(words) = words.filter(|_| run.is_by_bitmap()) {
            let done = run.take_done_words(words, self.used);
            done.for_each(|word| words.set_needed(word, false));
        }
    }

    fn checkpoint(&mut self, now: Ns) {
        if let Some(run) = self.sync.run_mut() {
            run.set_checkpoint(now);
            if !is_asked_for(run.action()) {
                self.members.mark_changed();
                if self.write_superblocks() {
                    self.publish();
                }
            }
        }
    }

    fn end_sync(&mut self, run: &SyncRun) {
        let is_whole = run.is_whole();
        match run.action() {
            SyncAction::Resync if is_whole => {
                self.shared.fits_below.store(CLEAN, Release);
                self.members.mark_changed();
            }
            SyncAction::Recover if is_whole => {
                // Each rebuilt device must record that it has everything before the others count on
                // it.
                self.members.mark_changed();
                self.write_superblocks();
                self.members.promote_rebuilt(run.rebuilt());
            }
            // The next synchronisation goes on from here, also after a stop.
            SyncAction::Resync | SyncAction::Recover => {
                if run.is_past_checkpoint() {
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
            action: run.action(),
            members: self.members.names_of(run.rebuilt()),
            stopped_at: (!is_whole).then(|| run.percent()),
            mismatches: self.shared.mismatches.load(Relaxed),
            left: self.members.strength(),
        });
    }
}
