//! The memory of a session: all that its requests can need, allocated when it begins.
//!
//! A file system's pages are written back through a session exactly when memory is short, so it
//! must not ask for memory then. Its buffers bound the requests that it reads instead
//! ([`Buffers::has_room`]).
//!
//! Invariants:
//! * Every buffer has room for a reply header before its data ([`DATA_AT`]), and its data is
//!   aligned for direct I/O. All of its pages have been written once, so they are resident.
//! * A buffer of the longest kind is free whenever a request is read, because any request fits into
//!   it.
//! * No buffer goes to another session, so data of one mount never reaches another mount.

use super::op::IN_FLIGHT_MAX;
use super::unaligned::UnalignedWrite;
use crate::fuse::proto::init::MAX_WRITE;
use crate::server::{DATA_AT, Reserve};
use drystone_core::{Bio, BioList, IoBuf};
use std::sync::Arc;

/// The longest block of a device: a page (Linux `blk_validate_limits`).
const BLOCK_MAX: usize = 4096;
/// Data of the longest request, with the blocks at both of its ends.
const LONGEST: usize = MAX_WRITE as usize + 2 * BLOCK_MAX;

/// Each kind's room for data and number of buffers. There are as many of 4 KiB as requests may be
/// in flight. The others hold what a fast disk moves in some milliseconds (8 MiB at 1 GiB/s). A
/// request that finds no buffer of its kind takes a longer one.
const KINDS: [(usize, usize); 4] =
    [(4096, IN_FLIGHT_MAX as usize), (64 << 10, 16), (256 << 10, 8), (LONGEST, 8)];
/// One-block buffers for each volume: the two edges of the one request on parts of blocks that is
/// in progress. They are of the first kind.
const EDGES: usize = 2;
/// Bios for each volume, besides one for each request: the further bios of a request on parts of
/// blocks.
const EDGE_BIOS: usize = 2;

/// Bytes of buffers that a session of so many volumes has.
pub const fn reserved_bytes(volumes: usize) -> usize {
    let (mut bytes, mut kind) = (volumes * EDGES * (DATA_AT + KINDS[0].0) + DATA_AT + LONGEST, 0);
    while kind < KINDS.len() {
        bytes += KINDS[kind].1 * (DATA_AT + KINDS[kind].0);
        kind += 1;
    }
    bytes
}

/// Buffers and bios of a session that are not in use.
pub(super) struct Buffers {
    reserve: Arc<Reserve>,
    idle: [Vec<IoBuf>; KINDS.len()],
    bios: BioList,
    /// Boxes for unaligned writes.
    #[allow(clippy::vec_box, reason = "operations take and give them in boxes")]
    boxes: Vec<Box<UnalignedWrite>>,
    /// Buffers of the first kind that are for edges only.
    edges: usize,
}

impl Buffers {
    /// The buffers of a session of so many volumes; `None` when memory is short. Short ones come
    /// from `reserve` as far as it has any.
    pub(super) fn new(reserve: Arc<Reserve>, volumes: usize) -> Option<Self> {
        let edges = volumes * EDGES;
        let boxes = (0..IN_FLIGHT_MAX).map(|_| Box::default()).collect();
        let (idle, bios) = (Default::default(), BioList::new());
        let mut buffers = Buffers { reserve, idle, bios, boxes, edges };
        for (kind, (room, count)) in KINDS.into_iter().enumerate() {
            let count = if kind == 0 { count + edges } else { count };
            buffers.idle[kind].reserve_exact(count);
            for _ in 0..count {
                let buf = buffers.make(kind, room)?;
                buffers.idle[kind].push(buf);
            }
        }
        // The one that requests are read into.
        let first = buffers.make(KINDS.len() - 1, LONGEST)?;
        buffers.idle[KINDS.len() - 1].push(first);
        (0..IN_FLIGHT_MAX as usize + volumes * EDGE_BIOS)
            .for_each(|_| buffers.bios.push(Bio::flush()));
        Some(buffers)
    }

    fn make(&self, kind: usize, room: usize) -> Option<IoBuf> {
        let lent = if kind == 0 { self.reserve.take_of(room) } else { None };
        let mut buf = lent.or_else(|| IoBuf::try_zeroed(DATA_AT + room))?;
        // Makes its pages resident.
        buf.fill(0);
        Some(buf)
    }

