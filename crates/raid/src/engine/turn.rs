//! The input of a turn at a shard or a log, and the faults that it reports to the manager.

use super::conf::Conf;
use crate::ids::MemberNumber;
use drystone_core::PortId;
use drystone_parity::Parity;

/// The input of one turn at a shard or a log.
pub(crate) struct TurnInput<'a> {
    pub(crate) conf: &'a Conf,
    /// The epoch of `conf`.
    pub(crate) epoch: u64,
    pub(crate) parity: Parity,
    /// Parity fits below this member sector.
    pub(crate) fits_below: u64,
    /// The port of the channel that has the turn.
    pub(crate) port: PortId,
}

impl TurnInput<'_> {
    pub(crate) fn parity_fits(&self, sector: u64) -> bool {
        sector < self.fits_below
    }
}

/// An error of a member, or a write that succeeded on a bad block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The member failed a write. The write waits until this is on record.
    Write,
    /// The member could not read a block, and the block cannot be computed.
    Lost,
    /// The member could not read a block, which was computed and rewritten.
    Corrected,
    /// The member took a block that is listed as bad.
    MadeGood,
    /// The member had no room for a block. The write waits until the block is sent again.
    NoRoom,
    /// The member failed the write of its log. The stripes wait until this is on record.
    Log,
    /// The member failed a flush.
    Flush,
    /// The member is gone: nothing of it can be read or written any more.
    Gone,
}

/// A member's fault, for the manager.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// md's number of the device.
    pub(crate) number: MemberNumber,
    /// Member sector of the stripe.
    pub(crate) sector: u64,
    pub(crate) fault: Fault,
}
