//! The devices of an open stack, which may come and go.
//!
//! Invariants:
//! * Names are unique. A device leaves the list only while no export, table or array uses it.
//! * Every change of the list, a table or an attribute holds the list's lock, so the checks before
//!   a change still hold when it is made. No thread waits while it holds the lock; the data path
//!   never takes it.
//! * A volume or array whose change takes longer (it waits until its I/O has drained) is claimed:
//!   until then no other command changes it. New tables may use it meanwhile.
//! * A device that is about to become a member of an array, or an array that is being stopped, is
//!   taken: no other user begins to use it. The name of a device that is still to come is taken in
//!   the same way.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use drystone_core::Device;
use drystone_core::range_lock::RangeLock;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use drystone_raid::array::Array;
use drystone_targets::{Table, Volume};
use drystone_throttle::{Groups, Throttled};

use crate::spec::DeviceSpec;

/// An open device.
pub struct LiveDevice {
    /// Its name in the stack.
    pub name: String,
    /// Its origin, for people: a file's path, else empty.
    pub description: String,
    /// The device. Always the same `Arc`: contexts tell devices apart by it.
    pub device: Arc<dyn Device>,
    /// The same, if it is a volume.
    pub volume: Option<Volume>,
    /// The same, if it is an array.
    pub array: Option<Array>,
    /// The range lock of clients' writes to it, shared by all exports.
    pub(super) write_lock: Arc<RangeLock>,
    /// True if it was opened for an array: it is closed when the array releases it.
    pub(super) comes_by_path: bool,
    /// Its size in bytes in the stack file, which it has again after the next start.
    pub(super) configured_size: Option<u64>,
    claimed: AtomicBool,
}

impl LiveDevice {
    /// A device that is no volume.
    pub(super) fn leaf(
        spec: &DeviceSpec,
        description: String,
        device: Arc<dyn Device>,
    ) -> Arc<Self> {
        Arc::new(LiveDevice {
            name: spec.name.clone(),
            description,
            device,
            volume: None,
            array: None,
            write_lock: RangeLock::new(),
            comes_by_path: false,
            configured_size: spec.size(),
            claimed: AtomicBool::new(false),
        })
    }

    /// A file or block device that an array must have.
    pub(super) fn by_path(name: &str, path: &str, device: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(LiveDevice {
            name: name.to_owned(),
            description: path.to_owned(),
            device,
            volume: None,
            array: None,
            write_lock: RangeLock::new(),
            comes_by_path: true,
            configured_size: None,
            claimed: AtomicBool::new(false),
        })
    }

    /// A volume, with a throttle of its own.
    pub(super) fn of_volume(name: &str, volume: Volume, groups: &Groups) -> Arc<Self> {
        Arc::new(LiveDevice {
            name: name.to_owned(),
            description: String::new(),
            device: Arc::new(Throttled::new(volume.clone(), groups.attach(name))),
            volume: Some(volume),
            array: None,
            write_lock: RangeLock::new(),
            comes_by_path: false,
            configured_size: None,
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
            write_lock: RangeLock::new(),
            comes_by_path: false,
            configured_size: None,
            claimed: AtomicBool::new(false),
        })
    }

    /// Its members: those of its live table, or of the array.
    pub fn members(&self) -> Vec<String> {
        if let Some(array) = &self.array {
            return array.status().disks.iter().map(|disk| disk.name.to_string()).collect();
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
    /// Counters of the lock; written only while the lock is held.
    locks: Arc<LockCounters>,
}

/// A device that no user may begin to use.
pub(super) struct Taken {
    device: Arc<LiveDevice>,
    /// Its fate: `is being stopped`.
    why: String,
}

/// The state that the lock guards.
pub(super) struct State {
    pub(super) list: Vec<Arc<LiveDevice>>,
    pub(super) taken: Vec<Taken>,
    /// Names of devices that will come.
    pub(super) names: Vec<String>,
    /// True if the server stops: nothing changes any more.
    pub(super) stopped: bool,
    /// The tables of volumes that the stop has closed, whose logs must be ended.
    pub(super) ended: Vec<Arc<Table>>,
}

impl State {
    pub(super) fn find(&self, name: &str) -> Option<&Arc<LiveDevice>> {
        self.list.iter().find(|live| live.name == name)
    }

    /// True if no device has the name, nor will have it.
    pub(super) fn is_free(&self, name: &str) -> bool {
        self.find(name).is_none() && !self.names.iter().any(|taken| taken == name)
    }

    /// The fate of a device that no user may begin to use, in a sentence.
    pub(super) fn taken(&self, device: &Arc<dyn Device>) -> Option<String> {
        let own = Arc::as_ptr(device).addr();
        let mut taken = self.taken.iter();
        let taken = taken.find(|taken| Arc::as_ptr(&taken.device.device).addr() == own)?;
        Some(format!("`{}` {}", taken.device.name, taken.why))
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
        let (taken, names, ended) = (Vec::new(), Vec::new(), Vec::new());
        let state = State { list, taken, names, stopped: false, ended };
        Arc::new(Devices { state: Lock::new(LockClass::Control, state), locks })
    }

    /// Prevents new users of `device` until the result is dropped. `why` is the device's fate, for
    /// messages.
    pub(super) fn take(
        self: &Arc<Self>,
        state: &mut State,
        device: &Arc<LiveDevice>,
        why: String,
    ) -> Taking {
        state.taken.push(Taken { device: device.clone(), why });
        Taking { devices: self.clone(), what: What::Device(device.clone()) }
    }

    /// Reserves a name until the result is dropped.
    pub(super) fn take_name(self: &Arc<Self>, state: &mut State, name: &str) -> Taking {
        state.names.push(name.to_owned());
        Taking { devices: self.clone(), what: What::Name(name.to_owned()) }
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

/// A taken device or name, until this is dropped. Its drop takes the list's lock.
pub(super) struct Taking {
    devices: Arc<Devices>,
    what: What,
}

enum What {
    Device(Arc<LiveDevice>),
    Name(String),
}

impl Drop for Taking {
    fn drop(&mut self) {
        let mut state = self.devices.lock();
        match &self.what {
            What::Device(device) => state.taken.retain(|taken| !Arc::ptr_eq(&taken.device, device)),
            What::Name(name) => state.names.retain(|taken| taken != name),
        }
    }
}