    /// True while any request can be read.
    pub(super) fn has_room(&self) -> bool {
        !self.idle[KINDS.len() - 1].is_empty()
    }

    /// Takes a buffer with room for `data_bytes` from [`DATA_AT`] on; its contents are those that
    /// the session last had in it. `None` if there is none.
    pub(super) fn take(&mut self, data_bytes: usize) -> Option<IoBuf> {
        let first = KINDS.iter().position(|(room, _)| data_bytes <= *room)?;
        if first == 0 && self.idle[0].len() > self.edges {
            return self.idle[0].pop();
        }
        self.idle[first.max(1)..].iter_mut().find_map(Vec::pop)
    }

    /// A buffer for the edge of an operation on parts of blocks.
    pub(super) fn take_edge(&mut self) -> Option<IoBuf> {
        self.idle[0].pop()
    }

    /// Give a buffer back.
    pub(super) fn give(&mut self, buf: IoBuf) {
        let kind = KINDS.iter().position(|(room, _)| buf.len() == DATA_AT + room);
        debug_assert!(kind.is_some(), "a buffer of somebody else");
        if let Some(kind) = kind {
            self.idle[kind].push(buf);
        }
    }

    /// The number of idle buffers that the reserve has lent.
    #[cfg(test)]
    pub(super) fn lent(&self) -> usize {
        self.idle[0].iter().filter(|buf| buf.is_in_arena()).count()
    }

    /// Puts an unaligned write in a box that is idle.
    pub(super) fn unaligned(&mut self, write: UnalignedWrite) -> Box<UnalignedWrite> {
        let mut idle = self.boxes.pop().unwrap_or_default();
        *idle = write;
        idle
    }

    /// Takes the box of an unaligned write back, whose buffers were taken out.
    pub(super) fn give_unaligned(&mut self, write: Box<UnalignedWrite>) {
        self.boxes.push(write);
    }

    /// Takes an idle bio.
    pub(super) fn bio(&mut self) -> Box<Bio> {
        self.bios.pop().unwrap_or_else(Bio::flush)
    }

    /// Give a completed bio back; its buffer, if it has one, is returned.
    pub(super) fn give_bio(&mut self, mut bio: Box<Bio>) -> Option<IoBuf> {
        let buf = bio.take_buf();
        self.bios.push(bio);
        buf
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let lent = self.idle[0].drain(..).filter(IoBuf::is_in_arena);
        lent.for_each(|buf| self.reserve.give_back(buf));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;
    use drystone_core::sync::LockCounters;

    fn buffers(volumes: usize) -> Buffers {
        let locks = LockCounters::new(ManualClock::new(1));
        Buffers::new(Reserve::new(None, locks), volumes).expect("there is memory")
    }

    #[test]
    fn a_session_takes_what_is_said_of_it() {
        let bytes = |b: &Buffers| b.idle.iter().flatten().map(IoBuf::len).sum::<usize>();
        for volumes in [1, 3] {
            assert_eq!(bytes(&buffers(volumes)), reserved_bytes(volumes));
        }
        assert_eq!(reserved_bytes(1) >> 20, 13, "as docs/files.md says");
    }

    #[test]
    fn whatever_was_taken_any_request_fits_while_there_is_room() {
        for sizes in [vec![1 << 20], vec![4096], vec![100, 5000, 70_000, 300_000, LONGEST]] {
            let mut buffers = buffers(1);
            let mut taken = Vec::new();
            for size in sizes.iter().cycle().take(IN_FLIGHT_MAX as usize) {
                if !buffers.has_room() {
                    break;
                }
                let buf = buffers.take(*size).expect("there is room");
                assert!(buf.len() >= DATA_AT + size);
                taken.push(buf);
            }
            let edges = [buffers.take_edge(), buffers.take_edge()];
            assert!(edges.iter().all(Option::is_some), "edges are for edges");
            taken.into_iter().chain(edges.into_iter().flatten()).for_each(|buf| buffers.give(buf));
            let bytes = buffers.idle.iter().flatten().map(IoBuf::len).sum::<usize>();
            assert_eq!(bytes, reserved_bytes(1));
        }
    }
}
