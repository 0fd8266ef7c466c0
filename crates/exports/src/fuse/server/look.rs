//! A look for the next request before a session sleeps.
//!
//! A client that waits for each answer sends its next request some microseconds after it. To look for that
//! takes less than to sleep and be woken by it. Where looks were in vain they are done less and less
//! often, as with a client that thinks between its requests, or one that needs this very core.
//!
//! Invariant: a session looks only after an answer, once what was read before is on its way. So one that
//! nobody asks anything does not look, nor does one that waits for a device.

use drystone_core::clock::Ns;

/// How long a look lasts at the most. Where a request and its answer take 5 to 10 us, clients with one
/// request at a time ask again within 3 to 12 us; a sleep and a wake-up cost about as much as all of it.
pub(super) const LONGEST_LOOK_NS: Ns = 20_000;
/// How rarely a session looks at the least: once in two to the power of this.
const FAILURES_MAX: u32 = 7;

/// Whether a session looks.
#[derive(Debug, Default)]
pub(super) struct Look {
    /// It has answered since it last read a request, or looked in vain.
    expects: bool,
    /// Looks in vain, less those that found something.
    failures: u32,
    /// Looks left out until the next one.
    pause: u32,
}

impl Look {
    /// A request was read.
    pub(super) fn asked(&mut self) {
        self.expects = false;
    }

    /// A request was answered.
    pub(super) fn answered(&mut self) {
        self.expects = true;
    }

    /// Whether to look before the sleep that is about to begin.
    pub(super) fn begin(&mut self) -> bool {
        if !self.expects || self.pause == 0 {
            return self.expects;
        }
        self.expects = false;
        self.pause -= 1;
        false
    }

    /// A look has found a request.
    pub(super) fn found(&mut self) {
        self.failures = self.failures.saturating_sub(1);
    }

    /// A look was in vain.
    pub(super) fn vain(&mut self) {
        self.expects = false;
        self.failures = (self.failures + 1).min(FAILURES_MAX);
        self.pause = (1 << self.failures) - 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of so many answers, how many were followed by a look that found the next request or did not.
    fn run(look: &mut Look, answers: u32, comes: impl Fn(u32) -> bool) -> (u32, u32) {
        let (mut found, mut vain) = (0, 0);
        for answer in 0..answers {
            look.answered();
            match (look.begin(), comes(answer)) {
                (false, _) => {}
                (true, true) => {
                    look.found();
                    look.asked();
                    found += 1;
                }
                (true, false) => {
                    look.vain();
                    vain += 1;
                }
            }
        }
        (found, vain)
    }

    #[test]
    fn it_looks_while_requests_come_at_once() {
        assert_eq!(run(&mut Look::default(), 1000, |_| true), (1000, 0));
        let (found, vain) = run(&mut Look::default(), 1000, |answer| answer % 10 != 0);
        assert!(found > 800 && vain > 80, "now and then one comes late: {found}, {vain}");
    }

    #[test]
    fn it_gives_up_where_they_come_late() {
        let mut look = Look::default();
        let (_, vain) = run(&mut look, 10_000, |_| false);
        assert!((70..100).contains(&vain), "{vain} of 10000");
        let (found, _) = run(&mut look, 1000, |_| true);
        assert!(found > 800, "and begins again: {found}");
    }

    #[test]
    fn without_an_answer_there_is_no_look() {
        let mut look = Look::default();
        assert!(!look.begin());
        look.answered();
        assert!(look.begin());
        look.vain();
        assert!(!look.begin());
        look.answered();
        look.asked();
        assert!(!look.begin(), "its device has it");
    }
}
