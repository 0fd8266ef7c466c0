//! Operations, flags and priorities of a bio, named as in Linux (`blk_types.h`, `ioprio.h`).

/// The operation of a bio (Linux `REQ_OP_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Op {
    /// Read into the bio's segments.
    #[default]
    Read = 0,
    /// Write the bio's segments.
    Write = 1,
    /// Make every write completed before this bio's submission durable. Carries no data.
    Flush = 2,
    /// The range's contents are no longer needed. Advisory; carries no data.
    Discard = 3,
    /// The range must read as zeroes afterwards. Carries no data.
    WriteZeroes = 9,
}

impl Op {
    /// True for operations that change what the device holds.
    #[inline]
    pub const fn is_write(self) -> bool {
        (self as u8) & 1 == 1
    }

    /// True when the bio has segments that hold its data.
    #[inline]
    pub const fn has_data(self) -> bool {
        (self as u8) <= 1
    }

    /// The statistics group the operation is counted in.
    #[inline]
    pub const fn group(self) -> OpGroup {
        match self {
            Op::Read => OpGroup::Read,
            Op::Write | Op::WriteZeroes => OpGroup::Write,
            Op::Discard => OpGroup::Discard,
            Op::Flush => OpGroup::Flush,
        }
    }

    /// The operation with this number, that of `op as u8`.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let all = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
        all.into_iter().find(|op| *op as u8 == number)
    }
}

/// As in "a read of 4096 bytes".
impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "zeroing",
        })
    }
}

/// The four groups of `/proc/diskstats` (Linux `Documentation/admin-guide/iostats.rst`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum OpGroup {
    /// Reads.
    #[default]
    Read = 0,
    /// Writes and write zeroes.
    Write = 1,
    /// Discards.
    Discard = 2,
    /// Flush commands sent to the device.
    Flush = 3,
}

/// Number of [`OpGroup`]s.
pub const OP_GROUPS: usize = 4;

impl OpGroup {
    /// All groups, each at the index that it is as a number.
    pub const ALL: [OpGroup; OP_GROUPS] =
        [OpGroup::Read, OpGroup::Write, OpGroup::Discard, OpGroup::Flush];
}

bitflags::bitflags! {
    /// Modifiers of a bio, as Linux's `REQ_*`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct BioFlags: u16 {
        /// The data is durable when the bio completes.
        const FUA = 1 << 0;
        /// Flush the volatile cache before the data part.
        const PREFLUSH = 1 << 1;
        /// Somebody waits for this; schedulers prefer it.
        const SYNC = 1 << 2;
        /// End with [`crate::Status::Again`] instead of waiting for a tag or splitting.
        const NOWAIT = 1 << 3;
        /// Completed by polling; goes to a poll queue.
        const POLLED = 1 << 4;
        /// Background write-back: may yield to everything else.
        const BACKGROUND = 1 << 5;
        /// Write zeroes must keep the range allocated (Linux `NOUNMAP`).
        const NOUNMAP = 1 << 6;
        /// Write zeroes must fail rather than be slow (NBD's FAST_ZERO).
        const FAST_ZERO = 1 << 7;
        /// Never merged with another bio.
        const NOMERGE = 1 << 8;
        /// The buffer does not change while the bio is in flight.
        const STABLE = 1 << 9;
    }
}

/// Priority class, strongest first (Linux `ioprio`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[repr(u8)]
pub enum PriorityClass {
    /// No class given; treated as best effort.
    #[default]
    None = 0,
    /// Served before everything else.
    RealTime = 1,
    /// The normal class.
    BestEffort = 2,
    /// Served when nothing else is there.
    Idle = 3,
}

/// Class and level (0 strongest to 7) of a bio. Bios of different priority never merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Priority {
    /// The class.
    pub class: PriorityClass,
    /// Level inside the class, 0 (first) to 7.
    pub level: u8,
}
