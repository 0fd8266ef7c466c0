//! Buffers of one connection, used again and again: so none is allocated in steady state, and
//! none that held one client's data is ever sent to another.
//!
//! Invariant: every buffer has room for a reply header before its data ([`DATA_AT`]), and its
//! data is aligned for direct I/O.

use drystone_core::{Bio, IoBuf};

/// Where data begins in a buffer; the header of its reply ends there.
pub(super) const DATA_AT: usize = IoBuf::ALIGN;
/// Classes of buffers: room for 4 KiB of data times 4 to the power of the class.
const CLASSES: usize = 8;
/// Bytes of idle buffers that a connection keeps.
const KEEP_BYTES: usize = 8 << 20;
/// Idle bios that a connection keeps.
const KEEP_BIOS: usize = 256;

/// A pool of buffers and bios.
#[derive(Default)]
pub(super) struct Pool {
    idle: [Vec<IoBuf>; CLASSES],
    idle_bytes: usize,
    bios: Vec<Box<Bio>>,
}

fn class_of(data_bytes: usize) -> Option<usize> {
    (0..CLASSES).find(|class| data_bytes <= 4096 << (2 * class))
}

impl Pool {
    /// A buffer with room for `data_bytes` from [`DATA_AT`] on. Its contents are whatever this
    /// connection last had in it. `None` when memory is short.
    pub(super) fn take(&mut self, data_bytes: usize) -> Option<IoBuf> {
        let Some(class) = class_of(data_bytes) else {
            return IoBuf::try_zeroed(DATA_AT + data_bytes);
        };
        match self.idle[class].pop() {
            Some(buf) => {
                self.idle_bytes -= buf.len();
                Some(buf)
            }
            None => IoBuf::try_zeroed(DATA_AT + (4096 << (2 * class))),
        }
    }

    /// Give a buffer back.
    pub(super) fn give(&mut self, buf: IoBuf) {
        let Some(class) = buf.len().checked_sub(DATA_AT).and_then(class_of) else { return };
        let exact = buf.len() == DATA_AT + (4096 << (2 * class));
        if exact && self.idle_bytes + buf.len() <= KEEP_BYTES {
            self.idle_bytes += buf.len();
            self.idle[class].push(buf);
        }
    }

    /// An idle bio.
    pub(super) fn bio(&mut self) -> Box<Bio> {
        self.bios.pop().unwrap_or_else(Bio::flush)
    }

    /// Give a completed bio back; its buffer, if it has one, is returned.
    pub(super) fn give_bio(&mut self, mut bio: Box<Bio>) -> Option<IoBuf> {
        let buf = bio.take_buf();
        if self.bios.len() < KEEP_BIOS {
            self.bios.push(bio);
        }
        buf
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let mut pool = Pool::default();
        for bytes in [1, 4096, 4097, 1 << 20, 65 << 20] {
            let buf = pool.take(bytes).unwrap();
            assert!(buf.len() >= DATA_AT + bytes);
            let kept = pool.idle_bytes;
            pool.give(buf);
            assert_eq!(pool.idle_bytes > kept, bytes <= 1 << 20, "{bytes} bytes");
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut pool = Pool::default();
        let bufs: Vec<_> = (0..100).map(|_| pool.take(1 << 20).unwrap()).collect();
        bufs.into_iter().for_each(|b| pool.give(b));
        assert!(pool.idle_bytes <= KEEP_BYTES && pool.idle_bytes > 0);
    }
}
