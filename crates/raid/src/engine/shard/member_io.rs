//! I/O to members, block by block.

use crate::ids::{Role, StripeId};
use crate::layout::STRIPE_SECTORS;
use drystone_core::BioFlags;

/// A block that must be read or written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemberIo {
    pub(crate) role: Role,
    /// Member sector.
    pub(crate) sector: u64,
    pub(super) stripe: StripeId,
    pub(crate) is_write: bool,
    pub(crate) is_replacement: bool,
    /// The I/O goes to a replacement, or went to a device that was one: its data is a copy of the
    /// block.
    pub(super) is_copy: bool,
    /// The block failed together with others, and is tried alone.
    pub(super) is_alone: bool,
    pub(crate) flags: BioFlags,
}

impl MemberIo {
    pub(super) fn read(stripe: StripeId) -> Self {
        MemberIo {
            role: Role(0),
            sector: 0,
            stripe,
            is_write: false,
            is_replacement: false,
            is_copy: false,
            is_alone: false,
            flags: BioFlags::empty(),
        }
    }

    /// The properties that all blocks of a run share.
    pub(super) fn kind(&self) -> (Role, [bool; 3], u16) {
        (self.role, [self.is_replacement, self.is_copy, self.is_write], self.flags.bits())
    }

    pub(super) fn follows(&self, other: &MemberIo) -> bool {
        let is_next = self.sector == other.sector + STRIPE_SECTORS;
        is_next && self.kind() == other.kind() && !self.is_alone && !other.is_alone
    }
}
