//! `none`: first in, first out, with a short search back for merges (Linux tries the newest
//! eight entries of a software queue). Each channel has one of its own; with another scheduler
//! it holds only what the driver or a flush sequence gave back before that scheduler was chosen.

use crate::unit::Unit;
use drystone_core::{Bio, Limits};
use std::collections::VecDeque;

/// The number of newest units that a bio is compared with.
const LOOK_BACK: usize = 8;

/// The scheduler `none`.
#[derive(Default)]
pub struct NoneScheduler {
    units: VecDeque<Unit>,
}

impl NoneScheduler {
    /// Keep `unit`, behind (or, `at_head`, before) everything that is kept.
    pub fn insert(&mut self, unit: Unit, at_head: bool) {
        if at_head { self.units.push_front(unit) } else { self.units.push_back(unit) }
    }

    /// Let a unit that is kept take `bio` in.
    ///
    /// # Errors
    /// The bio, if nothing took it.
    pub fn try_merge(&mut self, mut bio: Box<Bio>, limits: &Limits) -> Result<(), Box<Bio>> {
        for unit in self.units.iter_mut().rev().take(LOOK_BACK) {
            match unit.try_merge(bio, limits) {
                Ok(()) => return Ok(()),
                Err(back) => bio = back,
            }
        }
        Err(bio)
    }

    /// The unit to go next.
    pub fn dispatch(&mut self) -> Option<Unit> {
        self.units.pop_front()
    }

    /// True while a unit is kept.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.units.is_empty()
    }
}
