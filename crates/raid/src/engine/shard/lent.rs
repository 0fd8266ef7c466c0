//! The data of a write on its way into the cache. Usually the data is copied: its owner may change
//! it meanwhile, but parity has to match the data that the members got. If all of a stripe is
//! written from memory that is declared stable ([`BioFlags::STABLE`]), the stripe uses that memory
//! itself (md's `skip_copy`).
//!
//! Invariants:
//! * Memory of a writer is in `blocks`, or in a run, from [`Steps::take_data`] until
//!   [`Stripe::give_back`], which comes before the writer's item ends. The cache's own block is in
//!   `set_aside` meanwhile.
//! * Nothing writes to such a block: the stripe has all its data, so no data block is read or
//!   computed.
//! * Lent memory does not stay in the cache after the write.

#![allow(unsafe_code, reason = "memory of a write stands for a block of the cache")]

use super::handle::Steps;
use super::piece::Piece;
use super::stripe::Stripe;
use crate::engine::roles::Roles;
use crate::ids::Role;
use crate::layout::BLOCK_BYTES;
use drystone_core::mistake;
use drystone_core::{Bio, BioFlags, IoBuf};

impl Steps<'_> {
    /// Put the data of all writes that are under way into the cache. Returns the flags of their
    /// bios.
    pub(super) fn take_data(&mut self) -> BioFlags {
        let (stripe, items) = (&mut *self.stripe, &*self.items);
        let may_lend = stripe.is_written_whole() && !mistake!("stripe_acknowledged_early");
        let mut flags = BioFlags::empty();
        for index in 0..stripe.draining.len() {
            let piece = stripe.draining[index];
            let bio = items.bio(piece.item);
            flags |= bio.flags & (BioFlags::FUA | BioFlags::SYNC);
            let is_lent = may_lend && piece.is_whole();
            match is_lent.then(|| lent(items.bio(piece.item), piece.at, BLOCK_BYTES)).flatten() {
                Some(lent) => stripe.set_aside(piece.role, lent),
                None => {
                    bio.copy_data_from(piece.at, &mut stripe.block_mut(piece.role)[piece.range()])
                }
            }
        }
        flags
    }
}

/// The writer's memory of `bytes` bytes of an item from byte `at` on, if it may stand for a buffer.
/// The buffer must be dropped before the item ends, and nobody may write to it.
pub(super) fn lent(bio: &Bio, at: u64, bytes: usize) -> Option<IoBuf> {
    // SAFETY: the item ends after the buffer is dropped: by `give_back`, or when the bio of a row
    // write comes back. Blocks that hold data are only read while a stripe or row is written, and
    // those that come back from members are what was sent.
    unsafe { bio.lend_data(at, bytes) }
}

impl Stripe {
    /// Each data block of the stripe is written by exactly one piece, which covers the whole block.
    fn is_written_whole(&self) -> bool {
        let roles = self.draining.iter().map(|piece| piece.role).collect();
        self.draining.len() == self.data.len() as usize
            && self.data == roles
            && self.draining.iter().all(Piece::is_whole)
    }

    fn set_aside(&mut self, role: Role, lent: IoBuf) {
        let own = self.blocks[role.index()].replace(lent);
        self.set_aside.push((role, own.expect("the block is in the cache")));
    }

    /// Put the cache's own blocks back after the writes. Their content is not valid.
    pub(super) fn give_back(&mut self) {
        while let Some((role, own)) = self.set_aside.pop() {
            self.blocks[role.index()] = Some(own);
            self.uptodate -= Roles::one(role);
        }
    }
}
