//! A driver with block sizes or a number of hardware queues other than its own.

use drystone_core::{ChannelId, Env, Extent, Limits, Result};
use drystone_queue::{Driver, HwQueues};

/// Sizes that a stack file may give any device; `None` leaves the driver's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    /// Logical block size in bytes.
    pub logical_block_size: Option<u32>,
    /// Physical block size in bytes.
    pub physical_block_size: Option<u32>,
    /// Hardware queues for I/O that is not polled.
    pub hw_queues: Option<u32>,
}

/// `inner` in another shape. Its queues are those of the inner driver, so I/O has no extra layer.
pub struct Shaped<D> {
    inner: D,
    shape: Shape,
}

impl<D: Driver> Shaped<D> {
    /// Give `inner` a shape.
    pub fn new(inner: D, shape: Shape) -> Self {
        Shaped { inner, shape }
    }
}

impl<D: Driver> Driver for Shaped<D> {
    type Queue = D::Queue;

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn limits(&self) -> Limits {
        let own = self.inner.limits();
        let logical = self.shape.logical_block_size.unwrap_or(own.logical_block_size);
        let limits = Limits {
            logical_block_size: logical.max(own.logical_block_size),
            physical_block_size: self.shape.physical_block_size.unwrap_or(own.physical_block_size),
            ..own
        }
        .normalized();
        // Whole granules, so that the shown maximum of discards is a value that can be set.
        let part = limits.max_discard_bytes % u64::from(limits.discard_granularity.max(1));
        Limits { max_discard_bytes: limits.max_discard_bytes - part, ..limits }
    }

    fn hw_queues(&self) -> HwQueues {
        let own = self.inner.hw_queues();
        HwQueues { default: self.shape.hw_queues.unwrap_or(own.default), ..own }
    }

    fn has_settable_hw_queues(&self) -> bool {
        self.inner.has_settable_hw_queues()
    }

    fn wants_scheduler(&self) -> bool {
        self.inner.wants_scheduler()
    }

    fn fills_pipes(&self) -> bool {
        self.inner.fills_pipes()
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<D::Queue> {
        self.inner.open_queue(env, channel, slots)
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.inner.extents(offset, length, max)
    }

    fn attribute(&self, name: &str) -> Option<String> {
        self.inner.attribute(name)
    }

    fn set_attribute(&self, name: &str, value: &str) -> Option<Result<()>> {
        self.inner.set_attribute(name, value)
    }
}
