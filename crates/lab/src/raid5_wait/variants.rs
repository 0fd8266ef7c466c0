//! The arrays that the experiment compares, and their samples.

use super::array::Open;
use super::load::Sample;
use super::scene::Scene;
use super::{ours, shaped};

/// The variants, the one that others are compared with first.
pub const VARIANTS: [(&str, Open); 3] =
    [("before", shaped::before), ("mailed", shaped::mailed), ("ours", ours::ours)];

/// A scene with the samples of each variant, run by run.
pub(super) struct Measured {
    pub(super) scene: Scene,
    pub(super) samples: [Vec<Sample>; VARIANTS.len()],
}
