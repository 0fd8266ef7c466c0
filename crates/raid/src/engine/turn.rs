//! The input of a turn at a shard or a log, and its reports to the manager.

use super::conf::Conf;
use crate::ids::MemberNumber;
use crate::parity::Parity;

/// The input of one turn at a shard or a log.
pub(crate) struct TurnInput<'a> {
    pub(crate) conf: &'a Conf,
    /// The epoch of `conf`.
    pub(crate) epoch: u64,
    pub(crate) parity: Parity,
    /// Member sectors below this have parity that fits.
    pub(crate) fits_below: u64,
    /// The port of the channel that has the turn.
    pub(crate) home: u32,
}

impl TurnInput<'_> {
    pub(crate) fn parity_fits(&self, sector: u64) -> bool {
        sector < self.fits_below
    }
}

/// An error of a member, or a success that was not expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It did not take a block. The write waits until this is on record.
    Write,
    /// It could not read a block, which nothing else tells either.
    Lost,
    /// It could not read a block, which was computed and rewritten.
    Corrected,
    /// It took a block that is listed as bad.
    MadeGood,
    /// It had no room for a block. The write waits until it is tried again.
    NoRoom,
    /// It did not take its log. The write waits until this is on record.
    Log,
    /// It did not flush.
    Flush,
    /// It has gone: nothing of it can be read or written any more.
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
