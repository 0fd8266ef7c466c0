//! The tunables: the attributes under `queue/iosched/`, with Linux's names, units and
//! defaults (`Documentation/block/deadline-iosched.rst`).

use drystone_core::{Error, Op, Result};

const MS: u64 = 1_000_000;
/// Linux's variables are of C's type `int`; negative values make no sense in any of them.
const INT_MAX: u64 = i32::MAX as u64;

const NAMES: [&str; 7] = [
    "read_expire",
    "write_expire",
    "prio_aging_expire",
    "writes_starved",
    "fifo_batch",
    "front_merges",
    "async_depth",
];

/// The tunables of one queue. A value, copied with the queue's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunables {
    /// A read should be dispatched this long after its submission, ns.
    pub read_expire_ns: u64,
    /// The same for everything else.
    pub write_expire_ns: u64,
    /// A unit submitted this long ago goes before stronger classes, ns.
    pub prio_aging_expire_ns: u64,
    /// Batches of reads that may go before writes that wait.
    pub writes_starved: u32,
    /// Units that go in sector order before deadlines are checked again.
    pub fifo_batch: u32,
    /// Bios merge in front of units too.
    pub front_merges: bool,
    /// Units other than synchronous reads that may be kept or in flight.
    pub async_depth: u32,
}

impl Tunables {
    /// Linux's defaults for a queue of `nr_requests`: 500 ms, 5 s, 10 s, 2, 16, 1, `nr_requests`.
    pub fn new(nr_requests: u32) -> Self {
        Tunables {
            read_expire_ns: 500 * MS,
            write_expire_ns: 5_000 * MS,
            prio_aging_expire_ns: 10_000 * MS,
            writes_starved: 2,
            fifo_batch: 16,
            front_merges: true,
            async_depth: nr_requests,
        }
    }

    /// The names below `queue/iosched/`.
    pub fn names() -> &'static [&'static str] {
        &NAMES
    }

    /// The value of `name` (times in ms, a switch as 0 or 1); `None` if there is no such name.
    pub fn get(&self, name: &str) -> Option<String> {
        let value = match name {
            "read_expire" => self.read_expire_ns / MS,
            "write_expire" => self.write_expire_ns / MS,
            "prio_aging_expire" => self.prio_aging_expire_ns / MS,
            "writes_starved" => self.writes_starved.into(),
            "fifo_batch" => self.fifo_batch.into(),
            "front_merges" => self.front_merges.into(),
            "async_depth" => self.async_depth.into(),
            _ => return None,
        };
        Some(value.to_string())
    }

    /// Set `name` to the number in `text`, in the units of [`Tunables::get`]; `None` if there is
    /// no such name.
    ///
    /// # Errors
    /// If `text` is no number in the permitted range, which the sentence names; then nothing
    /// changes.
    pub fn set(&mut self, name: &str, text: &str) -> Option<Result<()>> {
        let (low, high) = match name {
            "front_merges" => (0, 1),
            "async_depth" => (1, INT_MAX),
            _ if NAMES.contains(&name) => (0, INT_MAX),
            _ => return None,
        };
        Some(parse(name, text, low, high).map(|value| self.assign(name, value)))
    }

    fn assign(&mut self, name: &str, value: u64) {
        match name {
            "read_expire" => self.read_expire_ns = value * MS,
            "write_expire" => self.write_expire_ns = value * MS,
            "prio_aging_expire" => self.prio_aging_expire_ns = value * MS,
            "writes_starved" => self.writes_starved = value as u32,
            "fifo_batch" => self.fifo_batch = value as u32,
            "front_merges" => self.front_merges = value == 1,
            "async_depth" => self.async_depth = value as u32,
            _ => unreachable!("{name} was looked up before"),
        }
    }

    /// The time from its submission to which a bio of `op` should be dispatched, ns.
    #[inline]
    pub(super) fn expire_ns(&self, op: Op) -> u64 {
        if op == Op::Read { self.read_expire_ns } else { self.write_expire_ns }
    }
}

fn parse(name: &str, text: &str, low: u64, high: u64) -> Result<u64> {
    match text.trim().parse::<u64>() {
        Ok(n) if (low..=high).contains(&n) => Ok(n),
        _ => Err(Error::invalid(format!(
            "queue/iosched/{name}: '{text}' is not permitted: a whole number from {low} to {high} \
             is"
        ))),
    }
}
