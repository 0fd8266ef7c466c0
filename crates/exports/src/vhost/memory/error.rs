//! The reasons why memory cannot be mapped or does not have an address.

use super::super::proto::{GuestAddress, Region, UserAddress};
use rustix::io::Errno;

/// The reason why a region cannot be mapped. The text is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The file, a regular one, ends before the region.
    #[error("the region of {region} ends at byte {needs} of its file, which has {has}")]
    FileTooShort {
        /// The region.
        region: Region,
        /// Bytes of the file.
        has: u64,
        /// Bytes that it needs.
        needs: u64,
    },
    /// The region is longer than an address space.
    #[error("a region of {bytes:#x} bytes is too long to be mapped")]
    TooLong {
        /// Its length, bytes.
        bytes: u64,
    },
    /// The system does not tell the length of the file, or the size of its pages.
    #[error("the file of a region cannot be looked at: {0}")]
    Unreadable(Errno),
    /// The system does not map the file.
    #[error("the region of {region} cannot be mapped: {errno}")]
    Refused {
        /// The region.
        region: Region,
        /// Why.
        errno: Errno,
    },
}

/// A range of guest addresses is not all in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes at guest address {:#x} are not all in memory", address.0)]
pub struct Outside {
    /// The first address.
    pub address: GuestAddress,
    /// The length, bytes.
    pub bytes: u64,
}

/// The reason why a part of a ring cannot be used where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AreaError {
    /// No region has all of it.
    #[error("{bytes} bytes at user address {:#x} lie in no region of memory", address.0)]
    Outside {
        /// The first address.
        address: UserAddress,
        /// The length, bytes.
        bytes: u64,
    },
    /// The user address is aligned, but its place in the file is not.
    #[error("user address {:#x} lies at no multiple of {align} in its file", address.0)]
    Unaligned {
        /// The first address.
        address: UserAddress,
        /// The multiple, bytes.
        align: usize,
    },
}
