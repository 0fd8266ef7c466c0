//! Commands of control calls to a manager.

use crate::engine::SyncAction;
use crate::metadata::Uuid;
use drystone_core::error::ErrorKind;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Device, Error, Result};
use std::sync::Arc;

/// Something to be done with an array.
#[derive(Clone)]
pub enum Command {
    /// Take in a device: as what it was before, if that can be told, else as a spare.
    Add {
        /// Its name in the stack.
        name: String,
        /// The device.
        device: Arc<dyn Device>,
        /// A random one, for its superblock.
        uuid: Uuid,
    },
    /// Use a device no longer.
    Fail(String),
    /// Let go of a device that is not in use.
    Remove(String),
    /// Have a spare take the place of a member that is still in use.
    Replace(String),
    /// Begin a check or a repair.
    Sync(SyncAction),
    /// Stop what is being synchronised on request.
    Idle,
    /// Synchronise nothing at all, or again.
    Freeze(bool),
    /// Limits of synchronisation, KiB a second; as `sync_speed_min` and `sync_speed_max`.
    Speed {
        /// Reached even while others use the array.
        min: Option<u64>,
        /// Not exceeded.
        max: Option<u64>,
    },
    /// Write the superblocks clean and end.
    Stop,
}

/// A command that was given, for the thread that waits for its outcome.
pub struct Request {
    command: Command,
    progress: Lock<Progress>,
}

/// The progress of a command.
enum Progress {
    /// The manager has not seen it.
    Waits,
    Begun,
    /// Nobody waits for it any more, and it will not be done.
    GivenUp,
    Ended(Option<Result<()>>),
}

impl Request {
    pub(crate) fn new(command: Command) -> Arc<Self> {
        Arc::new(Request { command, progress: Lock::new(LockClass::Control, Progress::Waits) })
    }

    pub(crate) fn command(&self) -> &Command {
        &self.command
    }

    pub(crate) fn end(&self, outcome: Result<()>, locks: &LockCounters) {
        *self.progress.lock(locks) = Progress::Ended(Some(outcome));
    }

    /// The manager begins it. False if it was given up.
    pub(crate) fn begin(&self, locks: &LockCounters) -> bool {
        let mut progress = self.progress.lock(locks);
        match *progress {
            Progress::Waits => {
                *progress = Progress::Begun;
                true
            }
            _ => false,
        }
    }

    /// Have it not done, if the manager has not begun it. False if it has: it then goes on. Any
    /// thread.
    pub fn give_up(&self, locks: &LockCounters) -> bool {
        let mut progress = self.progress.lock(locks);
        match *progress {
            Progress::Waits => {
                *progress = Progress::GivenUp;
                true
            }
            _ => false,
        }
    }

    /// There is no manager any more, so the array has stopped.
    pub(crate) fn end_late(&self, array: &str, locks: &LockCounters) {
        let outcome = match &self.command {
            Command::Stop => Ok(()),
            _ => Err(Error::new(ErrorKind::Busy, format!("{array} has been stopped"))),
        };
        self.end(outcome, locks);
    }

    /// The outcome, once; `None` while the manager is at it. Any thread.
    pub fn outcome(&self, locks: &LockCounters) -> Option<Result<()>> {
        match &mut *self.progress.lock(locks) {
            Progress::Ended(outcome) => outcome.take(),
            _ => None,
        }
    }
}
