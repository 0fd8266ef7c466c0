//! The steps of a stripe (Linux `handle_stripe`): the next one towards
//! what is asked of it, again and again, until it has to wait for I/O or has no work any more.

use super::{MemberIo, Shard, TurnEffects};
use crate::engine::bitmap::Intent;
use crate::engine::plan::{Covered, Fetch, Method, WritePlan, parity_of};
use crate::engine::roles::Roles;
use crate::engine::stripe::{FailedWrite, NoRoom, Piece, State, Stripe};
use crate::engine::turn::{Fault, Report, TurnInput};
use crate::ids::{MemberNumber, Role, StripeId};
use crate::layout::BLOCK_BYTES;
use drystone_core::mistake;
use drystone_core::{BioFlags, IoBuf, Status};

/// The state of a stripe after one step.
pub(super) enum Step {
    /// Its next step can be taken at once.
    Continue,
    /// It waits for I/O or for the manager.
    Blocked,
    /// It has no work any more.
    Idle,
}

/// Whether the bad block logs have what was to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Yes,
    /// The manager has been asked; the stripe waits.
    Pending,
}

impl Shard {
    pub(super) fn handle(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        quota: usize,
        out: &mut TurnEffects,
    ) {
        loop {
            match self.advance(turn, id, out) {
                Step::Continue => {}
                Step::Blocked => return,
                Step::Idle => return self.release(turn, id, quota, out),
            }
        }
    }

    fn stripe(&mut self, id: StripeId) -> &mut Stripe {
        &mut self.stripes[id.index()]
    }

    fn advance(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        let stripe = self.stripe(id);
        debug_assert_eq!(stripe.io, 0, "what is under way is waited for");
        match stripe.state {
            State::Writing | State::Recording => return self.written(turn, id, out),
            State::AwaitingRoom => return self.send_again(turn, id, out),
            State::Logging => return self.logged(turn, id, out),
            State::Reading | State::AwaitingBitmap | State::AwaitingList => {
                stripe.state = State::Idle;
            }
            State::Idle => {}
        }
        if !stripe.reads.is_empty() {
            return self.read(turn, id, out);
        }
        if stripe.sync.is_some() && stripe.draining.is_empty() {
            return self.synchronise(turn, id, out);
        }
        if !stripe.writes.is_empty() {
            return self.write(turn, id, out);
        }
        self.rewrite(turn, id, out)
    }

    /// Bring `wanted` into the cache. True if it is there; else see the second.
    pub(super) fn fetch(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        wanted: Roles,
        out: &mut TurnEffects,
    ) -> Result<bool, ()> {
        loop {
            let stripe = self.stripe(id);
            match stripe.view(turn).fetch(wanted) {
                Fetch::Ready => return Ok(true),
                Fetch::Lost => return Err(()),
                Fetch::Compute(lost) => {
                    let uptodate = stripe.uptodate;
                    stripe.arithmetic(turn).reconstruct(lost, uptodate);
                    stripe.uptodate |= lost;
                }
                Fetch::Read(roles) => {
                    stripe.state = State::Reading;
                    self.start(turn, id, roles, MemberIo::read(id), out);
                    return Ok(false);
                }
            }
        }
    }

    /// Begin I/O for `roles`, all like `io`.
    pub(super) fn start(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        roles: Roles,
        io: MemberIo,
        out: &mut TurnEffects,
    ) {
        let stripe = &mut self.stripes[id.index()];
        stripe.driver = turn.home;
        let (sector, items) = (stripe.sector, &self.items);
        let home = |item| items[item].bio.home;
        stripe.items().map(home).filter(|home| *home != turn.home).for_each(|h| out.add_foreign(h));
        stripe.io += roles.len();
        let count = u64::from(roles.len());
        if io.is_write {
            self.counts.writes += count
        } else {
            self.counts.reads += count
        }
        out.io.extend(roles.iter().map(|role| MemberIo { role, sector, ..io }));
    }

    fn read(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        let stripe = self.stripe(id);
        let wanted = stripe.reads.iter().map(|piece| piece.role).collect();
        match self.fetch(turn, id, wanted, out) {
            Ok(false) => Step::Blocked,
            Ok(true) => {
                self.end_reads(turn, id, wanted, out);
                Step::Continue
            }
            Err(()) => self.read_one_by_one(turn, id, wanted, out),
        }
    }

