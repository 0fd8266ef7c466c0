//! The memory of one request on a file besides its bios: vectors, a bounce buffer, and its
//! progress.
//!
//! Invariants:
//! * The kernel may refer to the vectors and the bounce buffer while an operation of the request is
//!   with the ring. They are changed only while none is.
//! * A request goes into a pipe or to memory, never both. The vectors are empty while it goes into
//!   a pipe.
//! * `progress` bytes of the request are done. The vectors, once gathered, cover the rest.

use super::opened::Alignment;
use drystone_core::buf::{IoBuf, copy_from_segments, copy_to_segments};
use drystone_core::ring::FileOp;
use drystone_core::{BioFlags, Op};
use drystone_queue::Request;
use std::os::fd::RawFd;

/// The bytes of one write of zeroes, if the file system cannot zero by itself.
pub(super) const ZERO_CHUNK: u64 = 1 << 20;

/// Vectors that a slot has room for from the start; a request of more bios allocates once.
const VECTORS: usize = 16;

/// The memory of a request, for the slot that it lies in.
pub(super) struct Transfer {
    iovecs: Vec<libc::iovec>,
    bounce: Option<IoBuf>,
    progress: u64,
    /// The end of the pipe that the request's data goes into, if it does.
    pipe: Option<RawFd>,
    /// True while the request writes zeroes itself.
    is_by_hand: bool,
    /// The number of the exchange whose opening the request began on.
    epoch: u64,
}

// SAFETY: the iovecs point at memory of bios and buffers that the same queue's requests own.
unsafe impl Send for Transfer {}

impl Transfer {
    /// The memory of a slot without a request.
    pub(super) fn new() -> Self {
        let iovecs = Vec::with_capacity(VECTORS);
        Transfer { iovecs, bounce: None, progress: 0, pipe: None, is_by_hand: false, epoch: 0 }
    }

    /// Notes that a request begins, on the opening of that exchange.
    #[inline]
    pub(super) fn begin(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// The number of the exchange whose opening the request began on.
    #[inline]
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// True once the vectors were gathered.
    pub(super) fn is_gathered(&self) -> bool {
        !self.iovecs.is_empty()
    }

    /// Bytes of the request that are done.
    pub(super) fn progress(&self) -> u64 {
        self.progress
    }

    /// True while zeroes are written by hand.
    pub(super) fn is_by_hand(&self) -> bool {
        self.is_by_hand
    }

    /// Lets the request's data go into a pipe, whose end this is.
    pub(super) fn begin_splice(&mut self, pipe: RawFd) {
        self.pipe = Some(pipe);
    }

    /// True if the request's data goes into a pipe.
    #[inline]
    pub(super) fn is_spliced(&self) -> bool {
        self.pipe.is_some()
    }

    /// The operation for the rest of a request whose data goes into a pipe.
    pub(super) fn splice_op(&self, rq: &Request) -> Option<FileOp> {
        let (offset, length) = (rq.offset() + self.progress, rq.unit.bytes - self.progress);
        self.pipe.map(|pipe| FileOp::Splice { pipe, offset, length: length as u32 })
    }

    /// Lets the data go to the request's memory after all, from its beginning.
    pub(super) fn end_splice(&mut self) {
        (self.pipe, self.progress) = (None, 0);
    }

    /// Collects the request's vectors, through a bounce buffer if memory is not aligned.
    pub(super) fn gather(&mut self, rq: &Request, alignment: Alignment) {
        self.iovecs.clear();
        let mut aligned = true;
        rq.each_segment(|s| {
            aligned &= alignment.takes(s);
            self.iovecs.push(libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len });
        });
        if aligned {
            return;
        }
        let bounce = IoBuf::zeroed(rq.unit.bytes as usize);
        if rq.unit.op == Op::Write {
            fill_bounce(rq, &bounce);
        }
        let whole = libc::iovec { iov_base: bounce.as_ptr().cast(), iov_len: bounce.len() };
        self.iovecs.clear();
        self.iovecs.push(whole);
        self.bounce = Some(bounce);
    }

    /// The operation for the rest of a request whose vectors were gathered.
    pub(super) fn vectored_op(&self, rq: &Request) -> FileOp {
        let (iovecs, count) = (self.iovecs.as_ptr(), self.iovecs.len() as u32);
        let offset = rq.offset() + self.progress;
        match rq.unit.op {
            Op::Read => FileOp::Readv { iovecs, count, offset },
            _ => FileOp::Writev {
                iovecs,
                count,
                offset,
                dsync: rq.unit.flags.contains(BioFlags::FUA),
            },
        }
    }

