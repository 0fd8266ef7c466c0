//! An area: a device and the sector at which a target's sectors begin there.

use drystone_core::Device;
use std::sync::Arc;

/// A sector of another device.
#[derive(Clone)]
pub struct Area {
    /// The device.
    pub device: Arc<dyn Device>,
    /// The first sector of the area.
    pub sector: u64,
}

impl Area {
    /// The area in table syntax, with a space before it.
    pub(crate) fn argument(&self) -> String {
        format!(" {} {}", self.device.info().name, self.sector)
    }
}
