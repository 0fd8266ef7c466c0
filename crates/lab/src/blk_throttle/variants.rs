//! The designs of the experiment, and their samples.

use drystone_queue::scheduler::MqDeadline;
use drystone_stack::live::{OpenDevice, open_with};
use drystone_throttle::DeviceThrottle;

use super::point::Sample;
use super::scene::Scene;
use crate::throttle::{Baseline, NoThrottle, Patched};

/// The designs, each with the function that opens a device of it.
pub(super) static VARIANTS: [(&str, OpenDevice); 4] = [
    ("before", open_with::<MqDeadline, Baseline>),
    ("mailed", open_with::<MqDeadline, Patched>),
    ("ours", open_with::<MqDeadline, DeviceThrottle>),
    ("none", open_with::<MqDeadline, NoThrottle>),
];

/// A scene with the samples of each variant, run by run.
pub(super) struct Measured {
    pub(super) scene: Scene,
    pub(super) samples: [Vec<Sample>; 4],
}
