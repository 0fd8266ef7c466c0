//! Requests out of a session's descriptor of `/dev/fuse`.
//!
//! Invariants:
//! * The last request lies in `head`, and in `data` from [`DATA_AT`] on, until the next one is
//!   read.
//! * At most one poll of the descriptor is with the context's ring.
//! * A descriptor that is not readable has nothing to read until its poll ends.

use super::buffers::Buffers;
use crate::fuse::proto::WRITE_HEAD_BYTES;
use crate::fuse::proto::init::MAX_WRITE;
use crate::server::DATA_AT;
use drystone_core::IoBuf;
use rustix::io::{Errno, readv};
use std::io::IoSliceMut;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Bytes of a request without data that are parsed: more than the longest name needs.
pub(super) const SHORT_BYTES: usize = 512;
/// Data of a write at least this long is not copied: it stays in its buffer, and the session reads
/// the next request into another one. Shorter data is copied, so that it does not occupy a buffer
/// of the longest kind.
const HAND_OVER_BYTES: usize = 64 << 10;

/// Operations of which only the beginning must be parsed.
const READ: u32 = 15;
const WRITE: u32 = 16;

/// The result of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// A request of so many bytes.
    Request(usize),
    /// No request is there.
    Nothing,
    /// The mount is gone.
    Gone,
    /// The descriptor cannot be read.
    Failed(Errno),
}

/// The descriptor, and the request read last.
pub(super) struct Descriptor {
    device: OwnedFd,
    head: [u8; WRITE_HEAD_BYTES],
    data: IoBuf,
    is_readable: bool,
    is_polling: bool,
}

impl Descriptor {
    /// `device`, from which requests are read into `data`.
    pub(super) fn new(device: OwnedFd, data: IoBuf) -> Self {
        let head = [0; WRITE_HEAD_BYTES];
        Descriptor { device, head, data, is_readable: true, is_polling: false }
    }

    /// The descriptor's number.
    pub(super) fn fd(&self) -> RawFd {
        self.device.as_raw_fd()
    }

    /// The descriptor, to be closed.
    pub(super) fn into_device(self) -> OwnedFd {
        self.device
    }

    /// True if there may be requests.
    pub(super) fn is_readable(&self) -> bool {
        self.is_readable
    }

    /// Notes that there may be requests.
    pub(super) fn set_readable(&mut self) {
        self.is_readable = true;
    }

    /// True while a poll is with the context's ring.
    pub(super) fn is_polling(&self) -> bool {
        self.is_polling
    }

    /// True if only a poll would announce requests, and none is in the ring.
    pub(super) fn needs_poll(&self) -> bool {
        !self.is_readable && !self.is_polling
    }

    /// Notes that a poll of the descriptor begins.
    pub(super) fn begin_poll(&mut self) {
        self.is_polling = true;
    }

    /// Notes that the poll has ended.
    pub(super) fn end_poll(&mut self, is_readable: bool) {
        self.is_polling = false;
        self.is_readable |= is_readable;
    }

