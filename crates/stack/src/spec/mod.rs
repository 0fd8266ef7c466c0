//! A checked stack as plain data, from which the live stack is built.
//!
//! All sizes are bytes unless the name says sectors (512 bytes), all times nanoseconds. Paths are
//! joined with the stack file's folder. Nothing here is open or running.

use drystone_core::context::PollMode;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::diagnostic::{Diagnostic, Source};
use crate::iomax::IoMax;

mod client;
mod device;
mod export;
mod places;
mod table;
mod volume;

pub use client::{AllowRule, Allowed, Client, ClientGroup};
pub use device::{Create, DeviceKind, DeviceSpec, FileSpec, NullSpec, RaidSpec, RamSpec};
pub use export::{ExportSpec, FuseSpec, Listener, TlsMode, TlsSpec};
pub use places::Places;
pub use table::{Area, Delayed, Member, SECTOR_BYTES, Segment, Target};
pub use volume::{TooSmall, VolumeSpec};

/// A whole stack file.
#[derive(Debug, Clone, PartialEq)]
pub struct StackSpec {
    /// The stack's name: the file's stem.
    pub name: String,
    /// `[server]`.
    pub server: ServerSpec,
    /// `[device.*]` in the order of the file.
    pub devices: Vec<DeviceSpec>,
    /// `[group.*]` in the order of the file; the group above each is among them.
    pub groups: Vec<GroupSpec>,
    /// `[export.*]` in the order of the file.
    pub exports: Vec<ExportSpec>,
    /// Sizes of all devices whose size is known, by name; complete after [`crate::load`].
    pub sizes: BTreeMap<String, u64>,
    /// Devices that are not opened: their files are not there, or too small, and the arrays that
    /// they are members of start without them (`run = true`); complete after [`crate::load`].
    pub absent: BTreeSet<String>,
    /// Warnings found on the way.
    pub warnings: Vec<Diagnostic>,
    /// The text that it came from.
    pub source: Source,
    /// Where each key stands in the text.
    pub places: Places,
}

impl StackSpec {
    /// The device of that name.
    pub fn device(&self, name: &str) -> Option<&DeviceSpec> {
        self.devices.iter().find(|device| device.name == name)
    }

    /// Makes every device and every export read-only, as if each had `read_only = true`.
    pub fn make_read_only(&mut self) {
        self.devices.iter_mut().for_each(DeviceSpec::make_read_only);
        self.exports.iter_mut().for_each(|export| export.read_only = true);
    }

    /// The addresses to listen on, each with its exports (indices into `exports`). Exports that
    /// share an address have been checked to agree on TLS and connection limits.
    pub fn listeners(&self) -> Vec<(&Listener, Vec<usize>)> {
        let mut groups: Vec<(&Listener, Vec<usize>)> = Vec::new();
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        for (index, export) in self.exports.iter().enumerate() {
            for listener in &export.nbd {
                let place = *places.entry(listener.address()).or_insert(groups.len());
                match groups.get_mut(place) {
                    Some((_, exports)) => exports.push(index),
                    None => groups.push((listener, vec![index])),
                }
            }
        }
        groups
    }
}

/// `[server]`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerSpec {
    /// Data threads; 0 is as many as cores.
    pub threads: u32,
    /// The way they wait.
    pub poll_mode: PollMode,
    /// The bytes of all buffers of NBD clients' requests together; `None`: a value that suits the
    /// machine.
    pub memory: Option<u64>,
    /// The control socket, if not the usual one.
    pub control: Option<PathBuf>,
    /// Measure hold times of locks from the start. No key of the file: an option of the program.
    pub lockstat: bool,
}

/// `[group.PATH]`.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupSpec {
    /// Its path.
    pub path: String,
    /// Its limits, each device once.
    pub io_max: Vec<IoMax>,
}
