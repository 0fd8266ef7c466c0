//! A shard of the stripe cache, as the holder of its turn uses it: single-threaded.
//!
//! ```text
//! item -> pieces -> stripes: ready -> handled -> I/O to members -> handled again ... -> idle
//! ```
//!
//! An *item* is a bio, or a part of one, that lies in one region of the members and so in one
//! shard. It is attached to its stripes piece by piece, and ends when all of them are done with it.
//! Items that cover whole rows pass the stripes by (`rows`).
//!
//! Invariants:
//! * Items that find no idle stripe wait in line. Only the state of this shard decides whether one
//!   may go on. Each stripe that becomes idle lets the first item of the line go on (`wake`), then
//!   the next ones while stripes are idle. No item outside the line takes an idle stripe before
//!   them.
//! * If another item gets the stripe that an item waits for, the waiting item joins it (`join`) and
//!   needs no stripe of its own.
//! * A stripe never waits for an item: it finishes a piece without the item's other pieces.
//!
//! The parts hold no references to each other. `cache` knows which stripes have work, `items` holds
//! the items and the line, `ready` the stripes whose next step is due, and `runs` the I/O that is
//! under way. Calls of `ready` and `runs` that reach stripes borrow the cache. The steps of a
//! stripe (`handle`) borrow that stripe and the parts that they need.
//!
//! Source: "md/raid5: per hash value and exclusive wait_for_stripe" (Yuanhan Liu, linux-raid,
//! 2015). Linux reverted it in 2016; because of that, no wait here depends on a condition of the
//! whole array.

mod cache;
mod completion;
mod compute;
mod cover;
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
mod row_steps;
mod rows;
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
use rows::RowWrites;
use runs::Runs;
use stripe::State;

pub use effects::ShardCounts;
pub(crate) use effects::TurnEffects;

/// See the module's text.
pub(crate) struct Shard {
    stripes: StripeCache,
    items: Items,
    /// Items that have come in this turn and are not attached yet.
    arrivals: Vec<u32>,
    ready: ReadyQueue,
    runs: Runs,
    rows: RowWrites,
    /// Buffers for computed parity, to compare with the stripe's.
    scratch: [IoBuf; 2],
    /// The epoch of the newest configuration that a turn here has worked by.
    epoch: u64,
    counts: ShardCounts,
}

impl Shard {
    pub(crate) fn new() -> Self {
        Shard {
            stripes: StripeCache::new(),
            items: Items::new(),
            arrivals: Vec::new(),
            ready: ReadyQueue::default(),
            runs: Runs::default(),
            rows: RowWrites::default(),
            scratch: [IoBuf::zeroed(BLOCK_BYTES), IoBuf::zeroed(BLOCK_BYTES)],
            epoch: 0,
            counts: ShardCounts::default(),
        }
    }

    /// The epoch of the newest configuration that a turn here has worked by.
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

    /// The number of busy stripes.
    pub(crate) fn active(&self) -> usize {
        self.stripes.active()
    }

    /// A write to device `number`, or to any device if `None`, is in flight.
    pub(crate) fn writes_to(&self, number: Option<MemberNumber>) -> bool {
        self.runs.has_writes_to(number)
    }

    /// Take over the configuration of `turn`, with `stripes` stripes for the cache.
    pub(crate) fn refresh(&mut self, turn: &TurnInput<'_>, stripes: usize, out: &mut TurnEffects) {
        if self.epoch == turn.epoch {
            return;
        }
        self.epoch = turn.epoch;
        self.stripes.resize(turn, stripes);
        self.rows.resize(&turn.conf.layout, stripes);
        self.wake(turn, out);
        self.ready.push_awaiting(&mut self.stripes);
    }

    /// Take in an item, for [`Shard::handle_ready`] of the same turn.
    pub(crate) fn accept(&mut self, bio: Box<Bio>, is_sync: bool) {
        let number = self.items.insert(bio, is_sync);
        self.arrivals.push(number);
    }

    /// Begin the work on the items that have come in this turn.
    fn attach_arrivals(&mut self, turn: &TurnInput<'_>, out: &mut TurnEffects) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let mut left = &arrivals[..];
        while let [number, ..] = *left {
            let taken = match self.items.has_waiting() {
                true => 0,
                false => self.begin_rows(turn, Some(left), out),
            };
            if taken == 0 {
                self.attach_arrival(turn, number, out);
            }
            left = &left[taken.max(1)..];
        }
        arrivals.clear();
        self.arrivals = arrivals;
    }

    fn attach_arrival(&mut self, turn: &TurnInput<'_>, number: u32, out: &mut TurnEffects) {
        if !self.attach(turn, number, false, out) {
            self.counts.waited += 1;
            self.items.wait_last(number);
            out.add_remote(self.items.port(number));
        }
        self.items.end_if_done(number, &mut out.done);
    }

    /// Attach an item to its stripes. False if it has to wait for a stripe.
    fn attach(
        &mut self,
        turn: &TurnInput<'_>,
        number: u32,
        is_its_turn: bool,
        out: &mut TurnEffects,
    ) -> bool {
        while let Some((sector, piece)) = self.items.next_piece(&turn.conf.layout, number) {
            // Items of the same stripe exclude one another: a repair must not run beside a write.
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
        let (work, port) = self.items.attach(&piece);
        let stripe = &mut self.stripes[id];
        stripe.add(piece, work);
        if stripe.state == State::Idle {
            self.ready.push(id, stripe);
        } else if stripe.driver != port {
            out.add_remote(port);
        }
    }

    /// The stripe of a member sector, which is busy from now on. `found` is the stripe that has the
    /// sector already, if any. `None` if the item has to wait.
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

    /// Give the stripe its piece of every item that waits for the stripe of `sector`.
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

    /// Let the first item of the line go on, and the next ones while stripes are idle.
    fn wake(&mut self, turn: &TurnInput<'_>, out: &mut TurnEffects) {
        while self.stripes.idle() > 0 && self.items.has_waiting() && !mistake!("stripe_wake") {
            let taken = self.begin_rows(turn, None, out);
            self.counts.woken += taken.max(1) as u64;
            if taken > 0 {
                continue;
            }
            let number = self.items.next_waiting();
            if let Some(number) = number.filter(|number| !self.attach(turn, *number, true, out)) {
                self.items.wait_first(number);
            }
        }
    }

    /// Begin what has come in this turn, and take the steps of all stripes whose next step is due.
    pub(crate) fn handle_ready(
        &mut self,
        turn: &TurnInput<'_>,
        stripes: usize,
        out: &mut TurnEffects,
    ) {
        self.release_rows(turn, stripes, out);
        self.attach_arrivals(turn, out);
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

    /// Note that a stripe has no work any more.
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
        mut send: impl FnMut(Role, bool, Box<Bio>),
    ) {
        out.row_bios.drain(..).for_each(|(role, bio)| send(role, false, bio));
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
