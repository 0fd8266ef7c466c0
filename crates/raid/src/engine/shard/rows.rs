//! Writes of whole rows: of all data of adjacent stripes.
//!
//! ```text
//! items that cover whole rows -> stripes claimed, parity computed -> a bio for each member
//!                                          | one of them failed           | all written
//!                                 attached to the stripes              the items end
//! ```
//!
//! Such a write needs nothing that the members hold, so it passes the blocks of the stripes by.
//! Parity is computed from the writer's memory if that is declared stable
//! ([`BioFlags::STABLE`](drystone_core::BioFlags::STABLE)), otherwise from one copy of it. Each
//! member gets one bio.
//!
//! Invariants:
//! * The stripes of a row write are busy, and in [`State::InRow`], until it ends. They hold nothing
//!   that is up to date; work for them waits in them meanwhile.
//! * When a row write begins, every member is in sync and has no bad blocks, none is being
//!   replaced, and the bitmap has the bits of the rows.
//! * If a bio fails, the items are attached to the stripes. These write all blocks again and record
//!   what fails then.
//! * Memory of a writer is only in bios of row writes. It is dropped when the bio comes back, before
//!   its item ends.
//! * All idle buffers are of [`unit_bytes`].

use super::Shard;
use super::compute::listed;
use super::effects::TurnEffects;
use super::items::Items;
use super::lent::lent;
use super::member_io::MemberIo;
use super::stripe::State;
use crate::engine::shared::REGION_SECTORS;
use crate::engine::turn::TurnInput;
use crate::ids::{Role, StripeId};
use crate::layout::{BLOCK_BYTES, Layout, Row, STRIPE_SECTORS};
use drystone_core::{Bio, BioFlags, IoBuf, SECTOR_SIZE, Slab, Status, mistake};
use drystone_parity::Parity;
use std::ops::Range;

/// Rows whose buffers a context keeps at hand, because its core's caches may hold them.
const NEAR_ROWS: usize = 2;

/// The number of a row write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowId(u32);

/// Items that cover whole rows of one region.
#[derive(Default)]
struct Cover {
    /// The items, in the order of the array. If chunks are as long as a region or longer, each
    /// covers the region of one member. If not, each covers one or several rows.
    items: Vec<u32>,
    /// Where the rows of each item begin, if it covers rows.
    begins: Vec<u64>,
    /// Member sectors of all of it.
    sectors: Range<u64>,
}

/// A write of whole rows that is under way.
#[derive(Default)]
struct RowWrite {
    cover: Cover,
    stripes: Vec<StripeId>,
    /// Bios that have not come back.
    left: u32,
    /// A bio has failed.
    is_failed: bool,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct RowWrites {
    writes: Slab<RowWrite>,
    /// Memory of writes that have ended.
    spare: Vec<RowWrite>,
    /// Idle buffers.
    bufs: Vec<IoBuf>,
    /// Stripes of writes that have ended: to be released.
    ended: Vec<StripeId>,
    /// The buffers of the rows that are being computed, by data slot.
    data: Vec<IoBuf>,
    /// The buffers for each member, by role.
    by_role: Vec<Vec<IoBuf>>,
}

/// The sectors of a member that lie in one piece in the array and in one region.
fn unit_sectors(layout: &Layout) -> u64 {
    layout.chunk_sectors().min(REGION_SECTORS)
}

fn unit_bytes(layout: &Layout) -> usize {
    (unit_sectors(layout) * SECTOR_SIZE) as usize
}

/// The member sectors of the rows that an item covers, if it covers nothing else.
fn rows_of(all: &Items, layout: &Layout, number: u32) -> Option<Range<u64>> {
    let (bio, row) = (all.fresh_write(number)?, layout.row_sectors());
    let sectors = bio.bytes / SECTOR_SIZE;
    let is_whole = bio.sector.0.is_multiple_of(row) && sectors.is_multiple_of(row);
    let (first, data_disks) = (bio.sector.0, u64::from(layout.data_disks()));
    is_whole.then(|| first / data_disks..(first + sectors) / data_disks)
}

impl Cover {
    /// The rows that the first of `numbers` cover.
    fn find(&mut self, all: &Items, layout: &Layout, numbers: impl Iterator<Item = u32>) -> bool {
        self.items.clear();
        self.begins.clear();
        let sectors = match layout.chunk_sectors() < REGION_SECTORS {
            true => self.of_rows(all, layout, numbers),
            false => self.of_regions(all, layout, numbers),
        };
        self.sectors = sectors.unwrap_or_default();
        !self.sectors.is_empty()
    }

