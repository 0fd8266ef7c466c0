//! Stripes on their way through the partial parity log.

use super::handle::Looked;
use super::{At, Outbox, Shard};
use crate::engine::plan::Method;
use crate::engine::ppl::{Spares, Ticket};
use crate::engine::roles::Roles;
use crate::engine::stripe::{FailedWrite, State};
use drystone_core::BioFlags;

impl Shard {
    /// The ticket of a stripe of which the blocks `written` are about to be changed. By
    /// read-modify-write their old content is out of the parity already.
    pub(super) fn ticket(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        written: Roles,
        method: Method,
        spares: &mut Spares,
    ) -> Ticket {
        let place = &mut self.stripes[stripe as usize];
        let others = place.data - written;
        let mut ticket = Ticket::new(spares, stripe, place.sector, place.slots_of(written));
        if !others.is_empty() {
            ticket.set_partial(|partial| match method {
                Method::Rmw => partial.copy_from_slice(place.block(place.row.p)),
                _ => place.arithmetic(at).xor_of(partial, others),
            });
        }
        ticket
    }

    /// Have a stripe logged before `pending` is sent to members.
    pub(super) fn log(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        pending: (Roles, BioFlags),
        mut ticket: Ticket,
        out: &mut Outbox,
    ) {
        let place = &mut self.stripes[stripe as usize];
        (place.state, place.driver) = (State::Logging, at.home);
        place.pending = Some(pending);
        ticket.set_home(at.home);
        let items = &self.items;
        let home = |item| items.get(item).bio.home;
        place.items().map(home).filter(|home| *home != at.home).for_each(|h| out.add_foreign(h));
        out.tickets.push(ticket);
    }

    /// A ticket has come back.
    pub(crate) fn take_ticket(&mut self, ticket: Ticket) {
        let (stripe, failed) = ticket.logged();
        let place = &mut self.stripes[stripe as usize];
        debug_assert!(place.state == State::Logging && place.ticket.is_none());
        let failed = failed.map(|number| (place.row.p, number));
        let failed = failed.map(|(role, number)| FailedWrite { role, number });
        place.failed.extend(failed);
        place.ticket = Some(ticket);
        self.make_ready(stripe);
    }

    /// The log is written; or its member has failed, which has to be on record.
    pub(super) fn logged(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        if !self.is_on_record(at, stripe) {
            self.await_manager(stripe, State::Logging);
            return Looked::Waits;
        }
        let place = &mut self.stripes[stripe as usize];
        place.failed.clear();
        if let Some((roles, flags)) = place.pending.take() {
            self.send(at, stripe, roles, flags, out);
        }
        Looked::Waits
    }

    /// The members have what was logged, or are on record as failed.
    pub(super) fn log_done(&mut self, stripe: u32, out: &mut Outbox) {
        if let Some(mut ticket) = self.stripes[stripe as usize].ticket.take() {
            ticket.set_done();
            out.tickets.push(ticket);
        }
    }
}
