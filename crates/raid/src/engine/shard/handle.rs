//! What is done with a stripe that is to be looked at (Linux `handle_stripe`): the next step towards
//! what is asked of it, again and again, until it has to wait for I/O or has no work any more.

use super::{At, Fault, MemberIo, Outbox, Report, Shard};
use crate::engine::bitmap::Intent;
use crate::engine::plan::{Covered, Fetch, Method, WritePlan, parity_of};
use crate::engine::roles::Roles;
use crate::engine::stripe::{BLOCK_BYTES, FailedWrite, NoRoom, Piece, State, Stripe};
use drystone_core::mistake;
use drystone_core::{BioFlags, IoBuf, Status};

/// What became of a look at a stripe.
pub(super) enum Looked {
    /// There is more to be done at once.
    Again,
    /// It waits.
    Waits,
    /// There was nothing to be done.
    Nothing,
}

impl Shard {
    pub(super) fn handle(&mut self, at: &At<'_>, stripe: u32, quota: usize, out: &mut Outbox) {
        loop {
            match self.look(at, stripe, out) {
                Looked::Again => {}
                Looked::Waits => return,
                Looked::Nothing => return self.release(at, stripe, quota, out),
            }
        }
    }

    fn place(&mut self, stripe: u32) -> &mut Stripe {
        &mut self.stripes[stripe as usize]
    }

    fn look(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let place = self.place(stripe);
        debug_assert_eq!(place.io, 0, "what is under way is waited for");
        match place.state {
            State::Writing | State::Recording => return self.written(at, stripe, out),
            State::AwaitingRoom => return self.send_again(at, stripe, out),
            State::Logging => return self.logged(at, stripe, out),
            State::Reading | State::AwaitingBitmap | State::AwaitingList => {
                place.state = State::Idle;
            }
            State::Idle => {}
        }
        if !place.reads.is_empty() {
            return self.read(at, stripe, out);
        }
        if place.sync.is_some() && place.draining.is_empty() {
            return self.synchronise(at, stripe, out);
        }
        if !place.writes.is_empty() {
            return self.write(at, stripe, out);
        }
        self.rewrite(at, stripe, out)
    }

    /// Bring `wanted` into the cache. True if it is there; else see the second.
    pub(super) fn fetch(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        wanted: Roles,
        out: &mut Outbox,
    ) -> Result<bool, ()> {
        loop {
            let place = self.place(stripe);
            match place.view(at).fetch(wanted) {
                Fetch::Ready => return Ok(true),
                Fetch::Lost => return Err(()),
                Fetch::Compute(lost) => {
                    let uptodate = place.uptodate;
                    place.arithmetic(at).reconstruct(lost, uptodate);
                    place.uptodate |= lost;
                }
                Fetch::Read(roles) => {
                    place.state = State::Reading;
                    self.start(at, stripe, roles, MemberIo::read(stripe), out);
                    return Ok(false);
                }
            }
        }
    }

    /// Begin I/O for `roles`, all like `io`.
    pub(super) fn start(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        roles: Roles,
        io: MemberIo,
        out: &mut Outbox,
    ) {
        let place = &mut self.stripes[stripe as usize];
        place.driver = at.home;
        let (sector, items) = (place.sector, &self.items);
        let home = |item| items.get(item).bio.home;
        place.items().map(home).filter(|home| *home != at.home).for_each(|h| out.add_foreign(h));
        place.io += roles.len();
        let count = u64::from(roles.len());
        if io.is_write {
            self.counts.writes += count
        } else {
            self.counts.reads += count
        }
        out.io.extend(roles.iter().map(|role| MemberIo { role, sector, ..io }));
    }

    fn read(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let place = self.place(stripe);
        let wanted = place.reads.iter().map(|piece| piece.role).collect();
        match self.fetch(at, stripe, wanted, out) {
            Ok(false) => Looked::Waits,
            Ok(true) => {
                self.end_reads(at, stripe, wanted, out);
                Looked::Again
            }
            Err(()) => self.read_one_by_one(at, stripe, wanted, out),
        }
    }

    /// Some block is lost; the others may be had.
    fn read_one_by_one(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        wanted: Roles,
        out: &mut Outbox,
    ) -> Looked {
        let mut there = Roles::EMPTY;
        for role in wanted.iter() {
            match self.fetch(at, stripe, Roles::one(role), out) {
                Ok(false) => return Looked::Waits,
                Ok(true) => there.insert(role),
                Err(()) => {}
            }
        }
        if !self.is_loss_listed(at, stripe, Roles::EMPTY, out) {
            return Looked::Waits;
        }
        self.end_reads(at, stripe, there, out);
        Looked::Again
    }

