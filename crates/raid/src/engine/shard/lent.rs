//! The ways of a write's data into the cache: as a copy, since its owner may change it meanwhile,
//! and parity has to be that of what the members got; or, if all of a stripe is written from memory
//! that is declared stable ([`BioFlags::STABLE`]), as that memory itself (md's `skip_copy`).
//!
//! Invariants:
//! * Memory of a writer is in `blocks`, or in a run, from [`Steps::take_data`] until
//!   [`Stripe::give_back`], which comes before its item ends. The cache's own block is `set_aside`
//!   meanwhile.
//! * Nothing writes to such a block: all data of the stripe is there, so none is read or computed.
//! * Lent memory is not in the cache afterwards.

#![allow(unsafe_code, reason = "memory of a write stands for a block of the cache")]

use super::handle::Steps;
use super::items::Items;
use super::piece::Piece;
use super::stripe::Stripe;
use crate::engine::roles::Roles;
use crate::ids::Role;
use crate::layout::BLOCK_BYTES;
use drystone_core::mistake;
use drystone_core::{BioFlags, IoBuf};

impl Steps<'_> {
    /// Put the data of all writes that are under way into the cache. Their flags.
    pub(super) fn take_data(&mut self) -> BioFlags {
        let (stripe, items) = (&mut *self.stripe, &*self.items);
        let may_lend = stripe.is_written_whole() && !mistake!("stripe_acknowledged_early");
        let mut flags = BioFlags::empty();
        for index in 0..stripe.draining.len() {
            let piece = stripe.draining[index];
            let bio = items.bio(piece.item);
            flags |= bio.flags & (BioFlags::FUA | BioFlags::SYNC);
            match lent(items, &piece).filter(|_| may_lend) {
                Some(lent) => stripe.set_aside(piece.role, lent),
                None => {
                    bio.copy_data_from(piece.at, &mut stripe.block_mut(piece.role)[piece.range()])
                }
            }
        }
        flags
    }
}

/// The memory of a piece, a whole block, itself.
fn lent(items: &Items, piece: &Piece) -> Option<IoBuf> {
    // SAFETY: the item ends after `give_back`, which drops the buffer; blocks that hold data are
    // only read while a stripe is written, and those that come back from members are what was sent.
    unsafe { items.bio(piece.item).lend_data(piece.at, BLOCK_BYTES) }
}

impl Stripe {
    /// Each of its data blocks is written by one write that covers it.
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

    /// The writes are over: have the cache's own blocks again, which hold nothing of use.
    pub(super) fn give_back(&mut self) {
        while let Some((role, own)) = self.set_aside.pop() {
            self.blocks[role.index()] = Some(own);
            self.uptodate -= Roles::one(role);
        }
    }
}
