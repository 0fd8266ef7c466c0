//! An end of a stop: I/O that does not end (a disk that does not answer) is given up after a while.
//!
//! While somebody has a file of the server open the stop waits for him as long as he likes, for he
//! may be saving what he has; but not while his I/O hangs: that is a standstill, when I/O is in
//! flight and none of any device ends. A flush may take long, for the host writes all that its page
//! cache has of the file before it ends, and a program that unmounts a file system waits for just
//! that. Once no file is open any more all that is left has a limit, a last flush one of its own.
//! While writes wait for room nothing is given up: somebody has to make room.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use drystone_core::clock::{Clock, Ns};
use drystone_core::threads;

/// The time that I/O in flight and the last superblocks of arrays may take together once no file is
/// open any more, and how long a standstill may: four times as long as a request may before it
/// counts as lost (30 s), since one of each may come after the other.
pub const STOP_LIMIT: Duration = Duration::from_secs(120);

/// The time that a standstill may take with a flush in it, and how long there may be flushes once
/// no file is open any more: in that time a disk that writes 20 MB/s writes 12 GB.
pub const FLUSH_LIMIT: Duration = Duration::from_secs(600);

/// The pause between two checks whether I/O ends.
const LOOK: Duration = Duration::from_millis(500);

/// The limit of what is done while it lives.
pub struct StopLimit {
    /// Dropped to end the thread.
    _end: Sender<()>,
}

impl StopLimit {
    /// Calls `give_up` from a thread of its own once this has lived for [`STOP_LIMIT`] by `clock`
    /// without a flush in flight, or for [`FLUSH_LIMIT`] with one; with which of them it was.
    /// `look` tells how far I/O is.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn of_end(
        clock: Arc<dyn Clock>,
        look: impl FnMut() -> Progress + Send + 'static,
        give_up: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let mut spent = Spent::since(clock.now());
        Self::look("stop-limit", clock, look, move |now, seen| spent.exceeds(now, seen), give_up)
    }

    /// Calls `give_up` from a thread of its own after a standstill of [`STOP_LIMIT`] by `clock`, or
    /// of [`FLUSH_LIMIT`] with a flush in it, if this still lives then; with how long it may last.
    /// `look` tells how far I/O is.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn of_standstill(
        clock: Arc<dyn Clock>,
        look: impl FnMut() -> Progress + Send + 'static,
        give_up: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let mut standstill = Standstill::default();
        Self::look(
            "standstill",
            clock,
            look,
            move |now, seen| standstill.exceeds(now, seen),
            give_up,
        )
    }

    /// Looks now and then, and gives up with the limit that is exceeded.
    fn look(
        name: &str,
        clock: Arc<dyn Clock>,
        mut look: impl FnMut() -> Progress + Send + 'static,
        mut exceeds: impl FnMut(Ns, Progress) -> Option<Duration> + Send + 'static,
        give_up: impl FnOnce(Duration) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = channel::<()>();
        threads::start(name, move || {
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(limit) = exceeds(clock.now(), look()) {
                    return give_up(limit);
                }
            }
        })?;
        Ok(StopLimit { _end: end })
    }
}

/// The progress of the I/O of all devices.
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

/// The time that the end of a stop has taken, with a flush in flight and without.
#[derive(Debug)]
struct Spent {
    until: Ns,
    flushing: Ns,
    otherwise: Ns,
}

impl Spent {
    fn since(now: Ns) -> Self {
        Spent { until: now, flushing: 0, otherwise: 0 }
    }

    /// The limit, if it has taken that long now that so much is seen.
    fn exceeds(&mut self, now: Ns, seen: Progress) -> Option<Duration> {
        let more = now.saturating_sub(std::mem::replace(&mut self.until, now));
        if seen.waits_for_room {
            return None;
        }
        let (spent, limit) = match seen.flushes_in_flight {
            0 => (&mut self.otherwise, STOP_LIMIT),
            _ => (&mut self.flushing, FLUSH_LIMIT),
        };
        *spent += more;
        (Duration::from_nanos(*spent) >= limit).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

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
        // A client that has a file open and does nothing is no standstill.
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

    #[test]
    fn the_end_of_a_stop_has_its_time_and_a_flush_its_own() {
        let limits = |seen: &[(Ns, u64, bool)]| -> Vec<Option<u64>> {
            let mut spent = Spent::since(100 * SECOND);
            let exceeds = |(second, flushes_in_flight, waits_for_room): &(Ns, u64, bool)| {
                let seen = Progress {
                    in_flight: 3,
                    flushes_in_flight: *flushes_in_flight,
                    // Some I/O always ends: that is no reason to wait for ever.
                    ended: *second,
                    waits_for_room: *waits_for_room,
                };
                spent.exceeds(second * SECOND, seen).map(|limit| limit.as_secs())
            };
            seen.iter().map(exceeds).collect()
        };
        assert_eq!(limits(&[(219, 0, false), (220, 0, false)]), [None, Some(120)]);
        let slow_flush = [(110, 0, false), (699, 1, false), (808, 0, false), (809, 0, false)];
        assert_eq!(limits(&slow_flush), [None, None, None, Some(120)]);
        assert_eq!(limits(&[(699, 1, false), (700, 1, false)]), [None, Some(600)]);
        let flush_before = [(110, 0, false), (600, 1, false), (710, 0, false)];
        assert_eq!(limits(&flush_before), [None, None, Some(120)]);
        let full = [(200, 0, false), (9000, 0, true), (9019, 0, false), (9020, 0, false)];
        assert_eq!(limits(&full), [None, None, None, Some(120)]);
    }

    /// The second at which it is given up, and the limit; the thread looks every 150 s by a clock
    /// set by hand, so its looks may come late, never early.
    fn given_up_at(flushes_in_flight: u64, is_end: bool) -> (Ns, u64) {
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
        let _limit = match is_end {
            true => StopLimit::of_end(clock, look, give_up),
            false => StopLimit::of_standstill(clock, look, give_up),
        };
        told.recv_timeout(Duration::from_secs(60)).expect("it is given up")
    }

    #[test]
    fn it_is_given_up_by_the_clock() {
        for is_end in [false, true] {
            let ((plain, limit), (flush, flush_limit)) =
                (given_up_at(0, is_end), given_up_at(1, is_end));
            assert_eq!((limit, flush_limit), (120, 600));
            assert!(plain >= 120 && flush >= 600, "{plain} s, with a flush {flush} s");
        }
    }

    #[test]
    fn nothing_is_given_up_that_ends_in_time() {
        let (clock, (tell, told)) = (ManualClock::new(0), channel::<()>());
        let look = || Progress { in_flight: 1, ..Progress::default() };
        drop(StopLimit::of_end(clock, look, move |_| tell.send(()).unwrap()).unwrap());
        let ended = told.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "its thread has ended");
    }
}