    /// Blocks that members are there for, but could not read, and that nothing tells, and those of `targets`
    /// that their members do not get, are on these members' lists. Otherwise the stripe waits for that: who
    /// writes one of them takes it off, which must not come before.
    pub(super) fn is_loss_listed(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        targets: Roles,
        out: &mut Outbox,
    ) -> bool {
        let place = self.place(stripe);
        let (sector, lost) = (place.sector, place.unreadable - place.uptodate);
        let lost = lost.iter().filter_map(|role| at.conf.member(role, false));
        let target = |role| at.conf.member(role, true).or(at.conf.member(role, false));
        let unlisted = lost
            .chain(targets.iter().filter_map(target))
            .filter(|member| !at.conf.limits.read_only && !member.is_bad_at(sector));
        let fault = Fault::Lost;
        let reports = unlisted.map(|member| Report { number: member.number, sector, fault });
        let before = out.reports.len();
        out.reports.extend(reports);
        if out.reports.len() > before {
            self.await_manager(stripe, State::AwaitingList);
            return false;
        }
        true
    }

    /// All reads end: with data if it is among `there`.
    fn end_reads(&mut self, _at: &At<'_>, stripe: u32, there: Roles, out: &mut Outbox) {
        let mut reads = std::mem::take(&mut self.place(stripe).reads);
        for piece in reads.drain(..) {
            let status = if there.has(piece.role) { Status::Ok } else { Status::IoError };
            if status.is_ok() {
                let block = &self.stripes[stripe as usize].block(piece.role)[piece.range()];
                self.items.get_mut(piece.item).bio.fill_data_at(piece.at, block);
            }
            self.piece_done(piece, status, out);
        }
        self.place(stripe).reads = reads;
    }

    fn write(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        if at.conf.is_broken {
            return self.refuse_writes(stripe, out);
        }
        let place = self.place(stripe);
        let covered = place.covered(place.writes_together(at.conf.ppl.is_some()));
        let plan = place.view(at).write(&covered, at.conf.rmw_level);
        // Asked before anything is read, so that both are waited for at once.
        let is_known = self.is_intent_known(at, stripe, out);
        match self.fetch(at, stripe, plan.needs, out) {
            Ok(false) => Looked::Waits,
            Ok(true) if !is_known => {
                self.await_manager(stripe, State::AwaitingBitmap);
                Looked::Waits
            }
            Ok(true) => {
                self.drain(at, stripe, &covered, &plan, out);
                Looked::Waits
            }
            Err(()) if !self.is_loss_listed(at, stripe, Roles::EMPTY, out) => Looked::Waits,
            Err(()) => self.refuse_writes(stripe, out),
        }
    }

