//! A variant of `mq-deadline` with its measurements and its model.

use super::design::{Design, Figures, Loser};
use super::variants::Measured;
use super::verdict::Check;
use crate::measure::Sample;

/// A variant with its measurements and its model.
pub(super) struct Studied {
    pub(super) measured: Measured,
    pub(super) design: Design,
    /// The runs of each checked number of threads, with the model's figures.
    pub(super) points: Vec<(Check, Vec<Sample>, Figures)>,
    /// The model's figures for so many cores with a thread each.
    pub(super) beyond: Vec<(u32, Figures)>,
}

impl Studied {
    pub(super) fn checks(&self) -> Vec<Check> {
        self.points.iter().map(|(check, ..)| *check).collect()
    }
    /// The behaviour of a thread that finds the main lock, that of dispatching, taken.
    pub(super) fn loser(&self) -> Option<Loser> {
        self.design.sections.last().map(|section| section.loser)
    }
}
