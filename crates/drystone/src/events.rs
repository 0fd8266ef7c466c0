//! Tells the operator what happens while a stack is served: a line on standard error for each
//! event, with its time.
//!
//! Invariant: only the thread here waits for the reader of standard error.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use drystone_core::clock::{Clock, Ns};
use drystone_core::threads;
use drystone_stack::events::Event;
use drystone_stack::live::EventReader;

use crate::output;

/// The pause between two reads of events: a line comes late by this at most.
const PAUSE: Duration = Duration::from_millis(500);

/// Tells events until it is dropped, and then what is left.
pub struct Teller {
    /// Dropped to end the thread.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Teller {
    /// Begins to tell what `reader` reads, whose events have their times by `clock`.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(reader: EventReader, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let (end, ended) = channel();
        let tell = move || tell(reader, &*clock, &ended);
        let thread = threads::start("events", tell)?;
        Ok(Teller { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        self.end.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn tell(mut reader: EventReader, clock: &dyn Clock, ended: &Receiver<()>) {
    let write = |events: Vec<Event>| {
        events.iter().for_each(|event| output::tell(&line(event, clock.now(), SystemTime::now())));
    };
    write(reader.take());
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(PAUSE) {
        write(reader.take());
    }
    write(reader.take_all());
}

/// The line of an event, told while the event's clock and the system's show these.
fn line(event: &Event, now: Ns, wall: SystemTime) -> String {
    let age = Duration::from_nanos(now.saturating_sub(event.at));
    let at = wall.checked_sub(age).unwrap_or(wall);
    let since = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    format!("{} drystone: {event}", utc(since))
}

/// Seconds since 1970 as ISO 8601 has them, in UTC: `2026-11-25T01:44:30Z`.
fn utc(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last of its year; 400 of them have
    // 146097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let year = 400 * era + year + next;
    let (hours, minutes) = (rest / 3600, rest / 60 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{:02}Z", rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_stack::events::What;

    #[test]
    fn times_are_those_of_date_u() {
        // As `date -u -d @SECONDS +%FT%TZ` has them.
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_795_571_070, "2026-11-25T01:44:30Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_line_has_the_time_of_its_event() {
        let event = Event { at: 1_000_000_000, subject: String::new(), what: What::Dropped(3) };
        let wall = UNIX_EPOCH + Duration::from_secs(1_795_571_075);
        let line = line(&event, 6_000_000_000, wall);
        assert_eq!(line, "2026-11-25T01:44:30Z drystone: 3 events came too fast to be told");
    }
}
