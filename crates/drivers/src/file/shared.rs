//! The state that the queues of a file share, and its exchange when the file is opened again.
//!
//! Invariant: one thread at a time exchanges or extends the file ([`FileShared::turn`]).

use super::opened::{Discard, Opened};
use super::options::FileOptions;
use drystone_core::clock::SystemClock;
use drystone_core::mistake;
use drystone_core::primitive::{AtomicBool, AtomicU64, Ordering::*};
use drystone_core::sync::LockCounters;
use drystone_core::{Error, Published, Result};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

/// The state that the queues of a file share.
pub(crate) struct FileShared {
    pub(crate) path: PathBuf,
    pub(crate) read_only: bool,
    /// Bytes of a logical block.
    pub(crate) block_size: u32,
    pub(crate) physical_block_size: u32,
    /// The discard that clients were told of; a later opening may have another.
    pub(crate) discard: Option<Discard>,
    /// Bytes of the device.
    bytes: AtomicU64,
    /// True if long reads may move pages of the page cache into a pipe: not with direct I/O, nor
    /// in memory, nor once the file system has refused it.
    pub(super) splices: AtomicBool,
    /// The options of its opening; `None` of a simulator's.
    pub(super) options: Option<FileOptions>,
    opening: Published<Opening>,
    /// True while a thread reopens or extends the file.
    is_changing: AtomicBool,
    /// Counters of the lock of `opening`, for threads without a queue.
    locks: Arc<LockCounters>,
}

impl FileShared {
    pub(super) fn new(
        path: &Path,
        options: Option<&FileOptions>,
        physical_block_size: u32,
        opened: Opened,
    ) -> Self {
        FileShared {
            path: path.to_owned(),
            read_only: options.is_some_and(|options| options.read_only),
            block_size: opened.block_size,
            physical_block_size,
            discard: opened.discard,
            bytes: AtomicU64::new(opened.length.bytes()),
            splices: AtomicBool::new(opened.has_page_cache()),
            options: options.cloned(),
            opening: Published::new(Opening::first(opened)),
            is_changing: AtomicBool::new(false),
            locks: LockCounters::new(SystemClock::new()),
        }
    }

    /// The size of the device in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.bytes.load(Acquire)
    }

    /// Notes that the device has grown. Only with the [`FileShared::turn`].
    pub(super) fn note_growth(&self, bytes: u64) {
        self.bytes.store(bytes, Release);
    }

    /// Counts exchanges: a queue that has seen another count calls [`FileShared::current`].
    pub(crate) fn epoch(&self) -> u64 {
        self.opening.epoch()
    }

    /// The opening to use from now on, with its count.
    pub(crate) fn current(&self, user: &LockCounters) -> (u64, Arc<Opened>) {
        let (epoch, opening) = self.opening.get(user);
        (epoch, opening.opened.clone())
    }

    /// The same for threads without a queue.
    pub(crate) fn opened(&self) -> Arc<Opened> {
        self.current(&self.locks).1
    }

    /// True if I/O is in flight on a previous opening, or a queue has not taken over the present
    /// one.
    pub(crate) fn is_exchanging(&self) -> bool {
        self.opening.get(&self.locks).1.before.strong_count() > 0
    }

    /// Make the queues use `next` instead of `before`; the caller says whether both are the same
    /// file. Each queue takes it over at its next notification of a change.
    pub(super) fn exchange(
        &self,
        before: &Arc<Opened>,
        mut next: Opened,
        is_same: bool,
    ) -> Result<()> {
        if is_same {
            before.precede(&mut next);
            if !mistake!("failure_kept") {
                next.flush_failed.store(false, Release);
            }
        }
        self.splices.store(next.has_page_cache(), Relaxed);
        let next = Arc::new(next);
        self.opening.update(&self.locks, |opening| {
            *opening = Opening { opened: next, before: Arc::downgrade(before) };
            Ok(())
        })
    }

    /// The right to exchange or extend the file. One thread has it at a time.
    pub(super) fn turn(&self) -> Result<Turn<'_>> {
        if self.is_changing.swap(true, Acquire) {
            let path = self.path.display();
            let text = format!(
                "{path} is being opened again, or made longer: try again when that is over"
            );
            return Err(Error::new(drystone_core::error::ErrorKind::Busy, text));
        }
        Ok(Turn(&self.is_changing))
    }
}

/// The opening that queues must use, and the previous one.
#[derive(Clone)]
struct Opening {
    opened: Arc<Opened>,
    before: Weak<Opened>,
}

impl Opening {
    fn first(opened: Opened) -> Self {
        Opening { opened: Arc::new(opened), before: Weak::new() }
    }
}

/// See [`FileShared::turn`].
pub(super) struct Turn<'a>(&'a AtomicBool);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(false, Release);
    }
}
