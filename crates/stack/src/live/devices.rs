//! The devices of an open stack, which may come and go.
//!
//! Invariants:
//! * Names are unique. A device leaves the list only while nothing here uses it.
//! * All that changes the list, a table or an attribute holds the list's lock, so the checks before
//!   a change still hold when it is made. Nothing waits with it in hand; the data path never takes it.
//! * A volume that is being changed for longer (it waits until its I/O has drained) is claimed:
//!   until then others change it in no way. Tables that stand on it may come meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use drystone_core::Device;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_raid::array::Array;
use drystone_targets::{Table, Volume};
use drystone_throttle::{Groups, Throttled};

/// An open device.
pub struct LiveDevice {
    /// Its name in the stack.
    pub name: String,
    /// What it is made of, for people: a file's path, else empty.
    pub description: String,
    /// The device. Always the same `Arc`: contexts tell devices apart by it.
    pub device: Arc<dyn Device>,
    /// The same, if it is a volume.
    pub volume: Option<Volume>,
    /// The same, if it is an array.
    pub array: Option<Array>,
    claimed: AtomicBool,
}

impl LiveDevice {
    /// A device that is no volume.
    pub(super) fn leaf(name: &str, description: String, device: Arc<dyn Device>) -> Arc<Self> {
        let claimed = AtomicBool::new(false);
        let name = name.to_owned();
        Arc::new(LiveDevice { name, description, device, volume: None, array: None, claimed })
    }

    /// A volume, with a throttle of its own.
    pub(super) fn of_volume(name: &str, volume: Volume, groups: &Groups) -> Arc<Self> {
        Arc::new(LiveDevice {
            name: name.to_owned(),
            description: String::new(),
            device: Arc::new(Throttled::new(volume.clone(), groups.attach(name))),
            volume: Some(volume),
            array: None,
            claimed: AtomicBool::new(false),
        })
    }

    /// An array, with a throttle of its own.
    pub(super) fn of_array(name: &str, array: Array, groups: &Groups) -> Arc<Self> {
        Arc::new(LiveDevice {
            name: name.to_owned(),
            description: String::new(),
            device: Arc::new(Throttled::new(array.clone(), groups.attach(name))),
            volume: None,
            array: Some(array),
            claimed: AtomicBool::new(false),
        })
    }

    /// The devices it stands on: those of its live table, or of the array.
    pub fn members(&self) -> Vec<String> {
        if let Some(array) = &self.array {
            return array.status().disks.iter().map(|disk| disk.name.clone()).collect();
        }
        let table = self.volume.as_ref().and_then(Volume::table);
        let members = table.iter().flat_map(|table| table.members());
        members.map(|device| device.info().name).collect()
    }

    /// The right to change this volume, unless another has it.
    pub(super) fn claim(self: &Arc<Self>) -> Option<Claim> {
        let free = !self.claimed.swap(true, Acquire);
        free.then(|| Claim(self.clone()))
    }

    pub(super) fn is_claimed(&self) -> bool {
        self.claimed.load(Relaxed)
    }
}

/// The right to change a volume, until it is dropped.
pub(super) struct Claim(Arc<LiveDevice>);

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.claimed.store(false, Release);
    }
}

/// The list. Shared by all threads.
pub(super) struct Devices {
    state: Lock<State>,
    /// Counts the lock, and is written only while it is held.
    locks: Arc<LockCounters>,
}

/// What the lock guards.
pub(super) struct State {
    pub(super) list: Vec<Arc<LiveDevice>>,
    /// The server stops: nothing changes any more.
    pub(super) stopped: bool,
    /// The tables of volumes that were closed for that, whose logs have to be ended.
    pub(super) ended: Vec<Arc<Table>>,
}

impl State {
    pub(super) fn find(&self, name: &str) -> Option<&Arc<LiveDevice>> {
        self.list.iter().find(|live| live.name == name)
    }

    /// The arrays, with the devices that they are, and that they stand on.
    pub(super) fn arrays(&self) -> impl Iterator<Item = (&Arc<LiveDevice>, Vec<Arc<LiveDevice>>)> {
        let arrays = self.list.iter().filter(|live| live.array.is_some());
        arrays.map(|live| {
            let members = live.members();
            (live, members.iter().filter_map(|name| self.find(name)).cloned().collect())
        })
    }

    /// The volumes, with the devices that they are.
    pub(super) fn volumes(&self) -> impl Iterator<Item = (&Arc<LiveDevice>, &Volume)> {
        self.list.iter().filter_map(|live| Some((live, live.volume.as_ref()?)))
    }
}

impl Devices {
    /// `locks` must be used for nothing else.
    pub(super) fn new(list: Vec<Arc<LiveDevice>>, locks: Arc<LockCounters>) -> Arc<Self> {
        let state =
            Lock::new(LockClass::Control, State { list, stopped: false, ended: Vec::new() });
        Arc::new(Devices { state, locks })
    }

    pub(super) fn lock(&self) -> Guard<'_, State> {
        self.state.lock(&self.locks)
    }

    pub(super) fn all(&self) -> Vec<Arc<LiveDevice>> {
        self.lock().list.clone()
    }

    pub(super) fn find(&self, name: &str) -> Option<Arc<LiveDevice>> {
        self.lock().find(name).cloned()
    }
}
