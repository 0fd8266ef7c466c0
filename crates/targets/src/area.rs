//! Where a target's sectors are: a device and the first sector there.

use drystone_core::Device;
use std::sync::Arc;

/// A place in another device.
#[derive(Clone)]
pub struct Area {
    /// The device.
    pub device: Arc<dyn Device>,
    /// First sector there.
    pub sector: u64,
}

impl Area {
    /// As a table has it, with a space before it.
    pub(crate) fn argument(&self) -> String {
        format!(" {} {}", self.device.info().name, self.sector)
    }
}
