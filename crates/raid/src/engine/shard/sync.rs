//! Synchronisation of a stripe: parity that is made to fit or looked at, blocks of new members that
//! are computed (Linux `handle_parity_checks5`, `handle_parity_checks6`).
//!
//! A stripe is synchronised under the same exclusion as it is written, so neither sees the other
//! half done.

use super::handle::Looked;
use super::{At, Outbox, Shard};
use crate::engine::conf::SyncAction;
use crate::engine::plan::parity_of;
use crate::engine::roles::Roles;
use crate::layout::STRIPE_SECTORS;
use drystone_core::{BioFlags, IoBuf, Status};

impl Shard {
    pub(super) fn synchronise(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let place = &mut self.stripes[stripe as usize];
        if !std::mem::replace(&mut place.sync_began, true) {
            // What the members hold counts, not what the cache does.
            place.uptodate = Roles::EMPTY;
        }
        match at.conf.action {
            Some(SyncAction::Recover) => self.recover(at, stripe, out),
            Some(action) => self.check(at, stripe, action, out),
            None => self.end_sync(stripe, Status::Cancelled, out),
        }
    }

    pub(super) fn end_sync(&mut self, stripe: u32, status: Status, out: &mut Outbox) -> Looked {
        let place = &mut self.stripes[stripe as usize];
        place.sync_began = false;
        if let Some(item) = place.sync.take() {
            self.item_done(item, status, out);
        }
        Looked::Again
    }

    /// Writes for a synchronisation have ended.
    pub(super) fn sync_written(&mut self, stripe: u32, status: Status, out: &mut Outbox) {
        if self.stripes[stripe as usize].sync_began {
            self.end_sync(stripe, status, out);
        }
    }

    fn recover(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let sector = self.stripes[stripe as usize].sector;
        let targets = at.conf.rebuilding(sector);
        match self.fetch(at, stripe, targets, out) {
            Ok(false) => Looked::Waits,
            Ok(true) if targets.is_empty() => self.end_sync(stripe, Status::Ok, out),
            Ok(true) => self.rebuild(at, stripe, targets, out),
            Err(()) => self.recover_one_by_one(at, stripe, targets, out),
        }
    }

    /// Give members and replacements that are behind their blocks, and nobody else theirs again.
    fn rebuild(&mut self, at: &At<'_>, stripe: u32, roles: Roles, out: &mut Outbox) -> Looked {
        let sector = self.stripes[stripe as usize].sector;
        let members = roles & at.conf.behind(sector, false) & at.conf.writable(sector);
        let replacements = roles & at.conf.behind(sector, true);
        self.send_to(at, stripe, (members, replacements), BioFlags::BACKGROUND, out);
        Looked::Waits
    }

    /// Not all can be computed. What can be had is not withheld from its member for that; who does not get
    /// its block is told that it has none.
    fn recover_one_by_one(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        targets: Roles,
        out: &mut Outbox,
    ) -> Looked {
        let mut there = Roles::EMPTY;
        for role in targets.iter() {
            match self.fetch(at, stripe, Roles::one(role), out) {
                Ok(false) => return Looked::Waits,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if !self.is_loss_listed(at, stripe, targets - there, out) {
            return Looked::Waits;
        }
        match there.is_empty() {
            true => self.end_sync(stripe, Status::IoError, out),
            false => self.rebuild(at, stripe, there, out),
        }
    }

    fn check(&mut self, at: &At<'_>, stripe: u32, action: SyncAction, out: &mut Outbox) -> Looked {
        let place = &self.stripes[stripe as usize];
        let (data, sector) = (place.data, place.sector);
        let bad = at.conf.bad_at(sector);
        if action == SyncAction::Repair && !bad.is_empty() {
            return self.repair(at, stripe, bad, out);
        }
        let all_parity = parity_of(&place.row) & at.conf.readable(sector);
        // What its member could not read is computed, and written anew: it may not have fitted.
        let parity = all_parity - place.unreadable;
        let lost = data - at.conf.readable(sector);
        if all_parity.len() <= lost.len() {
            // All parity is needed for what is lost: nothing is left over by which it could be told.
            return self.end_sync(stripe, Status::Ok, out);
        }
        match self.fetch(at, stripe, data | all_parity, out) {
            Ok(false) => Looked::Waits,
            Ok(true) => self.compare(at, stripe, parity, action, out),
            Err(()) if !self.is_loss_listed(at, stripe, Roles::EMPTY, out) => Looked::Waits,
            Err(()) => self.end_sync(stripe, Status::IoError, out),
        }
    }

    /// Write blocks anew that are listed as bad: the members may take them by now.
    fn repair(&mut self, at: &At<'_>, stripe: u32, bad: Roles, out: &mut Outbox) -> Looked {
        match self.fetch(at, stripe, bad, out) {
            Ok(false) => Looked::Waits,
            Ok(true) => {
                self.send(at, stripe, bad, BioFlags::BACKGROUND, out);
                Looked::Waits
            }
            Err(()) => self.end_sync(stripe, Status::IoError, out),
        }
    }

    fn compare(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        parity: Roles,
        action: SyncAction,
        out: &mut Outbox,
    ) -> Looked {
        let place = &mut self.stripes[stripe as usize];
        let [p, q] = &mut self.scratch;
        let has_q = place.row.q.is_some();
        place.arithmetic(at).parity_into(p, has_q.then_some(&mut **q));
        let (p_role, q_role) = (place.row.p, place.row.q);
        let differs =
            |role: u32, computed: &IoBuf| parity.has(role) && place.block(role) != &**computed;
        let mut wrong = Roles::EMPTY;
        if differs(p_role, p) {
            wrong.insert(p_role);
        }
        if let Some(q_role) = q_role.filter(|role| differs(*role, q)) {
            wrong.insert(q_role);
        }
        if wrong.is_empty() {
            return self.end_sync_or_rewrite(at, stripe, out);
        }
        out.mismatches += STRIPE_SECTORS;
        if action == SyncAction::Check {
            // The cache is not to hold what does not fit.
            place.uptodate -= wrong;
            return self.end_sync(stripe, Status::Ok, out);
        }
        for role in wrong.iter() {
            let computed = if role == p_role { &*p } else { &*q };
            place.block_mut(role).copy_from_slice(computed);
        }
        self.send(at, stripe, wrong, BioFlags::BACKGROUND, out);
        Looked::Waits
    }

    /// All fits; but a block may have been computed because its member could not read it.
    fn end_sync_or_rewrite(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        if self.stripes[stripe as usize].to_rewrite(at).is_empty() {
            return self.end_sync(stripe, Status::Ok, out);
        }
        self.send(at, stripe, Roles::EMPTY, BioFlags::BACKGROUND, out);
        Looked::Waits
    }
}
