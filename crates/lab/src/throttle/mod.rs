//! Throttles that Drystone does not have: one lock for every bio ([`Before`]), as Linux had it in 2011;
//! the same only where a rule applies ([`Mailed`]), as "blk-throttle: lockless bio processing for no
//! throttle rule group" (Vivek Goyal, linux-kernel, 18 May 2011) makes it; and none ([`NoThrottle`]).
//!
//! They read groups and limits from the product's ([`drystone_throttle::DeviceThrottle::bounds`]), count
//! into the same `io.stat`, and hold limits by Linux's slices (`slice`) under the device's one lock. In two
//! things they are kinder than Linux: a bio that a device takes in parts is charged as one, and what has
//! to wait does so in its own channel, without the lock, in the order of its group there.
//!
//! A stack gets one of them by type (`drystone_stack::live::open_with`), so the product has no branch
//! for their sake.

mod absent;
mod before;
mod keeping;
mod mailed;
mod queue;
mod slice;
mod table;

use drystone_core::sync::LockClass;

pub use absent::NoThrottle;
pub use before::Before;
pub use mailed::Mailed;

/// The class that the device's one lock of [`Before`] and [`Mailed`] is counted in.
pub const QUEUE_LOCK: LockClass = LockClass::Throttle;
/// The class that the locks of groups' statistics of [`Before`] are counted in.
pub const STATS_LOCK: LockClass = LockClass::Other;
