//! A device's groups as a throttle of another kind sees them: their limits, and where to count. For
//! laboratories, which put others in the place of [`DeviceThrottle`] ([`crate::Throttle`]).

use crate::counts::GroupCounts;
use crate::device::DeviceThrottle;
use crate::group::GroupId;
use crate::limits::{Direction, counted_at};
use crate::rules::Path;
use drystone_core::Bio;
use drystone_core::sync::LockCounters;
use std::sync::Arc;

/// A limit on a group's way to the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The group that has it: the group itself or one above.
    pub group: GroupId,
    /// Bytes a second.
    pub bps: Option<u64>,
    /// I/Os a second.
    pub iops: Option<u64>,
}

/// A group, and the limits that bind it on a device, its own first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Its number.
    pub group: GroupId,
    /// The limits of its reads.
    pub reads: Vec<Bound>,
    /// The limits of operations that change the device's data.
    pub writes: Vec<Bound>,
}

/// Counts I/O of one group on a device, into what [`crate::Groups::io_stat`] shows. Its counts stay
/// when it is dropped.
pub struct GroupCounter {
    device: Arc<DeviceThrottle>,
    group: GroupId,
    counts: Arc<GroupCounts>,
}

impl GroupCounter {
    /// `bio` passed.
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
    /// All groups but the root with what binds them, and the count of changes by which the reader
    /// sees that they are old ([`DeviceThrottle::epoch`]). Takes a lock, counted for `locks`.
    pub fn bounds(&self, locks: &LockCounters) -> (u64, Vec<Bounds>) {
        let (epoch, rules) = self.shared().rules(locks);
        let groups = rules.groups.iter().flatten().map(|ruled| Bounds {
            group: ruled.id,
            reads: bounds(ruled.path(Direction::Read)),
            writes: bounds(ruled.path(Direction::Write)),
        });
        (epoch, groups.collect())
    }

    /// A counter for I/O of `group`, with one writer at a time. Takes a lock.
    pub fn counter(self: &Arc<Self>, group: GroupId) -> GroupCounter {
        GroupCounter { device: self.clone(), group, counts: self.counts(group) }
    }
}
