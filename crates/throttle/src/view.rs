//! A device's groups for another kind of throttle: their limits and their counters. Laboratories
//! use this to replace [`DeviceThrottle`] ([`crate::Throttle`]).

use crate::counts::GroupCounts;
use crate::device::DeviceThrottle;
use crate::group::GroupId;
use crate::limits::{Direction, counted_at};
use crate::rules::Path;
use drystone_core::Bio;
use drystone_core::sync::LockCounters;
use std::sync::Arc;

/// A limit on a group's path to the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The group that has the limit: the group itself or an ancestor.
    pub group: GroupId,
    /// Bytes per second.
    pub bps: Option<u64>,
    /// I/Os per second.
    pub iops: Option<u64>,
}

/// A group and the limits that bind it on a device, nearest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Its number.
    pub group: GroupId,
    /// The limits of its reads.
    pub reads: Vec<Bound>,
    /// The limits of operations that change the device's data.
    pub writes: Vec<Bound>,
}

/// Counts I/O of one group on a device, for [`crate::Groups::io_stat`]. The counts stay when the
/// counter is dropped.
pub struct GroupCounter {
    device: Arc<DeviceThrottle>,
    group: GroupId,
    counts: Arc<GroupCounts>,
}

impl GroupCounter {
    /// Count `bio`, which passed.
    #[inline]
    pub fn count(&mut self, bio: &Bio) {
        self.counts.passed(counted_at(bio), bio.bytes, 1);
    }
}

impl Drop for GroupCounter {
    fn drop(&mut self) {
        self.device.retire(self.group, &self.counts);
    }
}

fn bounds(path: Option<&Arc<Path>>) -> Vec<Bound> {
    let steps = path.map_or(&[][..], |path| &path.steps[..]);
    let bound = |meter: &Arc<crate::meter::Meter>, group| Bound {
        group,
        bps: meter.bps.rate(),
        iops: meter.iops.rate(),
    };
    steps.iter().filter_map(|step| step.meter.as_ref().map(|it| bound(it, step.group))).collect()
}

impl DeviceThrottle {
    /// All groups except the root, with the limits that bind them, and the count of changes; a
    /// reader compares that with [`DeviceThrottle::epoch`]. Takes a lock, counted in `locks`.
    pub fn bounds(&self, locks: &LockCounters) -> (u64, Vec<Bounds>) {
        let (epoch, rules) = self.shared().rules(locks);
        let groups = rules.groups.iter().flatten().map(|ruled| Bounds {
            group: ruled.id,
            reads: bounds(ruled.path(Direction::Read)),
            writes: bounds(ruled.path(Direction::Write)),
        });
        (epoch, groups.collect())
    }

    /// A counter for I/O of `group`, which has one writer at a time. Takes a lock.
    pub fn counter(self: &Arc<Self>, group: GroupId) -> GroupCounter {
        GroupCounter { device: self.clone(), group, counts: self.counts(group) }
    }
}
