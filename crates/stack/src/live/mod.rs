//! A stack that is open: its devices, and the export tables that front ends serve them by.
//!
//! Invariants:
//! * A device is opened before whatever stands on it, and stays open as long as anything here or
//!   a context refers to it.
//! * Nothing here has a thread or a socket. The program opens contexts on [`LiveStack::engine`]
//!   and hands [`LiveStack::tables`] to its front ends.

mod device;
mod exports;
mod runtime;
mod shape;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drystone_core::Device;
use drystone_core::clock::{Clock, Ns};
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_exports::nbd::server::ExportTable;

pub use device::{OpenDevice, OpenError, Surroundings, engine_of, open_device, open_with};
pub use exports::LiveListener;
pub use runtime::{Connections, LiveRuntime};
pub use table::{Find, open_volume};

use crate::diagnostic::{Findings, Report};
use crate::spec::{DeviceKind, DeviceSpec, ExportSpec, StackSpec};

/// An open device.
#[derive(Clone)]
pub struct LiveDevice {
    /// Its name in the stack.
    pub name: String,
    /// What it is made of, for people: a file's path, else empty.
    pub description: String,
    /// The devices it stands on.
    pub members: Vec<String>,
    /// The device.
    pub device: Arc<dyn Device>,
}

/// An open stack. Shared by all threads.
#[derive(Clone)]
pub struct LiveStack {
    devices: Vec<LiveDevice>,
    /// Files that were not there before.
    made: Vec<PathBuf>,
    exports: Vec<ExportSpec>,
    listeners: Vec<LiveListener>,
    tables: Arc<Vec<ExportTable>>,
    engine: Engine,
    clock: Arc<dyn Clock>,
    locks: Arc<LockRegistry>,
    started: Ns,
}

impl LiveStack {
    /// Opens all devices of a checked stack and reads the certificates of its exports.
    ///
    /// # Errors
    /// What could not be opened, with its place in the stack file; then nothing stays open, and
    /// files that were made for other devices are removed again.
    pub fn open(stack: &StackSpec, at: &Surroundings) -> Result<LiveStack, Report> {
        let mut findings = Findings::default();
        let engine = engine(stack, &at.clock, &mut findings);
        let (devices, made) = match findings.errors() {
            0 => devices(stack, None, at, &mut findings),
            _ => Default::default(),
        };
        let (listeners, tables) = match findings.errors() {
            0 => exports::build(stack, &devices, &mut findings),
            _ => Default::default(),
        };
        if findings.errors() > 0 {
            made.iter().for_each(|path| device::remove_file(path));
            return Err(findings.into_report(stack.source.clone()));
        }
        Ok(LiveStack {
            devices,
            made,
            exports: stack.exports.clone(),
            listeners,
            tables: Arc::new(tables),
            engine,
            started: at.clock.now(),
            clock: at.clock.clone(),
            locks: at.locks.clone(),
        })
    }

    /// Removes the files that opening this stack made: for a start that fails after it. Only
    /// before anybody could write to the devices.
    pub fn remove_made_files(&self) {
        self.made.iter().for_each(|path| device::remove_file(path));
    }

    /// The devices, in the order of the stack file.
    pub fn devices(&self) -> &[LiveDevice] {
        &self.devices
    }

    /// The exports, in the order of the stack file.
    pub fn exports(&self) -> &[ExportSpec] {
        &self.exports
    }

    /// The addresses to listen on.
    pub fn listeners(&self) -> &[LiveListener] {
        &self.listeners
    }

    /// The export tables, which the listeners name by number.
    pub fn tables(&self) -> &Arc<Vec<ExportTable>> {
        &self.tables
    }

    /// The engine that the contexts of this stack must have.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Where the locks of the devices, and of the contexts that serve them, are counted.
    pub fn locks(&self) -> &Arc<LockRegistry> {
        &self.locks
    }

    /// The view of the control socket. `connections` counts an export's clients.
    pub fn runtime(&self, connections: Connections) -> LiveRuntime {
        LiveRuntime::new(self.clone(), connections)
    }
}

/// Reports an error of a device at its key in the stack file.
fn report(stack: &StackSpec, error: &OpenError, findings: &mut Findings) {
    let span = stack.places.device(&error.device, error.key);
    findings.error(&span, error.to_string(), error.hint.clone());
}

