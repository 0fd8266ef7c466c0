//! Addresses in the two spaces that a front end knows, and regions of its memory.
//!
//! Invariants:
//! * A region is not empty.
//! * A region ends at most at 2^64 in guest addresses, user addresses and in its file.

/// An address as the guest knows it, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GuestAddress(pub u64);

/// An address in the front end's own memory, bytes. Rings are found by such addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserAddress(pub u64);

/// A region of the guest's memory, which is shared by a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    guest: GuestAddress,
    user: UserAddress,
    bytes: u64,
    offset: u64,
}

impl Region {
    /// A region of `bytes` at these addresses, whose first byte is at `offset` of its file; `None`
    /// if it is empty or would pass the end of an address space.
    pub fn new(guest: GuestAddress, user: UserAddress, bytes: u64, offset: u64) -> Option<Self> {
        let last = bytes.checked_sub(1)?;
        guest.0.checked_add(last)?;
        user.0.checked_add(last)?;
        // Who maps the file wants the end as a number, too.
        offset.checked_add(bytes)?;
        Some(Self { guest, user, bytes, offset })
    }

    /// Its first byte for the guest.
    pub fn guest(&self) -> GuestAddress {
        self.guest
    }

    /// Its first byte for the front end.
    pub fn user(&self) -> UserAddress {
        self.user
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The place of its first byte in the file, bytes.
    pub fn file_offset(&self) -> u64 {
        self.offset
    }

    /// True if both have a guest address.
    pub fn shares_guest_addresses(&self, other: &Region) -> bool {
        share_bytes((self.guest.0, self.bytes), (other.guest.0, other.bytes))
    }

    /// True if both have a user address.
    pub fn shares_user_addresses(&self, other: &Region) -> bool {
        share_bytes((self.user.0, self.bytes), (other.user.0, other.bytes))
    }

    /// True if `bytes` from `start` on are all in the region.
    pub fn has_user_range(&self, start: UserAddress, bytes: u64) -> bool {
        let before = start.0.checked_sub(self.user.0);
        before.is_some_and(|before| before <= self.bytes && bytes <= self.bytes - before)
    }

    /// True if a message that removes `other` means this region: file offsets do not count.
    pub fn is_named_by(&self, other: &Region) -> bool {
        (self.guest, self.user, self.bytes) == (other.guest, other.user, other.bytes)
    }
}

impl std::fmt::Display for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Region { guest, user, bytes, .. } = self;
        write!(f, "{bytes:#x} bytes at guest {:#x}, user {:#x}", guest.0, user.0)
    }
}

/// Of two ranges, neither of which wraps.
fn share_bytes((one, one_bytes): (u64, u64), (two, two_bytes): (u64, u64)) -> bool {
    if one <= two { two - one < one_bytes } else { one - two < two_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(guest: u64, user: u64, bytes: u64) -> Region {
        Region::new(GuestAddress(guest), UserAddress(user), bytes, 0).expect("a good region")
    }

    #[test]
    fn a_region_is_not_empty_and_ends_in_all_spaces() {
        let new = |guest, user, bytes, offset| {
            Region::new(GuestAddress(guest), UserAddress(user), bytes, offset).is_some()
        };
        assert!(new(u64::MAX, u64::MAX, 1, u64::MAX - 1));
        assert!(!new(0, 0, 0, 0));
        assert!(!new(u64::MAX, 0, 2, 0));
        assert!(!new(0, u64::MAX, 2, 0));
        assert!(!new(0, 0, 2, u64::MAX - 1));
    }

    #[test]
    fn neighbours_share_nothing() {
        let (low, high) = (region(0, 0x1000, 0x1000), region(0x1000, 0x1fff, 0x1000));
        assert!(!low.shares_guest_addresses(&high) && !high.shares_guest_addresses(&low));
        assert!(low.shares_user_addresses(&high) && high.shares_user_addresses(&low));
        let last = region(u64::MAX, u64::MAX, 1);
        assert!(!last.shares_guest_addresses(&low) && last.shares_guest_addresses(&last));
    }

    #[test]
    fn a_range_is_in_a_region_or_not() {
        let region = region(0, 0x1000, 0x100);
        let has = |start, bytes| region.has_user_range(UserAddress(start), bytes);
        assert!(has(0x1000, 0x100) && has(0x10ff, 1) && has(0x1100, 0));
        assert!(!has(0xfff, 1) && !has(0x10ff, 2) && !has(0x1101, 0) && !has(0x1001, u64::MAX));
    }
}
