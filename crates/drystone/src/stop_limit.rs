//! An end of a stop: I/O that does not end (a disk that does not answer) is given up after a while.
//!
//! While somebody has a file of the server open the stop waits for him as long as he likes, for he may be saving what
//! he has; but not while his I/O hangs: that is a standstill, when I/O is in flight and none of any device ends. A flush may
//! take long, for the host writes all that its page cache has of the file before it ends, and whoever unmounts a
//! file system waits for just that. While writes wait for room nothing is given up: somebody has to make room.

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

/// How long a standstill may take with a flush in it: in that time a disk that writes 20 MB/s writes 12 GB.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(600);

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

    /// Calls `give_up` from a thread of its own after a standstill of [`STOP_LIMIT`] by `clock`, or of [`FLUSH_LIMIT`] with a
    /// flush in it, if this still lives then; with how long it may last. `look` tells how far I/O is.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn of_standstill(
        clock: Arc<dyn Clock>,
        mut look: impl FnMut() -> Progress + Send + 'static,
        give_up: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        Self::wait("standstill", move |ended| {
            let mut standstill = Standstill::default();
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(limit) = standstill.exceeds(clock.now(), look()) {
                    return give_up(limit);
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
    /// Those of them that are flushes.
    pub flushes_in_flight: u64,
    /// I/Os that have ended so far.
    pub ended: u64,
    /// Writes wait until somebody makes room on a full disk.
    pub waits_for_room: bool,
}

/// Since when I/O is in flight and none ends.
#[derive(Debug, Default)]
struct Standstill {
    ended: u64,
    since: Option<Ns>,
}

impl Standstill {
    /// The limit, if it has lasted that long now that so much is seen.
    fn exceeds(&mut self, now: Ns, seen: Progress) -> Option<Duration> {
        if seen.in_flight == 0 || seen.waits_for_room || seen.ended != self.ended {
            self.since = None;
        }
        self.ended = seen.ended;
        if seen.in_flight == 0 || seen.waits_for_room {
            return None;
        }
        let since = *self.since.get_or_insert(now);
        let limit = if seen.flushes_in_flight > 0 { FLUSH_LIMIT } else { STOP_LIMIT };
        (Duration::from_nanos(now.saturating_sub(since)) >= limit).then_some(limit)
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

    const SECOND: Ns = 1_000_000_000;

    /// The limit that a standstill exceeds, in seconds, at times when so much is seen.
    fn exceeded(seen: &[(Ns, Progress)]) -> Vec<Option<u64>> {
        let mut standstill = Standstill::default();
        let exceeds = |(second, seen): &(Ns, Progress)| standstill.exceeds(second * SECOND, *seen);
        seen.iter().map(exceeds).map(|limit| limit.map(|limit| limit.as_secs())).collect()
    }

    #[test]
    fn a_standstill_is_in_flight_and_does_not_end() {
        let seen = |in_flight, ended| Progress { in_flight, ended, ..Progress::default() };
        // Who has a file open and does nothing is no standstill.
        let idle = [(100, seen(0, 7)), (300, seen(0, 7))];
        assert_eq!(exceeded(&idle), [None; 2]);
        // More of it begins, and none ends; one has ended; none does again.
        let slow = [(301, 2, 7), (420, 3, 7), (421, 3, 8), (540, 4, 8), (541, 4, 8)];
        let slow = slow.map(|(at, in_flight, ended)| (at, seen(in_flight, ended)));
        assert_eq!(exceeded(&slow), [None, None, None, None, Some(120)]);
        // All have ended in between.
        let in_turn =
            [(529, seen(3, 8)), (530, seen(0, 11)), (600, seen(1, 11)), (719, seen(1, 11))];
        assert_eq!(exceeded(&in_turn), [None; 4]);
    }

    #[test]
    fn a_flush_may_take_longer() {
        let seen = |flushes_in_flight, ended| Progress {
            in_flight: 3,
            flushes_in_flight,
            ended,
            waits_for_room: false,
        };
        let one = [(10, seen(1, 7)), (131, seen(1, 7)), (609, seen(1, 7)), (610, seen(1, 7))];
        assert_eq!(exceeded(&one), [None, None, None, Some(600)]);
        // It has ended, and the rest has its own time from then on.
        let rest = [(10, seen(1, 7)), (500, seen(0, 8)), (619, seen(0, 8)), (620, seen(0, 8))];
        assert_eq!(exceeded(&rest), [None, None, None, Some(120)]);
    }

    #[test]
    fn nothing_that_waits_for_room_is_given_up() {
        let seen = |waits_for_room| Progress {
            in_flight: 3,
            flushes_in_flight: 1,
            ended: 7,
            waits_for_room,
        };
        // Once there is room again it has its time from then on.
        let full = [(10, true), (10_000, true), (10_001, false), (10_600, false), (10_601, false)];
        let full = full.map(|(at, waits)| (at, seen(waits)));
        assert_eq!(exceeded(&full), [None, None, None, None, Some(600)]);
    }

    /// The second at which it is given up, and the limit; the thread looks every 150 s by a clock set by hand, so its looks may
    /// come late, never early.
    fn given_up_at(flushes_in_flight: u64) -> (Ns, u64) {
        let (clock, (tell, told)) = (ManualClock::new(0), channel());
        let looks = clock.clone();
        let look = move || {
            looks.advance(150 * SECOND);
            Progress { in_flight: 1, flushes_in_flight, ended: 5, waits_for_room: false }
        };
        let give_up = {
            let clock = clock.clone();
            move |limit: Duration| tell.send((clock.now() / SECOND, limit.as_secs())).unwrap()
        };
        let _limit = StopLimit::of_standstill(clock, look, give_up).unwrap();
        told.recv_timeout(Duration::from_secs(60)).expect("it is given up")
    }

    #[test]
    fn a_standstill_is_given_up_by_the_clock() {
        let ((plain, limit), (flush, flush_limit)) = (given_up_at(0), given_up_at(1));
        assert_eq!((limit, flush_limit), (120, 600));
        assert!(plain >= 120 && flush >= 600, "{plain} s, with a flush {flush} s");
    }
}
