//! Stripes on their way through the partial parity log.
//!
//! Invariants:
//! * A stripe is in [`State::Logging`] from [`Steps::log`] until its blocks are sent; `pending`
//!   lists those blocks. Its ticket is with the log, or has come back and is in `ticket`.
//! * A ticket goes to the log for the second time only after the members have the stripe's blocks,
//!   or are on record as failed.

use super::handle::{Step, Steps};
use super::stripe::State;
use crate::engine::plan::Method;
use crate::engine::ppl::Ticket;
use crate::engine::roles::Roles;
use drystone_core::BioFlags;

impl Steps<'_> {
    /// The ticket of a stripe whose blocks `written` are about to change. With read-modify-write,
    /// the parity block has lost their old content already, so it is the partial parity.
    pub(super) fn ticket(&mut self, written: Roles, method: Method) -> Ticket {
        let stripe = &mut *self.stripe;
        let others = stripe.data - written;
        let mut ticket =
            Ticket::new(&mut self.out.spares, self.id, stripe.sector, stripe.slots_of(written));
        if !others.is_empty() {
            ticket.set_partial(|partial| match method {
                Method::Rmw => partial.copy_from_slice(stripe.block(stripe.row.p)),
                _ => stripe.arithmetic(self.turn).xor_of(partial, others),
            });
        }
        ticket
    }

    /// Have a stripe logged before `pending` is sent to members.
    pub(super) fn log(&mut self, pending: (Roles, BioFlags), mut ticket: Ticket) {
        let stripe = &mut *self.stripe;
        (stripe.state, stripe.driver) = (State::Logging, self.turn.port);
        stripe.pending = Some(pending);
        ticket.set_port(self.turn.port);
        self.out.tickets.push(ticket);
        self.add_remote();
    }

    /// Send the pending blocks, now that the log is written. If the log's member failed instead,
    /// the failure has to be on record first.
    pub(super) fn logged(&mut self) -> Step {
        if !self.stripe.is_on_record(self.turn) {
            self.await_manager(State::Logging);
            return Step::Blocked;
        }
        let stripe = &mut *self.stripe;
        stripe.failed.clear();
        if let Some((roles, flags)) = stripe.pending.take() {
            self.send(roles, flags);
        }
        Step::Blocked
    }

    /// Tell the log that the members have the stripe's blocks, or are on record as failed.
    pub(super) fn log_done(&mut self) {
        if let Some(mut ticket) = self.stripe.ticket.take() {
            ticket.set_done();
            self.out.tickets.push(ticket);
        }
    }
}
