//! The shape of an in-flight region: how many bytes its queues need.
//!
//! ```text
//!   +--------------------------+--------------------------+-----
//!   | header | entry | entry.. | header | entry | entry.. | ...   each a multiple of 64 bytes
//!   +--------------------------+--------------------------+-----
//!    queue 0                    queue 1
//! ```
//!
//! Headers and entries are those of "Inflight I/O tracking" in the protocol text. The text does not
//! say where the next queue begins. DPDK and libvhost-user round up to 64 bytes, and so does this
//! back end: one can follow another on a region, and no two queues share a cache line.

use super::super::proto::Inflight;

/// The queues that an in-flight region has room for. The server lays a new region out by it, and
/// checks the length of a file against it that the front end brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightShape {
    /// Number of queues.
    pub queues: u16,
    /// Entries of each queue.
    pub queue_size: u16,
}

impl InflightShape {
    /// Bytes of the header of a queue; of a packed ring there are 29 bytes of fields, and padding.
    pub const fn header_bytes(packed: bool) -> u64 {
        if packed { 32 } else { 16 }
    }

    /// Bytes of an entry.
    pub const fn entry_bytes(packed: bool) -> u64 {
        if packed { 32 } else { 16 }
    }

    /// Bytes from the beginning of one queue to the next. The alignment is 64 bytes.
    pub fn queue_bytes(self, packed: bool) -> u64 {
        let entries = u64::from(self.queue_size) * Self::entry_bytes(packed);
        (Self::header_bytes(packed) + entries).next_multiple_of(64)
    }

    /// Bytes of all queues.
    pub fn bytes(self, packed: bool) -> u64 {
        u64::from(self.queues) * self.queue_bytes(packed)
    }

    /// True if a queue of `size` entries with the number `queue` has room.
    pub fn has(self, queue: u16, size: u16) -> bool {
        queue < self.queues && size <= self.queue_size
    }
}

impl From<&Inflight> for InflightShape {
    fn from(inflight: &Inflight) -> Self {
        let Inflight { queues, queue_size, .. } = *inflight;
        Self { queues, queue_size }
    }
}

impl std::fmt::Display for InflightShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} queues of {} entries", self.queues, self.queue_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_begin_at_multiples_of_64() {
        let shape = |queue_size| InflightShape { queues: 3, queue_size };
        assert_eq!((shape(3).queue_bytes(false), shape(4).queue_bytes(false)), (64, 128));
        assert_eq!((shape(1).queue_bytes(true), shape(2).queue_bytes(true)), (64, 128));
        assert_eq!((shape(128).bytes(false), shape(128).bytes(true)), (3 * 2112, 3 * 4160));
        let most = InflightShape { queues: 256, queue_size: 1 << 15 };
        assert_eq!(most.bytes(true), 256 * ((1 << 20) + 64));
    }

    #[test]
    fn a_queue_has_room_or_not() {
        let shape = InflightShape { queues: 2, queue_size: 16 };
        assert!(shape.has(1, 16) && shape.has(0, 1));
        assert!(!shape.has(2, 1) && !shape.has(1, 17));
        assert_eq!(shape.to_string(), "2 queues of 16 entries");
    }
}
