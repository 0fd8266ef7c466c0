//! Stripes on their way through the partial parity log.

use super::handle::Step;
use super::{Shard, TurnEffects};
use crate::engine::plan::Method;
use crate::engine::ppl::{Spares, Ticket};
use crate::engine::roles::Roles;
use crate::engine::stripe::{FailedWrite, State};
use crate::engine::turn::TurnInput;
use crate::ids::StripeId;
use drystone_core::BioFlags;

impl Shard {
    /// The ticket of a stripe of which the blocks `written` are about to be changed. By
    /// read-modify-write their old content is out of the parity already.
    pub(super) fn ticket(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        written: Roles,
        method: Method,
        spares: &mut Spares,
    ) -> Ticket {
        let stripe = &mut self.stripes[id.index()];
        let others = stripe.data - written;
        let mut ticket = Ticket::new(spares, id, stripe.sector, stripe.slots_of(written));
        if !others.is_empty() {
            ticket.set_partial(|partial| match method {
                Method::Rmw => partial.copy_from_slice(stripe.block(stripe.row.p)),
                _ => stripe.arithmetic(turn).xor_of(partial, others),
            });
        }
        ticket
    }

    /// Have a stripe logged before `pending` is sent to members.
    pub(super) fn log(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        pending: (Roles, BioFlags),
        mut ticket: Ticket,
        out: &mut TurnEffects,
    ) {
        let stripe = &mut self.stripes[id.index()];
        (stripe.state, stripe.driver) = (State::Logging, turn.home);
        stripe.pending = Some(pending);
        ticket.set_home(turn.home);
        let items = &self.items;
        let home = |item| items[item].bio.home;
        stripe.items().map(home).filter(|home| *home != turn.home).for_each(|h| out.add_foreign(h));
        out.tickets.push(ticket);
    }

    /// A ticket has come back.
    pub(crate) fn accept_ticket(&mut self, ticket: Ticket) {
        let (id, failed) = ticket.logged();
        let stripe = &mut self.stripes[id.index()];
        debug_assert!(stripe.state == State::Logging && stripe.ticket.is_none());
        let failed = failed.map(|number| (stripe.row.p, number));
        let failed = failed.map(|(role, number)| FailedWrite { role, number });
        stripe.failed.extend(failed);
        stripe.ticket = Some(ticket);
        self.make_ready(id);
    }

    /// The log is written; or its member has failed, which has to be on record.
    pub(super) fn logged(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        out: &mut TurnEffects,
    ) -> Step {
        if !self.is_on_record(turn, id) {
            self.await_manager(id, State::Logging);
            return Step::Blocked;
        }
        let stripe = &mut self.stripes[id.index()];
        stripe.failed.clear();
        if let Some((roles, flags)) = stripe.pending.take() {
            self.send(turn, id, roles, flags, out);
        }
        Step::Blocked
    }

    /// The members have what was logged, or are on record as failed.
    pub(super) fn log_done(&mut self, id: StripeId, out: &mut TurnEffects) {
        if let Some(mut ticket) = self.stripes[id.index()].ticket.take() {
            ticket.set_done();
            out.tickets.push(ticket);
        }
    }
}
