//! `none`: first in, first out, with a short look back for merges (Linux looks at the newest
//! eight entries of a software queue).

use super::Scheduler;
use crate::unit::Unit;
use drystone_core::{Bio, Limits};
use std::collections::VecDeque;

/// How many of the newest units a bio is compared with.
const LOOK_BACK: usize = 8;

/// The scheduler `none`.
#[derive(Default)]
pub struct NoneScheduler {
    units: VecDeque<Unit>,
}

impl Scheduler for NoneScheduler {
    fn name(&self) -> &'static str {
        "none"
    }

    fn insert(&mut self, unit: Unit, at_head: bool) {
        if at_head { self.units.push_front(unit) } else { self.units.push_back(unit) }
    }

    fn try_merge(&mut self, mut bio: Box<Bio>, limits: &Limits) -> Result<(), Box<Bio>> {
        for unit in self.units.iter_mut().rev().take(LOOK_BACK) {
            match unit.try_merge(bio, limits) {
                Ok(()) => return Ok(()),
                Err(back) => bio = back,
            }
        }
        Err(bio)
    }

    fn dispatch(&mut self) -> Option<Unit> {
        self.units.pop_front()
    }

    fn has_work(&self) -> bool {
        !self.units.is_empty()
    }
}
