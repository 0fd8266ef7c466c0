//! A stack that is open: its devices, and the export tables that front ends serve them by.
//!
//! Invariants:
//! * A device is opened before whatever stands on it, and stays open as long as anything here or
//!   a context refers to it.
//! * Nothing here has a thread or a socket, and waits only by a [`SleepFn`] that it was given. The
//!   program opens contexts on [`LiveStack::engine`] and hands [`LiveStack::tables`] to its front
//!   ends.

mod device;
mod devices;
mod event_reader;
mod exports;
mod finish;
mod groups;
mod logs;
mod md;
mod open_env;
mod raid;
mod reopen;
mod runtime;
mod shape;
mod table;
mod uses;
mod volumes;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drystone_core::clock::{Clock, Ns};
use drystone_core::context::PollSwitch;
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_core::{ContextSet, Device};
use drystone_exports::nbd::server::ExportTable;
use drystone_raid::array::Command;
use drystone_targets::Table;
use drystone_throttle::Groups;

pub use device::{engine_of, open_device, open_with};
pub use devices::LiveDevice;
pub use event_reader::EventReader;
pub use exports::{LiveExport, LiveListener, LiveMount};
pub use open_env::{
    Files, Find, OpenContext, OpenDevice, OpenEnv, OpenError, OpenFile, Platform, SleepFn, Spawn,
};
pub use runtime::LiveRuntime;
pub use table::{open_table, open_volume};

use crate::diagnostic::{Findings, Report};
use crate::events::Events;
use crate::graph::members_first;
use crate::spec::{DeviceKind, DeviceSpec, ExportSpec, StackSpec};
use devices::Devices;

/// How long the end of a log may take at the end of a server: as long as a request may take before
/// it counts as lost.
const LOG_PATIENCE_NS: Ns = 30_000_000_000;

/// How long arrays are waited for that are to begin: some writes of superblocks, of which each may
/// take a second on a slow disk.
const BEGIN_PATIENCE_NS: Ns = 10_000_000_000;

/// The pause between two looks whether an array has begun, or stopped.
const ARRAY_PAUSE_NS: Ns = 200_000;

/// An open stack. Shared by all threads.
#[derive(Clone)]
pub struct LiveStack {
    devices: Arc<Devices>,
    /// Files that were not there before.
    made: Vec<PathBuf>,
    exports: Vec<ExportSpec>,
    /// The same, open.
    live: Vec<LiveExport>,
    listeners: Vec<LiveListener>,
    tables: Vec<Arc<ExportTable>>,
    engine: Engine,
    /// How devices are opened that come later: for so many threads.
    opening: (u32, OpenDevice),
    /// Its files are the system's.
    has_files: bool,
    contexts: Arc<ContextSet>,
    clock: Arc<dyn Clock>,
    locks: Arc<LockRegistry>,
    groups: Arc<Groups>,
    poll: Arc<PollSwitch>,
    events: Arc<Events>,
    started: Ns,
}

impl LiveStack {
    /// Opens all devices of a checked stack and reads the certificates of its exports.
    ///
    /// # Errors
    /// What could not be opened, with its place in the stack file; then nothing stays open, and
    /// files that were made for other devices are removed again.
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
            made.iter().for_each(|path| device::remove_file(path));
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

    /// Removes the files that opening this stack made: for a start that fails after it. Only
    /// before anybody could write to the devices.
    pub fn remove_made_files(&self) {
        self.made.iter().for_each(|path| device::remove_file(path));
    }

    /// The devices as of now: those of the stack file in its order, then those that came later.
    pub fn devices(&self) -> Vec<Arc<LiveDevice>> {
        self.devices.all()
    }

    /// A volume or an array that `live` is part of now, if there is one: who writes past that
    /// spoils it.
    pub fn part_of(&self, live: &LiveDevice) -> Option<String> {
        uses::above(&self.devices.lock(), live).into_iter().next()
    }

    /// The server is to stop: no device comes, goes or changes from now on, and what a suspended
    /// volume keeps ends. It fails, because a suspension promises that nothing reaches the devices
    /// below it; but where a suspension was only on its way to another table, or not yet complete,
    /// it is given up and the I/O goes on. What limits keep back goes on at once: it would make
    /// the end wait for as long as they say. Once more only lifts the limits that came since.
    pub fn stop(&self) {
        groups::lift(&self.groups);
        let (mut state, mut ended) = (self.devices.lock(), Vec::new());
        if std::mem::replace(&mut state.stopped, true) {
            return;
        }
        for (live, volume) in state.volumes().filter(|(_, volume)| volume.is_suspended()) {
            if live.is_claimed() {
                volume.cancel_suspend();
            } else {
                ended.extend(volume.table());
                volume.close();
            }
        }
        state.ended = ended;
    }

