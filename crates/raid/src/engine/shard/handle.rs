//! The steps of a stripe (Linux `handle_stripe`). Each step brings the stripe nearer to the work
//! that items ask of it, until the stripe has to wait for I/O or has no work any more. This file
//! chooses the next step, fetches blocks and does reads; `write`, `log` and `sync` have the other
//! steps.
//!
//! Invariants:
//! * A step is taken only while no I/O of the stripe is under way.
//! * A step borrows its one stripe, not the cache.
//! * A blocked stripe has I/O in flight, or awaits the manager or its log; each of these queues it
//!   again. A write whose blocks no member can take starts no I/O: its stripe is queued at once.

use super::effects::{ShardCounts, TurnEffects};
use super::items::Items;
use super::member_io::MemberIo;
use super::ready::ReadyQueue;
use super::stripe::{State, Stripe};
use crate::engine::plan::Fetch;
use crate::engine::roles::Roles;
use crate::engine::turn::{Fault, Report, TurnInput};
use crate::ids::StripeId;
use drystone_core::{IoBuf, Status};

/// The state of a stripe after one step.
pub(super) enum Step {
    /// Its next step can be taken at once.
    Continue,
    /// It waits for I/O, the manager or its log, or is queued.
    Blocked,
    /// It has no work any more.
    Idle,
}

/// The state of a record in the bad block logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Yes,
    /// The manager has been asked; the stripe waits.
    Pending,
}

/// One stripe, with everything else that its steps touch.
pub(super) struct Steps<'a> {
    pub(super) turn: &'a TurnInput<'a>,
    pub(super) id: StripeId,
    pub(super) stripe: &'a mut Stripe,
    pub(super) items: &'a mut Items,
    pub(super) ready: &'a mut ReadyQueue,
    /// Buffers for computed parity, to compare with the stripe's.
    pub(super) scratch: &'a mut [IoBuf; 2],
    pub(super) counts: &'a mut ShardCounts,
    pub(super) out: &'a mut TurnEffects,
}

