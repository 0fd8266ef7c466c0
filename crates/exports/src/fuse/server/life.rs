//! The life cycle of a session: it serves, then it is over.
//!
//! Invariants:
//! * A session that is over never serves again.
//! * Its bios are withdrawn once, and its polls are cancelled once.

/// The state of a session.
#[derive(Default)]
pub(super) struct Life {
    is_over: bool,
    has_withdrawn: bool,
    has_cancelled: bool,
}

impl Life {
    /// True while the session serves.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        !self.is_over
    }

    /// Ends the session. True the first time.
    pub(super) fn end(&mut self) -> bool {
        !std::mem::replace(&mut self.is_over, true)
    }

    /// True once: the session is over, and its bios, of which some are pending, must be withdrawn.
    pub(super) fn take_withdrawal(&mut self, is_idle: bool) -> bool {
        let due = self.is_over && !is_idle && !self.has_withdrawn;
        self.has_withdrawn |= due;
        due
    }

    /// True once: the session is over, and its polls must be cancelled.
    pub(super) fn take_cancellation(&mut self) -> bool {
        let due = self.is_over && !self.has_cancelled;
        self.has_cancelled |= due;
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_made_once_after_the_end() {
        let mut life = Life::default();
        assert!(life.is_open() && !life.take_withdrawal(false) && !life.take_cancellation());
        assert!(life.end() && !life.end() && !life.is_open());
        assert!(!life.take_withdrawal(true), "nothing is pending");
        assert!(life.take_withdrawal(false) && !life.take_withdrawal(false));
        assert!(life.take_cancellation() && !life.take_cancellation());
    }
}
