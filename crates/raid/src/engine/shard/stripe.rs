//! One stripe of the cache: the block of each member at the same member sector, and the work on
//! them.
//!
//! Invariants:
//! * A stripe does one thing at a time. Work that comes meanwhile waits in `reads`, `writes` or
//!   `sync`.
//! * A block that is not in `blocks` is in a bio on its way to or from a member; `io` counts those.
//! * `uptodate` are the blocks with the content that their member has, or would have if it were
//!   there.
//! * An item with pieces in the stripe ends only after these were taken out.

use super::compute::{Arithmetic, Blocks};
use super::member_io::MemberIo;
use super::piece::{Piece, Work};
use crate::engine::plan::{Covered, View, data_of};
use crate::engine::ppl::Ticket;
use crate::engine::roles::Roles;
use crate::engine::turn::TurnInput;
use crate::ids::{MemberNumber, Role};
use crate::layout::{BLOCK_BYTES, Row};
use drystone_core::{Arena, BioFlags, IoBuf, PortId, Status};

/// A write that a member failed.
#[derive(Clone, Copy, Debug)]
pub(super) struct FailedWrite {
    pub(super) role: Role,
    /// md's number of the device.
    pub(super) number: MemberNumber,
}

/// A write for which a member had no room.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoRoom {
    pub(super) role: Role,
    /// md's number of the device.
    pub(super) number: MemberNumber,
    pub(super) flags: BioFlags,
}

/// The state of a stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The stripe does nothing, or is in the queue of stripes whose next step is due.
    #[default]
    Idle,
    Reading,
    /// The members are writing blocks: those of the writes in `draining`, of a synchronisation, or
    /// of a rewrite.
    Writing,
    /// A write failed; the failure has to be on record before the write may succeed.
    Recording,
    /// A member had no room for a block; the block will be sent again.
    AwaitingRoom,
    /// The members' bitmaps must have the bit of the stripe.
    AwaitingBitmap,
    /// The bad block logs must list the lost blocks.
    AwaitingList,
    /// The log must have the partial parity of the writes in `draining`.
    Logging,
    /// A write of whole rows is writing all its blocks, without `blocks`. If that fails, the stripe
    /// does the write, before anything else.
    InRow,
}

/// See the module's text.
pub(super) struct Stripe {
    /// Member sector at which the stripe begins.
    pub(super) sector: u64,
    pub(super) row: Row,
    pub(super) data: Roles,
    pub(super) blocks: Blocks,
    /// Copies for replacements that came back unwritten, by role: to be sent again.
    pub(super) copies: Vec<(Role, IoBuf)>,
    /// The cache's own blocks while the stripe uses memory of writers instead, by role.
    pub(super) set_aside: Vec<(Role, IoBuf)>,
    pub(super) uptodate: Roles,
    pub(super) state: State,
    /// Blocks on their way to or from members.
    pub(super) io: u32,
    pub(super) reads: Vec<Piece>,
    pub(super) writes: Vec<Piece>,
    /// The writes that are under way.
    pub(super) draining: Vec<Piece>,
    /// The blocks that must be written once they are logged.
    pub(super) pending: Option<(Roles, BioFlags)>,
    /// Its ticket, once the partial parity log is written.
    pub(super) ticket: Option<Ticket>,
    /// The item for which it is synchronised.
    pub(super) sync: Option<u32>,
    /// Its synchronisation has begun.
    pub(super) sync_began: bool,
    /// Blocks whose member could not read them.
    pub(super) unreadable: Roles,
    /// Writes that members failed.
    pub(super) failed: Vec<FailedWrite>,
    /// Blocks that must be sent again once there is room.
    pub(super) no_room: Vec<NoRoom>,
    /// It is in the queue of stripes whose next step is due.
    pub(super) is_queued: bool,
    /// The port of the channel that began the I/O that is under way.
    pub(super) driver: PortId,
}

