//! One stripe of the cache: a block of each member at the same place, and what is to be done there.
//!
//! Invariants:
//! * A stripe does one thing at a time. What comes meanwhile waits in `reads`, `writes` or `sync`.
//! * A block that is not in `blocks` is in a bio on its way to or from a member; `io` counts those.
//! * `uptodate` are the blocks that hold what their member holds, or would hold if it were there.
//! * An item with pieces here ends only after they were taken out.

use super::compute::{Arithmetic, Blocks};
use super::plan::{Covered, View, data_of};
use super::ppl::Ticket;
use super::roles::Roles;
use super::turn::TurnInput;
use crate::ids::{MemberNumber, Role};
use crate::layout::{BLOCK_BYTES, Row};
use drystone_core::{Arena, BioFlags, IoBuf};

/// A part of an item that lies in one block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) item: u32,
    pub(crate) role: Role,
    /// Where it begins in the item's data.
    pub(crate) at: u64,
    /// Where it begins in the block, in bytes.
    pub(crate) start: u32,
    pub(crate) bytes: u32,
}

impl Piece {
    fn is_whole(&self) -> bool {
        self.bytes as usize == BLOCK_BYTES
    }

    pub(crate) fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..(self.start + self.bytes) as usize
    }
}

/// A member that did not take what was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailedWrite {
    pub(crate) role: Role,
    /// md's number of the device.
    pub(crate) number: MemberNumber,
}

/// A block that a member had no room for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoRoom {
    pub(crate) role: Role,
    /// md's number of the device.
    pub(crate) number: MemberNumber,
    pub(crate) flags: BioFlags,
}

/// The state of a stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    /// Nothing, or it is in the queue of those that are to be looked at.
    #[default]
    Idle,
    Reading,
    /// Of what is in `draining`.
    Writing,
    /// A write failed, which has to be on record before what was written counts.
    Recording,
    /// A member had no room for a block, which is sent again before long.
    AwaitingRoom,
    /// The members have to know, by their bitmap, that it is to be written.
    AwaitingBitmap,
    /// Lost blocks have to be on the lists of bad blocks.
    AwaitingList,
    /// The partial parity of what is in `draining` has to be in its log.
    Logging,
}

/// See the module's text.
pub(crate) struct Stripe {
    /// Member sector of the beginning.
    pub(crate) sector: u64,
    pub(crate) row: Row,
    pub(crate) data: Roles,
    pub(crate) blocks: Blocks,
    /// Copies for replacements that came back unwritten, by role: to be sent again.
    pub(crate) copies: Vec<(Role, IoBuf)>,
    /// Blocks of the cache in whose place memory of the writers is, by role.
    pub(crate) set_aside: Vec<(Role, IoBuf)>,
    pub(crate) uptodate: Roles,
    pub(crate) state: State,
    /// Blocks on their way to or from members.
    pub(crate) io: u32,
    pub(crate) reads: Vec<Piece>,
    pub(crate) writes: Vec<Piece>,
    /// The writes that are under way.
    pub(crate) draining: Vec<Piece>,
    /// The blocks that are to be written once they are logged.
    pub(crate) pending: Option<(Roles, BioFlags)>,
    /// Its place in the partial parity log, once that is written.
    pub(crate) ticket: Option<Ticket>,
    /// The item for which it is synchronised.
    pub(crate) sync: Option<u32>,
    /// Its synchronisation has begun.
    pub(crate) sync_began: bool,
    /// Blocks whose member could not read them.
    pub(crate) unreadable: Roles,
    /// Members that did not take what was written.
    pub(crate) failed: Vec<FailedWrite>,
    /// Blocks that are to be sent again once there is room.
    pub(crate) no_room: Vec<NoRoom>,
    /// It is in the queue of those that are to be looked at.
    pub(crate) is_queued: bool,
    /// The port of the channel that has begun what is under way.
    pub(crate) driver: u32,
}

/// Blocks for `disks` members. They are one mapping, so that a cache that becomes smaller gives its
/// memory back to the system, and next to each other: an allocator has a page of its own before
/// each aligned page. Where no mapping is to be had they are allocated.
fn new_blocks(disks: usize) -> Blocks {
    let arena = Arena::new(disks * BLOCK_BYTES);
    let block = |_| {
        let cut = arena.as_ref().and_then(|arena| arena.cut(BLOCK_BYTES));
        let mut block = cut.unwrap_or_else(|| IoBuf::zeroed(BLOCK_BYTES));
        // I/O is not to wait for pages later.
        block.fill(0);
        Some(block)
    };
    (0..disks).map(block).collect()
}

