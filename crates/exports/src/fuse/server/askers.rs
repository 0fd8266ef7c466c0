//! Askers that were interrupted: is one of them being killed?
//!
//! ```text
//!   interrupt -> watched -> query (a helper thread looks at the asker) -> killed: its request ends early
//!                   ^                                                |
//!                   +------- 100 ms later, if it is not killed ------+
//! ```
//!
//! The kernel tells of the first signal that comes to an asker, whichever it is, and of none that comes later
//! (`request_wait_answer` in its fs/fuse/dev.c). A signal that the asker handles must not end a truncation: no
//! file system does that, so programs do not expect it. So the server looks at the asker itself, again and
//! again while its request goes on.
//!
//! Invariants:
//! * At most one query of a session is asked at a time, and the session stays until it is answered.
//! * Without a watched asker nothing here costs anything, and nothing wakes the thread.

use super::seek::QUERY;
use super::session::{IN_FLIGHT_MAX, Life, Session};
use crate::server::{FUSE, Work};
use drystone_core::clock::Ns;
use drystone_core::ring::Query;

/// How long after a look at an asker comes the next. A look takes some 50 us of processor time, so one that goes on
/// for ever costs 0.05 % of a processor; and to whoever has killed a process a tenth of a second is a moment.
const NEXT_LOOK_NS: Ns = 100_000_000;

/// In the value of an event: what was asked about an asker of the session whose place is below it. A bit that no
/// event of a query has otherwise tells it from those.
pub(super) const ASKERS: u64 = QUERY | 1 << 43;

struct Watched {
    /// The request.
    unique: u64,
    /// The thread that waits for its answer.
    task: u32,
    /// When it is looked at next.
    look_at: Ns,
}

/// The askers of a session that were interrupted.
pub(super) struct Askers {
    watched: Vec<Watched>,
    /// The request whose asker is being looked at.
    asked: Option<u64>,
}

impl Askers {
    /// None.
    pub(super) fn new() -> Self {
        Askers { watched: Vec::with_capacity(IN_FLIGHT_MAX as usize), asked: None }
    }

    /// Look at `task`, which waits for the answer to `unique`, as soon as may be.
    fn add(&mut self, unique: u64, task: u32) {
        if self.watched.iter().all(|it| it.unique != unique) {
            self.watched.push(Watched { unique, task, look_at: 0 });
        }
    }

    /// A query is being asked.
    pub(super) fn is_asking(&self) -> bool {
        self.asked.is_some()
    }

    /// When one is to be looked at.
    pub(super) fn deadline(&self) -> Option<Ns> {
        let asks = self.is_asking();
        self.watched.iter().map(|it| it.look_at).min().filter(|_| !asks)
    }

    /// One that is to be looked at now: a query about this thread is asked next.
    fn begin(&mut self, now: Ns) -> Option<u32> {
        let next = self.watched.iter().min_by_key(|it| it.look_at);
        let next = next.filter(|it| it.look_at <= now && self.asked.is_none())?;
        self.asked = Some(next.unique);
        Some(next.task)
    }

    /// The query is answered. The request whose asker is being killed, if it is.
    fn answered(&mut self, killed: bool, now: Ns) -> Option<u64> {
        let asked = self.asked.take()?;
        let at = self.watched.iter().position(|it| it.unique == asked)?;
        if killed {
            return Some(self.watched.remove(at).unique);
        }
        self.watched[at].look_at = now + NEXT_LOOK_NS;
        None
    }
}

impl Session {
    /// Whoever asked for operation `index` was interrupted.
    pub(super) fn watch_asker(&mut self, index: u32) {
        let Some(op) = &self.ops[index as usize] else { return };
        self.askers.add(op.unique, op.asker);
    }

    /// When an asker is to be looked at.
    pub(super) fn asker_deadline(&self) -> Option<Ns> {
        self.askers.deadline().filter(|_| self.life == Life::Open)
    }

    /// Look at the next of them, if it is time.
    pub(super) fn look_at_askers(&mut self, work: &mut Work) {
        let Some(at) = self.asker_deadline() else { return };
        let now = work.cx.set().clock().now();
        if at > now {
            return;
        }
        let ops = &self.ops;
        let goes_on = |unique| ops.iter().flatten().any(|op| op.unique == unique);
        self.askers.watched.retain(|it| goes_on(it.unique));
        let Some(task) = self.askers.begin(now) else { return };
        let query = Query::Whether { ask: self.mount.options().is_killed, of: task };
        work.cx.start_query(query, FUSE.event() | ASKERS | self.place_in_worker());
        // It is not to wait for the next sleep: a thread whose clients keep it busy does not sleep.
        work.cx.submit_ring();
    }

    /// What was asked about one of them is answered. An error is no answer: it is asked again.
    pub(super) fn asker_looked_at(&mut self, result: i32, work: &mut Work) {
        let now = work.cx.set().clock().now();
        let Some(unique) = self.askers.answered(result > 0, now) else { return };
        if let Some(index) = self.op_named(unique) {
            self.end_early(index, work);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_looked_at_in_turn_until_it_is_killed() {
        let mut askers = Askers::new();
        assert_eq!((askers.deadline(), askers.begin(0)), (None, None));
        (1..=3).for_each(|unique| askers.add(unique, 100 + unique as u32));
        askers.add(1, 101);
        for task in [101, 102, 103] {
            assert_eq!((askers.deadline(), askers.begin(5)), (Some(0), Some(task)));
            assert_eq!((askers.deadline(), askers.begin(5)), (None, None), "one at a time");
            assert_eq!(askers.answered(false, 5), None);
        }
        let next = 5 + NEXT_LOOK_NS;
        assert_eq!((askers.deadline(), askers.begin(next - 1)), (Some(next), None));
        assert_eq!(askers.begin(next), Some(101));
        assert_eq!(askers.answered(true, next), Some(1));
        assert_eq!(askers.begin(next), Some(102));
        askers.watched.clear();
        assert_eq!(askers.answered(true, next), None, "it has ended meanwhile");
        assert_eq!((askers.deadline(), askers.is_asking()), (None, false));
    }
}
