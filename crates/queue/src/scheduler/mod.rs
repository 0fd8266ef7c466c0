//! Schedulers: what decides the order of units between plug and tag (Linux: elevator).

mod none;

pub use none::NoneScheduler;

use crate::unit::Unit;
use drystone_core::{Bio, Limits};

/// Orders the units that cannot go to the driver at once.
pub trait Scheduler: Send {
    /// Its name in `queue/scheduler`.
    fn name(&self) -> &'static str;

    /// Keep `unit`, behind (or, `at_head`, before) everything else that may go first.
    fn insert(&mut self, unit: Unit, at_head: bool);

    /// Let a unit that is kept take `bio` in. Gives it back if none can.
    ///
    /// # Errors
    /// The bio, if nothing took it.
    fn try_merge(&mut self, bio: Box<Bio>, limits: &Limits) -> Result<(), Box<Bio>>;

    /// The unit to go next.
    fn dispatch(&mut self) -> Option<Unit>;

    /// True while a unit is kept.
    fn has_work(&self) -> bool;
}
