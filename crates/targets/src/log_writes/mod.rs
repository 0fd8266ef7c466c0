//! `log-writes`: a device whose writes are also written to a log on another device, so that every
//! state of the device can be restored (`dm-log-writes`).
//!
//! A write goes into the log when it is known to be durable: a FUA write when it completes, another
//! write when a flush completes that was sent after it. So the log up to a flush is the least that
//! the device holds after a power failure at that time. `log.rs` describes the order.
//!
//! Source: `Documentation/admin-guide/device-mapper/log-writes.rst`.

pub(crate) mod format;
pub(crate) mod log;

use self::format::LOG_HEADER_BYTES;
use self::log::{Log, LogCarrier, LogStep};
use crate::area::Area;
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use drystone_core::{Device, Limits, SECTOR_SIZE};
use std::sync::Arc;

/// The arguments of `log-writes` in a line of a table.
#[derive(Clone)]
pub struct LogWritesSpec {
    /// The place of the segment's first sector. It must be the same sector of the device, because
    /// the kernel's target has no offset.
    pub area: Area,
    /// The device that holds the log, from its first sector on.
    pub log: Area,
}

impl LogWritesSpec {
    /// The fault of a segment that begins at sector `start`, if it has one.
    pub(crate) fn check(&self, start: u64) -> Result<(), String> {
        let (device, log) = (self.area.device.info(), self.log.device.info());
        if self.area.sector != start || self.log.sector != 0 {
            return Err("log-writes has no offsets".to_owned());
        }
        if Arc::ptr_eq(&self.area.device, &self.log.device) {
            return Err(format!("the log of `{}` needs another device", device.name));
        }
        let (block, log_block) = (device.limits.logical_block_size, log.limits.logical_block_size);
        if log_block > block {
            return Err(format!(
                "the log is written in blocks of {block} bytes, as `{}` has them; those of `{}` \
                 have {log_block}",
                device.name, log.name
            ));
        }
        if log.limits.read_only {
            return Err(format!("the log cannot be written: `{}` is read-only", log.name));
        }
        match log.size_bytes / u64::from(block) {
            0..3 => Err(format!("`{}` has no room for a log: at least 3 blocks", log.name)),
            _ => Ok(()),
        }
    }

    /// The limits of a segment: those of the device, without those of the log. Flushes always have
    /// an effect, because the log needs them. Zeroes are written as data, because a log of version
    /// 1 has no other way to record them.
    pub(crate) fn limits(&self) -> Limits {
        let below = Limits::STACKING.stack(self.area.device.info().limits);
        let limits = Limits { write_cache: true, fua: true, max_write_zeroes_bytes: 0, ..below };
        Limits { fast_zero: false, ..limits }
    }

    /// The arguments as a table has them, each with a space before it.
    pub(crate) fn arguments(&self) -> String {
        format!(" {} {}", self.area.device.info().name, self.log.device.info().name)
    }

    /// Sectors of the whole log device.
    pub(crate) fn log_sectors(&self) -> u64 {
        self.log.device.info().size_bytes / SECTOR_SIZE
    }
}

/// A log that a table writes, for users that add marks to it and end it. Clones are cheap.
#[derive(Clone)]
pub struct WriteLog {
    pub(crate) log: Arc<Log>,
    device: Arc<dyn Device>,
}

impl WriteLog {
    /// The device that holds the log.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The most bytes of a mark's text.
    pub fn text_bytes_max(&self) -> usize {
        // A zero follows the text, because the kernel's readers expect it.
        self.log.sector_bytes() as usize - LOG_HEADER_BYTES - 1
    }

    /// Place a mark behind all writes that are known to be durable; the caller then carries it.
    /// `None` if the log takes no more entries, or the text is too long. Any thread.
    pub fn mark(&self, text: &str, locks: &LockCounters) -> Option<LogCarrier> {
        let fits = text.len() <= self.text_bytes_max();
        fits.then(|| self.log.mark(text, locks)).flatten()
    }

    /// Place the writes that are not known to be durable, and the mark that ends the log; the
    /// caller then carries both. `None` if there is nothing to do. Call this while the volume is
    /// quiesced; any thread.
    pub fn end(&self, locks: &LockCounters) -> Option<LogCarrier> {
        self.log.end(locks)
    }

    /// The next step of `carrier`. Call this for a new carrier, then whenever its writes to
    /// [`WriteLog::device`] have ended, and from time to time while it waits. The caller must then
    /// send `wakes`.
    pub fn step(
        &self,
        carrier: &mut LogCarrier,
        locks: &LockCounters,
        wakes: &mut Vec<Arc<Message>>,
    ) -> LogStep {
        self.log.step(carrier, None, locks, wakes)
    }

    /// Log nothing any more, because a carrier's writes do not end. The caller must then send
    /// `wakes`.
    pub fn give_up(&self, locks: &LockCounters, wakes: &mut Vec<Arc<Message>>) {
        self.log.give_up(locks, wakes);
    }
}

/// A `log-writes` segment.
pub(crate) struct LogWrites {
    pub(crate) member: u32,
    pub(crate) log_member: u32,
    pub(crate) log: WriteLog,
}

impl LogWrites {
    /// The segment whose device and log are members `member` and `log_member`.
    pub(crate) fn new(spec: &LogWritesSpec, member: u32, log_member: u32) -> Self {
        let block = spec.area.device.info().limits.logical_block_size;
        let log = Arc::new(Log::new(block, spec.log_sectors()));
        let log = WriteLog { log, device: spec.log.device.clone() };
        LogWrites { member, log_member, log }
    }
}
