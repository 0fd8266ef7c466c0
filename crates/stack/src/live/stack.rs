//! An open stack, as all parts of this folder share it.
//!
//! Invariant: only the list of devices ([`Devices`]) and the groups change, each under its own
//! lock; the other fields are constant or switches.

use std::path::PathBuf;
use std::sync::Arc;

use drystone_core::ContextSet;
use drystone_core::clock::{Clock, Ns};
use drystone_core::context::PollSwitch;
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_exports::nbd::server::ExportTable;
use drystone_throttle::Groups;

use super::device::remove_file;
use super::devices::{Devices, LiveDevice};
use super::exports::{self, LiveExport, LiveListener, LiveMount};
use super::open_env::{OpenDevice, OpenEnv};
use crate::events::Events;
use crate::spec::ExportSpec;

/// An open stack. Shared by all threads.
#[derive(Clone)]
pub struct LiveStack {
    pub(super) devices: Arc<Devices>,
    /// Files that the start has created.
    pub(super) made: Vec<PathBuf>,
    pub(super) exports: Vec<ExportSpec>,
    /// The same, open.
    pub(super) live: Vec<LiveExport>,
    pub(super) listeners: Vec<LiveListener>,
    pub(super) tables: Vec<Arc<ExportTable>>,
    pub(super) engine: Engine,
    /// The number of data threads and the function to open devices that come later.
    pub(super) opening: (u32, OpenDevice),
    /// True if its files are files of the system.
    pub(super) has_files: bool,
    pub(super) contexts: Arc<ContextSet>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) locks: Arc<LockRegistry>,
    pub(super) groups: Arc<Groups>,
    pub(super) poll: Arc<PollSwitch>,
    pub(super) events: Arc<Events>,
    pub(super) started: Ns,
}

impl LiveStack {
    /// Removes the files that opening this stack has created: for a start that fails afterwards.
    /// Called only before anybody could write to the devices.
    pub fn remove_made_files(&self) {
        self.made.iter().for_each(|path| remove_file(path));
    }

    /// The devices as of now: those of the stack file in its order, then those that came later.
    pub fn devices(&self) -> Vec<Arc<LiveDevice>> {
        self.devices.all()
    }

    /// The members without room, for which writes wait: one sentence on each array that has some.
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
    pub(super) fn open_env(&self) -> OpenEnv {
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

    /// The exports with their volumes, in the order of the stack file.
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

    /// The registry that counts the locks of the devices and of the contexts that serve them.
    pub fn locks(&self) -> &Arc<LockRegistry> {
        &self.locks
    }

    /// The clock of the whole stack.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The queue of the stack's events.
    pub fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The groups that bios belong to.
    pub fn groups(&self) -> &Arc<Groups> {
        &self.groups
    }

    /// The poll mode of the contexts of data threads.
    pub fn poll_switch(&self) -> &Arc<PollSwitch> {
        &self.poll
    }
}
