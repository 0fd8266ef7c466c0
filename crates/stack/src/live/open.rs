//! Opens a checked stack.
//!
//! Invariant: a device is opened after its members.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drystone_core::Device;
use drystone_core::clock::Clock;
use drystone_core::context::PollSwitch;
use drystone_core::ring::Engine;

use super::device::{engine_of, file_to_make, open_device, remove_file};
use super::devices::{Devices, LiveDevice};
use super::open_env::{OpenEnv, OpenError};
use super::stack::LiveStack;
use super::{exports, groups, raid, table};
use crate::diagnostic::{Findings, Report};
use crate::graph::members_first;
use crate::spec::{DeviceKind, DeviceSpec, StackSpec};

impl LiveStack {
    /// Opens all devices of a checked stack and reads the certificates of its exports.
    ///
    /// # Errors A device that cannot be opened, with its place in the stack file; then nothing
    /// stays open, and files that were made for other devices are removed again.
    pub fn open(stack: &StackSpec, at: &OpenEnv) -> Result<LiveStack, Report> {
        let mut findings = Findings::default();
        let engine = engine(stack, &at.clock, &mut findings);
        groups::make(stack, &at.groups, &mut findings);
        let (devices, made) = match findings.errors() {
            0 => devices(stack, None, (at, engine), &mut findings),
            _ => Default::default(),
        };
        let live = exports::exports(stack, &devices, &at.groups);
        let (listeners, tables) = match findings.errors() {
            0 => {
                groups::limit(stack, &at.groups, &mut findings);
                exports::build(stack, &live, &mut findings)
            }
            _ => Default::default(),
        };
        if findings.errors() > 0 {
            made.iter().for_each(|path| remove_file(path));
            return Err(findings.into_report(stack.source.clone()));
        }
        Ok(LiveStack {
            devices: Devices::new(devices, at.locks.counters()),
            made,
            exports: stack.exports.clone(),
            live,
            listeners,
            tables,
            engine,
            opening: (at.threads, at.open),
            has_files: at.files.is_none(),
            contexts: at.contexts.clone(),
            started: at.clock.now(),
            clock: at.clock.clone(),
            locks: at.locks.clone(),
            groups: at.groups.clone(),
            poll: PollSwitch::new(stack.server.poll_mode),
            events: at.events.clone(),
        })
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

/// Opens the devices, or `only` and the devices below it, members first. Returns them in the order
/// of the stack file, with the files that were created.
fn devices(
    stack: &StackSpec,
    only: Option<&str>,
    (at, engine): (&OpenEnv, Engine),
    findings: &mut Findings,
) -> (Vec<Arc<LiveDevice>>, Vec<PathBuf>) {
    let mut open: Vec<Option<Arc<LiveDevice>>> = vec![None; stack.devices.len()];
    let (mut made, mut new) = (Vec::new(), BTreeSet::new());
    for index in members_first(&stack.devices, only) {
        let spec = &stack.devices[index];
        if stack.absent.contains(&spec.name) {
            continue;
        }
        let to_make = file_to_make(spec, at);
        let find = |name: &str| {
            let live = open.iter().flatten().find(|live| live.name == name)?;
            Some(live.device.clone())
        };
        let is_new = |name: &str| new.contains(name);
        let opened = match &spec.kind {
            // One of its members may be a device that could not be opened.
            DeviceKind::Volume(_) | DeviceKind::Raid(_) if findings.errors() > 0 => continue,
            DeviceKind::Raid(raid) => {
                raid::open_raid(spec, raid, (&find, &stack.absent), &is_new, (at, engine)).and_then(
                    |opened| {
                        raid::run(&spec.name, opened.manager, at)?;
                        Ok(LiveDevice::of_array(&spec.name, opened.array, &at.groups))
                    },
                )
            }
            DeviceKind::Volume(volume) => table::open_volume(spec, volume, &find, at)
                .map(|volume| LiveDevice::of_volume(&spec.name, volume, &at.groups)),
            _ => open_device(spec, at)
                .map(|device| LiveDevice::leaf(spec, description(spec), device)),
        };
        match opened {
            Ok(live) => {
                if to_make.is_some() || holds_only_new(spec, &is_new) {
                    new.insert(spec.name.clone());
                }
                open[index] = Some(live);
                made.extend(to_make.map(Path::to_owned));
            }
            Err(error) => report(stack, &error, findings),
        }
    }
    (open.into_iter().flatten().collect(), made)
}

/// True if this start has made the device, so that it holds no earlier data.
fn holds_only_new(spec: &DeviceSpec, is_new: &dyn Fn(&str) -> bool) -> bool {
    match &spec.kind {
        DeviceKind::Ram(_) | DeviceKind::Null(_) => true,
        DeviceKind::Volume(_) | DeviceKind::Raid(_) => {
            let members = spec.members();
            !members.is_empty() && members.iter().all(|member| is_new(&member.device))
        }
        DeviceKind::File(_) => false,
    }
}

/// A device's origin, for people.
fn description(spec: &DeviceSpec) -> String {
    match &spec.kind {
        DeviceKind::File(file) => file.options.path.display().to_string(),
        _ => String::new(),
    }
}

/// Opens one device of a checked stack, and the devices below it.
///
/// # Errors A device that cannot be opened, with its place in the stack file; then nothing stays
/// open.
pub fn open_one(
    stack: &StackSpec,
    name: &str,
    at: &OpenEnv,
) -> Result<(Arc<dyn Device>, Engine), Report> {
    let mut findings = Findings::default();
    let engine = engine(stack, &at.clock, &mut findings);
    let (devices, made) = match findings.errors() {
        0 => devices(stack, Some(name), (at, engine), &mut findings),
        _ => Default::default(),
    };
    match devices.into_iter().find(|device| device.name == name) {
        Some(live) if findings.errors() == 0 => Ok((live.device.clone(), engine)),
        _ => {
            made.iter().for_each(|path| remove_file(path));
            Err(findings.into_report(stack.source.clone()))
        }
    }
}
