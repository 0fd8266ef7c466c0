//! Input and output of the simulation: loads, costs, figures.

use crate::dm_poll::scene::TAIL;
use crate::model::design::Ps;

/// Lines that move from an I/O's owner to its finder on another core, and back: the message, and
/// the head of the inbox.
pub const FOREIGN_LINES: u64 = 2;

/// The way in which threads learn of ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The device's core tells them, and wakes them if they sleep.
    Interrupt,
    /// They look; a queue that another looks at is skipped or waited for.
    Poll { skips: bool },
}

/// Costs of an I/O on a core of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IoCosts {
    /// All of an I/O but the looks at queues, polled; and all of it by interrupt.
    pub submit_ps: Ps,
    pub interrupt_ps: Ps,
    /// A look that finds nothing: before the lock, and with it.
    pub look_ps: Ps,
    pub hold_ps: Ps,
    /// Cost that each I/O that is found adds: after the lock, and with it.
    pub found_ps: Ps,
    pub found_hold_ps: Ps,
    /// A device's core takes a request in and tells its thread, which is awake, of the end, lines
    /// included; a finder of another's I/O tells without.
    pub tell_ps: Ps,
    pub send_ps: Ps,
    /// Falling asleep; for the device's core, waking.
    pub sleep_ps: Ps,
    pub waker_ps: Ps,
}

/// The load, and the devices below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub way: Way,
    pub depth: usize,
    /// An I/O has a part on each member, instead of one on any.
    pub striped: bool,
    /// Poll queues of each member; thread `n` has number `n` modulo these.
    pub queues: usize,
    /// Time that half of the requests take.
    pub latency_ps: Ps,
    /// Cores that keep the members' time, of which thread `n` has number `n` modulo these; and the
    /// share of each that is had.
    pub devices: usize,
    pub devices_had: f64,
}

/// Figures of a simulation. `per_io` counts are of the time after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Figures {
    pub iops: f64,
    pub polls_per_io: f64,
    pub fruitful_per_io: f64,
    pub skipped_per_io: f64,
    /// Times a busy queue was waited for.
    pub waits_per_io: f64,
    /// Time of these waits over threads times time.
    pub contention: f64,
    /// I/Os found by other threads than their own.
    pub foreign_per_io: f64,
    pub sleeps_per_io: f64,
    /// The busiest device's core: time it told over time.
    pub device_busy: f64,
    /// From the start: I/Os begun, ended, and in flight.
    pub begun: u64,
    pub done: u64,
    pub open: u64,
}

/// The factor by which the request at `share` of all takes longer than half of them.
pub fn times_as_long(share: f64) -> f64 {
    let (mut from, mut least) = (TAIL[0].0, TAIL[0].1);
    for (to, most) in TAIL {
        if share <= to {
            let part = if to > from { ((share - from) / (to - from)).max(0.0) } else { 0.0 };
            return (f64::from(least) + f64::from(most - least) * part) / 10.0;
        }
        (from, least) = (to, most);
    }
    f64::from(least) / 10.0
}
