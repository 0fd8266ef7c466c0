//! An end of a stop: I/O that does not end (a disk that does not answer) is given up after a while.
//!
//! While somebody has a file of the server open the stop waits for him as long as he likes, for he may be saving what
//! he has; but not while his I/O hangs: that is a standstill, when I/O is in flight and none of any device ends.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use drystone_core::clock::{Clock, Ns};
use drystone_core::threads;

/// How long I/O in flight, the last flush and the last superblocks of arrays may take together, and how long a
/// standstill may: four times as long as a request may before it counts as lost (30 s), since one of each may come after
/// the other.
pub const STOP_LIMIT: Duration = Duration::from_secs(120);

/// How often it is looked whether I/O ends.
const LOOK: Duration = Duration::from_millis(500);

/// The limit of what is done while it lives.
pub struct StopLimit {
    /// Dropped to end the thread.
    _end: Sender<()>,
}

impl StopLimit {
    /// Calls `give_up` from a thread of its own, if this still lives after `limit`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(limit: Duration, give_up: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        Self::wait("stop-limit", move |ended| {
            if ended.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                give_up();
            }
        })
    }

    /// Calls `give_up` from a thread of its own after a standstill of `limit` by `clock`, if this still lives then. `look` tells
    /// how far I/O is.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn of_standstill(
        (limit, clock): (Duration, Arc<dyn Clock>),
        mut look: impl FnMut() -> Progress + Send + 'static,
        give_up: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        Self::wait("standstill", move |ended| {
            let mut standstill = Standstill::default();
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if standstill.lasts(clock.now(), look()) >= limit {
                    return give_up();
                }
            }
        })
    }

    fn wait(name: &str, work: impl FnOnce(Receiver<()>) + Send + 'static) -> io::Result<Self> {
        let (end, ended) = channel();
        threads::start(name, move || work(ended))?;
        Ok(StopLimit { _end: end })
    }
}

/// How far I/O of all devices is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// I/Os that have begun and not ended.
    pub in_flight: u64,
    /// I/Os that have ended so far.
    pub ended: u64,
}

/// Since when I/O is in flight and none ends.
#[derive(Debug, Default)]
struct Standstill {
    ended: u64,
    since: Option<Ns>,
}

impl Standstill {
    /// How long that lasts already, now that so much is seen.
    fn lasts(&mut self, now: Ns, seen: Progress) -> Duration {
        if seen.in_flight == 0 || seen.ended != self.ended {
            self.since = None;
        }
        self.ended = seen.ended;
        if seen.in_flight == 0 {
            return Duration::ZERO;
        }
        let since = *self.since.get_or_insert(now);
        Duration::from_nanos(now.saturating_sub(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    #[test]
    fn what_takes_too_long_is_given_up_and_nothing_else() {
        let (tell, told) = channel();
        let give_up = |word: &'static str| {
            let tell = tell.clone();
            move || tell.send(word).unwrap()
        };
        drop(StopLimit::start(Duration::from_secs(600), give_up("in time")).unwrap());
        let _late = StopLimit::start(Duration::from_millis(1), give_up("late")).unwrap();
        assert_eq!(told.recv_timeout(Duration::from_secs(60)), Ok("late"));
        drop(tell);
        assert!(told.try_recv().is_err(), "it was given up once");
    }

    #[test]
    fn a_standstill_is_in_flight_and_does_not_end() {
        const SECOND: Ns = 1_000_000_000;
        let mut standstill = Standstill::default();
        let mut lasts = |second: Ns, in_flight, ended| {
            standstill.lasts(second * SECOND, Progress { in_flight, ended }).as_secs()
        };
        assert_eq!(lasts(100, 0, 7), 0);
        assert_eq!(lasts(300, 0, 7), 0, "who has a file open and does nothing is no standstill");
        assert_eq!(lasts(301, 2, 7), 0, "I/O begins");
        assert_eq!(lasts(400, 3, 7), 99, "more of it begins, and none ends");
        assert_eq!(lasts(410, 3, 8), 0, "one has ended");
        assert_eq!(lasts(529, 3, 8), 119);
        assert_eq!(lasts(530, 0, 11), 0, "all have");
        assert_eq!(lasts(600, 1, 11), 0);
        assert_eq!(lasts(720, 1, 11), 120);
    }

    /// The thread's looks may come late, never early.
    #[test]
    fn a_standstill_is_given_up_by_the_clock() {
        let (clock, (tell, told)) = (ManualClock::new(1), channel());
        let looks = clock.clone();
        let look = move || {
            looks.advance(40_000_000_000);
            Progress { in_flight: 1, ended: 5 }
        };
        let give_up = {
            let clock = clock.clone();
            move || tell.send(clock.now()).unwrap()
        };
        let limit = (STOP_LIMIT, clock as Arc<dyn Clock>);
        let _limit = StopLimit::of_standstill(limit, look, give_up).unwrap();
        let at = told.recv_timeout(Duration::from_secs(60)).expect("it is given up");
        assert!(at >= 120_000_000_000, "{at}");
    }
}
