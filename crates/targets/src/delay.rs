//! `delay`: reads, writes and flushes wait for a time of their own before they go on, perhaps to
//! different devices (`dm-delay`).
//!
//! `waiting` counts what a class keeps in all contexts. Nothing rests on it, and it is written only
//! when a bio begins or ends to wait.
//!
//! Source: `Documentation/admin-guide/device-mapper/delay.rst`.

use crate::area::Area;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicU64, Ordering::Relaxed};
use drystone_core::{Bio, BioFlags, Op};

const NS_PER_MS: Ns = 1_000_000;

/// Where the I/O of a class goes, and when.
#[derive(Clone)]
pub struct DelayClass {
    /// Where the segment's first sector is.
    pub area: Area,
    /// The time that an I/O waits before it is sent on, in milliseconds; 0 is not at all.
    pub delay_ms: u32,
}

/// The arguments of `delay` in a line of a table. Discards and write zeroes count as writes.
#[derive(Clone)]
pub struct DelaySpec {
    /// Of reads, and of all that nothing else is said of.
    pub read: DelayClass,
    /// Of writes and, if nothing is said of them, flushes.
    pub write: Option<DelayClass>,
    /// Of flushes.
    pub flush: Option<DelayClass>,
}

impl DelaySpec {
    /// The classes of reads, writes and flushes.
    fn each(&self) -> [&DelayClass; CLASSES] {
        let write = self.write.as_ref().unwrap_or(&self.read);
        [&self.read, write, self.flush.as_ref().unwrap_or(write)]
    }

    /// As it was given: the same without what is not said.
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

/// A kind of I/O that is delayed alike.
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

/// A class as the way of an I/O needs it.
struct Lane {
    member: u32,
    /// The distance that is added to a sector of the volume, modulo 2^64.
    add: u64,
    delay_ns: Ns,
    waiting: AtomicU64,
}

/// A `delay` segment.
pub(crate) struct Delay {
    lanes: [Lane; CLASSES],
}

impl Delay {
    /// The segment that begins with sector `start`; `member` numbers devices.
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

    /// Where the I/O of a class goes: the member, and what is added to a sector, modulo 2^64.
    pub(crate) fn place(&self, class: Class) -> (u32, u64) {
        let lane = &self.lanes[class as usize];
        (lane.member, lane.add)
    }

    /// The time that the I/O of a class waits.
    pub(crate) fn delay_ns(&self, class: Class) -> Ns {
        self.lanes[class as usize].delay_ns
    }

    /// An I/O of a class waits.
    pub(crate) fn begin(&self, class: Class) {
        self.lanes[class as usize].waiting.fetch_add(1, Relaxed);
    }

    /// It waits no longer.
    pub(crate) fn end(&self, class: Class) {
        self.lanes[class as usize].waiting.fetch_sub(1, Relaxed);
    }

    /// The words of `dmsetup status`: how many reads, writes and flushes wait now.
    pub(crate) fn status(&self) -> String {
        self.lanes.iter().map(|lane| format!(" {}", lane.waiting.load(Relaxed))).collect()
    }
}
