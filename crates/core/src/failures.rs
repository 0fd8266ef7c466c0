//! I/O that failed, noted where it ends without a lock or memory, and told later by somebody else.
//!
//! Invariants:
//! * Every failure is told once: one with all that is known of it, those after it, until that one
//!   is told, by their number.
//! * `what` and `place` belong to the thread that made `state` `WRITING`, and to the teller while
//!   it is `THERE`.

use crate::op::Op;
use crate::primitive::{AtomicU32, AtomicU64, Ordering::*};
use crate::status::Status;
use std::fmt;

/// An I/O that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The operation.
    pub op: Op,
    /// Its status.
    pub status: Status,
    /// The first byte of it; of no meaning for a flush.
    pub offset: u64,
    /// Its length.
    pub bytes: u64,
}

/// A sentence's beginning: "a read of 4096 bytes at byte 512 failed: Input/output error (os error
/// 5)".
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { op, status, offset, bytes } = self;
        match op {
            Op::Flush => write!(f, "a flush failed: {status}"),
            op => write!(f, "a {op} of {bytes} bytes at byte {offset} failed: {status}"),
        }
    }
}

/// Nothing is noted.
const NONE: u32 = 0;
/// Somebody notes the first failure.
const WRITING: u32 = 1;
/// It is there to be told.
const THERE: u32 = 2;

/// The failures of a device, or of what its clients asked for. Any thread may note one; one at a
/// time takes them.
#[derive(Default)]
pub struct Failures {
    state: AtomicU32,
    /// Length, status and operation.
    what: AtomicU64,
    /// First byte.
    place: AtomicU64,
    /// Those that came while one was there to be told.
    more: AtomicU64,
}

/// The failures noted since they were last taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Noted {
    /// One failure. `None` with some more if these came just as the one before was taken.
    pub first: Option<Failure>,
    /// The number of further ones.
    pub more: u64,
}

impl Noted {
    /// The number of failures that these are.
    pub fn count(&self) -> u64 {
        self.more + u64::from(self.first.is_some())
    }
}

/// Two failures of one kind in one word: 48 bits of length, 8 of status, 8 of operation.
const BYTES_BITS: u32 = 48;

impl Failures {
    /// Note one. Never waits.
    #[cold]
    pub fn note(&self, failure: &Failure) {
        let is_free = self.state.load(Relaxed) == NONE;
        // Pairs with the release in `take`: what was noted before has been read.
        if !is_free || !self.claim() {
            self.more.fetch_add(1, Relaxed);
            return;
        }
        let bytes = failure.bytes.min((1 << BYTES_BITS) - 1);
        let kind = (failure.status as u64) << 8 | failure.op as u64;
        self.what.store(kind << BYTES_BITS | bytes, Relaxed);
        self.place.store(failure.offset, Relaxed);
        // Publishes both words to `take`.
        self.state.store(THERE, Release);
    }

    /// Become the thread that notes the first failure.
    fn claim(&self) -> bool {
        if crate::mutated!("failure_claimed_twice") {
            self.state.store(WRITING, Relaxed);
            return true;
        }
        self.state.compare_exchange(NONE, WRITING, Acquire, Relaxed).is_ok()
    }

    /// Take the failures noted since the last call.
    pub fn take(&self) -> Noted {
        // Pairs with the release in `note`.
        let is_there = self.state.load(Acquire) == THERE;
        let first = is_there.then(|| self.read());
        if is_there {
            self.state.store(NONE, Release);
        }
        let has_more = self.more.load(Relaxed) > 0;
        Noted { first, more: if has_more { self.more.swap(0, Relaxed) } else { 0 } }
    }

    fn read(&self) -> Failure {
        let what = self.what.load(Relaxed);
        let (kind, bytes) = (what >> BYTES_BITS, what & ((1 << BYTES_BITS) - 1));
        Failure {
            op: Op::from_number(kind as u8).unwrap_or_default(),
            status: Status::from_number((kind >> 8) as u8).unwrap_or(Status::IoError),
            offset: self.place.load(Relaxed),
            bytes,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn failure(op: Op, status: Status, offset: u64, bytes: u64) -> Failure {
        Failure { op, status, offset, bytes }
    }

    #[test]
    fn one_is_told_whole_and_the_others_counted() {
        let failures = Failures::default();
        assert_eq!(failures.take(), Noted::default());
        let first = failure(Op::WriteZeroes, Status::Offline, u64::MAX - 511, 1 << 47);
        failures.note(&first);
        (0..3).for_each(|n| failures.note(&failure(Op::Read, Status::IoError, n, 512)));
        let noted = failures.take();
        assert_eq!((noted, noted.count()), (Noted { first: Some(first), more: 3 }, 4));
        assert_eq!(failures.take(), Noted::default());
        let next = failure(Op::Flush, Status::NoSpace, 0, 0);
        failures.note(&next);
        assert_eq!(failures.take(), Noted { first: Some(next), more: 0 });
    }

    #[test]
    fn a_failure_reads_as_a_sentence() {
        let text = failure(Op::Write, Status::IoError, 8192, 4096).to_string();
        assert_eq!(
            text,
            "a write of 4096 bytes at byte 8192 failed: Input/output error (os error 5)"
        );
        let text = failure(Op::Flush, Status::NoSpace, 0, 0).to_string();
        assert_eq!(text, "a flush failed: No space left on device (os error 28)");
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;

    /// Two threads note, and one takes meanwhile and afterwards: each failure is told once, and
    /// none is put together of two.
    #[test]
    fn loom_failures() {
        loom::model(|| {
            let failures = Arc::new(Failures::default());
            let noting = [1u64, 2].map(|n| {
                let failures = failures.clone();
                loom::thread::spawn(move || {
                    let (op, status) = (Op::Write, Status::IoError);
                    failures.note(&Failure { op, status, offset: n << 9, bytes: n });
                })
            });
            let during = failures.take();
            for thread in noting {
                thread.join().unwrap();
            }
            let after = failures.take();
            assert_eq!(during.count() + after.count(), 2, "each is told once");
            for failure in [during.first, after.first].into_iter().flatten() {
                assert_eq!(failure.offset, failure.bytes << 9, "it is one failure");
                assert!(failure.bytes > 0);
            }
        });
    }
}
