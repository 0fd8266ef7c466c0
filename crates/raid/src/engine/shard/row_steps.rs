//! The steps of a write of whole rows: from its items to the bios, and back.

use super::Shard;
use super::cover::Cover;
use super::effects::TurnEffects;
use super::member_io::MemberIo;
use super::rows::{RowId, RowWrite};
use super::stripe::State;
use crate::engine::turn::TurnInput;
use crate::ids::{Role, StripeId};
use crate::layout::STRIPE_SECTORS;
use drystone_core::{Bio, BioFlags, Status, mistake};

impl Shard {
    /// Begin a row write of the first of the items that have just come, or else of those that wait.
    /// Returns how many items it took.
    pub(super) fn begin_rows(
        &mut self,
        turn: &TurnInput<'_>,
        numbers: Option<&[u32]>,
        out: &mut TurnEffects,
    ) -> usize {
        if turn.conf.ppl.is_some() || !turn.conf.is_whole() {
            return 0;
        }
        let mut write = self.rows.spare();
        let (items, layout) = (&self.items, &turn.conf.layout);
        let is_whole = match numbers {
            Some(numbers) => write.cover.find(items, layout, numbers.iter().copied()),
            None => write.cover.find(items, layout, items.waiting()),
        };
        let may_begin = is_whole
            && self.are_free(turn, &write.cover)
            && self.rows.reserve(layout, items, &write.cover, &out.row_bufs);
        if !may_begin {
            self.rows.keep(write);
            return 0;
        }
        let taken = write.cover.items().len();
        self.begin_row(turn, write, out);
        taken
    }

    /// The bitmap has the bits of the rows, no stripe of theirs is busy, and there are idle stripes
    /// for all of them.
    fn are_free(&self, turn: &TurnInput<'_>, cover: &Cover) -> bool {
        let is_free = |sector| self.stripes.find(sector).is_none_or(|id| self.stripes.is_idle(id));
        let is_marked = |sector| {
            let bitmap = turn.conf.bitmap.as_ref();
            bitmap.is_none_or(|bitmap| bitmap.is_in_use(bitmap.word_of(sector)))
        };
        self.stripes.idle() >= cover.stripes().count()
            && cover.stripes().all(|sector| is_free(sector) && is_marked(sector))
    }

    fn begin_row(&mut self, turn: &TurnInput<'_>, mut write: RowWrite, out: &mut TurnEffects) {
        let cover = &write.cover;
        for sector in cover.stripes() {
            let found = self.stripes.find(sector);
            let id = self.stripes.claim(turn, sector, found);
            let id = id.expect("there are idle stripes for all");
            let stripe = &mut self.stripes[id];
            (stripe.state, stripe.driver, stripe.uptodate) =
                (State::InRow, turn.port, Default::default());
            write.stripes.push(id);
        }
        let layout = &turn.conf.layout;
        for sector in cover.units(layout) {
            self.rows.compute(turn, &self.items, (cover, sector), &mut out.row_bufs);
        }
        let mut flags = BioFlags::empty();
        for number in cover.items() {
            let bio = self.items.bio(*number);
            flags |= bio.flags & (BioFlags::FUA | BioFlags::SYNC);
            if bio.port != turn.port {
                out.add_remote(bio.port);
            }
            self.items.attach_whole(*number);
        }
        if self.items.has_waiting() {
            self.join_row(turn, &write, out);
        }
        let sector = cover.sectors().start;
        let (disks, blocks) = (layout.disks(), write.stripes.len() as u64);
        self.counts.full += blocks;
        self.counts.writes += blocks * u64::from(disks);
        let row = self.rows.begin(write, disks);
        for role in (0..disks).map(Role) {
            let member = turn.conf.plain_member(role).expect("all members are there");
            let first =
                MemberIo { role, sector, is_write: true, flags, ..MemberIo::read(StripeId(0)) };
            let bufs = self.rows.bufs_of(role);
            out.row_bios.push((role, self.runs.make_of_row((row, first), member, bufs)));
        }
    }

    /// Give the stripes of a row write their pieces of the items that wait for one of them.
    fn join_row(&mut self, turn: &TurnInput<'_>, write: &RowWrite, out: &mut TurnEffects) {
        let (mut position, sectors) = (0, write.cover.sectors());
        while let Some(number) = self.items.waiting_at(position) {
            while let Some((sector, piece)) = self.items.next_piece(&turn.conf.layout, number)
                && sectors.contains(&sector)
            {
                let stripe = (sector - sectors.start) / STRIPE_SECTORS;
                self.add_piece(write.stripes[stripe as usize], piece, out);
            }
            position += 1;
        }
        self.items.drop_attached_from_line();
    }

    /// A bio of a row write has come back.
    pub(super) fn row_bio_ended(
        &mut self,
        turn: &TurnInput<'_>,
        row: RowId,
        bio: &mut Bio,
        out: &mut TurnEffects,
    ) {
        self.rows.keep_bufs(&turn.conf.layout, bio, &mut out.row_bufs);
        let is_ok = bio.status.is_ok() || mistake!("row_failure_forgotten");
        let Some((mut write, is_written)) = self.rows.bio_ended(row, is_ok) else { return };
        match is_written {
            true => self.row_written(&mut write, out),
            false => self.write_by_stripes(turn, &write, out),
        }
        self.rows.keep(write);
    }

    fn row_written(&mut self, write: &mut RowWrite, out: &mut TurnEffects) {
        for number in write.cover.items() {
            self.items.piece_done(*number, Status::Ok, &mut out.done);
        }
        write.stripes.iter().for_each(|id| self.stripes[*id].state = State::Idle);
        self.rows.ended.append(&mut write.stripes);
    }

    /// Have the stripes do the write, which find out what fails. It is the first thing that they do
    /// ([`State::InRow`]): the members may not fit one another.
    fn write_by_stripes(&mut self, turn: &TurnInput<'_>, write: &RowWrite, out: &mut TurnEffects) {
        for number in write.cover.items() {
            self.items.detach(*number);
            let is_attached = self.attach(turn, *number, false, out);
            debug_assert!(is_attached, "the stripes are busy");
        }
        write.stripes.iter().for_each(|id| self.ready.push(*id, &mut self.stripes[*id]));
    }

    /// Release the stripes of row writes that have ended, all before an item of the line goes on:
    /// that may be the next row write.
    pub(super) fn release_rows(
        &mut self,
        turn: &TurnInput<'_>,
        quota: usize,
        out: &mut TurnEffects,
    ) {
        let mut ended = std::mem::take(&mut self.rows.ended);
        let is_any = !ended.is_empty();
        for id in ended.drain(..) {
            match self.stripes[id].has_work() {
                true => self.ready.push(id, &mut self.stripes[id]),
                false => {
                    self.counts.freed += 1;
                    self.stripes.release(id, quota);
                }
            }
        }
        self.rows.ended = ended;
        if is_any {
            self.wake(turn, out);
        }
    }
}
