//! Commands of control calls to a manager.

use crate::engine::SyncAction;
use crate::metadata::Uuid;
use drystone_core::error::ErrorKind;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Device, Error, Result};
use std::sync::Arc;

/// A change that a control call asks of an array.
#[derive(Clone)]
pub enum Command {
    /// Add a device: as the member that it was, if its superblock and the bitmap permit that, else
    /// as a spare.
    Add {
        /// Its name in the stack.
        name: String,
        /// The device.
        device: Arc<dyn Device>,
        /// A random identity for its superblock.
        uuid: Uuid,
    },
    /// Mark a device as failed: it is not used any more.
    Fail(String),
    /// Remove a device that is not in use.
    Remove(String),
    /// Rebuild a spare to replace a member that stays in use meanwhile.
    Replace(String),
    /// Begin a check or a repair.
    Sync(SyncAction),
    /// Stop the check or repair under way.
    Idle,
    /// Stop all synchronisation (`true`), or permit it again.
    Freeze(bool),
    /// Limits of synchronisation, KiB a second; as `sync_speed_min` and `sync_speed_max`.
    Speed {
        /// Synchronisation keeps this speed even while others use the array.
        min: Option<u64>,
        /// Synchronisation does not exceed this speed.
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
    /// The manager has not begun it.
    Waits,
    Begun,
    /// Its caller gave it up: the manager will not execute it.
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

    /// Note that the manager begins it. False if its caller has given it up.
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

    /// Give the command up, unless the manager has begun it. False if it has: the command is then
    /// executed. Any thread.
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

    /// End the request of an array that has stopped: it has no manager any more.
    pub(crate) fn end_late(&self, array: &str, locks: &LockCounters) {
        let outcome = match &self.command {
            Command::Stop => Ok(()),
            _ => Err(Error::new(ErrorKind::Busy, format!("{array} has been stopped"))),
        };
        self.end(outcome, locks);
    }

    /// Take the outcome; `None` while the manager has not ended the command. Any thread.
    pub fn outcome(&self, locks: &LockCounters) -> Option<Result<()>> {
        match &mut *self.progress.lock(locks) {
            Progress::Ended(outcome) => outcome.take(),
            _ => None,
        }
    }
}
