//! Volumes: devices made of other devices by a table of targets, like Linux's device mapper
//! (`Documentation/admin-guide/device-mapper/`).
//!
//! A [`Volume`] has a live table and may have an inactive one. A [`Table`] is a checked table, and
//! a [`TargetSpec`] the target of one of its lines. A volume does not copy bios: a bio that lies in
//! one piece of one target is only remapped, another one is divided.
//!
//! ```
//! use drystone_core::clock::SystemClock;
//! use drystone_core::ring::Engine;
//! use drystone_core::sync::LockCounters;
//! use drystone_core::{Bio, BioList, ContextSet, Device, IoBuf, Sector};
//! use drystone_targets::{Line, Table, TargetSpec, Volume, VolumeOptions};
//! use std::sync::Arc;
//!
//! let locks = LockCounters::new(SystemClock::new());
//! let volume = Volume::new("v", VolumeOptions::default(), locks);
//! volume.load(Table::new(vec![Line { start: 0, length: 2048, target: TargetSpec::Zero }])?);
//! volume.resume()?;
//! let device: Arc<dyn Device> = Arc::new(volume);
//! assert_eq!(device.info().size_bytes, 1 << 20);
//!
//! let mut context = ContextSet::new(SystemClock::new()).open(Engine::Plain)?;
//! let index = context.open(&device)?;
//! let mut bios = BioList::new();
//! bios.push(Bio::read(Sector(8), IoBuf::from_slice(&[7; 4096])));
//! context.submit(index, &mut bios);
//! context.reap(&mut bios);
//! let bio = bios.pop().expect("zeroes need no device");
//! assert!(bio.status.is_ok() && bio.buf().is_some_and(|buf| buf.iter().all(|byte| *byte == 0)));
//! # Ok::<(), drystone_core::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

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
