//! Throttle groups as in cgroup v2: a tree of groups. Each group may have limits on any device of a
//! stack (`io.max`), which bind its own bios and those of the groups below it. [`Throttled`] is a
//! device with its groups.
//!
//! * If no rule applies to a bio, its context takes no lock and writes no shared memory
//!   ("blk-throttle: lockless bio processing for no throttle rule group", Vivek Goyal, 18 May
//!   2011).
//! * If a rule applies but does not bind, the context pays in advance and then spends its local
//!   credit (`budget`).
//! * Bios that have to wait are queued by group; no thread waits (`lane`, `dispatcher`, `tree`).
//!
//! # Example
//!
//! One limit binds two tenants together.
//!
//! ```
//! use drystone_core::clock::SystemClock;
//! use drystone_core::sync::LockRegistry;
//! use drystone_throttle::{Change, Groups};
//!
//! let clock = SystemClock::new();
//! let registry = LockRegistry::new(clock.clone());
//! let groups = Groups::new(clock, &registry);
//! // `Throttled::new` puts this in front of the device of that name.
//! let throttle = groups.attach("disk");
//!
//! let tenants = groups.create("tenants")?;
//! // Bios of this tenant carry its number.
//! let tenant = groups.create("tenants/a")?;
//! let limit = Change { wbps: Some(Some(100 << 20)), ..Change::default() };
//! groups.set_max("tenants", "disk", &limit)?;
//!
//! let (_, all) = throttle.bounds(&registry.counters());
//! let bounds = all.iter().find(|bounds| bounds.group == tenant.id()).unwrap();
//! assert!(bounds.reads.is_empty());
//! assert_eq!(bounds.writes[0].group, tenants.id());
//! assert_eq!(bounds.writes[0].bps, Some(100 << 20));
//! # Ok::<(), drystone_throttle::GroupError>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

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