/// One context serves all devices, so they must agree on its engine.
fn engine(stack: &StackSpec, clock: &Arc<dyn Clock>, findings: &mut Findings) -> Engine {
    let mut chosen: Option<(&str, Engine)> = None;
    for device in &stack.devices {
        let wanted = match engine_of(device, clock) {
            Ok(Engine::Auto) => continue,
            Ok(wanted) => wanted,
            Err(error) => {
                report(stack, &error, findings);
                continue;
            }
        };
        match chosen {
            Some((other, engine)) if engine != wanted => findings.error_also(
                &stack.places.device(&device.name, "engine"),
                format!("`{}` and `{other}` ask for different engines", device.name),
                "all devices of a stack share one; give both the same, or \"auto\"",
                (&stack.places.device(other, "engine"), "the other engine"),
            ),
            _ => chosen = Some((&device.name, wanted)),
        }
    }
    chosen.map_or(Engine::Auto, |(_, engine)| engine)
}

/// Opens the devices, or those that `only` stands on, members first; the result is in the order of
/// the stack file. Also the files that were made.
fn devices(
    stack: &StackSpec,
    only: Option<&str>,
    at: &Surroundings,
    findings: &mut Findings,
) -> (Vec<LiveDevice>, Vec<PathBuf>) {
    let mut open: Vec<Option<LiveDevice>> = vec![None; stack.devices.len()];
    let mut made = Vec::new();
    for index in members_first(&stack.devices, only) {
        let spec = &stack.devices[index];
        let to_make = device::file_to_make(spec);
        let find = |name: &str| {
            let live = open.iter().flatten().find(|live: &&LiveDevice| live.name == name)?;
            Some(live.device.clone())
        };
        let opened = match &spec.kind {
            DeviceKind::Table(segments) => match findings.errors() {
                0 => table::open_volume(spec, segments, &find, at)
                    .map(|volume| Arc::new(volume) as Arc<dyn Device>),
                // What it stands on may be what could not be opened.
                _ => continue,
            },
            _ => open_device(spec, at),
        };
        match opened {
            Ok(device) => {
                open[index] = Some(live(spec, device));
                made.extend(to_make.map(Path::to_owned));
            }
            Err(error) => report(stack, &error, findings),
        }
    }
    (open.into_iter().flatten().collect(), made)
}

fn live(spec: &DeviceSpec, device: Arc<dyn Device>) -> LiveDevice {
    let description = match &spec.kind {
        DeviceKind::File(file) => file.path.display().to_string(),
        _ => String::new(),
    };
    let members = spec.members().into_iter().map(|member| member.device).collect();
    LiveDevice { name: spec.name.clone(), description, members, device }
}

/// Indices of the devices, or of `only` and those that it stands on, each after its members. The
/// checks refused cycles and unknown names. With a path of our own instead of recursion, since a
/// chain may be as long as the file.
fn members_first(devices: &[DeviceSpec], only: Option<&str>) -> Vec<usize> {
    let numbers: BTreeMap<&str, usize> =
        devices.iter().enumerate().map(|(index, device)| (device.name.as_str(), index)).collect();
    let (mut order, mut seen) = (Vec::with_capacity(devices.len()), vec![false; devices.len()]);
    let roots = (0..devices.len()).filter(|index| only.is_none_or(|n| n == devices[*index].name));
    for root in roots {
        let mut path = vec![(root, false)];
        while let Some((index, done)) = path.pop() {
            if done {
                order.push(index);
            } else if !std::mem::replace(&mut seen[index], true) {
                path.push((index, true));
                let members = devices[index].members();
                let below = members.iter().rev().filter_map(|m| numbers.get(m.device.as_str()));
                path.extend(below.map(|index| (*index, false)));
            }
        }
    }
    order
}

/// Opens one device of a checked stack, and what it stands on.
///
/// # Errors
/// What could not be opened, with its place in the stack file; then nothing stays open.
pub fn open_one(
    stack: &StackSpec,
    name: &str,
    at: &Surroundings,
) -> Result<(Arc<dyn Device>, Engine), Report> {
    let mut findings = Findings::default();
    let engine = engine(stack, &at.clock, &mut findings);
    let (devices, made) = match findings.errors() {
        0 => devices(stack, Some(name), at, &mut findings),
        _ => Default::default(),
    };
    match devices.into_iter().find(|device| device.name == name) {
        Some(device) if findings.errors() == 0 => Ok((device.device, engine)),
        _ => {
            made.iter().for_each(|path| device::remove_file(path));
            Err(findings.into_report(stack.source.clone()))
        }
    }
}
