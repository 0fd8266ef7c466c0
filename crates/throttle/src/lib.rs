//! Throttle groups, as cgroup v2 has them: a tree of groups, each with limits on any device of a
//! stack (`io.max`), by which its bios and those of the groups below it are bound. [`Throttled`] is
//! a device with its groups.
//!
//! * Where no rule applies no lock is taken and nothing shared is written ("blk-throttle: lockless
//!   bio processing for no throttle rule group", Vivek Goyal, 18 May 2011).
//! * Where one applies that does not bind, a context pays in advance and spends by itself
//!   (`budget`).
//! * Bios that have to wait are queued by group; no thread waits (`lane`, `dispatcher`, `tree`).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod budget;
mod channel;
mod counts;
mod credit;
mod device;
mod dispatcher;
mod group;
mod groups;
mod hierarchy;
mod lane;
mod limits;
mod meter;
#[cfg(all(test, loom))]
mod models;
mod port;
mod rules;
mod shared;
mod throttled;
mod tree;
mod view;

pub use budget::SLICE_NS;
pub use channel::GroupChannel;
pub use device::DeviceThrottle;
pub use group::{Group, GroupId, Member};
pub use groups::{GroupError, GroupReport, Groups, IoStats, Setting};
pub use limits::{Change, IoStat, Limits};
pub use throttled::{Throttle, ThrottleChannel, Throttled};
pub use view::{Bound, Bounds, GroupCounter};
