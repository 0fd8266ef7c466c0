//! RAID-4, RAID-5 and RAID-6 over other devices, on the same disks as Linux md.
//!
//! A *row* is one chunk on every member; a *stripe* is 4 KiB at the same place of every member. A
//! *role* is a member's number in the array. Member sectors count from a member's data offset.

#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod array;
mod engine;
#[doc(hidden)]
pub mod fuzz;
mod ids;
pub mod layout;
pub mod metadata;
pub mod parity;
#[doc(hidden)]
pub mod testing;

pub use engine::{RmwLevel, ShardCounts, SyncAction};
pub use ids::{MemberNumber, Role};
