//! The tunables: the attributes under `queue/iosched/`, with Linux's names, units and
//! defaults (`Documentation/block/deadline-iosched.rst`). Each is a row of [`Tunable::ALL`].
//!
//! Invariants:
//! * A name stands in one row, which has its range, its getter and its setter.
//! * A refused value has changed nothing.

use drystone_core::attribute::parse_in;
use drystone_core::{Op, Result};

const MS: u64 = 1_000_000;
/// Linux's variables are of C's type `int`; negative values make no sense in any of them.
const INT_MAX: u64 = i32::MAX as u64;

/// The start of the names of all tunables, as attributes.
pub const IOSCHED: &str = "queue/iosched/";

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
    /// Units that go in sector order before deadlines are looked at again.
    pub fifo_batch: u32,
    /// Bios merge in front of units too.
    pub front_merges: bool,
    /// Units other than synchronous reads that may be kept or in flight.
    pub async_depth: u32,
}

/// A tunable: its name and its range, and how it is read and set in [`Tunables`].
#[derive(Debug)]
pub struct Tunable {
    /// Its name as an attribute, which begins with [`IOSCHED`].
    pub attribute: &'static str,
    /// The least that it may be, in its unit: milliseconds of a time, 0 or 1 of a switch.
    pub min: u64,
    /// The most that it may be.
    pub max: u64,
    get: fn(&Tunables) -> u64,
    /// The value is in the range.
    set: fn(&mut Tunables, u64),
}

impl Tunable {
    /// A row with the range of most tunables.
    const ROW: Self = Tunable { attribute: "", min: 0, max: INT_MAX, get: |_| 0, set: |_, _| () };

    /// Milliseconds after which a read is overdue.
    pub const READ_EXPIRE: Self = Tunable {
        attribute: "queue/iosched/read_expire",
        get: |tunables| tunables.read_expire_ns / MS,
        set: |tunables, ms| tunables.read_expire_ns = ms * MS,
        ..Self::ROW
    };
    /// Milliseconds after which a write is overdue.
    pub const WRITE_EXPIRE: Self = Tunable {
        attribute: "queue/iosched/write_expire",
        get: |tunables| tunables.write_expire_ns / MS,
        set: |tunables, ms| tunables.write_expire_ns = ms * MS,
        ..Self::ROW
    };
    /// Milliseconds after which a weaker class goes before a stronger one.
    pub const PRIO_AGING_EXPIRE: Self = Tunable {
        attribute: "queue/iosched/prio_aging_expire",
        get: |tunables| tunables.prio_aging_expire_ns / MS,
        set: |tunables, ms| tunables.prio_aging_expire_ns = ms * MS,
        ..Self::ROW
    };
    /// Batches of reads that go before waiting writes.
    pub const WRITES_STARVED: Self = Tunable {
        attribute: "queue/iosched/writes_starved",
        get: |tunables| tunables.writes_starved.into(),
        set: |tunables, batches| tunables.writes_starved = batches as u32,
        ..Self::ROW
    };
    /// Units that go in sector order at a stretch.
    pub const FIFO_BATCH: Self = Tunable {
        attribute: "queue/iosched/fifo_batch",
        get: |tunables| tunables.fifo_batch.into(),
        set: |tunables, units| tunables.fifo_batch = units as u32,
        ..Self::ROW
    };
    /// 1 if bios merge in front of units too.
    pub const FRONT_MERGES: Self = Tunable {
        attribute: "queue/iosched/front_merges",
        max: 1,
        get: |tunables| tunables.front_merges.into(),
        set: |tunables, switch| tunables.front_merges = switch == 1,
        ..Self::ROW
    };
    /// Units other than synchronous reads that may be kept or in flight.
    pub const ASYNC_DEPTH: Self = Tunable {
        attribute: "queue/iosched/async_depth",
        min: 1,
        get: |tunables| tunables.async_depth.into(),
        set: |tunables, units| tunables.async_depth = units as u32,
        ..Self::ROW
    };

    /// The rows.
    pub const ALL: &'static [Self] = &[
        Self::READ_EXPIRE,
        Self::WRITE_EXPIRE,
        Self::PRIO_AGING_EXPIRE,
        Self::WRITES_STARVED,
        Self::FIFO_BATCH,
        Self::FRONT_MERGES,
        Self::ASYNC_DEPTH,
    ];

    /// Its name below [`IOSCHED`], as in a stack file.
    pub const fn name(&self) -> &'static str {
        self.attribute.split_at(IOSCHED.len()).1
    }

    /// The row of the attribute of that name.
    pub fn of_attribute(attribute: &str) -> Option<&'static Self> {
        Self::ALL.iter().find(|row| row.attribute == attribute)
    }

    /// Its value in `tunables`, as text.
    pub fn get(&self, tunables: &Tunables) -> String {
        (self.get)(tunables).to_string()
    }

    /// Set it in `tunables` to the number in `text`.
    ///
    /// # Errors
    /// If `text` is no number in the permitted range, which the sentence names; then nothing
    /// changes.
    pub fn set(&self, tunables: &mut Tunables, text: &str) -> Result<()> {
        let value = parse_in(self.attribute, text, self.min, self.max)?;
        (self.set)(tunables, value);
        Ok(())
    }
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

    /// The time after its submission by which a bio of `op` should be dispatched, ns.
    #[inline]
    pub(super) fn expire_ns(&self, op: Op) -> u64 {
        if op == Op::Read { self.read_expire_ns } else { self.write_expire_ns }
    }
}
