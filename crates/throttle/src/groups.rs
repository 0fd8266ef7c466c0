//! The groups of a stack: their tree, and their limits on its devices.
//!
//! Invariants:
//! * One lock serialises all changes; contexts never take it.
//! * A refused change leaves everything unchanged.

use crate::device::DeviceThrottle;
use crate::group::{GROUPS_MAX, Group, GroupId, Member};
use crate::hierarchy::{DEPTH_MAX, Hierarchy};
use crate::limits::{Change, IoStat, Limits};
use drystone_core::clock::Clock;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters, LockRegistry};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a change was refused. The sentence says everything that a user needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupError {
    /// No such group exists.
    #[error("{0}")]
    NotFound(String),
    /// The group exists already.
    #[error("{0}")]
    Exists(String),
    /// The group has members or children.
    #[error("{0}")]
    InUse(String),
    /// No such device exists.
    #[error("{0}")]
    NoDevice(String),
    /// The request is not possible.
    #[error("{0}")]
    Invalid(String),
}

type Result<T> = std::result::Result<T, GroupError>;

/// A group in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// The path of the group; the root's is empty.
    pub path: String,
    /// The present number of members ([`Groups::join`]).
    pub members: usize,
    /// Its limits, by device.
    pub io_max: Vec<(String, Limits)>,
}

/// The I/O that a group did, by device.
pub type IoStats = Vec<(String, IoStat)>;

/// Limits of a group on a device, for [`Groups::set_all`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The group.
    pub path: String,
    /// The device.
    pub device: String,
    /// The change.
    pub change: Change,
}

struct State {
    hierarchy: Hierarchy,
    devices: Vec<Arc<DeviceThrottle>>,
}

impl State {
    fn find(&self, path: &str) -> Result<GroupId> {
        let missing = || GroupError::NotFound(format!("there is no group `{path}`"));
        self.hierarchy.find(path).ok_or_else(missing)
    }

    fn device(&self, name: &str) -> Result<&Arc<DeviceThrottle>> {
        let missing = || GroupError::NoDevice(format!("there is no device `{name}`"));
        self.devices.iter().find(|device| device.name() == name).ok_or_else(missing)
    }

    fn group(&self, id: GroupId) -> &Arc<Group> {
        &self.hierarchy.get(id).expect("it was found").group
    }

    fn io_max(&self, id: GroupId) -> Vec<(String, Limits)> {
        let limits = self.devices.iter().map(|it| (it.name().to_owned(), it.limits(id)));
        let mut limits: Vec<_> = limits.filter(|(_, limits)| !limits.is_unlimited()).collect();
        limits.sort_by(|a, b| a.0.cmp(&b.0));
        limits
    }

    fn parent_of<'a>(&self, path: &'a str) -> Result<(GroupId, &'a str)> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if name.is_empty() {
            return Err(GroupError::Invalid(format!("`{path}` names no group")));
        }
        if path.split('/').count() > DEPTH_MAX {
            let text = format!("`{path}` is too deep: at most {DEPTH_MAX} levels");
            return Err(GroupError::Invalid(text));
        }
        let id = self.hierarchy.find(parent).ok_or_else(|| {
            GroupError::NotFound(format!("there is no group `{parent}` to make `{path}` in"))
        })?;
        Ok((id, name))
    }
}

/// The groups of a stack. Shared by all threads.
pub struct Groups {
    state: Lock<State>,
    /// Counts the lock; the lock's holder writes it.
    locks: Arc<LockCounters>,
    clock: Arc<dyn Clock>,
}

impl Groups {
    /// A tree with the root only. `clock` is that of the contexts.
    pub fn new(clock: Arc<dyn Clock>, locks: &Arc<LockRegistry>) -> Arc<Self> {
        let state = State { hierarchy: Hierarchy::new(), devices: Vec::new() };
        let state = Lock::new(LockClass::Control, state);
        Arc::new(Groups { state, locks: locks.counters(), clock })
    }

