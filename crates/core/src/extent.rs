//! The allocation query: which ranges of a device hold data.

use crate::error::Result;
use std::fmt;
use std::sync::Arc;

/// A range of a device and what is known of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub offset: u64,
    /// Length in bytes, never 0.
    pub length: u64,
    /// Space is allocated for it below.
    pub allocated: bool,
    /// It surely reads as zeroes.
    pub zero: bool,
}

impl Extent {
    /// A range that holds, or may hold, data.
    pub const fn data(offset: u64, length: u64) -> Self {
        Extent { offset, length, allocated: true, zero: false }
    }

    /// A hole: not allocated, reads as zeroes.
    pub const fn hole(offset: u64, length: u64) -> Self {
        Extent { offset, length, allocated: false, zero: true }
    }
}

/// Collects extents of one query in order, joining neighbours of the same kind.
///
/// Invariant: extents are contiguous from the query's start and never longer than it.
#[derive(Debug, Default)]
pub struct ExtentList {
    extents: Vec<Extent>,
}

impl ExtentList {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Append `extent`, which begins where the last one ended.
    pub fn push(&mut self, extent: Extent) {
        if extent.length == 0 {
            return;
        }
        match self.extents.last_mut() {
            Some(last) if last.allocated == extent.allocated && last.zero == extent.zero => {
                debug_assert_eq!(last.offset + last.length, extent.offset);
                last.length += extent.length;
            }
            _ => self.extents.push(extent),
        }
    }

    /// The extents, in order.
    pub fn as_slice(&self) -> &[Extent] {
        &self.extents
    }

    /// The extents, in order.
    pub fn into_vec(self) -> Vec<Extent> {
        self.extents
    }
}

/// Something that can be asked for its extents: every [`crate::Device`].
pub trait ExtentSource: Send + Sync {
    /// As [`crate::Device::extents`].
    ///
    /// # Errors
    /// The same.
    fn find_extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>>;
}

/// An allocation query for [`crate::ring::Ring::query`], which asks on a helper thread: a file
/// system may take long to answer, and the thread that drives a context must not wait for it.
pub struct ExtentQuery {
    /// The device that is asked.
    pub device: Arc<dyn ExtentSource>,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Most extents of the answer; how much work one query is depends on it.
    pub max: usize,
}

impl ExtentQuery {
    /// Ask, as [`crate::Device::extents`] does: for threads that may block. Without an answer of
    /// the device all of it counts as data.
    pub fn run(&self) -> Vec<Extent> {
        let Self { device, offset, length, max } = self;
        let all_data = |_| vec![Extent::data(*offset, *length)];
        device.find_extents(*offset, *length, *max).unwrap_or_else(all_data)
    }

    /// Tells queries of one device from those of others.
    pub(crate) fn lane(&self) -> usize {
        Arc::as_ptr(&self.device).cast::<()>() as usize
    }
}

impl fmt::Debug for ExtentQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, length, max, .. } = self;
        write!(f, "ExtentQuery({length} bytes from {offset}, at most {max})")
    }
}
