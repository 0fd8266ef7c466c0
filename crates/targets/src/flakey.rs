//! `flakey`: a device that alternates between working for some seconds and misbehaving for some
//! (`dm-flakey`).
//!
//! Whether the device is up depends on the clock alone, in whole seconds from the time at which the
//! table was made. The time at which a bio is sent on decides: a read that was sent while the
//! device was down is corrupted on its return, even if the device is up again by then. A flush
//! counts as a write without data.
//!
//! Source: `Documentation/admin-guide/device-mapper/dm-flakey.rst`.

use crate::area::Area;
use drystone_core::Op;
use drystone_core::clock::Ns;
use std::fmt::Write;

const NS_PER_S: Ns = 1_000_000_000;

/// The arguments of `flakey` in a line of a table.
#[derive(Clone)]
pub struct FlakeySpec {
    /// The place of the segment's first sector.
    pub area: Area,
    /// Seconds for which the device works.
    pub up_seconds: u32,
    /// Seconds for which it then misbehaves; the sum of both is at least 1.
    pub down_seconds: u32,
    /// Its misbehaviour while it is down.
    pub faults: Faults,
    /// The time of the contexts' clock when the table was made.
    pub since_ns: Ns,
    /// The seed of the random numbers; each context and segment derives its own sequence from it.
    pub seed: u64,
}

/// The faults of the device while it is down. Without any fault all I/O fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Reads fail.
    pub error_reads: bool,
    /// What happens to writes, flushes, discards and write zeroes.
    pub writes: Writes,
    /// This byte of the data is replaced.
    pub corrupt_byte: Option<CorruptByte>,
    /// So many of a billion reads get a random byte at a random offset.
    pub random_read_corrupt: u32,
    /// The same for writes.
    pub random_write_corrupt: u32,
}

/// What happens to writes while a device is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Writes {
    /// They reach the device.
    #[default]
    Pass,
    /// They succeed and have no effect.
    Drop,
    /// They fail.
    Fail,
}

/// The byte in the data of each bio that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorruptByte {
    /// The position of the byte, from 1. Shorter bios are not changed.
    pub nth: u32,
    /// True to change data that is written, false to change data that is read.
    pub in_writes: bool,
    /// Its new value.
    pub value: u8,
}

impl Faults {
    /// A probability of 1, in parts per billion.
    pub const CERTAIN: u32 = 1_000_000_000;

    /// The choices that exclude one another, if there are any, as the beginning of a sentence.
    pub fn conflict(&self) -> Option<&'static str> {
        let corrupts_byte = self.corrupt_byte.is_some_and(|byte| byte.in_writes);
        match self.writes {
            Writes::Drop if corrupts_byte => {
                Some("drop_writes leaves nothing to corrupt: use corrupt_bio_byte with r")
            }
            Writes::Fail if corrupts_byte => {
                Some("error_writes leaves nothing to corrupt: use corrupt_bio_byte with r")
            }
            _ => None,
        }
    }

    /// These faults, or the failure of all I/O if there are none.
    fn or_all(self) -> Self {
        match self == Faults::default() {
            true => Faults { error_reads: true, writes: Writes::Fail, ..self },
            false => self,
        }
    }

    /// The features in table syntax: the number of words, then the words.
    fn arguments(&self) -> String {
        let mut text = String::new();
        if self.error_reads {
            text.push_str(" error_reads");
        }
        match self.writes {
            Writes::Pass => {}
            Writes::Drop => text.push_str(" drop_writes"),
            Writes::Fail => text.push_str(" error_writes"),
        }
        if let Some(CorruptByte { nth, in_writes, value }) = self.corrupt_byte {
            let direction = if in_writes { 'w' } else { 'r' };
            let _ = write!(text, " corrupt_bio_byte {nth} {direction} {value} 0");
        }
        let random = [("read", self.random_read_corrupt), ("write", self.random_write_corrupt)];
        for (what, parts) in random.into_iter().filter(|(_, parts)| *parts > 0) {
            let _ = write!(text, " random_{what}_corrupt {parts}");
        }
        format!(" {}{text}", text.split_whitespace().count())
    }

    fn corrupts_reads(&self) -> bool {
        self.corrupt_byte.is_some_and(|byte| !byte.in_writes) || self.random_read_corrupt > 0
    }

    fn corrupts_writes(&self) -> bool {
        self.corrupt_byte.is_some_and(|byte| byte.in_writes) || self.random_write_corrupt > 0
    }
}