impl Stripe {
    /// A stripe for arrays of `disks` members, of no place in particular.
    pub(crate) fn new(turn: &TurnInput<'_>) -> Self {
        let layout = &turn.conf.layout;
        let row = layout.row(0);
        Stripe {
            sector: 0,
            row,
            data: data_of(layout, &row),
            blocks: new_blocks(layout.disks() as usize),
            copies: Vec::new(),
            set_aside: Vec::new(),
            uptodate: Roles::EMPTY,
            state: State::Idle,
            io: 0,
            reads: Vec::new(),
            writes: Vec::new(),
            draining: Vec::new(),
            pending: None,
            ticket: None,
            sync: None,
            sync_began: false,
            unreadable: Roles::EMPTY,
            failed: Vec::new(),
            no_room: Vec::new(),
            is_queued: false,
            driver: 0,
        }
    }

    /// Be the stripe of member sector `sector`, of which nothing is known.
    pub(crate) fn become_stripe_of(&mut self, sector: u64, turn: &TurnInput<'_>) {
        debug_assert!(!self.has_work() && self.state == State::Idle && self.io == 0);
        self.sector = sector;
        self.row = turn.conf.layout.row_at(sector);
        self.data = data_of(&turn.conf.layout, &self.row);
        self.uptodate = Roles::EMPTY;
        self.unreadable = Roles::EMPTY;
    }

    pub(crate) fn has_work(&self) -> bool {
        let pieces = self.reads.len() + self.writes.len() + self.draining.len();
        pieces > 0 || self.sync.is_some()
    }

    /// Blocks are on their way to members, or not known to have arrived.
    pub(crate) fn is_being_written(&self) -> bool {
        matches!(self.state, State::Writing | State::Recording | State::AwaitingRoom)
    }

    /// The items that have something here.
    pub(crate) fn items(&self) -> impl Iterator<Item = u32> {
        let pieces = self.reads.iter().chain(&self.writes).chain(&self.draining);
        pieces.map(|piece| piece.item).chain(self.sync)
    }

    pub(crate) fn view(&self, turn: &TurnInput<'_>) -> View {
        View {
            row: self.row,
            data: self.data,
            readable: turn.conf.readable(self.sector) - self.unreadable,
            writable: turn.conf.kept(self.sector),
            uptodate: self.uptodate,
            parity_fits: turn.parity_fits(self.sector),
        }
    }

    pub(crate) fn arithmetic(&mut self, turn: &TurnInput<'_>) -> Arithmetic<'_> {
        Arithmetic { parity: turn.parity, row: self.row, data: self.data, blocks: &mut self.blocks }
    }

    /// Roles of pending writes that may go together: all; of a stripe that is logged the first that
    /// lie side by side in the array.
    pub(crate) fn writes_together(&self, is_logged: bool) -> Roles {
        let all: Roles = self.writes.iter().map(|piece| piece.role).collect();
        let slots = 0..self.data.len();
        let in_order = slots.map(|slot| self.row.data(slot)).skip_while(|role| !all.has(*role));
        match is_logged {
            true => in_order.take_while(|role| all.has(*role)).collect(),
            false => all,
        }
    }

    /// The data slots of `roles`, which lie side by side.
    pub(crate) fn slots_of(&self, roles: Roles) -> std::ops::Range<u32> {
        let first = roles.iter().filter_map(|role| self.row.slot(role)).min().unwrap_or(0);
        first..first + roles.len()
    }

    /// The blocks that the pending writes to `roles` cover.
    pub(crate) fn covered(&self, roles: Roles) -> Covered {
        let mut covered = Covered::default();
        for piece in self.writes.iter().filter(|piece| roles.has(piece.role)) {
            match piece.is_whole() {
                true => covered.whole.insert(piece.role),
                false => covered.part.insert(piece.role),
            }
        }
        covered.part -= covered.whole;
        covered
    }

    /// The block of `role`, which the cache has.
    pub(crate) fn block(&self, role: Role) -> &[u8] {
        self.blocks[role.index()].as_deref().expect("the block is in the cache")
    }

    /// As [`Stripe::block`].
    pub(crate) fn block_mut(&mut self, role: Role) -> &mut [u8] {
        self.blocks[role.index()].as_deref_mut().expect("the block is in the cache")
    }

    /// Blocks of members that are there but could not read them: they are to be written anew.
    pub(crate) fn to_rewrite(&self, turn: &TurnInput<'_>) -> Roles {
        match turn.conf.limits.read_only {
            true => Roles::EMPTY,
            false => self.unreadable & self.uptodate & turn.conf.writable(self.sector),
        }
    }
}
