//! The steps of a write (Linux `handle_stripe_dirtying`, `ops_run_biodrain`): mark the bitmap,
//! fetch the blocks that the write needs, compute and log parity, send blocks to the members, and
//! record failures.
//!
//! Invariants:
//! * A write ends only after each member has taken its block, or is on record as failed, or has the
//!   block on its bad block list.
//! * New data goes to members only after their bitmap has the stripe's bit and, if parity is
//!   logged, the log has the partial parity.

use super::handle::{Recorded, Step, Steps};
use super::member_io::MemberIo;
use super::stripe::{FailedWrite, NoRoom, State};
use crate::engine::bitmap::Intent;
use crate::engine::plan::{Covered, Method, WritePlan, parity_of};
use crate::engine::roles::Roles;
use crate::engine::turn::{Fault, Report};
use crate::ids::Role;
use drystone_core::{BioFlags, Status, mistake};

impl Steps<'_> {
    pub(super) fn write(&mut self) -> Step {
        if self.turn.conf.is_broken {
            return self.refuse_writes();
        }
        let stripe = &mut *self.stripe;
        let covered = stripe.covered(stripe.writes_together(self.turn.conf.ppl.is_some()));
        let plan = stripe.view(self.turn).write(&covered, self.turn.conf.rmw_level);
        // The bit is asked for before anything is read, so that the stripe waits for both at the
        // same time.
        let intent = self.mark_intent();
        match self.fetch(plan.needs) {
            Ok(false) => Step::Blocked,
            Ok(true) if intent != Intent::Known => {
                self.await_manager(State::AwaitingBitmap);
                Step::Blocked
            }
            Ok(true) => {
                self.apply_writes(&covered, &plan);
                Step::Blocked
            }
            Err(()) => match self.record_bad_blocks(Roles::EMPTY) {
                Recorded::Pending => Step::Blocked,
                Recorded::Yes => self.refuse_writes(),
            },
        }
    }

    /// Mark the stripe's bit in the write-intent bitmap, or ask the manager to. The stripe may be
    /// written once this returns [`Intent::Known`].
    fn mark_intent(&mut self) -> Intent {
        let Some(bitmap) = &self.turn.conf.bitmap else { return Intent::Known };
        let word = bitmap.word_of(self.stripe.sector);
        let intent = bitmap.intend(word);
        if intent == Intent::New {
            self.counts.marked += 1;
            self.out.words.push(word);
        }
        if mistake!("intent_too_late") { Intent::Known } else { intent }
    }

    /// End the pending writes with an error, because they cannot be done.
    fn refuse_writes(&mut self) -> Step {
        for piece in std::mem::take(&mut self.stripe.writes) {
            self.piece_done(piece.item, Status::IoError);
        }
        Step::Continue
    }

    /// Put the new data and its parity into the cache, and send both to the members. All blocks
    /// that the writes need are in the cache.
    fn apply_writes(&mut self, covered: &Covered, plan: &WritePlan) {
        let stripe = &mut *self.stripe;
        let written = covered.whole | covered.part;
        let writable = self.turn.conf.kept(stripe.sector);
        let parity = parity_of(&stripe.row);
        if plan.method == Method::Rmw {
            stripe.arithmetic(self.turn).toggle(written, parity & writable);
        }
        let is_logged = self.turn.conf.ppl.is_some() && plan.method != Method::NoParity;
        let ticket = is_logged.then(|| self.ticket(written, plan.method));
        let stripe = &mut *self.stripe;
        std::mem::swap(&mut stripe.writes, &mut stripe.draining);
        stripe.writes.extend(stripe.draining.extract_if(.., |piece| !written.has(piece.role)));
        let flags = self.take_data();
        let stripe = &mut *self.stripe;
        // A parity block that no member can take is not updated, so its cached content is stale.
        stripe.uptodate = (stripe.uptodate - (parity - writable)) | written;
        match plan.method {
            Method::Rmw => stripe.arithmetic(self.turn).toggle(written, parity & writable),
            Method::Rcw => {
                stripe.arithmetic(self.turn).rcw();
                stripe.uptodate |= parity & writable;
            }
            Method::NoParity => {}
        }
        let is_full = covered.whole == stripe.data;
        match plan.method {
            Method::Rmw => self.counts.rmw += 1,
            Method::Rcw if is_full => self.counts.full += 1,
            Method::Rcw => self.counts.rcw += 1,
            Method::NoParity => {}
        }
        self.counts.logged += u64::from(ticket.is_some());
        let roles = place_roles(plan, written, parity);
        match ticket {
            Some(ticket) if !mistake!("log_too_late") => {
                self.log((roles, flags), ticket);
            }
            _ => self.send(roles, flags),
        }
        if mistake!("stripe_acknowledged_early") {
            let draining = std::mem::take(&mut self.stripe.draining);
            draining.into_iter().for_each(|piece| self.piece_done(piece.item, Status::Ok));
        }
    }

    /// Write blocks of the cache to their members and replacements, as far as those are there.
    pub(super) fn send(&mut self, roles: Roles, flags: BioFlags) {
        let sector = self.stripe.sector;
        let to_members = roles & self.turn.conf.writable(sector);
        let is_replaced = |role: &Role| self.turn.conf.member(*role, true).is_some();
        let replacements = roles.iter().filter(is_replaced).collect();
        self.send_to((to_members, replacements), flags);
    }

    /// Write blocks of the cache to these members and replacements. Also rewrite the blocks that a
    /// member could not read.
    pub(super) fn send_to(&mut self, (to_members, replaced): (Roles, Roles), flags: BioFlags) {
        let stripe = &mut *self.stripe;
        stripe.state = State::Writing;
        let to_members = to_members | stripe.to_rewrite(self.turn);
        let io = MemberIo { flags, is_write: true, ..MemberIo::read(self.id) };
        // Copies are made first, because the bios to members take the blocks themselves.
        self.start(replaced, MemberIo { is_replacement: true, is_copy: true, ..io });
        self.start(to_members, io);
        if self.stripe.io == 0 {
            // No member takes any of these blocks: parity alone keeps the data, or it is lost.
            self.ready.push(self.id, self.stripe);
        }
    }

    /// Go on after all blocks that were sent to members have come back, written or failed.
    pub(super) fn written(&mut self) -> Step {
        let stripe = &mut *self.stripe;
        if !stripe.no_room.is_empty() {
            self.await_room();
            return Step::Blocked;
        }
        if stripe.state == State::Writing {
            self.count_corrected();
        }
        if !self.stripe.is_on_record(self.turn) {
            if mistake!("failure_off_record") {
                self.end_writes(Status::Ok);
            }
            self.record();
            return Step::Blocked;
        }
        let stripe = &mut *self.stripe;
        stripe.state = State::Idle;
        stripe.failed.clear();
        self.log_done();
        let stripe = &mut *self.stripe;
        // A block that is listed as bad counts as unreadable until the list on the disk is without
        // it; writing that list may fail.
        let lost =
            Roles::below(self.turn.conf.layout.disks()) - self.turn.conf.readable(stripe.sector);
        let is_kept = lost.len() <= self.turn.conf.layout.level().parity_disks();
        let status = if is_kept { Status::Ok } else { Status::IoError };
        self.end_writes(status);
        self.sync_written(status);
        Step::Continue
    }

    /// End all writes that were under way.
    fn end_writes(&mut self, status: Status) {
        let stripe = &mut *self.stripe;
        stripe.give_back();
        let mut draining = std::mem::take(&mut stripe.draining);
        draining.drain(..).for_each(|piece| self.piece_done(piece.item, status));
        self.stripe.draining = draining;
    }

    /// Have blocks sent again for which a member had no room (a sparse file on a full file system).
    /// If they were recorded as bad, or the member as failed, the array would lose its redundancy
    /// for a state that ends as soon as there is room.
    fn await_room(&mut self) {
        let stripe = &*self.stripe;
        let (sector, fault) = (stripe.sector, Fault::NoRoom);
        let report = |n: &NoRoom| Report { number: n.number, sector, fault };
        self.out.reports.extend(stripe.no_room.iter().map(report));
        self.await_manager(State::AwaitingRoom);
    }

    pub(super) fn send_again(&mut self) -> Step {
        let stripe = &mut *self.stripe;
        let is_awaited = !stripe.draining.is_empty() || stripe.sync.is_some();
        if self.turn.conf.is_suspended && !is_awaited {
            // This is a rewrite that no bio waits for. An array that is being stopped does not wait
            // for it either.
            self.await_manager(State::AwaitingRoom);
            return Step::Blocked;
        }
        stripe.state = State::Writing;
        for NoRoom { role, number, flags } in std::mem::take(&mut stripe.no_room) {
            if self.turn.conf.is_replacement_at(role, number) == Some(false) {
                let io = MemberIo { flags, is_write: true, ..MemberIo::read(self.id) };
                self.start(Roles::one(role), io);
            }
        }
        match self.stripe.io {
            // The members have left the configuration.
            0 => Step::Continue,
            _ => Step::Blocked,
        }
    }

    fn count_corrected(&mut self) {
        let stripe = &mut *self.stripe;
        let failed: Roles = stripe.failed.iter().map(|failed| failed.role).collect();
        let corrected = stripe.to_rewrite(self.turn) - failed;
        stripe.unreadable -= corrected;
        let sector = stripe.sector;
        let slots = &self.turn.conf.role_slots;
        let members = corrected.iter().filter_map(|role| slots[role.index()].member.as_ref());
        let fault = Fault::Corrected;
        let report = members.map(|member| Report { number: member.number, sector, fault });
        self.out.reports.extend(report);
    }

    /// Have the failed writes recorded, and wait until they are.
    fn record(&mut self) {
        let stripe = &mut *self.stripe;
        let (sector, fault) = (stripe.sector, Fault::Write);
        let report = |f: &FailedWrite| Report { number: f.number, sector, fault };
        self.out.reports.extend(stripe.failed.iter().map(report));
        self.await_manager(State::Recording);
    }

    /// Rewrite the blocks that a member could not read and that were computed.
    pub(super) fn rewrite(&mut self) -> Step {
        if self.stripe.to_rewrite(self.turn).is_empty() {
            return Step::Idle;
        }
        self.send(Roles::EMPTY, BioFlags::empty());
        Step::Blocked
    }
}

/// The roles of the blocks that a write changes.
fn place_roles(plan: &WritePlan, written: Roles, parity: Roles) -> Roles {
    if plan.method == Method::NoParity { written } else { written | parity }
}