    fn state(&self) -> Guard<'_, State> {
        self.state.lock(&self.locks)
    }

    /// Register a device, on which groups may have limits from now on. No other device has its
    /// name.
    pub fn attach(&self, name: &str) -> Arc<DeviceThrottle> {
        let mut state = self.state();
        let device = DeviceThrottle::new(name, self.clock.clone(), &self.locks);
        let all = state.hierarchy.subtree(GroupId::ROOT);
        if all.len() > 1 {
            device.add_groups(&state.hierarchy, &all);
        }
        state.devices.push(device.clone());
        device
    }

    /// Remove a device with the limits and statistics that groups have there, and let its waiting
    /// bios go.
    pub fn detach(&self, name: &str) {
        let mut state = self.state();
        let gone = state.devices.extract_if(.., |device| device.name() == name);
        gone.for_each(|device| device.close());
    }

    /// Make a group; its parent must exist.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn create(&self, path: &str) -> Result<Arc<Group>> {
        let mut state = self.state();
        let (parent, name) = state.parent_of(path)?;
        if state.hierarchy.find(path).is_some() {
            return Err(GroupError::Exists(format!("there is a group `{path}` already")));
        }
        let Some(id) = state.hierarchy.insert(parent, name, path) else {
            let text = format!("there are {GROUPS_MAX} groups, the most there can be");
            return Err(GroupError::Invalid(text));
        };
        state.devices.iter().for_each(|device| device.add_groups(&state.hierarchy, &[id]));
        Ok(state.group(id).clone())
    }

    /// Remove a group without members and children. Its bios go at once.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn remove(&self, path: &str) -> Result<()> {
        let mut state = self.state();
        let id = state.find(path)?;
        let in_use = |why: String| Err(GroupError::InUse(format!("group `{path}` {why}")));
        let named = state.hierarchy.get(id).expect("it was found");
        if id == GroupId::ROOT {
            return Err(GroupError::Invalid("the root group stays".to_owned()));
        }
        if let Some(child) = named.children.keys().next() {
            return in_use(format!("has groups below it, as `{path}/{child}`"));
        }
        match named.group.members() {
            0 => {}
            1 => return in_use("has a member".to_owned()),
            n => return in_use(format!("has {n} members")),
        }
        state.hierarchy.remove(id);
        state.devices.iter().for_each(|device| device.remove_group(id));
        Ok(())
    }

    /// The group at `path`; that of the root is empty.
    pub fn find(&self, path: &str) -> Option<Arc<Group>> {
        let state = self.state();
        state.hierarchy.find(path).map(|id| state.group(id).clone())
    }

    /// Become a member of the group at `path`.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn join(&self, path: &str) -> Result<Member> {
        let state = self.state();
        state.find(path).map(|id| state.group(id).join())
    }

    /// All groups, a parent before its children, by name.
    pub fn list(&self) -> Vec<GroupReport> {
        let state = self.state();
        let all = state.hierarchy.subtree(GroupId::ROOT).into_iter();
        let report = |id| {
            let group = state.group(id);
            let (path, members) = (group.path().to_owned(), group.members());
            GroupReport { path, members, io_max: state.io_max(id) }
        };
        all.map(report).collect()
    }

    /// Change the limits of a group on a device.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn set_max(&self, path: &str, device: &str, change: &Change) -> Result<()> {
        let (path, device) = (path.to_owned(), device.to_owned());
        self.set_all(&[Setting { path, device, change: *change }])
    }

    /// Make all of these changes, or none if one is refused.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn set_all(&self, settings: &[Setting]) -> Result<()> {
        let state = self.state();
        let checked = settings.iter().map(|it| {
            let (id, device) = (state.find(&it.path)?, state.device(&it.device)?);
            check(id, &it.change)?;
            Ok((device, id, it.change))
        });
        let checked = checked.collect::<Result<Vec<_>>>()?;
        for device in &state.devices {
            let here = checked.iter().filter(|(at, ..)| Arc::ptr_eq(at, device));
            let limits =
                |(_, id, change): &(_, GroupId, Change)| (*id, device.limits(*id).changed(change));
            let limits: Vec<_> = here.map(limits).collect();
            if !limits.is_empty() {
                device.set_limits(&state.hierarchy, &limits);
            }
        }
        Ok(())
    }

    /// The limits of a group on each device where it has any.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn io_max(&self, path: &str) -> Result<Vec<(String, Limits)>> {
        let state = self.state();
        state.find(path).map(|id| state.io_max(id))
    }

    /// The I/O of a group and its descendants on each device where there was any. The root's own
    /// I/O is not counted: the device's statistics have the I/O of all groups together.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn io_stat(&self, path: &str) -> Result<IoStats> {
        let state = self.state();
        let groups = state.hierarchy.subtree(state.find(path)?);
        let stat = |device: &Arc<DeviceThrottle>| {
            let mut sum = IoStat::default();
            groups.iter().for_each(|group| sum += device.stat(*group));
            (device.name().to_owned(), sum)
        };
        let stats = state.devices.iter().map(stat);
        Ok(stats.filter(|(_, stat)| *stat != IoStat::default()).collect())
    }

    /// Restart the counts of a group and its descendants from zero. Returns the counts that
    /// [`Groups::io_stat`] would have shown for each of them, the group first. Each I/O is in the
    /// returned counts or in the new ones.
    ///
    /// # Errors
    /// [`GroupError`]
    pub fn reset_stat(&self, path: &str) -> Result<Vec<(String, IoStats)>> {
        let state = self.state();
        let groups = state.hierarchy.subtree(state.find(path)?);
        let mut stats: BTreeMap<GroupId, IoStats> = BTreeMap::new();
        for device in &state.devices {
            let mut sums: BTreeMap<GroupId, IoStat> = BTreeMap::new();
            for group in &groups {
                let own = device.reset_stat(*group);
                let above = state.hierarchy.chain(*group).into_iter();
                above.for_each(|group| *sums.entry(group).or_default() += own);
            }
            for (group, sum) in sums.into_iter().filter(|(_, sum)| *sum != IoStat::default()) {
                stats.entry(group).or_default().push((device.name().to_owned(), sum));
            }
        }
        let path = |group| state.group(group).path().to_owned();
        Ok(groups.iter().map(|it| (path(*it), stats.remove(it).unwrap_or_default())).collect())
    }
}

fn check(id: GroupId, change: &Change) -> Result<()> {
    if id == GroupId::ROOT {
        return Err(GroupError::Invalid("the root group has no limits".to_owned()));
    }
    let Change { rbps, wbps, riops, wiops } = change;
    match [rbps, wbps, riops, wiops].into_iter().any(|limit| *limit == Some(Some(0))) {
        true => Err(GroupError::Invalid("a limit is at least 1".to_owned())),
        false => Ok(()),
    }
}