    /// Reads one request.
    pub(super) fn read(&mut self) -> Received {
        let data = &mut self.data[DATA_AT..DATA_AT + MAX_WRITE as usize];
        let mut parts = [IoSliceMut::new(&mut self.head), IoSliceMut::new(data)];
        loop {
            match readv(&self.device, &mut parts) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Received::Gone,
                Ok(length) => return Received::Request(length),
                // The kernel withdrew the request before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => {
                    self.is_readable = false;
                    return Received::Nothing;
                }
                Err(error) => return Received::Failed(error),
            }
        }
    }

    /// The first bytes of the request that was read.
    #[inline]
    pub(super) fn head(&self) -> [u8; WRITE_HEAD_BYTES] {
        self.head
    }

    /// True if a request of so many bytes can be parsed from its first bytes alone.
    #[inline]
    pub(super) fn is_head_enough(&self, length: usize) -> bool {
        let opcode = u32::from_ne_bytes([self.head[4], self.head[5], self.head[6], self.head[7]]);
        matches!(opcode, READ | WRITE) || length <= WRITE_HEAD_BYTES
    }

    /// Copies the part of a request of `length` bytes that is parsed to `out`. Returns the number
    /// of bytes.
    pub(super) fn copy_request(&self, length: usize, out: &mut [u8; SHORT_BYTES]) -> usize {
        let more = (length - WRITE_HEAD_BYTES).min(SHORT_BYTES - WRITE_HEAD_BYTES);
        let (head, rest) = out.split_at_mut(WRITE_HEAD_BYTES);
        head.copy_from_slice(&self.head);
        rest[..more].copy_from_slice(&self.data[DATA_AT..DATA_AT + more]);
        WRITE_HEAD_BYTES + more
    }

    /// Takes the first `bytes` of the request's data; `None` when memory is short.
    #[inline]
    pub(super) fn take_data(&mut self, bytes: usize, buffers: &mut Buffers) -> Option<IoBuf> {
        if bytes >= HAND_OVER_BYTES {
            let next = buffers.take(MAX_WRITE as usize)?;
            return Some(std::mem::replace(&mut self.data, next));
        }
        let range = DATA_AT..DATA_AT + bytes;
        let mut buf = buffers.take(bytes)?;
        buf[range.clone()].copy_from_slice(&self.data[range]);
        Some(buf)
    }

    /// The first `bytes` of the request's data.
    pub(super) fn data(&self, bytes: usize) -> &[u8] {
        &self.data[DATA_AT..DATA_AT + bytes]
    }

    /// Writes an answer. The kernel refuses it if nobody waits for it any more: the asker was
    /// killed, or the mount is gone.
    pub(super) fn write(&self, answer: &[u8]) {
        let _ = rustix::io::write(&self.device, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::server::testing::{buffers, sockets};

    fn descriptor(buffers: &mut Buffers) -> (Descriptor, OwnedFd) {
        let (kernel, device) = sockets();
        let data = buffers.take(MAX_WRITE as usize).expect("memory");
        (Descriptor::new(device, data), kernel)
    }

    #[test]
    fn it_reads_until_nothing_is_there_and_then_polls() {
        let mut buffers = buffers();
        let (mut descriptor, kernel) = descriptor(&mut buffers);
        rustix::io::write(&kernel, &[7; 100]).expect("room");
        assert!(!descriptor.needs_poll());
        assert_eq!(descriptor.read(), Received::Request(100));
        assert_eq!((descriptor.head(), descriptor.data(20)), ([7; 80], &[7; 20][..]));
        assert!(!descriptor.needs_poll());
        assert_eq!(descriptor.read(), Received::Nothing);
        assert!(descriptor.needs_poll());
        descriptor.begin_poll();
        assert!(!descriptor.needs_poll() && descriptor.is_polling());
        descriptor.end_poll(false);
        assert!(descriptor.needs_poll(), "the poll was cancelled: it is done again");
        descriptor.begin_poll();
        descriptor.end_poll(true);
        assert!(descriptor.is_readable());
        drop(kernel);
        assert_eq!(descriptor.read(), Received::Gone);
    }

    #[test]
    fn a_request_is_parsed_from_as_much_as_it_needs() {
        let mut buffers = buffers();
        let (mut descriptor, kernel) = descriptor(&mut buffers);
        for (opcode, length, is_enough) in
            [(READ, 80, true), (WRITE, 4096, true), (1, 80, true), (1, 81, false)]
        {
            let mut bytes = vec![9; length];
            bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
            rustix::io::write(&kernel, &bytes).expect("room");
            assert_eq!(descriptor.read(), Received::Request(length));
            assert_eq!(descriptor.is_head_enough(length), is_enough, "{opcode}, {length}");
            let mut out = [0; SHORT_BYTES];
            let copied = descriptor.copy_request(length, &mut out);
            assert_eq!((copied, &out[..copied]), (length.min(SHORT_BYTES), &bytes[..copied]));
        }
    }

    #[test]
    fn long_data_stays_and_short_data_is_copied() {
        let mut buffers = buffers();
        let (mut descriptor, _kernel) = descriptor(&mut buffers);
        for (bytes, stays) in
            [(512, false), (HAND_OVER_BYTES - 512, false), (HAND_OVER_BYTES, true)]
        {
            descriptor.data[DATA_AT..DATA_AT + bytes].fill(5);
            let before = descriptor.data.as_ptr();
            let buf = descriptor.take_data(bytes, &mut buffers).expect("memory");
            assert!(buf[DATA_AT..DATA_AT + bytes].iter().all(|byte| *byte == 5));
            assert_eq!(buf.as_ptr() == before, stays, "{bytes}");
            assert_eq!(descriptor.data.as_ptr() != before, stays, "{bytes}");
        }
    }
}
