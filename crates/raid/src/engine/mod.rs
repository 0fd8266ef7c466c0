//! The engine of an array: the code with which contexts process the array's bios.

mod bitmap;
mod channel;
mod conf;
mod plan;
mod port;
mod ppl;
mod region;
mod roles;
mod shard;
mod shared;
mod turn;

pub(crate) use bitmap::Bitmap;
pub use channel::ArrayChannel;
pub use conf::SyncAction;
pub(crate) use conf::{Conf, ConfSpec, IN_SYNC, LogArea, Member, Patches, PplConf, RoleSlot};
pub use plan::RmwLevel;
pub(crate) use port::Origin;
pub(crate) use region::REGION_SECTORS;
pub use shard::ShardCounts;
pub(crate) use shared::{Shared, Wanted};
pub(crate) use turn::{Fault, Report};

#[cfg(all(test, not(loom)))]
pub(crate) use shard::tests as testing;
