//! `delay`: reads, writes and flushes each wait for a configured time before they go on, also to
//! different devices (`dm-delay`).
//!
//! `waiting` counts the waiting I/Os of each class over all contexts. It only serves the status,
//! and is written only when a bio begins or ends to wait.
//!
//! Source: `Documentation/admin-guide/device-mapper/delay.rst`.

use crate::area::Area;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicU64, Ordering::Relaxed};
use drystone_core::{Bio, BioFlags, Op};

const NS_PER_MS: Ns = 1_000_000;

/// The destination and the delay of a class of I/O.
#[derive(Clone)]
pub struct DelayClass {
    /// The place of the segment's first sector.
    pub area: Area,
    /// The time that an I/O waits before it is sent on, in milliseconds; 0 for no wait.
    pub delay_ms: u32,
}

/// The arguments of `delay` in a line of a table. Discards and write zeroes count as writes.
#[derive(Clone)]
pub struct DelaySpec {
    /// For reads, and for classes that are not given.
    pub read: DelayClass,
    /// For writes, and for flushes if those are not given.
    pub write: Option<DelayClass>,
    /// For flushes.
    pub flush: Option<DelayClass>,
}

impl DelaySpec {
    /// The classes of reads, writes and flushes.
    fn each(&self) -> [&DelayClass; CLASSES] {
        let write = self.write.as_ref().unwrap_or(&self.read);
        [&self.read, write, self.flush.as_ref().unwrap_or(write)]
    }

    /// The classes as they were given, without those that were not.
    pub(crate) fn given(&self) -> impl Iterator<Item = &DelayClass> {
        let said = match (&self.write, &self.flush) {
            (_, Some(_)) => CLASSES,
            (Some(_), None) => 2,
            (None, None) => 1,
        };
        self.each().into_iter().take(said)
    }

    /// The arguments as a table has them, each with a space before it.
    pub(crate) fn arguments(&self) -> String {
        let class = |class: &DelayClass| format!("{} {}", class.area.argument(), class.delay_ms);
        self.given().map(class).collect()
    }
}

/// A class of I/O with its own delay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Read = 0,
    Write = 1,
    Flush = 2,
}

pub(crate) const CLASSES: usize = 3;

impl Class {
    pub(crate) const EACH: [Class; CLASSES] = [Class::Read, Class::Write, Class::Flush];

    pub(crate) fn of(bio: &Bio) -> Self {
        debug_assert!(!bio.flags.contains(BioFlags::PREFLUSH), "flushes go before, by themselves");
        match bio.op {
            Op::Flush => Class::Flush,
            op if op.is_write() => Class::Write,
            _ => Class::Read,
        }
    }
}

/// A class in the form that the I/O path uses.
struct Lane {
    member: u32,
    /// The number that is added to a sector of the volume, modulo 2^64.
    add: u64,
    delay_ns: Ns,
    waiting: AtomicU64,
}

/// A `delay` segment.
pub(crate) struct Delay {
    lanes: [Lane; CLASSES],
}

impl Delay {
    /// The segment that begins at sector `start`; `member` returns the number of an area's device.
    pub(crate) fn new(spec: &DelaySpec, start: u64, mut member: impl FnMut(&Area) -> u32) -> Self {
        let lanes = spec.each().map(|class| Lane {
            member: member(&class.area),
            add: class.area.sector.wrapping_sub(start),
            delay_ns: Ns::from(class.delay_ms) * NS_PER_MS,
            waiting: AtomicU64::new(0),
        });
        Delay { lanes }
    }

    /// A segment whose classes wait `ns` each, for tests.
    #[cfg(test)]
    pub(crate) fn of_ns(ns: [Ns; CLASSES]) -> Self {
        let lane = |delay_ns| Lane { member: 0, add: 0, delay_ns, waiting: AtomicU64::new(0) };
        Delay { lanes: ns.map(lane) }
    }

    /// The destination of a class: the member, and the number that is added to a sector, modulo
    /// 2^64.
    pub(crate) fn place(&self, class: Class) -> (u32, u64) {
        let lane = &self.lanes[class as usize];
        (lane.member, lane.add)
    }

    /// The time that the I/O of a class waits.
    pub(crate) fn delay_ns(&self, class: Class) -> Ns {
        self.lanes[class as usize].delay_ns
    }

    /// Count an I/O of a class that begins to wait.
    pub(crate) fn begin(&self, class: Class) {
        self.lanes[class as usize].waiting.fetch_add(1, Relaxed);
    }

    /// Count an I/O of a class that ends to wait.
    pub(crate) fn end(&self, class: Class) {
        self.lanes[class as usize].waiting.fetch_sub(1, Relaxed);
    }

    /// The words of `dmsetup status`: how many reads, writes and flushes wait now.
    pub(crate) fn status(&self) -> String {
        self.lanes.iter().map(|lane| format!(" {}", lane.waiting.load(Relaxed))).collect()
    }
}
