//! Whether the array is recorded as clean or dirty (md's safe mode): dirty before the first write
//! passes, clean again after a time without writes.
//!
//! ```text
//!          a write is wanted                no write for a while
//! CLEAN ----------------------> DIRTY <----------------------------> SETTLING --> CLEAN
//!                                        a write is wanted meanwhile      all writes have ended
//! ```
//!
//! Invariant: this only decides. The manager writes superblocks and publishes at once as it is
//! told.

use drystone_core::clock::Ns;

/// The pause between two checks whether the writes under way have ended.
pub(super) const QUIET_PAUSE_NS: Ns = 1_000_000;
/// After this time without writes the array is recorded as clean (`safe_mode_delay`, 204 ms).
const SAFE_MODE_DELAY_NS: Ns = 204_000_000;

/// The state that the superblocks record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// The members fit one another.
    Clean,
    /// The members may not fit one another.
    Dirty,
    /// Still recorded as dirty, but no new write passes. The array becomes clean if the writes
    /// under way end soon. Holds the epoch of the configuration that stopped the writes.
    Settling(u64),
}

/// The next step of the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Do nothing until this time, if there is one.
    Wait(Option<Ns>),
    /// Write superblocks and publish, so that writes pass. Then ask again at this time.
    RecordDirty(Ns),
    /// Publish that no new write passes, and report the epoch of that configuration
    /// ([`SafeMode::writes_stopped`]).
    StopWrites,
    /// Check whether all writes that passed before this epoch have ended
    /// ([`SafeMode::writes_checked`]).
    CheckWrites(u64),
    /// Publish that writes pass again; the superblocks still record the array as dirty. Then ask
    /// again at this time.
    LetWritesPass(Ns),
    /// Write superblocks.
    RecordClean,
}

/// See the module's text.
pub(super) struct SafeMode {
    record: Record,
    wants_writes: bool,
    /// The count of passed writes at the last check at which it had changed, and the time of that.
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

    /// Note that a writer waits.
    pub(super) fn want_writes(&mut self) {
        self.wants_writes = true;
    }

    pub(super) fn wants_writes(&self) -> bool {
        self.wants_writes
    }

    /// Note that the array stops: no I/O is in flight, and none will come.
    pub(super) fn set_clean(&mut self) {
        self.record = Record::Clean;
    }

    /// The next step; `writes` is the count of writes that have passed.
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

    /// Note that no new write passes since this epoch.
    pub(super) fn writes_stopped(&mut self, epoch: u64) {
        self.record = Record::Settling(epoch);
    }

    /// The next step, after a check whether all writes have ended.
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

#[cfg(all(test, not(loom)))]
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
