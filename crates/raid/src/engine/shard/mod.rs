//! A shard of the stripe cache, as the holder of its turn uses it: as if there were one thread.
//!
//! ```text
//! item -> pieces -> stripes: ready -> looked at -> I/O to members -> looked at again ... -> idle
//! ```
//!
//! An *item* is a bio, or a part of one, that lies in one region of the members and so in one
//! shard. It is attached to its stripes piece by piece, and ends when all of them are done with it.
//!
//! Invariants:
//! * A stripe with work or I/O is busy, any other idle, and free to become another one.
//! * `waiting` are the items that found no idle stripe, first come first served. Whether one may go
//!   on depends on this shard alone. Each stripe that becomes idle lets the first of them go on
//!   (`wake`); what that one leaves over goes to the next. Nobody takes an idle stripe past them.
//! * An item that waits for a stripe that somebody else gets joins it (`join`), and needs none of
//!   its own.
//! * Nothing in here waits for anything that an item holds: a piece is done without the others.
//!
//! Source: "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan Liu, linux-raid,
//! 2015); its reversal in Linux (2016) is why no condition here is one of the whole array.

mod handle;
mod lent;
mod log;
mod member_io;
#[cfg(all(test, loom))]
mod models;
mod runs;
mod sync;
#[cfg(test)]
pub(crate) mod tests;

use super::bitmap::Bitmap;
use super::ppl::{Spares, Ticket};
use super::stripe::{Piece, State, Stripe};
use super::table::StripeTable;
use super::turn::{Report, TurnInput};
use crate::ids::{Role, StripeId};
use crate::layout::{BLOCK_BYTES, STRIPE_SECTORS};
use drystone_core::{Bio, BioList, IoBuf, Op, SECTOR_SIZE, Slab, Status, mistake};
use std::collections::VecDeque;

pub(crate) use member_io::MemberIo;
use member_io::{Makings, Run};

/// The effects of a turn, for its channel to hand on.
#[derive(Default)]
pub(crate) struct TurnEffects {
    /// Blocks to be read and written.
    pub(crate) io: Vec<MemberIo>,
    /// Items that have ended.
    pub(crate) done: BioList,
    pub(crate) reports: Vec<Report>,
    /// Ports with items that are in the hands of others.
    pub(crate) foreign: Vec<u32>,
    /// Sectors of parity that did not fit.
    pub(crate) mismatches: u64,
    /// Words of the bitmap that are to be set.
    pub(crate) words: Vec<usize>,
    /// Tickets for partial parity logs.
    pub(crate) tickets: Vec<Ticket>,
    /// Spare tickets.
    pub(crate) spares: Spares,
}

/// See the module's text.
struct Item {
    bio: Box<Bio>,
    /// It asks for synchronisation of member sectors, not for array sectors.
    is_sync: bool,
    /// Bytes that are attached, or done.
    attached: u64,
    /// Pieces that stripes have.
    pieces: u32,
}

impl Item {
    /// A part of it has no stripe yet.
    fn has_more(&self) -> bool {
        self.attached < self.bio.bytes
    }
}

/// The counts of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardCounts {
    /// Stripes that became idle.
    pub freed: u64,
    /// Items that a stripe that became idle let go on.
    pub woken: u64,
    /// Items that had to wait for a stripe.
    pub waited: u64,
    /// Blocks read from members.
    pub reads: u64,
    /// Blocks written to members.
    pub writes: u64,
    /// Stripes whose parity followed a write by what was there before it.
    pub rmw: u64,
    /// Stripes whose parity was computed of data that a write left as they were, too.
    pub rcw: u64,
    /// Stripes that were written whole.
    pub full: u64,
    /// Stripes that had the bitmap marked before they were written.
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

impl TurnEffects {
    /// Items that came through port `home` are in the hands of another context.
    fn add_foreign(&mut self, home: u32) {
        if self.foreign.last() != Some(&home) {
            self.foreign.push(home);
        }
    }
}

/// See the module's text.
pub(crate) struct Shard {
    stripes: Vec<Stripe>,
    table: StripeTable,
    /// Stripes that are to be looked at.
    ready: VecDeque<StripeId>,
    items: Slab<Item>,
    waiting: VecDeque<u32>,
    runs: Slab<Run>,
    makings: Makings,
    /// Stripes that wait for what the manager publishes.
    awaiting: Vec<StripeId>,
    /// Numbers of stripes that were given up.
    given_up: Vec<StripeId>,
    /// For parity that is compared.
    scratch: [IoBuf; 2],
    /// The configuration that it has worked by.
    epoch: u64,
    pub(crate) counts: ShardCounts,
}