    /// Some block is lost; the others may be had.
    fn read_one_by_one(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        wanted: Roles,
        out: &mut TurnEffects,
    ) -> Step {
        let mut there = Roles::EMPTY;
        for role in wanted.iter() {
            match self.fetch(turn, id, Roles::one(role), out) {
                Ok(false) => return Step::Blocked,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if self.record_bad_blocks(turn, id, Roles::EMPTY, out) == Recorded::Pending {
            return Step::Blocked;
        }
        self.end_reads(turn, id, there, out);
        Step::Continue
    }

    /// Record blocks in the bad block logs of their members before the stripe goes on: those that a
    /// present member cannot read and that cannot be computed, and those of `targets`, which their
    /// members do not get. A later write of such a block takes it off the log, so it must not come
    /// first.
    pub(super) fn record_bad_blocks(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        targets: Roles,
        out: &mut TurnEffects,
    ) -> Recorded {
        let stripe = self.stripe(id);
        let (sector, lost) = (stripe.sector, stripe.unreadable - stripe.uptodate);
        let lost = lost.iter().filter_map(|role| turn.conf.member(role, false));
        let target = |role| turn.conf.member(role, true).or(turn.conf.member(role, false));
        let unlisted = lost
            .chain(targets.iter().filter_map(target))
            .filter(|member| !turn.conf.limits.read_only && !member.is_bad_at(sector));
        let fault = Fault::Lost;
        let reports = unlisted.map(|member| Report { number: member.number, sector, fault });
        let before = out.reports.len();
        out.reports.extend(reports);
        if out.reports.len() > before {
            self.await_manager(id, State::AwaitingList);
            return Recorded::Pending;
        }
        Recorded::Yes
    }

    /// All reads end: with data if it is among `there`.
    fn end_reads(
        &mut self,
        _turn: &TurnInput<'_>,
        id: StripeId,
        there: Roles,
        out: &mut TurnEffects,
    ) {
        let mut reads = std::mem::take(&mut self.stripe(id).reads);
        for piece in reads.drain(..) {
            let status = if there.has(piece.role) { Status::Ok } else { Status::IoError };
            if status.is_ok() {
                let block = &self.stripes[id.index()].block(piece.role)[piece.range()];
                self.items[piece.item].bio.fill_data_at(piece.at, block);
            }
            self.piece_done(piece, status, out);
        }
        self.stripe(id).reads = reads;
    }

    fn write(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        if turn.conf.is_broken {
            return self.refuse_writes(id, out);
        }
        let stripe = self.stripe(id);
        let covered = stripe.covered(stripe.writes_together(turn.conf.ppl.is_some()));
        let plan = stripe.view(turn).write(&covered, turn.conf.rmw_level);
        // Marked before anything is read, so that the stripe waits for both at once.
        let intent = self.mark_intent(turn, id, out);
        match self.fetch(turn, id, plan.needs, out) {
            Ok(false) => Step::Blocked,
            Ok(true) if intent != Intent::Known => {
                self.await_manager(id, State::AwaitingBitmap);
                Step::Blocked
            }
            Ok(true) => {
                self.apply_writes(turn, id, &covered, &plan, out);
                Step::Blocked
            }
            Err(()) => match self.record_bad_blocks(turn, id, Roles::EMPTY, out) {
                Recorded::Pending => Step::Blocked,
                Recorded::Yes => self.refuse_writes(id, out),
            },
        }
    }

    /// Mark the stripe's bit in the write-intent bitmap, or ask the manager to. The stripe may be
    /// written once this returns [`Intent::Known`].
    fn mark_intent(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Intent {
        let Some(bitmap) = &turn.conf.bitmap else { return Intent::Known };
        let word = bitmap.word_of(self.stripe(id).sector);
        let intent = bitmap.intend(word);
        if intent == Intent::New {
            self.counts.marked += 1;
            out.words.push(word);
        }
        if mistake!("intent_too_late") { Intent::Known } else { intent }
    }

    /// The pending writes cannot be done: they end with an error.
    fn refuse_writes(&mut self, id: StripeId, out: &mut TurnEffects) -> Step {
        for piece in std::mem::take(&mut self.stripe(id).writes) {
            self.piece_done(piece, Status::IoError, out);
        }
        Step::Continue
    }

    /// All that the writes need is in the cache: put the new data there, with its parity, and send
    /// it to the members.
    fn apply_writes(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        covered: &Covered,
        plan: &WritePlan,
        out: &mut TurnEffects,
    ) {
        let stripe = &mut self.stripes[id.index()];
        let written = covered.whole | covered.part;
        let writable = turn.conf.kept(stripe.sector);
        let parity = parity_of(&stripe.row);
        if plan.method == Method::Rmw {
            stripe.arithmetic(turn).toggle(written, parity & writable);
        }
        let is_logged = turn.conf.ppl.is_some() && plan.method != Method::NoParity;
        let ticket =
            is_logged.then(|| self.ticket(turn, id, written, plan.method, &mut out.spares));
        let stripe = &mut self.stripes[id.index()];
        std::mem::swap(&mut stripe.writes, &mut stripe.draining);
        stripe.writes.extend(stripe.draining.extract_if(.., |piece| !written.has(piece.role)));
        let flags = self.take_data(id);
        let stripe = &mut self.stripes[id.index()];
        // Parity that nobody keeps does not follow.
        stripe.uptodate = (stripe.uptodate - (parity - writable)) | written;
        match plan.method {
            Method::Rmw => stripe.arithmetic(turn).toggle(written, parity & writable),
            Method::Rcw => {
                stripe.arithmetic(turn).rcw();
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
                self.log(turn, id, (roles, flags), ticket, out);
            }
            _ => self.send(turn, id, roles, flags, out),
        }
        if mistake!("stripe_acknowledged_early") {
            let draining = std::mem::take(&mut self.stripe(id).draining);
            draining.into_iter().for_each(|piece| self.piece_done(piece, Status::Ok, out));
        }
    }

    /// Write blocks of the cache to the members that are there for them.
    pub(super) fn send(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        roles: Roles,
        flags: BioFlags,
        out: &mut TurnEffects,
    ) {
        let sector = self.stripe(id).sector;
        let to_members = roles & turn.conf.writable(sector);
        let is_replaced = |role: &Role| turn.conf.member(*role, true).is_some();
        let replacements = roles.iter().filter(is_replaced).collect();
        self.send_to(turn, id, (to_members, replacements), flags, out);
    }

    /// Write blocks of the cache to these members and replacements, and those anew that a member
    /// could not read.
    pub(super) fn send_to(
        &mut self,
        turn: &TurnInput<'_>,
        id: StripeId,
        (to_members, replaced): (Roles, Roles),
        flags: BioFlags,
        out: &mut TurnEffects,
    ) {
        let stripe = self.stripe(id);
        stripe.state = State::Writing;
        let to_members = to_members | stripe.to_rewrite(turn);
        let io = MemberIo { flags, is_write: true, ..MemberIo::read(id) };
        // The copies first: the blocks themselves go to the members.
        self.start(turn, id, replaced, MemberIo { is_replacement: true, is_copy: true, ..io }, out);
        self.start(turn, id, to_members, io, out);
        if self.stripe(id).io == 0 {
            // Nobody is there for any of it: it lives in the parity alone, or nowhere.
            self.make_ready(id);
        }
    }

    /// The blocks that were sent to members have been written, or not.
    fn written(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        let stripe = self.stripe(id);
        if !stripe.no_room.is_empty() {
            self.await_room(id, out);
            return Step::Blocked;
        }
        if stripe.state == State::Writing {
            self.count_corrected(turn, id, out);
        }
        if !self.is_on_record(turn, id) {
            if mistake!("failure_off_record") {
                self.end_writes(id, Status::Ok, out);
            }
            self.record(turn, id, out);
            return Step::Blocked;
        }
        let stripe = self.stripe(id);
        stripe.state = State::Idle;
        stripe.failed.clear();
        self.log_done(id, out);
        let stripe = self.stripe(id);
        // A listed bad block counts as unreadable until it is off the list on the disk, which may
        // fail.
        let lost = Roles::below(turn.conf.layout.disks()) - turn.conf.readable(stripe.sector);
        let is_kept = lost.len() <= turn.conf.layout.level().parity_disks();
        let status = if is_kept { Status::Ok } else { Status::IoError };
        self.end_writes(id, status, out);
        self.sync_written(id, status, out);
        Step::Continue
    }

    /// All writes that were under way end.
    fn end_writes(&mut self, id: StripeId, status: Status, out: &mut TurnEffects) {
        let stripe = self.stripe(id);
        stripe.give_back();
        let mut draining = std::mem::take(&mut stripe.draining);
        draining.drain(..).for_each(|piece: Piece| self.piece_done(piece, status, out));
        self.stripe(id).draining = draining;
    }

    /// Have blocks sent again that some member had no room for (a sparse file on a full file
    /// system). To call them bad, or the member failed, would cost the array its redundancy for
    /// what is over as soon as somebody makes room.
    fn await_room(&mut self, id: StripeId, out: &mut TurnEffects) {
        let stripe = &self.stripes[id.index()];
        let (sector, fault) = (stripe.sector, Fault::NoRoom);
        let report = |n: &NoRoom| Report { number: n.number, sector, fault };
        out.reports.extend(stripe.no_room.iter().map(report));
        self.await_manager(id, State::AwaitingRoom);
    }

    fn send_again(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        let stripe = self.stripe(id);
        let is_awaited = !stripe.draining.is_empty() || stripe.sync.is_some();
        if turn.conf.is_suspended && !is_awaited {
            // A rewrite that no bio waits for: an array that is being stopped does not wait for it
            // either.
            self.await_manager(id, State::AwaitingRoom);
            return Step::Blocked;
        }
        stripe.state = State::Writing;
        for NoRoom { role, number, flags } in std::mem::take(&mut stripe.no_room) {
            if turn.conf.is_replacement_at(role, number) == Some(false) {
                let io = MemberIo { flags, is_write: true, ..MemberIo::read(id) };
                self.start(turn, id, Roles::one(role), io, out);
            }
        }
        match self.stripe(id).io {
            // The members are gone.
            0 => Step::Continue,
            _ => Step::Blocked,
        }
    }

    fn count_corrected(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) {
        let stripe = self.stripe(id);
        let failed: Roles = stripe.failed.iter().map(|failed| failed.role).collect();
        let corrected = stripe.to_rewrite(turn) - failed;
        stripe.unreadable -= corrected;
        let sector = stripe.sector;
        report(turn, sector, corrected, Fault::Corrected, out);
    }

    /// Every member that failed is out of the configuration by now, or its block is known as bad.
    pub(super) fn is_on_record(&self, turn: &TurnInput<'_>, id: StripeId) -> bool {
        let stripe = &self.stripes[id.index()];
        let (sector, failed) = (stripe.sector, &stripe.failed);
        failed.iter().all(|failed| {
            let as_replacement = turn.conf.is_replacement_at(failed.role, failed.number);
            let member = as_replacement
                .and_then(|is_replacement| turn.conf.member(failed.role, is_replacement));
            // On a list of before it may come off again: a write that succeeded may be under way to
            // the manager.
            member.is_none_or(|m| m.write_error && m.is_bad_at(sector))
        })
    }

    /// Have it put on record, and wait for that.
    fn record(&mut self, _turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) {
        let stripe = self.stripe(id);
        let (sector, fault) = (stripe.sector, Fault::Write);
        let report = |f: &FailedWrite| Report { number: f.number, sector, fault };
        out.reports.extend(stripe.failed.iter().map(report));
        self.await_manager(id, State::Recording);
    }

    /// Blocks that a member could not read, and that were computed, are written anew.
    fn rewrite(&mut self, turn: &TurnInput<'_>, id: StripeId, out: &mut TurnEffects) -> Step {
        if self.stripe(id).to_rewrite(turn).is_empty() {
            return Step::Idle;
        }
        self.send(turn, id, Roles::EMPTY, BioFlags::empty(), out);
        Step::Blocked
    }

    /// The block has come back from its member.
    pub(super) fn io_ended(
        &mut self,
        id: StripeId,
        io: &MemberIo,
        number: MemberNumber,
        block: IoBuf,
        status: Status,
    ) {
        debug_assert_eq!(block.len(), BLOCK_BYTES);
        let stripe = self.stripe(id);
        stripe.io -= 1;
        if !io.is_copy {
            stripe.blocks[io.role.index()] = Some(block);
        }
        let lacks_room = status == Status::NoSpace && !io.is_replacement && !io.is_copy;
        match (io.is_write, status.is_ok()) {
            (false, true) => stripe.uptodate.insert(io.role),
            (false, false) => stripe.unreadable.insert(io.role),
            (true, true) => {}
            (true, false) if lacks_room => {
                stripe.no_room.push(NoRoom { role: io.role, number, flags: io.flags });
            }
            (true, false) => {
                stripe.failed.push(FailedWrite { role: io.role, number });
            }
        }
        if stripe.io == 0 {
            self.make_ready(id);
        }
    }
}

/// The blocks that a write changes.
fn place_roles(plan: &WritePlan, written: Roles, parity: Roles) -> Roles {
    if plan.method == Method::NoParity { written } else { written | parity }
}

/// Report the same fault of several members.
fn report(turn: &TurnInput<'_>, sector: u64, roles: Roles, fault: Fault, out: &mut TurnEffects) {
    for role in roles.iter() {
        let member = turn.conf.role_slots[role.index()].member.as_ref();
        out.reports.extend(member.map(|m| Report { number: m.number, sector, fault }));
    }
}
