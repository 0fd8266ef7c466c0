//! How a request is answered: its status byte, and the length of what was written.

use super::super::memory::{GuestMemory, Piece};
use super::super::ring::Chain;
use drystone_core::Status;
use std::sync::Arc;

/// The status of a request (`VIRTIO_BLK_S_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BlkStatus {
    /// It is done.
    Ok = 0,
    /// The device or the driver made a mistake.
    IoError = 1,
    /// The device cannot do it.
    Unsupported = 2,
}

impl From<Status> for BlkStatus {
    fn from(status: Status) -> Self {
        match status {
            Status::Ok => BlkStatus::Ok,
            Status::NotSupported => BlkStatus::Unsupported,
            _ => BlkStatus::IoError,
        }
    }
}

/// The place for the answer to a request. Kept until the request has ended.
///
/// It keeps the map of its chain, whatever map the ring has meanwhile: so the status goes where
/// the driver meant it, and the segments of its command stay mapped. That costs a clone of an
/// `Arc` for each request, and no allocation.
#[derive(Clone, Debug)]
pub struct BlkReply {
    memory: Arc<GuestMemory>,
    head: u16,
    status: Piece,
    /// Writable bytes before the status.
    before: u32,
    /// Those of them that are written if all goes well.
    data: u32,
}

impl BlkReply {
    pub(super) fn new(chain: &Chain<'_>, status: Piece, before: u32, data: u32) -> Self {
        let (memory, head) = (chain.memory().clone(), chain.head());
        Self { memory, head, status, before, data }
    }

    /// The chain that is answered.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Writes the status; returns the length for the used element.
    ///
    /// The length is that of the writable bytes that were written without a gap, from the first
    /// on (virtio 1.3, section 2.7.8.2): a read that failed has not written the first.
    #[inline]
    pub fn write(&self, status: BlkStatus) -> u32 {
        self.memory.write(self.status, &[status as u8]);
        let written = if status == BlkStatus::Ok { self.data } else { 0 };
        if written == self.before { written + 1 } else { written }
    }
}