    /// The write of the next zeroes by hand, out of `zeroes`, of [`ZERO_CHUNK`] bytes.
    pub(super) fn zero_op(&mut self, rq: &Request, zeroes: &IoBuf) -> FileOp {
        self.is_by_hand = true;
        let length = (rq.unit.bytes - self.progress).min(ZERO_CHUNK);
        let dsync = rq.unit.flags.contains(BioFlags::FUA);
        FileOp::Write {
            segment: zeroes.segment(0..length as usize),
            offset: rq.offset() + self.progress,
            dsync,
        }
    }

    /// Notes that `n` more bytes were zeroed by hand. True if that is not all.
    pub(super) fn advance_zeroes(&mut self, rq: &Request, n: u64) -> bool {
        self.progress += n;
        self.progress < rq.unit.bytes
    }

    /// Notes that `n` more bytes were read or written, and gathers the vectors if they were not.
    pub(super) fn advance(&mut self, rq: &Request, n: u64, alignment: Alignment) {
        self.progress += n;
        if self.is_spliced() {
            return;
        }
        if self.is_gathered() {
            self.skip(n as usize);
        } else {
            self.gather(rq, alignment);
            self.skip(self.progress as usize);
        }
    }

    /// Drops the first `n` bytes of the gathered vectors.
    fn skip(&mut self, mut n: usize) {
        let whole = self.iovecs.iter().take_while(|v| {
            let fits = v.iov_len <= n;
            n -= if fits { v.iov_len } else { 0 };
            fits
        });
        let whole = whole.count();
        self.iovecs.drain(..whole);
        if let Some(first) = self.iovecs.first_mut() {
            first.iov_base = first.iov_base.wrapping_byte_add(n);
            first.iov_len -= n;
        }
    }

    /// Ends the request: copies bounced data of a read back, and forgets the memory.
    pub(super) fn end(&mut self, rq: &Request, is_ok: bool) {
        if let Some(bounce) = self.bounce.take()
            && is_ok
            && rq.unit.op == Op::Read
        {
            empty_bounce(rq, &bounce);
        }
        self.iovecs.clear();
        (self.progress, self.pipe, self.is_by_hand) = (0, None, false);
    }
}

fn fill_bounce(rq: &Request, bounce: &IoBuf) {
    let mut at = 0;
    rq.each_segment(|s| {
        let to = bounce.segment(at..at + s.len);
        // SAFETY: the bio's memory is vouched for until it completes, the bounce buffer is ours
        // and no other code reads it yet.
        unsafe {
            let to = std::slice::from_raw_parts_mut(to.ptr, to.len);
            copy_from_segments(&[s], 0, to);
        }
        at += s.len;
    });
}

