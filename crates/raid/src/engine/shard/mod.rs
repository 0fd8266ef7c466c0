//! A shard of the stripe cache, as the holder of its turn uses it: as if there were one thread.
//!
//! ```text
//! item -> pieces -> stripes: ready -> handled -> I/O to members -> handled again ... -> idle
//! ```
//!
//! An *item* is a bio, or a part of one, that lies in one region of the members and so in one
//! shard. It is attached to its stripes piece by piece, and ends when all of them are done with it.
//!
//! Invariants:
//! * Items that find no idle stripe wait in line. Whether one may go on depends on this shard
//!   alone. Each stripe that becomes idle lets the first of them go on (`wake`), then the next ones
//!   while stripes are idle. No item takes an idle stripe past the line.
//! * An item that waits for a stripe that another item gets joins it (`join`), and needs none of
//!   its own.
//! * A stripe waits for no item: a piece is done without the others.
//!
//! The parts hold no references to each other. `cache` knows which stripe has work, `items` the
//! pieces and the line, `ready` the stripes whose next step is due, `runs` the I/O that is under
//! way. Calls of `ready` and `runs` that reach stripes borrow the cache. The steps of a stripe
//! (`handle`) borrow that stripe and the parts that they need.
//!
//! Source: "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan Liu, linux-raid,
//! 2015); its reversal in Linux (2016) is why no condition here is one of the whole array.

mod cache;
mod completion;
mod compute;
mod effects;
mod handle;
mod items;
mod lent;
mod log;
mod member_io;
#[cfg(all(test, loom))]
mod models;
mod piece;
mod ready;
mod runs;
mod stripe;
mod sync;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod write;

use super::bitmap::Bitmap;
use super::ppl::Ticket;
use super::turn::TurnInput;
use crate::ids::{MemberNumber, Role, StripeId};
use crate::layout::BLOCK_BYTES;
use cache::StripeCache;
use drystone_core::{Bio, IoBuf, mistake};
use handle::Steps;
use items::Items;
use piece::Piece;
use ready::ReadyQueue;
use runs::Runs;
use stripe::State;

pub use effects::ShardCounts;
pub(crate) use effects::TurnEffects;

/// See the module's text.
pub(crate) struct Shard {
    stripes: StripeCache,
    items: Items,
    ready: ReadyQueue,
    runs: Runs,
    /// For parity that is compared.
    scratch: [IoBuf; 2],
    /// The configuration that it has worked by.
    epoch: u64,
    counts: ShardCounts,
}

impl Shard {
    pub(crate) fn new() -> Self {
        Shard {
            stripes: StripeCache::new(),
            items: Items::new(),
            ready: ReadyQueue::default(),
            runs: Runs::default(),
            scratch: [IoBuf::zeroed(BLOCK_BYTES), IoBuf::zeroed(BLOCK_BYTES)],
            epoch: 0,
            counts: ShardCounts::default(),
        }
    }

    /// The configuration that it has worked by.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The counts since the shard was made.
    pub(crate) fn counts(&self) -> ShardCounts {
        self.counts
    }

