//! The progress of a client: when it was last active, and how much it moves while it owes the
//! server something: it has replies to take, or data to send.
//!
//! A client that moves less than [`ENOUGH_BYTES`] in the time-out for stalls, while others wait for
//! the memory of its requests, is disconnected.
//!
//! Invariant: stalls count only while the client owes something and others wait.

use drystone_core::clock::Ns;

/// The bytes that count as enough in the time-out: so many return memory to the budget.
const ENOUGH_BYTES: u64 = 1 << 20;

/// Bytes that a client moved, and sweeps in which it moved too few.
pub(super) struct Progress {
    /// The time when the connection last brought bytes.
    active_ns: Ns,
    /// The client has sent something.
    has_spoken: bool,
    /// True if bytes came or went since the last sweep.
    has_moved: bool,
    /// The number of sweeps since the client last moved enough.
    stalls: u64,
    /// The owed bytes that it has moved in these sweeps.
    bytes: u64,
}

impl Progress {
    /// The progress of a new client.
    pub(super) fn new(now: Ns) -> Self {
        Progress { active_ns: now, has_spoken: false, has_moved: true, stalls: 0, bytes: 0 }
    }

    /// The time at which the connection last brought anything.
    pub(super) fn active_ns(&self) -> Ns {
        self.active_ns
    }

    /// Notes that the connection has brought something.
    #[inline]
    pub(super) fn note_activity(&mut self, now: Ns) {
        self.active_ns = now;
    }

    /// True if the client has sent anything.
    pub(super) fn has_spoken(&self) -> bool {
        self.has_spoken
    }

    /// Notes whether a receive brought bytes.
    #[inline]
    pub(super) fn note_spoken(&mut self, has_bytes: bool) {
        self.has_spoken |= has_bytes;
    }

    /// Notes that bytes were moved, and how many of them the client owed.
    #[inline]
    pub(super) fn note(&mut self, owed: Option<i32>) {
        self.has_moved = true;
        self.bytes += owed.map_or(0, |bytes| bytes.max(0) as u64);
    }

    /// Notes that the client owes something from now on; `owed_nothing`: it owed nothing before.
    pub(super) fn begin_owing(&mut self, owed_nothing: bool) {
        self.has_moved = true;
        if owed_nothing {
            self.bytes = ENOUGH_BYTES;
        }
    }

    /// True if bytes were moved since the last call.
    pub(super) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Counts a sweep. `keeps_wanted`: the client keeps memory that others want. True if it has
    /// stalled for `stalls_max` sweeps.
    pub(super) fn sweep(&mut self, keeps_wanted: bool, stalls_max: u64) -> bool {
        self.stalls = match self.bytes < ENOUGH_BYTES && keeps_wanted {
            true => self.stalls + 1,
            false => 0,
        };
        if self.stalls == 0 {
            self.bytes = 0;
        }
        self.stalls > 0 && self.stalls >= stalls_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_moves_too_little_is_cut_off() {
        let mut progress = Progress::new(1);
        for sweep in 1..=3 {
            progress.note(Some(ENOUGH_BYTES as i32 / 4));
            assert_eq!(progress.sweep(true, 3), sweep == 3, "sweep {sweep}");
        }
    }

    #[test]
    fn enough_bytes_or_nobody_that_waits_begin_again() {
        let mut progress = Progress::new(1);
        for keeps_wanted in [true, false] {
            assert!(!progress.sweep(true, 3) && !progress.sweep(true, 3));
            progress.note(keeps_wanted.then_some(ENOUGH_BYTES as i32));
            assert!(!progress.sweep(keeps_wanted, 3));
        }
        progress.begin_owing(true);
        assert!(!progress.sweep(true, 1), "it had nothing to move before");
        assert!(progress.sweep(true, 1));
    }

    #[test]
    fn a_client_has_spoken_once_it_sent_a_byte() {
        let mut progress = Progress::new(1);
        progress.note_spoken(false);
        assert!(!progress.has_spoken());
        progress.note_spoken(true);
        progress.note_spoken(false);
        assert!(progress.has_spoken());
        progress.note_activity(7);
        assert_eq!(progress.active_ns(), 7);
    }

    #[test]
    fn a_failed_receive_moves_nothing() {
        let mut progress = Progress::new(1);
        assert!(progress.take_moved() && !progress.take_moved());
        progress.note(Some(-104));
        assert!(progress.take_moved() && progress.sweep(true, 1));
        progress.begin_owing(false);
        assert!(progress.take_moved() && progress.sweep(true, 1), "it owed something before");
    }
}