fn empty_bounce(rq: &Request, bounce: &IoBuf) {
    let mut at = 0;
    rq.each_segment(|s| {
        // SAFETY: the bio's memory is vouched for until it completes.
        unsafe { copy_to_segments(&[s], 0, &bounce[at..at + s.len]) };
        at += s.len;
    });
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use drystone_core::{Bio, Limits, Sector};

    fn lengths(transfer: &Transfer) -> Vec<usize> {
        transfer.iovecs.iter().map(|v| v.iov_len).collect()
    }

    /// A request of two bios of 512 bytes, from byte 4096 of the device.
    fn request(op: Op, data: [u8; 2]) -> Request {
        let bio = |number: usize| {
            let buf = IoBuf::from_slice(&[data[number]; 512]);
            match op {
                Op::Write => Bio::write(Sector(8 + number as u64), buf),
                _ => Bio::read(Sector(8 + number as u64), buf),
            }
        };
        let mut rq = Request::default();
        rq.unit.set(bio(0));
        assert!(rq.unit.try_merge(bio(1), &Limits::default()).is_ok());
        rq
    }

    fn data(rq: &Request) -> Vec<u8> {
        rq.bios().flat_map(|bio| bio.buf().expect("its buffer").to_vec()).collect()
    }

    /// Direct I/O that takes no memory of 512 bytes.
    fn narrow() -> Alignment {
        Alignment::direct(1, 1024)
    }

    #[test]
    fn a_skip_drops_whole_vectors_and_shortens_the_next() {
        let mut memory = [0_u8; 700];
        let mut transfer = Transfer::new();
        let mut at = memory.as_mut_ptr();
        for iov_len in [100, 200, 400] {
            transfer.iovecs.push(libc::iovec { iov_base: at.cast(), iov_len });
            at = at.wrapping_add(iov_len);
        }
        transfer.skip(0);
        assert_eq!(lengths(&transfer), [100, 200, 400]);
        transfer.skip(150);
        assert_eq!(lengths(&transfer), [150, 400]);
        assert_eq!(transfer.iovecs[0].iov_base.cast(), memory.as_mut_ptr().wrapping_add(150));
        transfer.skip(150);
        assert_eq!(lengths(&transfer), [400]);
        transfer.skip(400);
        assert!(!transfer.is_gathered());
    }

    #[test]
    fn a_transfer_goes_on_where_it_stopped() {
        let rq = request(Op::Write, [1, 2]);
        let mut transfer = Transfer::new();
        transfer.begin(7);
        transfer.advance(&rq, 700, Alignment::NONE);
        assert_eq!(
            (transfer.epoch(), transfer.progress(), lengths(&transfer)),
            (7, 700, vec![324])
        );
        transfer.advance(&rq, 100, Alignment::NONE);
        assert_eq!((transfer.progress(), lengths(&transfer)), (800, vec![224]));
        let op = transfer.vectored_op(&rq);
        assert!(
            matches!(op, FileOp::Writev { count: 1, offset: 4896, dsync: false, .. }),
            "{op:?}"
        );
        transfer.end(&rq, true);
        assert!(transfer.progress() == 0 && !transfer.is_gathered());
    }

    #[test]
    fn memory_that_is_aligned_needs_no_bounce_buffer() {
        let mut rq = request(Op::Read, [0, 0]);
        rq.unit.flags = BioFlags::FUA;
        let mut transfer = Transfer::new();
        transfer.gather(&rq, Alignment::direct(1, 512));
        assert!(transfer.bounce.is_none() && lengths(&transfer) == [512, 512]);
        let op = transfer.vectored_op(&rq);
        assert!(matches!(op, FileOp::Readv { count: 2, offset: 4096, .. }), "{op:?}");
    }

    #[test]
    fn a_bounce_buffer_holds_what_is_written() {
        let rq = request(Op::Write, [1, 2]);
        let mut transfer = Transfer::new();
        transfer.gather(&rq, narrow());
        assert_eq!(lengths(&transfer), [1024]);
        assert_eq!(transfer.bounce.as_ref().expect("one")[..], data(&rq));
        transfer.end(&rq, true);
        assert!(transfer.bounce.is_none() && data(&rq) == [[1; 512], [2; 512]].concat());
    }

    #[test]
    fn bounced_data_is_copied_back_only_if_it_was_read() {
        for is_ok in [true, false] {
            let rq = request(Op::Read, [0, 0]);
            let mut transfer = Transfer::new();
            transfer.gather(&rq, narrow());
            let bounce = transfer.bounce.as_mut().expect("one");
            assert!(bounce.iter().all(|byte| *byte == 0));
            bounce[..512].fill(3);
            bounce[512..].fill(4);
            transfer.end(&rq, is_ok);
            let read = if is_ok { [[3; 512], [4; 512]].concat() } else { vec![0; 1024] };
            assert!(data(&rq) == read, "{is_ok}");
        }
    }

    #[test]
    fn zeroes_by_hand_are_written_in_pieces() {
        let mut rq = Request::default();
        rq.unit.set(Bio::without_data(Op::WriteZeroes, Sector(8), ZERO_CHUNK + 512));
        let zeroes = IoBuf::zeroed(ZERO_CHUNK as usize);
        let mut transfer = Transfer::new();
        let next = |transfer: &mut Transfer| match transfer.zero_op(&rq, &zeroes) {
            FileOp::Write { segment, offset, .. } => (segment.len as u64, offset),
            other => panic!("{other:?}"),
        };
        assert!(!transfer.is_by_hand());
        assert_eq!(next(&mut transfer), (ZERO_CHUNK, 4096));
        assert!(transfer.is_by_hand() && transfer.advance_zeroes(&rq, ZERO_CHUNK - 512));
        assert_eq!(next(&mut transfer), (1024, 4096 + ZERO_CHUNK - 512), "after a short write");
        assert!(!transfer.advance_zeroes(&rq, 1024));
        transfer.end(&rq, true);
        assert!(!transfer.is_by_hand() && transfer.progress() == 0);
    }
}
