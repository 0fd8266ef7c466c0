//! Synchronisation of a stripe: check or correct its parity, or compute the blocks of new members
//! (Linux `handle_parity_checks5`, `handle_parity_checks6`).
//!
//! A stripe does one thing at a time, so neither a write nor a synchronisation sees the other half
//! done.

use super::handle::{Recorded, Step, Steps};
use crate::engine::conf::SyncAction;
use crate::engine::plan::parity_of;
use crate::engine::roles::Roles;
use crate::ids::Role;
use crate::layout::STRIPE_SECTORS;
use drystone_core::{BioFlags, IoBuf, Status};

impl Steps<'_> {
    pub(super) fn synchronise(&mut self) -> Step {
        let stripe = &mut *self.stripe;
        if !std::mem::replace(&mut stripe.sync_began, true) {
            // The contents of the members must be compared, not those of the cache.
            stripe.uptodate = Roles::EMPTY;
        }
        match self.turn.conf.action {
            Some(SyncAction::Recover) => self.recover(),
            Some(action) => self.check(action),
            None => self.end_sync(Status::Cancelled),
        }
    }

    pub(super) fn end_sync(&mut self, status: Status) -> Step {
        let stripe = &mut *self.stripe;
        stripe.sync_began = false;
        if let Some(item) = stripe.sync.take() {
            self.piece_done(item, status);
        }
        Step::Continue
    }

    /// Note that the writes of a synchronisation have ended.
    pub(super) fn sync_written(&mut self, status: Status) {
        if self.stripe.sync_began {
            self.end_sync(status);
        }
    }

    fn recover(&mut self) -> Step {
        let sector = self.stripe.sector;
        let targets = self.turn.conf.rebuilding(sector);
        match self.fetch(targets) {
            Ok(false) => Step::Blocked,
            Ok(true) if targets.is_empty() => self.end_sync(Status::Ok),
            Ok(true) => self.rebuild(targets),
            Err(()) => self.recover_one_by_one(targets),
        }
    }

    /// Write the blocks of members and replacements that are being rebuilt, and of no others.
    fn rebuild(&mut self, roles: Roles) -> Step {
        let sector = self.stripe.sector;
        let members =
            roles & self.turn.conf.behind(sector, false) & self.turn.conf.writable(sector);
        let replacements = roles & self.turn.conf.behind(sector, true);
        self.send_to((members, replacements), BioFlags::BACKGROUND);
        Step::Blocked
    }

    /// Some blocks cannot be computed. Write the others to their members all the same, and have the
    /// lost ones listed as bad.
    fn recover_one_by_one(&mut self, targets: Roles) -> Step {
        let mut there = Roles::EMPTY;
        for role in targets.iter() {
            match self.fetch(Roles::one(role)) {
                Ok(false) => return Step::Blocked,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if self.record_bad_blocks(targets - there) == Recorded::Pending {
            return Step::Blocked;
        }
        match there.is_empty() {
            true => self.end_sync(Status::IoError),
            false => self.rebuild(there),
        }
    }

    fn check(&mut self, action: SyncAction) -> Step {
        let stripe = &*self.stripe;
        let (data, sector) = (stripe.data, stripe.sector);
        let bad = self.turn.conf.bad_at(sector);
        if action == SyncAction::Repair && !bad.is_empty() {
            return self.repair(bad);
        }
        let all_parity = parity_of(&stripe.row) & self.turn.conf.readable(sector);
        // A block that its member could not read is computed and rewritten. It is not compared,
        // because the old block may not have matched.
        let parity = all_parity - stripe.unreadable;
        let lost = data - self.turn.conf.readable(sector);
        if all_parity.len() <= lost.len() {
            // All parity is needed to compute the lost blocks: none is left to compare.
            return self.end_sync(Status::Ok);
        }
        match self.fetch(data | all_parity) {
            Ok(false) => Step::Blocked,
            Ok(true) => self.compare(parity, action),
            Err(()) => match self.record_bad_blocks(Roles::EMPTY) {
                Recorded::Pending => Step::Blocked,
                Recorded::Yes => self.end_sync(Status::IoError),
            },
        }
    }

    /// Rewrite blocks that are listed as bad: the members may take them by now.
    fn repair(&mut self, bad: Roles) -> Step {
        match self.fetch(bad) {
            Ok(false) => Step::Blocked,
            Ok(true) => {
                self.send(bad, BioFlags::BACKGROUND);
                Step::Blocked
            }
            Err(()) => self.end_sync(Status::IoError),
        }
    }

    fn compare(&mut self, parity: Roles, action: SyncAction) -> Step {
        let stripe = &mut *self.stripe;
        let [p, q] = &mut *self.scratch;
        let has_q = stripe.row.q.is_some();
        stripe.arithmetic(self.turn).parity_into(p, has_q.then_some(&mut **q));
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
            return self.end_sync_or_rewrite();
        }
        self.out.mismatches += STRIPE_SECTORS;
        if action == SyncAction::Check {
            // The cache must not keep parity that does not fit.
            stripe.uptodate -= wrong;
            return self.end_sync(Status::Ok);
        }
        for role in wrong.iter() {
            let computed = if role == p_role { &*p } else { &*q };
            stripe.block_mut(role).copy_from_slice(computed);
        }
        self.send(wrong, BioFlags::BACKGROUND);
        Step::Blocked
    }

    /// Parity fits. Rewrite a block that was computed because its member could not read it, or else
    /// end.
    fn end_sync_or_rewrite(&mut self) -> Step {
        if self.stripe.to_rewrite(self.turn).is_empty() {
            return self.end_sync(Status::Ok);
        }
        self.send(Roles::EMPTY, BioFlags::BACKGROUND);
        Step::Blocked
    }
}
