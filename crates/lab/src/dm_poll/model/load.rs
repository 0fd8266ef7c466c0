//! Input and output of the simulation: loads, costs, figures.

use crate::dm_poll::scene::TAIL;
use crate::model::design::Ps;

/// Lines that move from an I/O's owner to its finder on another core, and back: the message, and
/// the head of the inbox.
pub const FOREIGN_LINES: u64 = 2;

/// The way in which threads learn that I/Os have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The device's core notifies them, and wakes them if they sleep.
    Interrupt,
    /// They poll, and skip a queue that another thread polls, or wait for it.
    Poll { skips: bool },
}

/// Costs of an I/O on a core of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IoCosts {
    /// The whole cost of an I/O: without the polls of queues if polled, with everything if by
    /// interrupt.
    pub submit_ps: Ps,
    pub interrupt_ps: Ps,
    /// A poll that finds nothing: before the lock, and with it.
    pub look_ps: Ps,
    pub hold_ps: Ps,
    /// Cost that each I/O that is found adds: after the lock, and with it.
    pub found_ps: Ps,
    pub found_hold_ps: Ps,
    /// The device's core takes in a request and notifies its thread, which is awake, of the end,
    /// cache lines included. The finder of another thread's I/O notifies without lines.
    pub tell_ps: Ps,
    pub send_ps: Ps,
    /// The cost of falling asleep; for the device's core, that of waking a thread.
    pub sleep_ps: Ps,
    pub waker_ps: Ps,
}

/// The load, and the devices below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    pub way: Way,
    pub depth: usize,
    /// True if an I/O has a part on each member, instead of one on a random member.
    pub striped: bool,
    /// Poll queues of each member; thread `n` has number `n` modulo these.
    pub queues: usize,
    /// Time that half of the requests take.
    pub latency_ps: Ps,
    /// The cores that keep the members' time; thread `n` has number `n` modulo their number. And
    /// the share of each core that the machine gives.
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
    /// The number of waits for a busy queue.
    pub waits_per_io: f64,
    /// The time of these waits over threads times time.
    pub contention: f64,
    /// I/Os found by other threads than their own.
    pub foreign_per_io: f64,
    pub sleeps_per_io: f64,
    /// The busiest device core: its time of notifications over all time.
    pub device_busy: f64,
    /// From the start: I/Os begun, ended, and in flight.
    pub begun: u64,
    pub done: u64,
    pub open: u64,
}

/// The factor between the latency of the request at `share` of all and the median.
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
