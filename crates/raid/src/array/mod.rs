//! Arrays: devices that are made of members and that a manager looks after.
//!
//! An [`Array`] is a device like any other. Its [`Manager`] is one thread with a context of its own
//! (Linux: `mdX_raid5` and `mdX_resync`). It alone writes superblocks, handles members that fail,
//! and has stripes synchronised. Contexts send requests to it and never block on it.

mod attributes;
mod bitmap;
mod control;
mod device;
mod disk;
mod doubtful;
mod event;
mod io;
mod journal;
mod look;
mod manager;
mod open;
mod options;
mod ppl;
mod status;
#[cfg(all(test, not(loom)))]
mod tests;

pub use attributes::{CACHE_STRIPES, RMW_LEVELS, SYNC_ACTIONS, SYNC_SPEEDS};
pub use control::{Command, Request};
pub use device::Array;
pub use disk::DiskState;
pub use doubtful::DoubtfulRanges;
pub use event::{ArrayEvent, Failed, Strength};
pub use look::contents;
pub use manager::Manager;
pub use open::{Opened, create, find, open};
pub use options::{ArrayOptions, CACHE_STRIPES_DEFAULT, EventSink, WallClock};
pub use status::{ArrayState, ArrayStatus, BitmapStatus, DiskStatus, SyncStatus, action_name};
