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
//! * Memory of a writer is only in bios of row writes. It is dropped when the bio comes back,
//!   before its item ends.
//! * All idle buffers are of [`unit_bytes`]. They are not more than writes in flight can use at
//!   once.

use super::compute::listed;
use super::cover::{Cover, unit_bytes};
use super::items::Items;
use super::lent::lent;
use crate::engine::turn::TurnInput;
use crate::ids::{Role, StripeId};
use crate::layout::{BLOCK_BYTES, Layout, Row};
use drystone_core::{Bio, IoBuf, Slab};
use drystone_parity::Parity;
use std::ops::Range;

/// Rows whose buffers a context keeps at hand, because its core's caches may hold them.
const NEAR_ROWS: usize = 2;

/// The number of a row write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowId(u32);

/// A write of whole rows.
#[derive(Default)]
pub(super) struct RowWrite {
    pub(super) cover: Cover,
    pub(super) stripes: Vec<StripeId>,
    /// Bios that have not come back.
    left: u32,
    /// A bio has failed.
    is_failed: bool,
}

/// Makes a buffer of so many bytes, if there is memory.
struct Maker(fn(usize) -> Option<IoBuf>);

impl Default for Maker {
    fn default() -> Self {
        Maker(IoBuf::try_zeroed)
    }
}

/// See the module's text.
#[derive(Default)]
pub(super) struct RowWrites {
    writes: Slab<RowWrite>,
    /// Memory of writes that have ended.
    spare: Vec<RowWrite>,
    /// Idle buffers.
    bufs: Vec<IoBuf>,
    maker: Maker,
    /// The most that writes in flight can use: the cache has no more stripes.
    bufs_max: usize,
    /// Stripes of writes that have ended: to be released.
    pub(super) ended: Vec<StripeId>,
    /// The buffers of the rows that are being computed, by data slot.
    data: Vec<IoBuf>,
    /// The buffers for each member, by role.
    by_role: Vec<Vec<IoBuf>>,
}

impl RowWrites {
    /// A write with nothing in it.
    pub(super) fn spare(&mut self) -> RowWrite {
        self.spare.pop().unwrap_or_default()
    }

    /// Keep the memory of a write.
    pub(super) fn keep(&mut self, mut write: RowWrite) {
        write.stripes.clear();
        self.spare.push(write);
    }

    /// Note that a write is under way, in `bios` bios.
    pub(super) fn begin(&mut self, mut write: RowWrite, bios: u32) -> RowId {
        (write.left, write.is_failed) = (bios, false);
        RowId(self.writes.insert(write))
    }

    /// Note that a bio has come back. Returns the write if it was the last one, and whether all
    /// were written.
    pub(super) fn bio_ended(&mut self, row: RowId, is_ok: bool) -> Option<(RowWrite, bool)> {
        let write = self.writes.get_mut(row.0)?;
        write.left -= 1;
        write.is_failed |= !is_ok;
        let write = (write.left == 0).then(|| self.writes.remove(row.0)).flatten()?;
        let is_written = !write.is_failed;
        Some((write, is_written))
    }

    /// The buffers that were computed for a role.
    pub(super) fn bufs_of(&mut self, role: Role) -> &mut Vec<IoBuf> {
        &mut self.by_role[role.index()]
    }

    /// Make sure that there are buffers for all that [`RowWrites::compute`] will do for `cover`.
    /// False if memory is short: stripes have theirs beforehand.
    pub(super) fn reserve(
        &mut self,
        layout: &Layout,
        items: &Items,
        cover: &Cover,
        near: &[IoBuf],
    ) -> bool {
        let (bytes, data) = (unit_bytes(layout), layout.data_disks());
        let needed: usize = cover
            .units(layout)
            .map(|sector| {
                let is_copied = |slot: &u32| {
                    let (number, at) = cover.data_at(layout, *slot, sector);
                    lent(items.bio(number), at, bytes).is_none()
                };
                (layout.disks() - data) as usize + (0..data).filter(is_copied).count()
            })
            .sum();
        for _ in near.len() + self.bufs.len()..needed {
            let Some(buf) = self.maker.0(bytes) else { return false };
            self.bufs.push(buf);
        }
        true
    }

    /// A buffer, with any content, of those that [`RowWrites::reserve`] made sure of. `near` are
    /// those that this context used last.
    fn buf(&mut self, near: &mut Vec<IoBuf>) -> IoBuf {
        near.pop().or_else(|| self.bufs.pop()).expect("it was reserved")
    }

    /// Keep the buffers of a bio that has come back, as far as there is use for them.
    pub(super) fn keep_bufs(&mut self, layout: &Layout, bio: &mut Bio, near: &mut Vec<IoBuf>) {
        let (unit, near_max) = (unit_bytes(layout), NEAR_ROWS * layout.disks() as usize);
        for buf in bio.take_bufs().filter(|buf| !buf.is_lent() && buf.len() == unit) {
            if near.len() < near_max {
                near.push(buf);
            } else if self.bufs.len() < self.bufs_max {
                self.bufs.push(buf);
            }
        }
    }

    /// Compute the parity of the unit at `sector`, and give each role its buffer.
    pub(super) fn compute(
        &mut self,
        turn: &TurnInput<'_>,
        items: &Items,
        (cover, sector): (&Cover, u64),
        near: &mut Vec<IoBuf>,
    ) {
        let layout = &turn.conf.layout;
        self.by_role.resize_with(layout.disks() as usize, Vec::new);
        let (row, bytes) = (layout.row_at(sector), unit_bytes(layout));
        for slot in 0..layout.data_disks() {
            let (number, at) = cover.data_at(layout, slot, sector);
            let lent = lent(items.bio(number), at, bytes);
            let buf = lent.unwrap_or_else(|| self.buf(near));
            self.data.push(buf);
        }
        let (mut p, mut q) = (self.buf(near), row.q.map(|_| self.buf(near)));
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

    /// From now on there is no memory for further buffers.
    #[cfg(test)]
    pub(super) fn exhaust_memory(&mut self) {
        self.maker = Maker(|_| None);
    }

    /// The number of idle buffers.
    #[cfg(test)]
    pub(super) fn idle_buffers(&self) -> usize {
        self.bufs.len()
    }

    /// The cache has so many stripes now.
    pub(super) fn resize(&mut self, layout: &Layout, stripes: usize) {
        let units = (stripes * BLOCK_BYTES).div_ceil(unit_bytes(layout));
        self.bufs_max = units * layout.disks() as usize;
        self.bufs.truncate(self.bufs_max);
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
