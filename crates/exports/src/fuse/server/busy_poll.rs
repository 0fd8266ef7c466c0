//! Busy polling: a session looks for its next request for a while before it sleeps.
//!
//! A client that waits for each answer sends its next request some microseconds later. A poll for
//! that request takes less time than a sleep and a wake-up. Failed polls make the next ones rarer:
//! for example with a client that thinks between its requests, or one that needs this very core.
//!
//! Invariants:
//! * A session polls only after an answer, once its earlier requests have been submitted. So a
//!   session without requests does not poll, nor does one that waits for a device.
//! * After n failures in a row it polls after at most every (2^n - 1)-th answer.

use drystone_core::clock::Ns;

/// Longest busy poll. Where a request and its answer take 5 to 10 us, clients with one request at a
/// time ask again within 3 to 12 us; a sleep and a wake-up cost about as much as all of it.
pub(super) const BUSY_POLL_NS_MAX: Ns = 20_000;
/// The most failures that count: a session polls at least once in 2 to the power of this number.
const FAILURES_MAX: u32 = 7;

/// The decision whether a session polls.
#[derive(Debug, Default)]
pub(super) struct BusyPoll {
    /// True if it has answered since it last read a request or polled without success.
    expects: bool,
    /// The number of failed polls minus that of successful ones.
    failures: u32,
    /// Polls to skip before the next one.
    pause: u32,
}

impl BusyPoll {
    /// Notes a request.
    #[inline]
    pub(super) fn note_request(&mut self) {
        self.expects = false;
    }

    /// Notes an answer.
    #[inline]
    pub(super) fn note_answer(&mut self) {
        self.expects = true;
    }

    /// Decides before a sleep. True if the session polls first.
    pub(super) fn begin(&mut self) -> bool {
        if !self.expects || self.pause == 0 {
            return self.expects;
        }
        self.expects = false;
        self.pause -= 1;
        false
    }

    /// Notes that a poll has found a request.
    pub(super) fn succeed(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }

    /// Notes that a poll has found nothing.
    pub(super) fn fail(&mut self) {
        self.expects = false;
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = (1 << self.failures) - 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The polls after so many answers that found the next request, and those that did not.
    fn run(poll: &mut BusyPoll, answers: u32, comes: impl Fn(u32) -> bool) -> (u32, u32) {
        let (mut found, mut failed) = (0, 0);
        for answer in 0..answers {
            poll.note_answer();
            match (poll.begin(), comes(answer)) {
                (false, _) => {}
                (true, true) => {
                    poll.succeed();
                    poll.note_request();
                    found += 1;
                }
                (true, false) => {
                    poll.fail();
                    failed += 1;
                }
            }
        }
        (found, failed)
    }

    #[test]
    fn it_polls_while_requests_come_at_once() {
        assert_eq!(run(&mut BusyPoll::default(), 1000, |_| true), (1000, 0));
        let (found, failed) = run(&mut BusyPoll::default(), 1000, |answer| answer % 10 != 0);
        assert!(found > 800 && failed > 80, "now and then one comes late: {found}, {failed}");
    }

    #[test]
    fn it_gives_up_where_they_come_late() {
        let mut poll = BusyPoll::default();
        let (_, failed) = run(&mut poll, 10_000, |_| false);
        assert!((70..100).contains(&failed), "{failed} of 10000");
        let (found, _) = run(&mut poll, 1000, |_| true);
        assert!(found > 800, "and begins again: {found}");
    }

    #[test]
    fn without_an_answer_there_is_no_poll() {
        let mut poll = BusyPoll::default();
        assert!(!poll.begin());
        poll.note_answer();
        assert!(poll.begin());
        poll.fail();
        assert!(!poll.begin());
        poll.note_answer();
        poll.note_request();
        assert!(!poll.begin(), "its device has it");
    }
}