impl Steps<'_> {
    /// Take steps until the stripe has to wait. True if it has no work any more.
    pub(super) fn take(mut self) -> bool {
        loop {
            match self.advance() {
                Step::Continue => {}
                Step::Blocked => return false,
                Step::Idle => return true,
            }
        }
    }

    /// Put the stripe into `state`; the next configuration queues it again.
    pub(super) fn await_manager(&mut self, state: State) {
        self.ready.await_manager(self.id, self.stripe, state);
    }

    /// Note that the stripe is done with a piece, or a synchronisation, of an item.
    pub(super) fn piece_done(&mut self, item: u32, status: Status) {
        self.items.piece_done(item, status, &mut self.out.done);
    }

    fn advance(&mut self) -> Step {
        let stripe = &mut *self.stripe;
        debug_assert_eq!(stripe.io, 0, "what is under way is waited for");
        match stripe.state {
            State::Writing | State::Recording => return self.written(),
            State::AwaitingRoom => return self.send_again(),
            State::Logging => return self.logged(),
            State::Reading | State::AwaitingBitmap | State::AwaitingList => {
                stripe.state = State::Idle;
            }
            State::InRow => {
                stripe.state = State::Idle;
                return self.write();
            }
            State::Idle => {}
        }
        if !stripe.reads.is_empty() {
            return self.read();
        }
        if stripe.sync.is_some() && stripe.draining.is_empty() {
            return self.synchronise();
        }
        if !stripe.writes.is_empty() {
            return self.write();
        }
        self.rewrite()
    }

    /// Bring the blocks `wanted` into the cache. True if they are there, false if some are being
    /// read.
    ///
    /// # Errors
    /// Some block can be neither read nor computed.
    pub(super) fn fetch(&mut self, wanted: Roles) -> Result<bool, ()> {
        loop {
            let stripe = &mut *self.stripe;
            match stripe.view(self.turn).fetch(wanted) {
                Fetch::Ready => return Ok(true),
                Fetch::Lost => return Err(()),
                Fetch::Compute(lost) => {
                    let uptodate = stripe.uptodate;
                    stripe.arithmetic(self.turn).reconstruct(lost, uptodate);
                    stripe.uptodate |= lost;
                }
                Fetch::Read(roles) => {
                    stripe.state = State::Reading;
                    self.start(roles, MemberIo::read(self.id));
                    return Ok(false);
                }
            }
        }
    }

    /// Begin I/O for the blocks `roles`, each like `io`.
    pub(super) fn start(&mut self, roles: Roles, io: MemberIo) {
        let stripe = &mut *self.stripe;
        stripe.driver = self.turn.port;
        let sector = stripe.sector;
        stripe.io += roles.len();
        let count = u64::from(roles.len());
        if io.is_write {
            self.counts.writes += count
        } else {
            self.counts.reads += count
        }
        self.out.io.extend(roles.iter().map(|role| MemberIo { role, sector, ..io }));
        self.add_remote();
    }

    /// Note that this channel has the stripe's items that came through other ports.
    pub(super) fn add_remote(&mut self) {
        let (turn, items) = (self.turn, &*self.items);
        let ports = self.stripe.items().map(|item| items.port(item));
        ports.filter(|port| *port != turn.port).for_each(|port| self.out.add_remote(port));
    }

    fn read(&mut self) -> Step {
        let wanted = self.stripe.reads.iter().map(|piece| piece.role).collect();
        match self.fetch(wanted) {
            Ok(false) => Step::Blocked,
            Ok(true) => {
                self.end_reads(wanted);
                Step::Continue
            }
            Err(()) => self.read_one_by_one(wanted),
        }
    }

    /// Read block by block: one of them is lost, but others may be readable.
    fn read_one_by_one(&mut self, wanted: Roles) -> Step {
        let mut there = Roles::EMPTY;
        for role in wanted.iter() {
            match self.fetch(Roles::one(role)) {
                Ok(false) => return Step::Blocked,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if self.record_bad_blocks(Roles::EMPTY) == Recorded::Pending {
            return Step::Blocked;
        }
        self.end_reads(there);
        Step::Continue
    }

    /// Record blocks in their members' bad block logs before the stripe goes on: blocks that a
    /// present member cannot read and that cannot be computed, and the blocks `targets`, which
    /// cannot be given to their members. The record must come before any later write of such a
    /// block, which takes the block off the log.
    pub(super) fn record_bad_blocks(&mut self, targets: Roles) -> Recorded {
        let (turn, stripe) = (self.turn, &*self.stripe);
        let (sector, lost) = (stripe.sector, stripe.unreadable - stripe.uptodate);
        let lost = lost.iter().filter_map(|role| turn.conf.member(role, false));
        let target = |role| turn.conf.member(role, true).or(turn.conf.member(role, false));
        let unlisted = lost
            .chain(targets.iter().filter_map(target))
            .filter(|member| !turn.conf.limits.read_only && !member.is_bad_at(sector));
        let fault = Fault::Lost;
        let reports = unlisted.map(|member| Report { number: member.number, sector, fault });
        let before = self.out.reports.len();
        self.out.reports.extend(reports);
        if self.out.reports.len() > before {
            self.await_manager(State::AwaitingList);
            return Recorded::Pending;
        }
        Recorded::Yes
    }

    /// End all reads: those of the blocks `there` with data, the others with an error.
    fn end_reads(&mut self, there: Roles) {
        let mut reads = std::mem::take(&mut self.stripe.reads);
        for piece in reads.drain(..) {
            let status = if there.has(piece.role) { Status::Ok } else { Status::IoError };
            if status.is_ok() {
                self.items.fill(&piece, &self.stripe.block(piece.role)[piece.range()]);
            }
            self.piece_done(piece.item, status);
        }
        self.stripe.reads = reads;
    }
}
