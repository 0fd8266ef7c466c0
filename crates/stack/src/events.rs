//! Typed events of a running stack, for its operator
//!
//! Invariants:
//! * A publisher waits only for other publishers: the queue holds `EVENTS_MAX` events, and further
//!   ones are only counted.
//! * Failed I/O publishes no event. It is noted where it ends ([`drystone_core::failures`]), and
//!   the reader collects the notes.
//! * An event that may repeat is reported at once, then at growing intervals. Repeats in between
//!   are counted, so none is lost.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use drystone_core::clock::{Clock, Ns};
use drystone_core::failures::Noted;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_raid::array::ArrayEvent;

/// Events that wait to be read, at most: an array of 30 members that all fail makes some 100.
const EVENTS_MAX: usize = 1024;

/// A fault of a device that lasts until it is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// A flush failed: none succeeds any more.
    FlushFailed,
    /// Its file became shorter than the device: all I/O fails.
    CutShort,
}

impl Lasting {
    /// The faults of a device. `attribute` gives the value of its attribute of a name.
    pub fn of(attribute: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let is_set = |name| attribute(name).is_some_and(|value| value.trim() == "1");
        if is_set("cut_short") {
            return Some(Lasting::CutShort);
        }
        is_set("flush_failed").then_some(Lasting::FlushFailed)
    }
}

/// A sentence without its full stop.
impl fmt::Display for Lasting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Lasting::FlushFailed => {
                "a flush failed, and what was written before may be lost: none succeeds until the \
                 file is opened again (`drystone reopen`)"
            }
            Lasting::CutShort => {
                "its file became shorter than the device: all I/O fails until it is opened again \
                 (`drystone reopen`)"
            }
        })
    }
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An event of the array.
    Array(ArrayEvent),
    /// I/O of the device failed.
    Failures {
        /// The notes.
        noted: Noted,
        /// The fault that stays until the device is opened again.
        lasting: Option<Lasting>,
    },
    /// Clients of the export were told that I/O failed.
    ClientFailures(Noted),
    /// So many events were dropped because the queue was full.
    Dropped(u64),
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its time on the stack's clock; for failures, the time of their collection.
    pub at: Ns,
    /// The array, device or export.
    pub subject: String,
    /// The event itself.
    pub what: What,
}

/// A sentence without its full stop.
impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Event { subject, what, .. } = self;
        match what {
            What::Array(event) => write!(f, "array `{subject}`: {event}"),
            What::Failures { noted, lasting } => {
                write!(f, "device `{subject}`: ")?;
                failures(noted, f)?;
                lasting.map_or(Ok(()), |lasting| write!(f, "; {lasting}"))
            }
            What::ClientFailures(noted) => {
                write!(f, "export `{subject}`: clients were told that ")?;
                failures(noted, f)
            }
            What::Dropped(count) => write!(f, "{count} events came too fast to be told"),
        }
    }
}

fn failures(noted: &Noted, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match (&noted.first, noted.more) {
        (Some(first), 0) => write!(f, "{first}"),
        (Some(first), more) => write!(f, "{first} (and {more} more)"),
        (None, more) => write!(f, "I/O failed {more} more times"),
    }
}

impl Event {
    /// The key of an event that may repeat; `None` for other events.
    pub(crate) fn repeats(&self) -> Option<String> {
        match &self.what {
            What::Array(event) => {
                event.repeats().map(|member| format!("{} {member}", self.subject))
            }
            _ => None,
        }
    }

    /// Merge `other` into this event if it repeats it. True if merged.
    pub(crate) fn absorb(&mut self, other: &Event) -> bool {
        match (&mut self.what, &other.what) {
            (What::Array(event), What::Array(other_event)) => {
                self.subject == other.subject && event.absorb(other_event)
            }
            _ => false,
        }
    }
}

/// The queue of published events. Shared by all threads; not for the data path.
pub struct Events {
    queue: Lock<Queue>,
    /// Counters of the lock; written only while the lock is held.
    locks: Arc<LockCounters>,
    clock: Arc<dyn Clock>,
}

#[derive(Default)]
struct Queue {
    events: VecDeque<Event>,
    dropped: u64,
}

impl Events {
    /// An empty queue. `locks` must be used for nothing else.
    pub fn new(clock: Arc<dyn Clock>, locks: Arc<LockCounters>) -> Arc<Self> {
        let queue = Lock::new(LockClass::Control, Queue::default());
        Arc::new(Events { queue, locks, clock })
    }

    /// Publish an event of `subject`, with the present time.
    pub fn publish(&self, subject: &str, what: What) {
        let event = Event { at: self.clock.now(), subject: subject.to_owned(), what };
        let mut queue = self.queue.lock(&self.locks);
        let is_known = event.repeats().is_some()
            && queue.events.iter_mut().any(|earlier| earlier.absorb(&event));
        match queue.events.len() {
            _ if is_known => {}
            EVENTS_MAX.. => queue.dropped += 1,
            _ => queue.events.push_back(event),
        }
    }

    /// Events that were published since the last call, the oldest first.
    pub(crate) fn take(&self) -> Vec<Event> {
        let mut queue = self.queue.lock(&self.locks);
        let (mut events, dropped) =
            (Vec::from(std::mem::take(&mut queue.events)), std::mem::take(&mut queue.dropped));
        if dropped > 0 {
            let at = self.clock.now();
            events.push(Event { at, subject: String::new(), what: What::Dropped(dropped) });
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    fn events() -> (Arc<ManualClock>, Arc<Events>) {
        let clock = ManualClock::new(1);
        let locks = LockCounters::new(clock.clone() as Arc<dyn Clock>);
        (clock.clone(), Events::new(clock as Arc<dyn Clock>, locks))
    }

    fn bad_block(member: &str) -> What {
        let member = member.into();
        What::Array(ArrayEvent::BadBlocks { member, byte: 4096, is_write: true, more: 0 })
    }

    #[test]
    fn the_queue_is_bounded_and_says_what_it_dropped() {
        let (_, events) = events();
        (0..EVENTS_MAX + 7).for_each(|n| {
            events.publish("md0", What::Array(ArrayEvent::NoRoom(format!("d{n}").into())));
        });
        let taken = events.take();
        assert_eq!(taken.len(), EVENTS_MAX + 1);
        assert_eq!(taken[0].to_string(), "array `md0`: `d0` has no room: writes wait until it has");
        assert_eq!(taken[EVENTS_MAX].to_string(), "7 events came too fast to be told");
        assert!(events.take().is_empty());
    }

    #[test]
    fn what_repeats_takes_one_place() {
        let (clock, events) = events();
        for n in 0..2000 {
            events.publish("md0", bad_block(if n % 2 == 0 { "d0" } else { "d1" }));
            clock.advance(1);
        }
        let lines: Vec<String> = events.take().iter().map(Event::to_string).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.iter().all(|line| line.ends_with("(and 999 more)")), "{lines:?}");
    }
}
