//! Classes, directions and lanes.

use drystone_core::{Op, Priority, PriorityClass};

/// Number of classes: 0 is real-time, 1 best effort (and none given), 2 idle.
pub const CLASSES: usize = 3;
/// The strongest class.
pub(crate) const REAL_TIME: usize = 0;
/// The class of bios that ask for none.
pub(crate) const BEST_EFFORT: usize = 1;
/// A class and a direction make a lane: twice the class, and one more for writes, which is
/// everything that is no read.
pub const LANES: usize = 2 * CLASSES;
pub(super) const READ: usize = 0;
pub(super) const WRITE: usize = 1;

/// The class of a bio or unit of `priority`, as a number below [`CLASSES`].
#[inline]
pub fn class_of(priority: Priority) -> usize {
    match priority.class {
        PriorityClass::RealTime => 0,
        PriorityClass::None | PriorityClass::BestEffort => 1,
        PriorityClass::Idle => 2,
    }
}

/// The lane of a bio or unit.
#[inline]
pub fn lane_of(op: Op, priority: Priority) -> usize {
    2 * class_of(priority) + if op == Op::Read { READ } else { WRITE }
}
