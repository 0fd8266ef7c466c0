//! Whether the members are on record as fitting one another (md's safe mode): dirty before the
//! first write passes, clean again when nobody has written for a while.
//!
//! ```text
//!          a write is wanted                no write for a while
//! CLEAN ----------------------> DIRTY <----------------------------> SETTLING --> CLEAN
//!                                        a write is wanted meanwhile      all writes have ended
//! ```
//!
//! Invariant: this only decides. The manager writes superblocks and publishes as it is told, at
//! once.

use drystone_core::clock::Ns;

/// The pause between two checks whether writes that must end have ended.
pub(super) const QUIET_PAUSE_NS: Ns = 1_000_000;
/// Without writes for so long the array is put on record as clean (`safe_mode_delay`, 204 ms).
const SAFE_MODE_DELAY_NS: Ns = 204_000_000;

/// The state that the members are on record in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// They fit one another.
    Clean,
    /// They may not.
    Dirty,
    /// They may not, and no new write passes: they become clean if the writes under way end
    /// soon. The epoch of the configuration that says so.
    Settling(u64),
}

/// The next step of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing until then, if there is a time.
    Wait(Option<Ns>),
    /// Write superblocks and publish, so that writes pass. Then ask again at that time.
    RecordDirty(Ns),
    /// Publish that no new write passes, and tell the epoch of that ([`SafeMode::writes_stopped`]).
    StopWrites,
    /// See whether all writes have ended that passed before this epoch
    /// ([`SafeMode::writes_checked`]).
    CheckWrites(u64),
    /// Publish that writes pass again: nothing else was said of it. Then ask again at that time.
    LetWritesPass(Ns),
    /// Write superblocks.
    RecordClean,
}

/// See the module's text.
pub(super) struct SafeMode {
    record: Record,
    wants_writes: bool,
    /// Writes that had passed when they were counted last, and when that was.
    writes_seen: (u64, Ns),
}

impl SafeMode {
    pub(super) fn new(is_dirty: bool) -> Self {
        let record = if is_dirty { Record::Dirty } else { Record::Clean };
        SafeMode { record, wants_writes: false, writes_seen: (0, 0) }
    }

    pub(super) fn record(&self) -> Record {
        self.record
    }

    /// Somebody waits to write.
    pub(super) fn want_writes(&mut self) {
        self.wants_writes = true;
    }

    pub(super) fn wants_writes(&self) -> bool {
        self.wants_writes
    }

    /// The array stops: nothing is in flight, and nothing will be.
    pub(super) fn set_clean(&mut self) {
        self.record = Record::Clean;
    }

    /// The next step, if so many writes have passed by now.
    pub(super) fn next(&mut self, writes: u64, now: Ns) -> Next {
        match self.record {
            Record::Clean if std::mem::take(&mut self.wants_writes) => {
                self.record = Record::Dirty;
                self.writes_seen = (writes, now);
                Next::RecordDirty(now + SAFE_MODE_DELAY_NS)
            }
            Record::Clean => Next::Wait(None),
            Record::Dirty => self.settle_if_idle(writes, now),
            Record::Settling(epoch) => Next::CheckWrites(epoch),
        }
    }

    fn settle_if_idle(&mut self, writes: u64, now: Ns) -> Next {
        self.wants_writes = false;
        let (seen, since) = self.writes_seen;
        if writes != seen {
            self.writes_seen = (writes, now);
        } else if now >= since + SAFE_MODE_DELAY_NS {
            self.record = Record::Settling(0);
            self.writes_seen = (writes, now);
            return Next::StopWrites;
        }
        Next::Wait(Some(self.writes_seen.1 + SAFE_MODE_DELAY_NS))
    }

    /// No new write passes since this epoch.
    pub(super) fn writes_stopped(&mut self, epoch: u64) {
        self.record = Record::Settling(epoch);
    }

    /// The next step, now that it is known whether all writes have ended.
    pub(super) fn writes_checked(&mut self, have_ended: bool, now: Ns) -> Next {
        if have_ended {
            self.record = Record::Clean;
            return Next::RecordClean;
        }
        if std::mem::take(&mut self.wants_writes) {
            self.record = Record::Dirty;
            return Next::LetWritesPass(now + SAFE_MODE_DELAY_NS);
        }
        Next::Wait(Some(now + QUIET_PAUSE_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Ns = SAFE_MODE_DELAY_NS;

    #[test]
    fn an_array_is_dirty_while_it_is_written() {
        let mut mode = SafeMode::new(false);
        assert_eq!(mode.next(0, 1), Next::Wait(None));
        mode.want_writes();
        assert_eq!(mode.next(0, 2), Next::RecordDirty(2 + DELAY));
        assert_eq!(mode.record(), Record::Dirty);
        // Writes go on.
        assert_eq!(mode.next(7, 3), Next::Wait(Some(3 + DELAY)));
        assert_eq!(mode.next(7, 2 + DELAY), Next::Wait(Some(3 + DELAY)));
        assert_eq!(mode.next(8, 3 + DELAY), Next::Wait(Some(3 + 2 * DELAY)));
        assert_eq!(mode.next(8, 3 + 2 * DELAY), Next::StopWrites);
    }

    #[test]
    fn it_is_clean_when_all_writes_have_ended() {
        let mut mode = SafeMode::new(true);
        assert_eq!(mode.next(0, DELAY), Next::StopWrites);
        mode.writes_stopped(5);
        assert_eq!(mode.next(0, DELAY), Next::CheckWrites(5));
        assert_eq!(mode.writes_checked(false, DELAY), Next::Wait(Some(DELAY + QUIET_PAUSE_NS)));
        assert_eq!(mode.writes_checked(true, DELAY), Next::RecordClean);
        assert_eq!(mode.record(), Record::Clean);
    }

    #[test]
    fn who_wants_to_write_meanwhile_does_not_wait_for_that() {
        let mut mode = SafeMode::new(true);
        assert_eq!(mode.next(0, DELAY), Next::StopWrites);
        mode.writes_stopped(5);
        mode.want_writes();
        assert_eq!(mode.writes_checked(false, 2 * DELAY), Next::LetWritesPass(3 * DELAY));
        assert_eq!((mode.record(), mode.wants_writes()), (Record::Dirty, false));
    }
}
