//! Throttles that Drystone does not have: one lock for every bio ([`Baseline`]), as Linux had it in
//! 2011; the same only where a rule applies ([`Patched`]), as "blk-throttle: lockless bio
//! processing for no throttle rule group" (Vivek Goyal, linux-kernel, 18 May 2011) makes it; and
//! none ([`NoThrottle`]).
//!
//! They read groups and limits from the product's ([`drystone_throttle::DeviceThrottle::bounds`]),
//! count into the same `io.stat`, and hold limits by Linux's slices (`slice`) under the device's
//! one lock. In two things they are kinder than Linux: a bio that a device takes in parts is
//! charged as one, and what has to wait does so in its own channel, without the lock, in the order
//! of its group there.
//!
//! A stack gets one of them as a type parameter (`drystone_stack::live::open_with`), so the product
//! has no branch for them.

mod absent;
mod baseline;
mod keeping;
mod patched;
mod queue;
mod slice;
mod table;

use drystone_core::sync::LockClass;

pub use absent::NoThrottle;
pub use baseline::Baseline;
pub use patched::Patched;

/// The class that the device's one lock of [`Baseline`] and [`Patched`] is counted in.
pub const QUEUE_LOCK: LockClass = LockClass::Throttle;
/// The class that the locks of groups' statistics of [`Baseline`] are counted in.
pub const STATS_LOCK: LockClass = LockClass::Other;