/// Blocks for `disks` members. All are cut from one mapping, so that a cache that becomes smaller
/// gives its memory back to the system, and so that the blocks lie next to each other: an allocator
/// uses an extra page before each aligned page. Without a mapping each block is allocated.
fn new_blocks(disks: usize) -> Blocks {
    let arena = Arena::new(disks * BLOCK_BYTES);
    let block = |_| {
        let cut = arena.as_ref().and_then(|arena| arena.cut(BLOCK_BYTES));
        let mut block = cut.unwrap_or_else(|| IoBuf::zeroed(BLOCK_BYTES));
        // Touch the memory now, so that no I/O waits for page faults later.
        block.fill(0);
        Some(block)
    };
    (0..disks).map(block).collect()
}

impl Stripe {
    /// A stripe for arrays with the layout of `turn`, which has no sector yet.
    pub(super) fn new(turn: &TurnInput<'_>) -> Self {
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
            driver: PortId(0),
        }
    }

    /// Become the stripe of member sector `sector`, with no block up to date.
    pub(super) fn become_stripe_of(&mut self, sector: u64, turn: &TurnInput<'_>) {
        debug_assert!(!self.has_work() && self.state == State::Idle && self.io == 0);
        self.sector = sector;
        self.row = turn.conf.layout.row_at(sector);
        self.data = data_of(&turn.conf.layout, &self.row);
        self.uptodate = Roles::EMPTY;
        self.unreadable = Roles::EMPTY;
    }

    /// Take a piece of an item.
    pub(super) fn add(&mut self, piece: Piece, work: Work) {
        match work {
            Work::Read => self.reads.push(piece),
            Work::Write => self.writes.push(piece),
            Work::Sync => {
                debug_assert!(self.sync.is_none(), "one synchronises at a time");
                (self.sync, self.sync_began) = (Some(piece.item), false);
            }
        }
    }

    pub(super) fn has_work(&self) -> bool {
        let pieces = self.reads.len() + self.writes.len() + self.draining.len();
        pieces > 0 || self.sync.is_some()
    }

    /// Blocks are on their way to members, or may not have arrived.
    pub(super) fn is_being_written(&self) -> bool {
        matches!(self.state, State::Writing | State::Recording | State::AwaitingRoom | State::InRow)
    }

    /// The items that have pieces or a synchronisation here.
    pub(super) fn items(&self) -> impl Iterator<Item = u32> {
        let pieces = self.reads.iter().chain(&self.writes).chain(&self.draining);
        pieces.map(|piece| piece.item).chain(self.sync)
    }

    pub(super) fn view(&self, turn: &TurnInput<'_>) -> View {
        View {
            row: self.row,
            data: self.data,
            readable: turn.conf.readable(self.sector) - self.unreadable,
            writable: turn.conf.kept(self.sector),
            uptodate: self.uptodate,
            parity_fits: turn.parity_fits(self.sector),
        }
    }

    pub(super) fn arithmetic(&mut self, turn: &TurnInput<'_>) -> Arithmetic<'_> {
        Arithmetic { parity: turn.parity, row: self.row, data: self.data, blocks: &mut self.blocks }
    }

    /// The roles of the pending writes that may be written together. These are all; but if the
    /// stripe is logged, only the first group of blocks that are adjacent in the array.
    pub(super) fn writes_together(&self, is_logged: bool) -> Roles {
        let all: Roles = self.writes.iter().map(|piece| piece.role).collect();
        let slots = 0..self.data.len();
        let in_order = slots.map(|slot| self.row.data(slot)).skip_while(|role| !all.has(*role));
        match is_logged {
            true => in_order.take_while(|role| all.has(*role)).collect(),
            false => all,
        }
    }

    /// The data slots of `roles`, which are adjacent.
    pub(super) fn slots_of(&self, roles: Roles) -> std::ops::Range<u32> {
        let first = roles.iter().filter_map(|role| self.row.slot(role)).min().unwrap_or(0);
        first..first + roles.len()
    }

    /// The blocks that the pending writes to `roles` cover.
    pub(super) fn covered(&self, roles: Roles) -> Covered {
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

    /// The block of `role`, which must be in the cache.
    pub(super) fn block(&self, role: Role) -> &[u8] {
        self.blocks[role.index()].as_deref().expect("the block is in the cache")
    }

    /// As [`Stripe::block`].
    pub(super) fn block_mut(&mut self, role: Role) -> &mut [u8] {
        self.blocks[role.index()].as_deref_mut().expect("the block is in the cache")
    }

    /// Blocks that a present member could not read but that are up to date: they must be rewritten.
    pub(super) fn to_rewrite(&self, turn: &TurnInput<'_>) -> Roles {
        match turn.conf.limits.read_only {
            true => Roles::EMPTY,
            false => self.unreadable & self.uptodate & turn.conf.writable(self.sector),
        }
    }

    /// Each failed member is out of the configuration by now, or has the block on its bad block
    /// list.
    pub(super) fn is_on_record(&self, turn: &TurnInput<'_>) -> bool {
        self.failed.iter().all(|failed| {
            let as_replacement = turn.conf.is_replacement_at(failed.role, failed.number);
            let member = as_replacement
                .and_then(|is_replacement| turn.conf.member(failed.role, is_replacement));
            // A list entry from before the failure does not count, because it may come off the list
            // again: the manager may just be told of a write that succeeded.
            member.is_none_or(|m| m.write_error && m.is_bad_at(self.sector))
        })
    }

    /// A copy of a block for the role's replacement. A copy that has come back unwritten is used
    /// first, because the block itself may be on its way to the member.
    pub(super) fn copy_of(&mut self, role: Role) -> IoBuf {
        match self.copies.iter().position(|(of, _)| *of == role) {
            Some(at) => self.copies.swap_remove(at).1,
            None => IoBuf::from_slice(self.block(role)),
        }
    }

    /// Note that the log has the partial parity, or that device `failed` did not take it.
    pub(super) fn logged(&mut self, ticket: Ticket, failed: Option<MemberNumber>) {
        debug_assert!(self.state == State::Logging && self.ticket.is_none());
        self.failed.extend(failed.map(|number| FailedWrite { role: self.row.p, number }));
        self.ticket = Some(ticket);
    }

    /// Note that a block has come back from its member. True if no I/O of the stripe is under way
    /// any more.
    pub(super) fn io_ended(
        &mut self,
        io: &MemberIo,
        number: MemberNumber,
        block: IoBuf,
        status: Status,
    ) -> bool {
        debug_assert_eq!(block.len(), BLOCK_BYTES);
        self.io -= 1;
        if !io.is_copy {
            self.blocks[io.role.index()] = Some(block);
        }
        let lacks_room = status == Status::NoSpace && !io.is_replacement && !io.is_copy;
        match (io.is_write, status.is_ok()) {
            (false, true) => self.uptodate.insert(io.role),
            (false, false) => self.unreadable.insert(io.role),
            (true, true) => {}
            (true, false) if lacks_room => {
                self.no_room.push(NoRoom { role: io.role, number, flags: io.flags });
            }
            (true, false) => self.failed.push(FailedWrite { role: io.role, number }),
        }
        self.io == 0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{conf, with_turn};
    use super::*;
    use crate::ids::StripeId;

    fn piece(role: Role, start: u32, bytes: u32) -> Piece {
        Piece { item: 0, role, at: 0, start, bytes }
    }

    /// A stripe of an array of four members, at member sector 0.
    fn stripe(with: impl FnOnce(Stripe, &TurnInput<'_>)) {
        with_turn(&conf(4), |turn| with(Stripe::new(turn), turn));
    }

    #[test]
    fn whole_and_partial_blocks_are_told_apart() {
        stripe(|mut stripe, _| {
            let [a, b, c] = [0, 1, 2].map(|slot| stripe.row.data(slot));
            for piece in [piece(a, 0, 512), piece(a, 0, 4096), piece(b, 512, 512), piece(c, 0, 1)] {
                stripe.add(piece, Work::Write);
            }
            let covered = stripe.covered(Roles::one(a) | Roles::one(b));
            assert_eq!((covered.whole, covered.part), (Roles::one(a), Roles::one(b)));
        });
    }

    #[test]
    fn writes_that_are_logged_together_lie_side_by_side() {
        stripe(|mut stripe, _| {
            let [a, b, c] = [0, 1, 2].map(|slot| stripe.row.data(slot));
            stripe.add(piece(a, 0, 512), Work::Write);
            stripe.add(piece(c, 0, 512), Work::Write);
            assert_eq!(stripe.writes_together(false), Roles::one(a) | Roles::one(c));
            assert_eq!(stripe.writes_together(true), Roles::one(a));
            stripe.add(piece(b, 0, 512), Work::Write);
            assert_eq!(stripe.writes_together(true), stripe.data);
            assert_eq!(stripe.slots_of(Roles::one(b) | Roles::one(c)), 1..3);
        });
    }

    #[test]
    fn a_block_that_has_come_back_tells_how_its_io_ended() {
        stripe(|mut stripe, _| {
            let number = MemberNumber(7);
            let (read, write) = (MemberIo::read(StripeId(0)), |role| MemberIo {
                role: Role(role),
                is_write: true,
                ..MemberIo::read(StripeId(0))
            });
            let ended = [
                (read, Status::Ok),
                (MemberIo { role: Role(1), ..read }, Status::IoError),
                (write(2), Status::IoError),
                (write(3), Status::NoSpace),
                // A copy for a replacement that has no room counts as failed, because a copy is not
                // sent again.
                (MemberIo { is_copy: true, ..write(0) }, Status::NoSpace),
            ];
            stripe.io = ended.len() as u32;
            let own = stripe.block(Role(0)).as_ptr();
            for (at, (io, status)) in ended.into_iter().enumerate() {
                let block = match io.is_copy {
                    true => IoBuf::zeroed(BLOCK_BYTES),
                    false => stripe.blocks[io.role.index()].take().unwrap(),
                };
                assert_eq!(stripe.io_ended(&io, number, block, status), at == 4);
            }
            assert_eq!(stripe.block(Role(0)).as_ptr(), own, "a copy is not the block");
            assert_eq!(stripe.uptodate, Roles::one(Role(0)));
            assert_eq!(stripe.unreadable, Roles::one(Role(1)));
            assert_eq!(stripe.no_room.iter().map(|n| n.role.0).collect::<Vec<_>>(), [3]);
            let failed: Vec<_> = stripe.failed.iter().map(|f| (f.role.0, f.number.0)).collect();
            assert_eq!(failed, [(2, 7), (0, 7)]);
        });
    }

    #[test]
    fn blocks_that_could_not_be_read_are_rewritten_once_they_are_known() {
        stripe(|mut stripe, turn| {
            stripe.unreadable = Roles::one(Role(1)) | Roles::one(Role(2));
            assert!(stripe.to_rewrite(turn).is_empty());
            stripe.uptodate = Roles::one(Role(2)) | Roles::one(Role(3));
            assert_eq!(stripe.to_rewrite(turn), Roles::one(Role(2)));
        });
    }

    #[test]
    fn a_failure_is_on_record_once_the_member_is_gone() {
        let mut conf = conf(4);
        with_turn(&conf, |turn| {
            let mut stripe = Stripe::new(turn);
            assert!(stripe.is_on_record(turn));
            stripe.failed.push(FailedWrite { role: Role(1), number: MemberNumber(1) });
            assert!(!stripe.is_on_record(turn));
        });
        conf.role_slots[1].member = None;
        conf.role_slots_changed();
        with_turn(&conf, |turn| {
            let mut stripe = Stripe::new(turn);
            stripe.failed.push(FailedWrite { role: Role(1), number: MemberNumber(1) });
            assert!(stripe.is_on_record(turn));
        });
    }
}