impl FlakeySpec {
    /// The fault of the arguments, if there is one.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.up_seconds == 0 && self.down_seconds == 0 {
            return Err("flakey for 0 seconds up and 0 down: at least 1 is needed".to_owned());
        }
        if self.up_seconds.checked_add(self.down_seconds).is_none() {
            return Err(format!("flakey's times come to more than {} seconds", u32::MAX));
        }
        if self.faults.corrupt_byte.is_some_and(|byte| byte.nth == 0) {
            return Err("corrupt_bio_byte 0: the first byte is 1".to_owned());
        }
        let most = self.faults.random_read_corrupt.max(self.faults.random_write_corrupt);
        if most > Faults::CERTAIN {
            return Err(format!("a probability of {most}: at most {}", Faults::CERTAIN));
        }
        self.faults.conflict().map_or(Ok(()), |conflict| Err(conflict.to_owned()))
    }

    /// The arguments as a table has them, each with a space before it.
    pub(crate) fn arguments(&self) -> String {
        let place = self.area.argument();
        let faults = self.faults.or_all().arguments();
        format!("{place} {} {}{faults}", self.up_seconds, self.down_seconds)
    }
}

/// What happens to a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Pass,
    /// It goes on, and its data may be changed ([`Flakey::changes`]).
    Corrupt,
    /// It succeeds without reaching the device.
    Drop,
    Fail,
}

/// A `flakey` segment.
pub(crate) struct Flakey {
    member: u32,
    /// The number that is added to a sector of the volume, modulo 2^64.
    add: u64,
    up_seconds: u64,
    /// Seconds of one period, up and down.
    seconds: u64,
    faults: Faults,
    since_ns: Ns,
    seed: u64,
}

impl Flakey {
    /// The segment that begins with sector `start`, on member `member`.
    pub(crate) fn new(spec: &FlakeySpec, start: u64, member: u32) -> Self {
        let up_seconds = u64::from(spec.up_seconds);
        Flakey {
            member,
            add: spec.area.sector.wrapping_sub(start),
            up_seconds,
            seconds: up_seconds + u64::from(spec.down_seconds),
            faults: spec.faults.or_all(),
            since_ns: spec.since_ns,
            seed: spec.seed,
        }
    }

    /// The destination: the member, and the number that is added to a sector, modulo 2^64.
    pub(crate) fn place(&self) -> (u32, u64) {
        (self.member, self.add)
    }

    fn is_down(&self, now: Ns) -> bool {
        let elapsed = now.saturating_sub(self.since_ns) / NS_PER_S;
        elapsed % self.seconds >= self.up_seconds
    }

    /// What happens to an I/O that is sent on at `now`.
    pub(crate) fn fate(&self, op: Op, now: Ns) -> Fate {
        let faults = &self.faults;
        if !self.is_down(now) {
            return Fate::Pass;
        }
        match (op, faults.writes) {
            (Op::Read, _) if faults.error_reads => Fate::Fail,
            (Op::Read, _) if faults.corrupts_reads() => Fate::Corrupt,
            (Op::Read, _) => Fate::Pass,
            (_, Writes::Fail) => Fate::Fail,
            (_, Writes::Drop) => Fate::Drop,
            (Op::Write, Writes::Pass) if faults.corrupts_writes() => Fate::Corrupt,
            (_, Writes::Pass) => Fate::Pass,
        }
    }

    /// The changes to `bytes` bytes of data that are read or written: offsets and new values.
    pub(crate) fn changes(
        &self,
        op: Op,
        bytes: u64,
        random: &mut Random,
    ) -> impl Iterator<Item = (u64, u8)> + use<> {
        let byte = self.faults.corrupt_byte.filter(|byte| byte.in_writes == op.is_write());
        let fixed = byte.map(|byte| (u64::from(byte.nth) - 1, byte.value));
        let chance = match op.is_write() {
            true => self.faults.random_write_corrupt,
            false => self.faults.random_read_corrupt,
        };
        let hit = random.below(Faults::CERTAIN.into()) < chance.into();
        let random = hit.then(|| (random.below(bytes), random.below(256) as u8));
        fixed.into_iter().chain(random).filter(move |(at, _)| *at < bytes)
    }

    /// The random numbers of segment number `segment` in context `context`.
    pub(crate) fn random(&self, segment: usize, context: u32) -> Random {
        Random::new(self.seed ^ (segment as u64) << 32 ^ u64::from(context))
    }
}

/// A generator of repeatable random numbers: splitmix64 (Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014). It is our own, because runs of the simulator
/// repeat by their seed only if this sequence never changes.
pub(crate) struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        // Similar seeds must give unrelated sequences.
        Random(Random(seed).next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number below `bound`, or 0 if that is 0. The bias is less than `bound` parts in 2^64.
    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}
