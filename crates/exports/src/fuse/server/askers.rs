//! Watches the interrupted askers of a session, to find those that are being killed.
//!
//! ```text
//!   interrupt -> watched -> query (on a helper thread) -> killed: its request ends early
//!                   ^                       |
//!                   +---- 100 ms later, ----+
//!                        if it lives on
//! ```
//!
//! The kernel reports the first signal that comes to an asker, whichever it is, and no later one
//! (`request_wait_answer` in its fs/fuse/dev.c). A signal that the asker handles must not end a
//! truncation: no file system does that, so programs do not expect it. So the server queries the
//! state of the asker repeatedly while its request is in progress.
//!
//! Invariants:
//! * At most one query of a session is under way, and the session stays until it is answered.
//! * A session without watched askers has no deadline, so nothing wakes its thread.

use super::interrupts::Interrupts;
use super::op::IN_FLIGHT_MAX;
use drystone_core::clock::Ns;
use drystone_core::sync::LockCounters;

/// The time between two queries about an asker. A query takes some 50 us of processor time, so an
/// asker that lives on costs 0.05 % of a processor, and the end of a killed one waits a tenth of a
/// second at the most.
const RECHECK_NS: Ns = 100_000_000;

struct Watched {
    /// The request.
    unique: u64,
    /// The thread that waits for its answer.
    task: u32,
    /// When the next query is due.
    check_at: Ns,
}

/// The askers of a session that were interrupted.
pub(super) struct Askers {
    watched: Vec<Watched>,
    /// The request whose asker the query under way is about.
    asked: Option<u64>,
    /// Interrupts of the mount that the session has followed.
    seen: u64,
}

impl Askers {
    /// No watched askers.
    pub(super) fn new() -> Self {
        Askers { watched: Vec::with_capacity(IN_FLIGHT_MAX as usize), asked: None, seen: 0 }
    }

    /// Watches `task`, which waits for the answer to `unique`. A query is due at once.
    pub(super) fn add(&mut self, unique: u64, task: u32) {
        if self.watched.iter().all(|it| it.unique != unique) {
            self.watched.push(Watched { unique, task, check_at: 0 });
        }
    }

    /// True while a query is under way.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// The time at which the next query is due, unless one is under way.
    pub(super) fn deadline(&self) -> Option<Ns> {
        let is_asking = self.is_asking();
        self.watched.iter().map(|it| it.check_at).min().filter(|_| !is_asking)
    }

    /// Begins a query if one is due: returns the thread that it is about. Requests that do not go
    /// on are forgotten first.
    pub(super) fn begin(&mut self, now: Ns, goes_on: impl Fn(u64) -> bool) -> Option<u32> {
        if self.deadline().is_none_or(|at| at > now) {
            return None;
        }
        self.watched.retain(|it| goes_on(it.unique));
        let next = self.watched.iter().min_by_key(|it| it.check_at);
        let next = next.filter(|it| it.check_at <= now)?;
        self.asked = Some(next.unique);
        Some(next.task)
    }

    /// Ends the query. Returns the request whose asker is being killed, if it is.
    pub(super) fn end(&mut self, is_killed: bool, now: Ns) -> Option<u64> {
        let asked = self.asked.take()?;
        let at = self.watched.iter().position(|it| it.unique == asked)?;
        if is_killed {
            return Some(self.watched.remove(at).unique);
        }
        self.watched[at].check_at = now + RECHECK_NS;
        None
    }

    /// True if the mount has interrupts that the session has not followed.
    pub(super) fn has_unseen(&self, interrupts: &Interrupts) -> bool {
        interrupts.count() != self.seen
    }

    /// Takes the interrupted requests that the session has not followed.
    pub(super) fn take_unseen(&mut self, interrupts: &Interrupts, user: &LockCounters) -> Vec<u64> {
        let (unseen, count) = interrupts.since(self.seen, user);
        self.seen = count;
        unseen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    fn begin(askers: &mut Askers, now: Ns) -> Option<u32> {
        askers.begin(now, |_| true)
    }

    #[test]
    fn each_is_asked_after_in_turn_until_it_is_killed() {
        let mut askers = Askers::new();
        assert_eq!((askers.deadline(), begin(&mut askers, 0)), (None, None));
        (1..=3).for_each(|unique| askers.add(unique, 100 + unique as u32));
        askers.add(1, 101);
        for task in [101, 102, 103] {
            assert_eq!((askers.deadline(), begin(&mut askers, 5)), (Some(0), Some(task)));
            assert_eq!((askers.deadline(), begin(&mut askers, 5)), (None, None), "one at a time");
            assert_eq!(askers.end(false, 5), None);
        }
        let next = 5 + RECHECK_NS;
        assert_eq!((askers.deadline(), begin(&mut askers, next - 1)), (Some(next), None));
        assert_eq!(begin(&mut askers, next), Some(101));
        assert_eq!(askers.end(true, next), Some(1));
        assert_eq!(begin(&mut askers, next), Some(102));
        assert_eq!(askers.end(false, next), None);
        assert_eq!(askers.begin(next, |_| false), None, "all have ended meanwhile");
        assert_eq!((askers.deadline(), askers.is_asking()), (None, false));
    }

    #[test]
    fn each_interrupt_is_seen_once() {
        let (user, interrupts) = (LockCounters::new(ManualClock::new(1)), Interrupts::new());
        let mut askers = Askers::new();
        assert!(!askers.has_unseen(&interrupts));
        interrupts.add(4, &user);
        interrupts.add(6, &user);
        assert!(askers.has_unseen(&interrupts));
        assert_eq!(askers.take_unseen(&interrupts, &user), [4, 6]);
        assert!(!askers.has_unseen(&interrupts));
        assert_eq!(askers.take_unseen(&interrupts, &user), []);
    }
}
