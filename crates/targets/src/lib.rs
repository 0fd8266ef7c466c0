//! Volumes: devices made of other devices by a table of targets, as Linux's device mapper has them
//! (`Documentation/admin-guide/device-mapper/`).
//!
//! A [`Volume`] has a live table and may have an inactive one; [`Table`] is what a table says, and
//! [`TargetSpec`] what a line of it says. Bios pass a volume without being copied: where one piece
//! of one target takes the whole of a bio it is only moved, else it is divided.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

mod area;
mod channel;
mod delay;
mod divide;
mod extents;
mod flakey;
mod log_writes;
mod shared;
mod striped;
mod table;
mod volume;

pub use area::Area;
pub use delay::{DelayClass, DelaySpec};
pub use flakey::{CorruptByte, Faults, FlakeySpec, Writes};
pub use log_writes::format::{
    LOG_END_MARK, LOG_HEADER_BYTES, LOG_MAGIC, LOG_VERSION, LogEntry, LogFlags, LogSuper,
    fuzz_write_log,
};
pub use log_writes::log::{LogCarrier, LogStep, LogWrite};
pub use log_writes::{LogWritesSpec, WriteLog};
pub use shared::VolumeOptions;
pub use table::{Line, Table, TargetSpec};
pub use volume::Volume;
