//! A device with its groups: their limits and counts on it, and its channels.
//!
//! Invariants:
//! * A thread that changes limits or groups holds the lock of [`crate::Groups`], so there is one at
//!   a time.
//! * Contexts read the rules by their epoch. A lane whose structure changes is closed before the
//!   new rules are published; after that its waiting bios go on by the new rules.
//! * The meters of a group exist from its first limit on the device until the group is removed.

use crate::budget::ticks_of;
use crate::counts::{Counted, GroupCounts};
use crate::dispatcher::Dispatcher;
use crate::group::GroupId;
use crate::hierarchy::Hierarchy;
use crate::lane::Lane;
use crate::limits::{Direction, IoStat, Limits};
use crate::meter::{Meter, Step};
use crate::rules::{Path, Ruled, Rules};
use crate::shared::Shared;
use drystone_core::clock::Clock;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A group's limits on a device (Linux: `blkcg_gq`).
#[derive(Default)]
struct Limited {
    limits: Limits,
    meters: [Arc<Meter>; 2],
}

#[derive(Default)]
struct Control {
    limited: BTreeMap<GroupId, Limited>,
    /// The device is closed.
    closed: bool,
}

/// See the module's text.
pub struct DeviceThrottle {
    name: String,
    clock: Arc<dyn Clock>,
    shared: Shared,
    counted: Lock<BTreeMap<GroupId, Counted>>,
    control: Lock<Control>,
    /// These count the lock of `counted`, and the locks of a thread that changes limits or groups.
    counted_locks: Arc<LockCounters>,
    control_locks: Arc<LockCounters>,
}

/// A change of groups' paths: the new rules, and the lanes that they replace.
struct Rebuilt {
    rules: Rules,
    closed: Vec<Arc<Lane>>,
}

impl DeviceThrottle {
    pub(crate) fn new(name: &str, clock: Arc<dyn Clock>, locks: &LockCounters) -> Arc<Self> {
        Arc::new(DeviceThrottle {
            name: name.to_owned(),
            clock,
            shared: Shared::new(),
            counted: Lock::new(LockClass::Control, BTreeMap::new()),
            control: Lock::new(LockClass::Control, Control::default()),
            counted_locks: locks.sibling(),
            control_locks: locks.sibling(),
        })
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The count of changes of groups and limits.
    #[inline]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch()
    }

    /// The rules and channels, as contexts read them.
    #[inline]
    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Counters for a channel's I/O of `group`.
    pub(crate) fn counts(&self, group: GroupId) -> Arc<GroupCounts> {
        self.counted().entry(group).or_default().for_channel()
    }

    /// Keep the counts of a channel that does not count for `group` any more.
    pub(crate) fn retire(&self, group: GroupId, counts: &Arc<GroupCounts>) {
        // The counts of a removed group are gone already.
        if let Some(counted) = self.counted().get_mut(&group) {
            counted.retire(counts);
        }
    }