    /// Items that each cover one or several rows, one behind the other.
    fn of_rows(
        &mut self,
        all: &Items,
        layout: &Layout,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<Range<u64>> {
        let (mut start, mut end) = (None, 0);
        for number in numbers {
            let Some(rows) = rows_of(all, layout, number) else { break };
            let first = *start.get_or_insert(rows.start);
            let follows = self.items.is_empty() || end == rows.start;
            if !follows || first / REGION_SECTORS != rows.start / REGION_SECTORS {
                break;
            }
            self.items.push(number);
            self.begins.push(rows.start);
            end = rows.end;
        }
        start.map(|start| start..end)
    }

    /// Items that each cover the same region of another data member, in the order of the array.
    fn of_regions(
        &mut self,
        all: &Items,
        layout: &Layout,
        numbers: impl Iterator<Item = u32>,
    ) -> Option<Range<u64>> {
        let mut first = None;
        for (slot, number) in (0..layout.data_disks()).zip(numbers) {
            let bio =
                all.fresh_write(number).filter(|bio| bio.bytes == REGION_SECTORS * SECTOR_SIZE)?;
            let place = layout.map_sector(bio.sector.0);
            let sector = *first.get_or_insert(place.sector);
            if sector % REGION_SECTORS != 0 || (place.slot, place.sector) != (slot, sector) {
                return None;
            }
            self.items.push(number);
        }
        let is_whole = self.items.len() == layout.data_disks() as usize;
        first.filter(|_| is_whole).map(|first| first..first + REGION_SECTORS)
    }

    /// The item with the data of `slot` in the unit at member sector `sector`, and where in it.
    fn data_at(&self, layout: &Layout, slot: u32, sector: u64) -> (u32, u64) {
        if self.begins.is_empty() {
            return (self.items[slot as usize], 0);
        }
        let at = self.begins.partition_point(|begin| *begin <= sector) - 1;
        let row = (sector - self.begins[at]) / layout.chunk_sectors();
        let unit = row * u64::from(layout.data_disks()) + u64::from(slot);
        (self.items[at], unit * layout.chunk_sectors() * SECTOR_SIZE)
    }

    fn stripes(&self) -> impl Iterator<Item = u64> + use<> {
        self.sectors.clone().step_by(STRIPE_SECTORS as usize)
    }
}

impl RowWrites {
    /// A buffer of `bytes` bytes, with any content. `near` are those that this context used last.
    fn buf(&mut self, near: &mut Vec<IoBuf>, bytes: usize) -> IoBuf {
        near.pop().or_else(|| self.bufs.pop()).unwrap_or_else(|| IoBuf::zeroed(bytes))
    }

    /// Keep the buffers of a bio that has come back.
    fn keep_bufs(&mut self, layout: &Layout, bio: &mut Bio, near: &mut Vec<IoBuf>) {
        let (unit, near_max) = (unit_bytes(layout), NEAR_ROWS * layout.disks() as usize);
        for buf in bio.take_bufs().filter(|buf| !buf.is_lent() && buf.len() == unit) {
            let to = if near.len() < near_max { &mut *near } else { &mut self.bufs };
            to.push(buf);
        }
    }

    /// Compute the parity of the unit at `sector`, and give each role its buffer.
    fn compute(
        &mut self,
        turn: &TurnInput<'_>,
        items: &Items,
        (cover, sector): (&Cover, u64),
        near: &mut Vec<IoBuf>,
    ) {
        let layout = &turn.conf.layout;
        let (row, bytes) = (layout.row_at(sector), unit_bytes(layout));
        for slot in 0..layout.data_disks() {
            let (number, at) = cover.data_at(layout, slot, sector);
            let lent = lent(items.bio(number), at, bytes);
            let buf = lent.unwrap_or_else(|| self.buf(near, bytes));
            self.data.push(buf);
        }
        let (mut p, mut q) = (self.buf(near, bytes), row.q.map(|_| self.buf(near, bytes)));
        for start in (0..bytes).step_by(BLOCK_BYTES) {
            let block = start..start + BLOCK_BYTES;
            for (slot, buf) in (0..).zip(&mut self.data) {
                if !buf.is_lent() {
                    let (number, at) = cover.data_at(layout, slot, sector);
                    items.bio(number).copy_data_from(at + start as u64, &mut buf[block.clone()]);
                }
            }
            let q = q.as_deref_mut().map(|q| &mut q[block.clone()]);
            parity_of(turn.parity, &row, &self.data, block.clone(), (&mut p[block], q));
        }
        for (slot, buf) in (0..).zip(self.data.drain(..)) {
            self.by_role[row.data(slot).index()].push(buf);
        }
        self.by_role[row.p.index()].push(p);
        if let (Some(role), Some(q)) = (row.q, q) {
            self.by_role[role.index()].push(q);
        }
    }

