//! The effects of a turn, which its channel hands on after the turn, and the counts of a shard.

use super::member_io::MemberIo;
use crate::engine::ppl::{Spares, Ticket};
use crate::engine::turn::Report;
use crate::ids::Role;
use drystone_core::{Bio, BioList, IoBuf, PortId};

/// The effects of a turn, for its channel to hand on.
#[derive(Default)]
pub(crate) struct TurnEffects {
    /// Blocks to be read and written.
    pub(crate) io: Vec<MemberIo>,
    /// Bios of row writes, for the members of these roles.
    pub(crate) row_bios: Vec<(Role, Box<Bio>)>,
    /// Idle buffers for row writes, which this context used last.
    pub(crate) row_bufs: Vec<IoBuf>,
    /// Items that have ended.
    pub(crate) done: BioList,
    pub(crate) reports: Vec<Report>,
    /// Ports whose items are in the hands of other channels.
    pub(crate) remote: Vec<PortId>,
    /// Sectors of parity that did not fit.
    pub(crate) mismatches: u64,
    /// Words of the bitmap that must be set.
    pub(crate) words: Vec<usize>,
    /// Tickets for partial parity logs.
    pub(crate) tickets: Vec<Ticket>,
    /// Spare tickets.
    pub(crate) spares: Spares,
}

impl TurnEffects {
    /// Items that came through `port` are in the hands of another context.
    pub(super) fn add_remote(&mut self, port: PortId) {
        if self.remote.last() != Some(&port) {
            self.remote.push(port);
        }
    }
}

/// The counts of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Stripes that became idle.
    pub freed: u64,
    /// Items that went on because a stripe became idle.
    pub woken: u64,
    /// Items that had to wait for a stripe.
    pub waited: u64,
    /// Blocks read from members.
    pub reads: u64,
    /// Blocks written to members.
    pub writes: u64,
    /// Stripes whose parity was computed by read-modify-write.
    pub rmw: u64,
    /// Stripes whose parity was computed by reconstruct-write, with data that the write did not
    /// change.
    pub rcw: u64,
    /// Stripes that were written whole.
    pub full: u64,
    /// Stripes whose bit in the bitmap was set before they were written.
    pub marked: u64,
    /// Stripes whose partial parity was logged before they were written.
    pub logged: u64,
}

impl std::ops::AddAssign for ShardCounts {
    fn add_assign(&mut self, other: Self) {
        self.freed += other.freed;
        self.woken += other.woken;
        self.waited += other.waited;
        self.reads += other.reads;
        self.writes += other.writes;
        self.rmw += other.rmw;
        self.rcw += other.rcw;
        self.full += other.full;
        self.marked += other.marked;
        self.logged += other.logged;
    }
}
