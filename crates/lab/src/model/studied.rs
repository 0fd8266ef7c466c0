//! A variant of `mq-deadline` with everything that is measured and modelled of it.

use super::design::{Design, Figures, Loser};
use super::variants::Measured;
use super::verdict::Check;
use crate::measure::Sample;

/// A variant with all that is measured and modelled of it.
pub(super) struct Studied {
    pub(super) measured: Measured,
    pub(super) design: Design,
    /// The runs of each checked number of threads, and what the model says of it.
    pub(super) points: Vec<(Check, Vec<Sample>, Figures)>,
    /// The model's figures for so many cores with a thread each.
    pub(super) beyond: Vec<(u32, Figures)>,
}

impl Studied {
    pub(super) fn checks(&self) -> Vec<Check> {
        self.points.iter().map(|(check, ..)| *check).collect()
    }
    /// The way a thread goes on that finds the main lock, that of dispatching, taken.
    pub(super) fn loser(&self) -> Option<Loser> {
        self.design.sections.last().map(|section| section.loser)
    }
}
