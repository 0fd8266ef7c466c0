//! The ways to wait that the experiment compares, and their samples.

use drystone_core::context::PollMode;

use super::point::Sample;
use super::scene::Scene;

/// The latency at which targets are judged, us.
pub(super) const JUDGED_US: u32 = 10;
/// The mail's pollers.
pub(super) const POLLERS: u32 = 3;

/// Variants with their ways to wait.
pub(super) const VARIANTS: [(&str, PollMode); 3] =
    [("before", PollMode::Interrupt), ("mailed", PollMode::Poll), ("ours", PollMode::Adaptive)];

/// A scene with the samples of each variant, run by run.
pub(super) struct Measured {
    pub(super) scene: Scene,
    pub(super) samples: [Vec<Sample>; 3],
}