impl Shard {
    pub(crate) fn new() -> Self {
        Shard {
            stripes: Vec::new(),
            table: StripeTable::new(),
            ready: VecDeque::new(),
            items: Slab::new(),
            waiting: VecDeque::new(),
            runs: Slab::new(),
            makings: Makings::default(),
            awaiting: Vec::new(),
            given_up: Vec::new(),
            scratch: [IoBuf::zeroed(BLOCK_BYTES), IoBuf::zeroed(BLOCK_BYTES)],
            epoch: 0,
            counts: ShardCounts::default(),
        }
    }

    /// The configuration that it has worked by.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The words of the bitmap for which a write is under way.
    pub(crate) fn under_way<'a>(
        &'a self,
        bitmap: &'a Bitmap,
    ) -> impl Iterator<Item = usize> + use<'a> {
        let written = self.stripes.iter().filter(|stripe| stripe.is_being_written());
        written.map(|stripe| bitmap.word_of(stripe.sector))
    }

    /// Have a stripe looked at again by the next configuration.
    fn await_manager(&mut self, id: StripeId, state: State) {
        self.stripes[id.index()].state = state;
        self.awaiting.push(id);
    }

    /// Items in here.
    #[cfg(test)]
    pub(crate) fn items(&self) -> usize {
        self.items.len()
    }

    /// Stripes that do something.
    pub(crate) fn active(&self) -> usize {
        self.live() - self.table.idle()
    }

    fn live(&self) -> usize {
        self.stripes.len() - self.given_up.len()
    }

    /// Go over to the configuration `at`, with `stripes` stripes of the cache.
    pub(crate) fn refresh(&mut self, turn: &TurnInput<'_>, stripes: usize, out: &mut TurnEffects) {
        if self.epoch == turn.epoch {
            return;
        }
        self.epoch = turn.epoch;
        self.resize(turn, stripes, out);
        for id in std::mem::take(&mut self.awaiting) {
            self.make_ready(id);
        }
    }

    /// Have so many stripes, as soon as those with work let go.
    fn resize(&mut self, turn: &TurnInput<'_>, stripes: usize, out: &mut TurnEffects) {
        while self.live() < stripes {
            let id = self.given_up.pop().unwrap_or(StripeId(self.stripes.len() as u32));
            match self.stripes.get_mut(id.index()) {
                Some(stripe) => *stripe = Stripe::new(turn),
                None => self.stripes.push(Stripe::new(turn)),
            }
            self.table.resize(self.stripes.len());
            self.table.set_idle(id, true);
        }
        while self.live() > stripes.max(1) {
            let Some(id) = self.table.least_recent() else { break };
            self.table.set_busy(id);
            self.give_up(id);
        }
        self.wake(turn, out);
    }

    fn give_up(&mut self, id: StripeId) {
        self.table.set_sector(id, None);
        self.stripes[id.index()].blocks = Vec::new();
        self.given_up.push(id);
    }

    /// Take in a bio: an item, or I/O to a member that has ended.
    pub(crate) fn accept(
        &mut self,
        turn: &TurnInput<'_>,
        bio: Box<Bio>,
        is_sync: bool,
        out: &mut TurnEffects,
    ) {
        let item = Item { bio, is_sync, attached: 0, pieces: 0 };
        let number = self.items.insert(item);
        let home = self.items[number].bio.home;
        if !self.attach(turn, number, false, out) {
            self.counts.waited += 1;
            self.waiting.push_back(number);
            out.add_foreign(home);
        }
        self.end_if_done(number, out);
    }

    /// Attach an item to its stripes. False if there is none for it now.
    fn attach(
        &mut self,
        turn: &TurnInput<'_>,
        number: u32,
        is_its_turn: bool,
        out: &mut TurnEffects,
    ) -> bool {
        while let Some((sector, piece)) = self.next_piece(turn, number) {
            // Items that get the same stripe exclude one another, as a repair and writes have to.
            let is_apart = self.items[number].is_sync && mistake!("repair_races_writes");
            let found = self.table.find(sector).filter(|_| !is_apart);
            let id = self.stripe_of(turn, sector, (found, is_its_turn), out);
            let Some(id) = id else { return false };
            self.add_piece(id, piece, number, out);
        }
        true
    }

    /// The next piece of an item, with the member sector of its stripe.
    fn next_piece(&self, turn: &TurnInput<'_>, number: u32) -> Option<(u64, Piece)> {
        let item = &self.items[number];
        let left = item.bio.bytes - item.attached;
        if left == 0 {
            return None;
        }
        let sector = item.bio.sector.0 + item.attached / SECTOR_SIZE;
        let (role, sector) = match item.is_sync {
            true => (Role(0), sector),
            false => {
                let stripe = turn.conf.layout.map_sector(sector);
                (stripe.role, stripe.sector)
            }
        };
        let start = (sector % STRIPE_SECTORS * SECTOR_SIZE) as u32;
        let bytes = left.min(BLOCK_BYTES as u64 - u64::from(start)) as u32;
        let piece = Piece { item: number, role, at: item.attached, start, bytes };
        Some((sector - sector % STRIPE_SECTORS, piece))
    }

    /// Give a piece to a stripe, which is busy.
    fn add_piece(&mut self, id: StripeId, piece: Piece, number: u32, out: &mut TurnEffects) {
        let item = &mut self.items[number];
        item.attached += u64::from(piece.bytes);
        item.pieces += 1;
        let stripe = &mut self.stripes[id.index()];
        match item.bio.op {
            _ if item.is_sync => {
                debug_assert!(stripe.sync.is_none(), "one synchronises at a time");
                (stripe.sync, stripe.sync_began) = (Some(number), false);
            }
            Op::Read => stripe.reads.push(piece),
            _ => stripe.writes.push(piece),
        }
        if stripe.state == State::Idle {
            self.make_ready(id);
        } else if stripe.driver != item.bio.home {
            out.add_foreign(item.bio.home);
        }
    }

    fn make_ready(&mut self, id: StripeId) {
        let stripe = &mut self.stripes[id.index()];
        if !std::mem::replace(&mut stripe.is_queued, true) {
            self.ready.push_back(id);
        }
    }

    /// The stripe of a member sector, with work from now on: the one that was `found`, if any.
    fn stripe_of(
        &mut self,
        turn: &TurnInput<'_>,
        sector: u64,
        (found, is_its_turn): (Option<StripeId>, bool),
        out: &mut TurnEffects,
    ) -> Option<StripeId> {
        if let Some(id) = found.filter(|id| !self.table.is_idle(*id)) {
            return Some(id);
        }
        if !is_its_turn && !self.waiting.is_empty() {
            return None;
        }
        let id = found.or_else(|| self.table.least_recent())?;
        self.table.set_busy(id);
        if found.is_none() {
            self.table.set_sector(id, Some(sector));
            self.stripes[id.index()].become_stripe_of(sector, turn);
        }
        if !self.waiting.is_empty() {
            self.join(turn, sector, id, out);
        }
        Some(id)
    }

    /// Items that wait for the stripe of `sector` get a part of it.
    fn join(&mut self, turn: &TurnInput<'_>, sector: u64, id: StripeId, out: &mut TurnEffects) {
        for position in 0..self.waiting.len() {
            let number = self.waiting[position];
            if let Some((wanted, piece)) = self.next_piece(turn, number)
                && wanted == sector
            {
                self.add_piece(id, piece, number, out);
            }
        }
        // An item whose pieces all have stripes waits no longer.
        let items = &self.items;
        self.waiting.retain(|number| items[*number].has_more());
    }

    /// A stripe has no work any more.
    pub(super) fn release(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        quota: usize,
        out: &mut TurnEffects,
    ) {
        self.counts.freed += 1;
        let stripe = &mut self.stripes[id.index()];
        debug_assert!(stripe.state == State::Idle && stripe.io == 0 && !stripe.has_work());
        stripe.unreadable = Default::default();
        let is_empty = stripe.uptodate.is_empty();
        if self.live() > quota {
            return self.give_up(id);
        }
        self.table.set_idle(id, is_empty);
        self.wake(turn, out);
    }

    /// Let the first who waits go on, and the next if that one leaves a stripe over.
    fn wake(&mut self, turn: &TurnInput<'_>, out: &mut TurnEffects) {
        while self.table.idle() > 0
            && !mistake!("stripe_wake")
            && let Some(number) = self.waiting.pop_front()
        {
            self.counts.woken += 1;
            if !self.attach(turn, number, true, out) {
                self.waiting.push_front(number);
            }
        }
    }

    /// Look at all stripes that are to be looked at.
    pub(crate) fn handle_ready(
        &mut self,
        turn: &TurnInput<'_>,
        stripes: usize,
        out: &mut TurnEffects,
    ) {
        while let Some(id) = self.ready.pop_front() {
            self.stripes[id.index()].is_queued = false;
            self.handle(turn, id, stripes, out);
        }
    }

    /// A stripe is done with a piece.
    fn piece_done(&mut self, piece: Piece, status: Status, out: &mut TurnEffects) {
        self.item_done(piece.item, status, out);
    }

    fn item_done(&mut self, number: u32, status: Status, out: &mut TurnEffects) {
        let item = &mut self.items[number];
        item.pieces -= 1;
        if item.bio.status.is_ok() {
            item.bio.status = status;
        }
        self.end_if_done(number, out);
    }

    fn end_if_done(&mut self, number: u32, out: &mut TurnEffects) {
        let item = &self.items[number];
        if item.pieces == 0
            && !item.has_more()
            && let Some(item) = self.items.remove(number)
        {
            out.done.push(item.bio);
        }
    }
}
