//! Numbers that have types of their own, so that they cannot be confused.

use std::fmt;

/// A position in the geometry of an array, from 0 (Linux `raid_disk`). A member holds one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Role(pub u32);

/// The number of a device among all that the array has known (Linux `desc_nr`). A device keeps it
/// when it gets a role or loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberNumber(pub u32);

/// The number of a stripe of the cache in its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StripeId(pub(crate) u32);

impl Role {
    /// As an index of tables by role.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl StripeId {
    /// As an index of tables by stripe.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for MemberNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