    /// The members know by their bitmap that the stripe may be out of step. Otherwise they are told.
    fn is_intent_known(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> bool {
        let Some(bitmap) = &at.conf.bitmap else { return true };
        let word = bitmap.word_of(self.place(stripe).sector);
        let intent = bitmap.intend(word);
        if intent == Intent::New {
            self.counts.marked += 1;
            out.words.push(word);
        }
        intent == Intent::Known || mistake!("intent_too_late")
    }

    /// What is written cannot be made good.
    fn refuse_writes(&mut self, stripe: u32, out: &mut Outbox) -> Looked {
        for piece in std::mem::take(&mut self.place(stripe).writes) {
            self.piece_done(piece, Status::IoError, out);
        }
        Looked::Again
    }

    /// All that the writes need is in the cache: put the new data there, with its parity, and send
    /// it to the members.
    fn drain(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        covered: &Covered,
        plan: &WritePlan,
        out: &mut Outbox,
    ) {
        let place = &mut self.stripes[stripe as usize];
        let written = covered.whole | covered.part;
        let writable = at.conf.kept(place.sector);
        let parity = parity_of(&place.row);
        if plan.method == Method::Rmw {
            place.arithmetic(at).toggle(written, parity & writable);
        }
        let is_logged = at.conf.ppl.is_some() && plan.method != Method::NoParity;
        let ticket =
            is_logged.then(|| self.ticket(at, stripe, written, plan.method, &mut out.spares));
        let place = &mut self.stripes[stripe as usize];
        std::mem::swap(&mut place.writes, &mut place.draining);
        place.writes.extend(place.draining.extract_if(.., |piece| !written.has(piece.role)));
        let flags = self.take_data(stripe);
        let place = &mut self.stripes[stripe as usize];
        // Parity that nobody keeps does not follow.
        place.uptodate = (place.uptodate - (parity - writable)) | written;
        match plan.method {
            Method::Rmw => place.arithmetic(at).toggle(written, parity & writable),
            Method::Rcw => {
                place.arithmetic(at).rcw();
                place.uptodate |= parity & writable;
            }
            Method::NoParity => {}
        }
        let is_full = covered.whole == place.data;
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
                self.log(at, stripe, (roles, flags), ticket, out);
            }
            _ => self.send(at, stripe, roles, flags, out),
        }
        if mistake!("stripe_acknowledged_early") {
            let draining = std::mem::take(&mut self.place(stripe).draining);
            draining.into_iter().for_each(|piece| self.piece_done(piece, Status::Ok, out));
        }
    }

    /// Write blocks of the cache to the members that are there for them.
    pub(super) fn send(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        roles: Roles,
        flags: BioFlags,
        out: &mut Outbox,
    ) {
        let sector = self.place(stripe).sector;
        let to_members = roles & at.conf.writable(sector);
        let is_replaced = |role: &u32| at.conf.member(*role, true).is_some();
        let replacements = roles.iter().filter(is_replaced).collect();
        self.send_to(at, stripe, (to_members, replacements), flags, out);
    }

    /// Write blocks of the cache to these members and replacements, and those anew that a member could
    /// not read.
    pub(super) fn send_to(
        &mut self,
        at: &At<'_>,
        stripe: u32,
        (to_members, replaced): (Roles, Roles),
        flags: BioFlags,
        out: &mut Outbox,
    ) {
        let place = self.place(stripe);
        place.state = State::Writing;
        let to_members = to_members | place.to_rewrite(at);
        let io = MemberIo { flags, is_write: true, ..MemberIo::read(stripe) };
        // The copies first: the blocks themselves go to the members.
        self.start(
            at,
            stripe,
            replaced,
            MemberIo { is_replacement: true, is_copy: true, ..io },
            out,
        );
        self.start(at, stripe, to_members, io, out);
        if self.place(stripe).io == 0 {
            // Nobody is there for any of it: it lives in the parity alone, or nowhere.
            self.make_ready(stripe);
        }
    }

    /// What was sent to members has been written, or not.
    fn written(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let place = self.place(stripe);
        if !place.no_room.is_empty() {
            self.await_room(stripe, out);
            return Looked::Waits;
        }
        if place.state == State::Writing {
            self.count_corrected(at, stripe, out);
        }
        if !self.is_on_record(at, stripe) {
            if mistake!("failure_off_record") {
                self.end_writes(stripe, Status::Ok, out);
            }
            self.record(at, stripe, out);
            return Looked::Waits;
        }
        let place = self.place(stripe);
        place.state = State::Idle;
        place.failed.clear();
        self.log_done(stripe, out);
        let place = self.place(stripe);
        // What was on a list of bad blocks counts until it is off it on the disk: that may not come about.
        let lost = Roles::below(at.conf.layout.disks()) - at.conf.readable(place.sector);
        let is_kept = lost.len() <= at.conf.layout.level().parity_disks();
        let status = if is_kept { Status::Ok } else { Status::IoError };
        self.end_writes(stripe, status, out);
        self.sync_written(stripe, status, out);
        Looked::Again
    }

    /// All writes that were under way end.
    fn end_writes(&mut self, stripe: u32, status: Status, out: &mut Outbox) {
        let place = self.place(stripe);
        place.give_back();
        let mut draining = std::mem::take(&mut place.draining);
        draining.drain(..).for_each(|piece: Piece| self.piece_done(piece, status, out));
        self.place(stripe).draining = draining;
    }

    /// Have blocks sent again that some member had no room for (a sparse file on a full file system). To
    /// call them bad, or the member failed, would cost the array its redundancy for what is over as soon
    /// as somebody makes room.
    fn await_room(&mut self, stripe: u32, out: &mut Outbox) {
        let place = &self.stripes[stripe as usize];
        let (sector, fault) = (place.sector, Fault::NoRoom);
        let report = |n: &NoRoom| Report { number: n.number, sector, fault };
        out.reports.extend(place.no_room.iter().map(report));
        self.await_manager(stripe, State::AwaitingRoom);
    }

    fn send_again(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        let place = self.place(stripe);
        let is_awaited = !place.draining.is_empty() || place.sync.is_some();
        if at.conf.is_suspended && !is_awaited {
            // A block that is written anew, for nobody: an array that is being stopped does not wait for it.
            self.await_manager(stripe, State::AwaitingRoom);
            return Looked::Waits;
        }
        place.state = State::Writing;
        for NoRoom { role, number, flags } in std::mem::take(&mut place.no_room) {
            if at.conf.seat_of(role, number) == Some(false) {
                let io = MemberIo { flags, is_write: true, ..MemberIo::read(stripe) };
                self.start(at, stripe, Roles::one(role), io, out);
            }
        }
        match self.place(stripe).io {
            // The members are gone.
            0 => Looked::Again,
            _ => Looked::Waits,
        }
    }

    fn count_corrected(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) {
        let place = self.place(stripe);
        let failed: Roles = place.failed.iter().map(|failed| failed.role).collect();
        let corrected = place.to_rewrite(at) - failed;
        place.unreadable -= corrected;
        let sector = place.sector;
        report(at, sector, corrected, Fault::Corrected, out);
    }

    /// Every member that failed is out of the configuration by now, or its block is known as bad.
    pub(super) fn is_on_record(&mut self, at: &At<'_>, stripe: u32) -> bool {
        let place = self.place(stripe);
        let (sector, failed) = (place.sector, &place.failed);
        failed.iter().all(|failed| {
            let seat = at.conf.seat_of(failed.role, failed.number);
            let member =
                seat.and_then(|as_replacement| at.conf.member(failed.role, as_replacement));
            // On a list of before it may come off again: a write that succeeded may be under way to the
            // manager.
            member.is_none_or(|m| m.write_error && m.is_bad_at(sector))
        })
    }

    /// Have it put on record, and wait for that.
    fn record(&mut self, _at: &At<'_>, stripe: u32, out: &mut Outbox) {
        let place = self.place(stripe);
        let (sector, fault) = (place.sector, Fault::Write);
        let report = |f: &FailedWrite| Report { number: f.number, sector, fault };
        out.reports.extend(place.failed.iter().map(report));
        self.await_manager(stripe, State::Recording);
    }

    /// Blocks that a member could not read, and that were computed, are written anew.
    fn rewrite(&mut self, at: &At<'_>, stripe: u32, out: &mut Outbox) -> Looked {
        if self.place(stripe).to_rewrite(at).is_empty() {
            return Looked::Nothing;
        }
        self.send(at, stripe, Roles::EMPTY, BioFlags::empty(), out);
        Looked::Waits
    }

    /// The block has come back from its member.
    pub(super) fn io_ended(
        &mut self,
        stripe: u32,
        io: &MemberIo,
        number: u32,
        block: IoBuf,
        status: Status,
    ) {
        debug_assert_eq!(block.len(), BLOCK_BYTES);
        let place = self.place(stripe);
        place.io -= 1;
        if !io.is_copy {
            place.blocks[io.role as usize] = Some(block);
        }
        let lacks_room = status == Status::NoSpace && !io.is_replacement && !io.is_copy;
        match (io.is_write, status.is_ok()) {
            (false, true) => place.uptodate.insert(io.role),
            (false, false) => place.unreadable.insert(io.role),
            (true, true) => {}
            (true, false) if lacks_room => {
                place.no_room.push(NoRoom { role: io.role, number, flags: io.flags });
            }
            (true, false) => {
                place.failed.push(FailedWrite { role: io.role, number });
            }
        }
        if place.io == 0 {
            self.make_ready(stripe);
        }
    }
}

/// The blocks that a write changes.
fn place_roles(plan: &WritePlan, written: Roles, parity: Roles) -> Roles {
    if plan.method == Method::NoParity { written } else { written | parity }
}

/// Report the same fault of several members.
fn report(at: &At<'_>, sector: u64, roles: Roles, fault: Fault, out: &mut Outbox) {
    for role in roles.iter() {
        let member = at.conf.seats[role as usize].member.as_ref();
        out.reports.extend(member.map(|m| Report { number: m.number, sector, fault }));
    }
}
