//! Synchronisation of a stripe: parity that is made to fit or looked at, blocks of new members that
//! are computed (Linux `handle_parity_checks5`, `handle_parity_checks6`).
//!
//! A stripe is synchronised under the same exclusion as it is written, so neither sees the other
//! half done.

use super::handle::{Recorded, Step};
use super::{Shard, TurnEffects};
use crate::engine::conf::SyncAction;
use crate::engine::plan::parity_of;
use crate::engine::roles::Roles;
use crate::engine::turn::TurnInput;
use crate::ids::{Role, StripeId};
use crate::layout::STRIPE_SECTORS;
use drystone_core::{BioFlags, IoBuf, Status};

impl Shard {
    pub(super) fn synchronise(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        out: &mut TurnEffects,
    ) -> Step {
        let stripe = &mut self.stripes[id.index()];
        if !std::mem::replace(&mut stripe.sync_began, true) {
            // The contents of the members count, not those of the cache.
            stripe.uptodate = Roles::EMPTY;
        }
        match turn.conf.action {
            Some(SyncAction::Recover) => self.recover(turn, id, out),
            Some(action) => self.check(turn, id, action, out),
            None => self.end_sync(id, Status::Cancelled, out),
        }
    }

    pub(super) fn end_sync(&mut self, id: StripeId, status: Status, out: &mut TurnEffects) -> Step {
        let stripe = &mut self.stripes[id.index()];
        stripe.sync_began = false;
        if let Some(item) = stripe.sync.take() {
            self.item_done(item, status, out);
        }
        Step::Continue
    }

    /// Writes for a synchronisation have ended.
    pub(super) fn sync_written(&mut self, id: StripeId, status: Status, out: &mut TurnEffects) {
        if self.stripes[id.index()].sync_began {
            self.end_sync(id, status, out);
        }
    }

    fn recover(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        let sector = self.stripes[id.index()].sector;
        let targets = turn.conf.rebuilding(sector);
        match self.fetch(turn, id, targets, out) {
            Ok(false) => Step::Blocked,
            Ok(true) if targets.is_empty() => self.end_sync(id, Status::Ok, out),
            Ok(true) => self.rebuild(turn, id, targets, out),
            Err(()) => self.recover_one_by_one(turn, id, targets, out),
        }
    }

    /// Give members and replacements that are behind their blocks, and nobody else theirs again.
    fn rebuild(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        roles: Roles,
        out: &mut TurnEffects,
    ) -> Step {
        let sector = self.stripes[id.index()].sector;
        let members = roles & turn.conf.behind(sector, false) & turn.conf.writable(sector);
        let replacements = roles & turn.conf.behind(sector, true);
        self.send_to(turn, id, (members, replacements), BioFlags::BACKGROUND, out);
        Step::Blocked
    }

    /// Not all can be computed. What can be had is not withheld from its member for that; who does
    /// not get its block is told that it has none.
    fn recover_one_by_one(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        targets: Roles,
        out: &mut TurnEffects,
    ) -> Step {
        let mut there = Roles::EMPTY;
        for role in targets.iter() {
            match self.fetch(turn, id, Roles::one(role), out) {
                Ok(false) => return Step::Blocked,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if self.record_bad_blocks(turn, id, targets - there, out) == Recorded::Pending {
            return Step::Blocked;
        }
        match there.is_empty() {
            true => self.end_sync(id, Status::IoError, out),
            false => self.rebuild(turn, id, there, out),
        }
    }

    fn check(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        action: SyncAction,
        out: &mut TurnEffects,
    ) -> Step {
        let stripe = &self.stripes[id.index()];
        let (data, sector) = (stripe.data, stripe.sector);
        let bad = turn.conf.bad_at(sector);
        if action == SyncAction::Repair && !bad.is_empty() {
            return self.repair(turn, id, bad, out);
        }
        let all_parity = parity_of(&stripe.row) & turn.conf.readable(sector);
        // A block that its member could not read is computed and written again: it may not have
        // fitted.
        let parity = all_parity - stripe.unreadable;
        let lost = data - turn.conf.readable(sector);
        if all_parity.len() <= lost.len() {
            // All parity is needed for what is lost: nothing is left over by which it could be
            // told.
            return self.end_sync(id, Status::Ok, out);
        }
        match self.fetch(turn, id, data | all_parity, out) {
            Ok(false) => Step::Blocked,
            Ok(true) => self.compare(turn, id, parity, action, out),
            Err(()) => match self.record_bad_blocks(turn, id, Roles::EMPTY, out) {
                Recorded::Pending => Step::Blocked,
                Recorded::Yes => self.end_sync(id, Status::IoError, out),
            },
        }
    }

    /// Write blocks anew that are listed as bad: the members may take them by now.
    fn repair(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        bad: Roles,
        out: &mut TurnEffects,
    ) -> Step {
        match self.fetch(turn, id, bad, out) {
            Ok(false) => Step::Blocked,
            Ok(true) => {
                self.send(turn, id, bad, BioFlags::BACKGROUND, out);
                Step::Blocked
            }
            Err(()) => self.end_sync(id, Status::IoError, out),
        }
    }

    fn compare(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        parity: Roles,
        action: SyncAction,
        out: &mut TurnEffects,
    ) -> Step {
        let stripe = &mut self.stripes[id.index()];
        let [p, q] = &mut self.scratch;
        let has_q = stripe.row.q.is_some();
        stripe.arithmetic(turn).parity_into(p, has_q.then_some(&mut **q));
        let (p_role, q_role) = (stripe.row.p, stripe.row.q);
        let differs =
            |role: Role, computed: &IoBuf| parity.has(role) && stripe.block(role) != &**computed;
        let mut wrong = Roles::EMPTY;
        if differs(p_role, p) {
            wrong.insert(p_role);
        }
        if let Some(q_role) = q_role.filter(|role| differs(*role, q)) {
            wrong.insert(q_role);
        }
        if wrong.is_empty() {
            return self.end_sync_or_rewrite(turn, id, out);
        }
        out.mismatches += STRIPE_SECTORS;
        if action == SyncAction::Check {
            // The cache is not to hold what does not fit.
            stripe.uptodate -= wrong;
            return self.end_sync(id, Status::Ok, out);
        }
        for role in wrong.iter() {
            let computed = if role == p_role { &*p } else { &*q };
            stripe.block_mut(role).copy_from_slice(computed);
        }
        self.send(turn, id, wrong, BioFlags::BACKGROUND, out);
        Step::Blocked
    }

    /// All fits; but a block may have been computed because its member could not read it.
    fn end_sync_or_rewrite(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        out: &mut TurnEffects,
    ) -> Step {
        if self.stripes[id.index()].to_rewrite(turn).is_empty() {
            return self.end_sync(id, Status::Ok, out);
        }
        self.send(turn, id, Roles::EMPTY, BioFlags::BACKGROUND, out);
        Step::Blocked
    }
}
