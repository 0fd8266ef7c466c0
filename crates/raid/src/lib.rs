//! RAID-4, RAID-5 and RAID-6 over other devices, in the on-disk format of Linux md.
//!
//! A *row* is one chunk on every member; a *stripe* is 4 KiB at the same place of every member. A
//! *role* is a member's number in the array. Member sectors count from a member's data offset.
//!
//! ```
//! use drystone_raid::Role;
//! use drystone_raid::layout::{Layout, Level};
//!
//! // Left-symmetric RAID-5 of four members, in chunks of 64 KiB.
//! let layout = Layout::new(Level::Raid5, 2, 4, 128)?;
//! assert_eq!(layout.array_sectors(1024), Some(3 * 1024));
//! // Sector 130 of the array is the third one of the second chunk.
//! let address = layout.map_sector(130);
//! assert_eq!((address.role, address.sector), (Role(1), 2));
//! assert_eq!(layout.row_at(address.sector).p, Role(3));
//! # Ok::<(), String>(())
//! ```
//!
//! [`metadata`] reads and makes superblocks; [`array::open`] starts an array on its devices.

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod array;
mod engine;
#[doc(hidden)]
pub mod fuzz;
mod ids;
pub mod layout;
pub mod metadata;
#[doc(hidden)]
pub mod testing;

pub use engine::{RmwLevel, ShardCounts, SyncAction};
pub use ids::{MemberNumber, Role};