    /// The words of the bitmap for which a write is under way.
    pub(crate) fn under_way<'a>(
        &'a self,
        bitmap: &'a Bitmap,
    ) -> impl Iterator<Item = usize> + use<'a> {
        self.stripes.being_written().map(|sector| bitmap.word_of(sector))
    }

    /// Stripes that do something.
    pub(crate) fn active(&self) -> usize {
        self.stripes.active()
    }

    /// Something is being written to device `number`, or to any.
    pub(crate) fn writes_to(&self, number: Option<MemberNumber>) -> bool {
        self.runs.has_writes_to(number)
    }

    /// Go over to the configuration of `turn`, with `stripes` stripes of the cache.
    pub(crate) fn refresh(&mut self, turn: &TurnInput<'_>, stripes: usize, out: &mut TurnEffects) {
        if self.epoch == turn.epoch {
            return;
        }
        self.epoch = turn.epoch;
        self.stripes.resize(turn, stripes);
        self.wake(turn, out);
        self.ready.push_awaiting(&mut self.stripes);
    }

    /// Take in an item.
    pub(crate) fn accept(
        &mut self,
        turn: &TurnInput<'_>,
        bio: Box<Bio>,
        is_sync: bool,
        out: &mut TurnEffects,
    ) {
        let home = bio.port;
        let number = self.items.insert(bio, is_sync);
        if !self.attach(turn, number, false, out) {
            self.counts.waited += 1;
            self.items.wait_last(number);
            out.add_remote(home);
        }
        self.items.end_if_done(number, &mut out.done);
    }

    /// Attach an item to its stripes. False if there is none for it now.
    fn attach(
        &mut self,
        turn: &TurnInput<'_>,
        number: u32,
        is_its_turn: bool,
        out: &mut TurnEffects,
    ) -> bool {
        while let Some((sector, piece)) = self.items.next_piece(&turn.conf.layout, number) {
            // Items that get the same stripe exclude one another, as a repair and writes have to.
            let is_apart = self.items.is_sync(number) && mistake!("repair_races_writes");
            let found = self.stripes.find(sector).filter(|_| !is_apart);
            let id = self.stripe_of(turn, sector, (found, is_its_turn), out);
            let Some(id) = id else { return false };
            self.add_piece(id, piece, out);
        }
        true
    }

    /// Give a piece to a stripe, which is busy.
    fn add_piece(&mut self, id: StripeId, piece: Piece, out: &mut TurnEffects) {
        let (work, home) = self.items.attach(&piece);
        let stripe = &mut self.stripes[id];
        stripe.add(piece, work);
        if stripe.state == State::Idle {
            self.ready.push(id, stripe);
        } else if stripe.driver != home {
            out.add_remote(home);
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
        if let Some(id) = found.filter(|id| !self.stripes.is_idle(*id)) {
            return Some(id);
        }
        if !is_its_turn && self.items.has_waiting() {
            return None;
        }
        let id = self.stripes.claim(turn, sector, found)?;
        if self.items.has_waiting() {
            self.join(turn, sector, id, out);
        }
        Some(id)
    }

    /// Items that wait for the stripe of `sector` get a part of it.
    fn join(&mut self, turn: &TurnInput<'_>, sector: u64, id: StripeId, out: &mut TurnEffects) {
        let mut position = 0;
        while let Some(number) = self.items.waiting_at(position) {
            if let Some((wanted, piece)) = self.items.next_piece(&turn.conf.layout, number)
                && wanted == sector
            {
                self.add_piece(id, piece, out);
            }
            position += 1;
        }
        self.items.drop_attached_from_line();
    }

    /// Let the first item of the line go on, and the next one while a stripe is idle.
    fn wake(&mut self, turn: &TurnInput<'_>, out: &mut TurnEffects) {
        while self.stripes.has_idle()
            && !mistake!("stripe_wake")
            && let Some(number) = self.items.next_waiting()
        {
            self.counts.woken += 1;
            if !self.attach(turn, number, true, out) {
                self.items.wait_first(number);
            }
        }
    }

    /// Take the steps of all stripes whose next step is due.
    pub(crate) fn handle_ready(
        &mut self,
        turn: &TurnInput<'_>,
        stripes: usize,
        out: &mut TurnEffects,
    ) {
        while let Some(id) = self.ready.pop(&mut self.stripes) {
            let steps = Steps {
                turn,
                id,
                stripe: &mut self.stripes[id],
                items: &mut self.items,
                ready: &mut self.ready,
                scratch: &mut self.scratch,
                counts: &mut self.counts,
                out,
            };
            if steps.take() {
                self.release(turn, id, stripes, out);
            }
        }
    }

    /// A stripe has no work any more.
    fn release(&mut self, turn: &TurnInput<'_>, id: StripeId, quota: usize, out: &mut TurnEffects) {
        self.counts.freed += 1;
        if self.stripes.release(id, quota) {
            self.wake(turn, out);
        }
    }

    /// Make bios of all I/O that the turn has begun ([`Runs::make`]).
    pub(crate) fn make_runs(
        &mut self,
        turn: &TurnInput<'_>,
        out: &mut TurnEffects,
        send: impl FnMut(Role, bool, Box<Bio>),
    ) {
        self.runs.make(turn, &mut self.stripes, &mut out.io, send);
    }

    /// A ticket has come back.
    pub(crate) fn accept_ticket(&mut self, ticket: Ticket) {
        let (id, failed) = ticket.logged();
        let stripe = &mut self.stripes[id];
        stripe.logged(ticket, failed);
        self.ready.push(id, stripe);
    }
}