    /// Once no client is there any more: writes the ends of the logs of all volumes, waiting by
    /// `pause`. After [`LiveStack::stop`].
    ///
    /// # Errors
    /// One sentence on each volume whose log is not whole.
    pub fn end_logs(&self, pause: &SleepFn) -> Result<(), String> {
        let state = self.devices.lock();
        let live = state.volumes().filter_map(|(_, volume)| volume.table());
        let tables: Vec<_> = state.ended.iter().cloned().chain(live).collect();
        drop(state);
        let end = |table: &Arc<Table>| {
            let ended = logs::end(self, table, (LOG_PATIENCE_NS, pause));
            let logs = table.logs().map(|log| log.device().info().name);
            ended.err().map(|why| format!("log `{}`: {why}", logs.collect::<Vec<_>>().join("`, `")))
        };
        let failed: Vec<String> = tables.iter().filter_map(end).collect();
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Once no client is there any more, and all is flushed: stops all arrays, so that they are on
    /// record as clean; those that others stand on last. Waits by `pause`.
    ///
    /// # Errors
    /// One sentence on each array that did not stop.
    pub fn stop_arrays(&self, pause: &SleepFn) -> Result<(), String> {
        let devices = self.devices();
        let locks = self.locks.counters();
        let mut failed = Vec::new();
        // A device comes after those that it stands on.
        for (live, array) in devices.iter().rev().filter_map(|d| Some((d, d.array.as_ref()?))) {
            let request = array.request(Command::Stop);
            let outcome = loop {
                match request.outcome(&locks) {
                    Some(outcome) => break outcome,
                    None => {
                        // The array may wait for I/O that dropped contexts have in flight.
                        self.contexts.free_idle_orphans();
                        pause(ARRAY_PAUSE_NS);
                    }
                }
            };
            failed.extend(outcome.err().map(|error| format!("array `{}`: {error}", live.name)));
        }
        if failed.is_empty() { Ok(()) } else { Err(failed.join("; ")) }
    }

    /// Waits by `pause` until all arrays have begun what begins by itself, a synchronisation above
    /// all; for one that waits for its members no longer than `BEGIN_PATIENCE_NS`.
    pub fn await_arrays(&self, pause: &SleepFn) {
        let deadline = self.clock.now().saturating_add(BEGIN_PATIENCE_NS);
        let locks = self.locks.counters();
        // A command that changes nothing: its end is told when what follows from the start has
        // begun.
        let nothing = || Command::Speed { min: None, max: None };
        let devices = self.devices();
        let arrays = devices.iter().filter_map(|live| live.array.as_ref());
        for request in arrays.map(|array| array.request(nothing())).collect::<Vec<_>>() {
            while request.outcome(&locks).is_none() && self.clock.now() < deadline {
                pause(ARRAY_PAUSE_NS);
            }
        }
    }

    /// The members that have no room, which writes wait for: one sentence on each array that has
    /// some.
    pub fn without_room(&self) -> Vec<String> {
        let sentence = |live: &Arc<LiveDevice>| {
            let status = live.array.as_ref()?.status();
            let full = status.disks.iter().filter(|disk| disk.lacks_room);
            let names: Vec<&str> = full.map(|disk| &*disk.name).collect();
            let text =
                format!("array `{}`: writes wait for room on {}", live.name, names.join(", "));
            (!names.is_empty()).then_some(text)
        };
        self.devices().iter().filter_map(sentence).collect()
    }

    /// The environment of devices that are opened later: the system's.
    fn open_env(&self) -> OpenEnv {
        let (threads, open) = self.opening;
        OpenEnv {
            locks: self.locks.clone(),
            groups: self.groups.clone(),
            contexts: self.contexts.clone(),
            open,
            events: self.events.clone(),
            ..OpenEnv::new(threads, self.clock.clone())
        }
    }

    /// The exports, in the order of the stack file.
    pub fn exports(&self) -> &[ExportSpec] {
        &self.exports
    }

    /// The exports with what they serve, in the order of the stack file.
    pub fn live_exports(&self) -> &[LiveExport] {
        &self.live
    }

    /// The addresses to listen on.
    pub fn listeners(&self) -> &[LiveListener] {
        &self.listeners
    }

    /// The export tables, which the listeners name by number.
    pub fn tables(&self) -> &[Arc<ExportTable>] {
        &self.tables
    }

    /// The exports that appear as files.
    pub fn mounts(&self) -> Vec<LiveMount> {
        exports::mounts(&self.live)
    }

    /// The engine that the contexts of this stack must have.
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// The set that the contexts of this stack belong to.
    pub fn contexts(&self) -> &Arc<ContextSet> {
        &self.contexts
    }

    /// Where the locks of the devices, and of the contexts that serve them, are counted.
    pub fn locks(&self) -> &Arc<LockRegistry> {
        &self.locks
    }

    /// The clock that all of it has.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Where what happens to it is published.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Reads what happens to it. There is to be one reader at a time.
    pub fn event_reader(&self) -> EventReader {
        EventReader::new(self.clone())
    }

    /// The groups that bios belong to.
    pub fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// How the contexts of data threads are to wait.
    pub fn poll_switch(&self) -> &Arc<PollSwitch> {
        &self.poll
    }

    /// The view of the control socket. `pause` is how a thread waits that changes a volume.
    pub fn runtime(&self, pause: SleepFn) -> LiveRuntime {
        LiveRuntime::new(self.clone(), pause)
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
        let to_make = device::file_to_make(spec, at);
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

/// Nothing can be on the device but what this start has put there.
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

/// Opens one device of a checked stack, and what it stands on.
///
/// # Errors
/// What could not be opened, with its place in the stack file; then nothing stays open.
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
            made.iter().for_each(|path| device::remove_file(path));
            Err(findings.into_report(stack.source.clone()))
        }
    }
}