    /// Forget the idle buffers: the cache has another size.
    pub(super) fn drop_buffers(&mut self) {
        self.bufs = Vec::new();
    }
}

/// Compute parity of one block of all data.
fn parity_of(
    parity: Parity,
    row: &Row,
    data: &[IoBuf],
    block: Range<usize>,
    (p, q): (&mut [u8], Option<&mut [u8]>),
) {
    let of = |slot: usize| &data[slot][block.clone()];
    let len = data.len() as u32;
    let Some(q) = q else {
        let all = (0..data.len()).map(of);
        return listed(len, all, |blocks| parity.xor_of(p, blocks));
    };
    let slot = |role| row.slot(role).map_or(0, |slot| slot as usize);
    let all = row.by_power().map(|role| (row.power(role) as u8, of(slot(role))));
    listed(len, all, |sources| parity.pq_of(p, q, sources));
}

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
        let mut write = self.rows.spare.pop().unwrap_or_default();
        let (items, layout) = (&self.items, &turn.conf.layout);
        let is_whole = match numbers {
            Some(numbers) => write.cover.find(items, layout, numbers.iter().copied()),
            None => write.cover.find(items, layout, items.waiting()),
        };
        if !is_whole || !self.are_free(turn, &write.cover) {
            self.rows.spare.push(write);
            return 0;
        }
        let taken = write.cover.items.len();
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
            let Some(id) = self.stripes.claim(turn, sector, found) else { continue };
            let stripe = &mut self.stripes[id];
            (stripe.state, stripe.driver, stripe.uptodate) =
                (State::InRow, turn.port, Default::default());
            write.stripes.push(id);
        }
        let layout = &turn.conf.layout;
        self.rows.by_role.resize_with(layout.disks() as usize, Vec::new);
        for sector in cover.sectors.clone().step_by(unit_sectors(layout) as usize) {
            self.rows.compute(turn, &self.items, (cover, sector), &mut out.row_bufs);
        }
        let mut flags = BioFlags::empty();
        for number in &cover.items {
            let bio = self.items.bio(*number);
            flags |= bio.flags & (BioFlags::FUA | BioFlags::SYNC);
            if bio.port != turn.port {
                out.add_remote(bio.port);
            }
            self.items.attach_whole(*number);
        }
        let sector = cover.sectors.start;
        let (disks, blocks) = (layout.disks(), write.stripes.len() as u64);
        self.counts.full += blocks;
        self.counts.writes += blocks * u64::from(disks);
        write.left = disks;
        let row = RowId(self.rows.writes.insert(write));
        for role in (0..disks).map(Role) {
            let member = turn.conf.plain_member(role).expect("all members are there");
            let first =
                MemberIo { role, sector, is_write: true, flags, ..MemberIo::read(StripeId(0)) };
            let bufs = &mut self.rows.by_role[role.index()];
            out.row_bios.push((role, self.runs.make_of_row((row, first), member, bufs)));
        }
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
        let Some(write) = self.rows.writes.get_mut(row.0) else { return };
        write.left -= 1;
        write.is_failed |= !bio.status.is_ok() && !mistake!("row_failure_forgotten");
        if write.left > 0 {
            return;
        }
        let Some(mut write) = self.rows.writes.remove(row.0) else { return };
        write.stripes.iter().for_each(|id| self.stripes[*id].state = State::Idle);
        match std::mem::take(&mut write.is_failed) {
            false => self.row_written(&mut write, out),
            true => self.write_by_stripes(turn, &mut write, out),
        }
        write.stripes.clear();
        self.rows.spare.push(write);
    }

    fn row_written(&mut self, write: &mut RowWrite, out: &mut TurnEffects) {
        for number in &write.cover.items {
            self.items.piece_done(*number, Status::Ok, &mut out.done);
        }
        self.rows.ended.append(&mut write.stripes);
    }

    /// Have the stripes do the write, which find out what fails.
    fn write_by_stripes(
        &mut self,
        turn: &TurnInput<'_>,
        write: &mut RowWrite,
        out: &mut TurnEffects,
    ) {
        for number in &write.cover.items {
            self.items.detach(*number);
            let is_attached = self.attach(turn, *number, false, out);
            debug_assert!(is_attached, "the stripes are busy");
        }
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