    fn counted(&self) -> Guard<'_, BTreeMap<GroupId, Counted>> {
        self.counted.lock(&self.counted_locks)
    }

    pub(crate) fn stat(&self, group: GroupId) -> IoStat {
        self.counted().get(&group).map(Counted::get).unwrap_or_default()
    }

    pub(crate) fn reset_stat(&self, group: GroupId) -> IoStat {
        self.counted().get_mut(&group).map(Counted::reset).unwrap_or_default()
    }

    fn control(&self) -> Guard<'_, Control> {
        self.control.lock(&self.control_locks)
    }

    pub(crate) fn limits(&self, group: GroupId) -> Limits {
        self.control().limited.get(&group).map(|it| it.limits).unwrap_or_default()
    }

    /// Close the device: remove its groups, and let all waiting bios go.
    pub(crate) fn close(&self) {
        let mut control = self.control();
        control.closed = true;
        control.limited.clear();
        let rules = self.shared.rules(&self.control_locks).1;
        let closed = rules.lanes().cloned().collect();
        self.publish(Rebuilt { rules: Rules::default(), closed });
    }

    /// Set the limits of groups, all at once.
    pub(crate) fn set_limits(&self, hierarchy: &Hierarchy, all: &[(GroupId, Limits)]) {
        let mut control = self.control();
        if control.closed {
            return;
        }
        let mut changed = BTreeSet::new();
        for (group, limits) in all {
            if self.set_limit(&mut control, *group, limits) {
                changed.extend(hierarchy.subtree(*group));
            }
        }
        let rebuilt = self.rebuild(&control, hierarchy, changed);
        self.publish(rebuilt);
    }

    /// Set the limits of one group. True if the group has got its first limit in a direction, or
    /// has lost its last one.
    fn set_limit(&self, control: &mut Control, group: GroupId, limits: &Limits) -> bool {
        let entry = control.limited.entry(group).or_default();
        let before = std::mem::replace(&mut entry.limits, *limits);
        let rules = self.shared.rules(&self.control_locks).1;
        let mut structural = false;
        for direction in Direction::ALL {
            let meter = &entry.meters[direction as usize];
            let was = meter.is_limited();
            if before.of(direction) != limits.of(direction) {
                self.set_rates(meter, rules.path(group, direction), limits.of(direction));
            }
            structural |= was != meter.is_limited();
        }
        structural
    }

    fn set_rates(
        &self,
        meter: &Meter,
        path: Option<&Arc<Path>>,
        (bps, iops): (Option<u64>, Option<u64>),
    ) {
        let set = || meter.set_rates(ticks_of(self.clock.now()), bps, iops);
        match path {
            Some(path) => path.lane.change_limits(&self.control_locks, set),
            None => set(),
        }
    }

    /// Add new groups.
    pub(crate) fn add_groups(&self, hierarchy: &Hierarchy, groups: &[GroupId]) {
        let control = self.control();
        if !control.closed {
            let rebuilt = self.rebuild(&control, hierarchy, groups.iter().copied().collect());
            self.publish(rebuilt);
        }
    }

    /// Remove group `id`, which has no children, and let its bios go.
    pub(crate) fn remove_group(&self, id: GroupId) {
        let mut control = self.control();
        let (epoch, before) = self.shared.rules(&self.control_locks);
        let mut rules = Rules::clone(&before);
        rules.remove(id);
        self.publish(Rebuilt { rules, closed: Vec::new() });
        let paths = before.get(id).map(|ruled| ruled.paths.clone()).unwrap_or_default();
        for path in paths.iter().flatten() {
            let mut dispatcher = self.dispatcher(epoch, &before);
            dispatcher.release(&path.lane, id);
            dispatcher.run(&path.lane);
            tell(dispatcher);
        }
        control.limited.remove(&id);
        self.counted().remove(&id);
    }

    fn dispatcher<'a>(&'a self, epoch: u64, rules: &'a Rules) -> Dispatcher<'a> {
        let now = self.clock.now();
        Dispatcher::new(&self.shared, (epoch, rules), &self.control_locks, now, None)
    }

    /// Publish new rules, and have all waiting bios go on by them.
    fn publish(&self, rebuilt: Rebuilt) {
        rebuilt.closed.iter().for_each(|lane| lane.close(&self.control_locks));
        self.shared.set_rules(rebuilt.rules, &self.control_locks);
        let (epoch, rules) = self.shared.rules(&self.control_locks);
        let mut dispatcher = self.dispatcher(epoch, &rules);
        if !drystone_core::mutated!("lane_parked") {
            rebuilt.closed.iter().for_each(|lane| dispatcher.run(lane));
        }
        // A raised limit may let bios go at once.
        rules.lanes().filter(|lane| lane.has_bios()).for_each(|lane| dispatcher.run(lane));
        tell(dispatcher);
        self.shared
            .ports(&self.control_locks)
            .iter()
            .for_each(|port| port.doorbell().clone().send_and_kick());
    }

    /// New paths for `groups`, and for all groups that share lanes with them.
    fn rebuild(&self, control: &Control, tree: &Hierarchy, groups: BTreeSet<GroupId>) -> Rebuilt {
        let (_, before) = self.shared.rules(&self.control_locks);
        let mut build =
            Build { control, tree, before: &before, closed: Vec::new(), lanes: BTreeMap::new() };
        for group in &groups {
            build.note_closed(*group);
        }
        let shared: Vec<GroupId> =
            build.closed.iter().flat_map(|lane| tree.subtree(lane.top())).collect();
        let mut rules = Rules::clone(&before);
        for group in groups.into_iter().chain(shared).collect::<BTreeSet<GroupId>>() {
            if let Some(named) = tree.get(group).filter(|_| group != GroupId::ROOT) {
                rules.set(build.ruled(group).map_or_else(|| named.free.clone(), Arc::new));
            }
        }
        Rebuilt { rules, closed: build.closed }
    }
}

/// The construction of paths.
struct Build<'a> {
    control: &'a Control,
    tree: &'a Hierarchy,
    before: &'a Rules,
    closed: Vec<Arc<Lane>>,
    /// New lanes, by topmost group and direction.
    lanes: BTreeMap<(GroupId, usize), Arc<Lane>>,
}

impl Build<'_> {
    fn steps(&self, group: GroupId, direction: Direction) -> Option<Box<[Step]>> {
        let meter = |group: GroupId| {
            let meter = &self.control.limited.get(&group)?.meters[direction as usize];
            meter.is_limited().then(|| meter.clone())
        };
        let step = |group: GroupId| Step { group, meter: meter(group) };
        let mut steps: Vec<Step> = self.tree.chain(group).into_iter().map(step).collect();
        let top = steps.iter().rposition(|step| step.meter.is_some())?;
        steps.truncate(top + 1);
        Some(steps.into())
    }

    /// Note the lanes that `group` leaves because its path changes.
    fn note_closed(&mut self, group: GroupId) {
        for direction in Direction::ALL {
            let Some(before) = self.before.path(group, direction) else { continue };
            if self.steps(group, direction).as_ref() != Some(&before.steps) {
                add_lane(&mut self.closed, &before.lane);
            }
        }
    }

    /// The group's paths; `None` if it has none.
    fn ruled(&mut self, group: GroupId) -> Option<Ruled> {
        let paths = Direction::ALL.map(|direction| {
            let steps = self.steps(group, direction)?;
            let lane = self.lane(steps.last()?.group, direction);
            Some(Arc::new(Path { steps, lane }))
        });
        paths.iter().any(Option::is_some).then_some(Ruled { id: group, paths })
    }

    fn lane(&mut self, top: GroupId, direction: Direction) -> Arc<Lane> {
        let closed = &self.closed;
        let known = self.before.path(top, direction).map(|path| &path.lane);
        let stays = known.filter(|lane| {
            lane.top() == top && !closed.iter().any(|closed| Arc::ptr_eq(closed, lane))
        });
        let new = || stays.cloned().unwrap_or_else(|| Lane::new(top));
        self.lanes.entry((top, direction as usize)).or_insert_with(new).clone()
    }
}

fn add_lane(lanes: &mut Vec<Arc<Lane>>, lane: &Arc<Lane>) {
    if !lanes.iter().any(|other| Arc::ptr_eq(other, lane)) {
        lanes.push(lane.clone());
    }
}

fn tell(dispatcher: Dispatcher<'_>) {
    let told = dispatcher.into_told();
    told.iter().for_each(|port| port.doorbell().clone().send_and_kick());
}
