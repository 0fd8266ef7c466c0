//! The state that the device's one lock guards: the groups, their limits, and the charges.
//!
//! Invariants:
//! * The holder of the lock calls [`Queue::refresh`] before it looks a group up.
//! * Slices keep their charges while groups and limits change.

use drystone_core::clock::Ns;
use drystone_core::sync::{Lock, LockCounters};
use drystone_core::{Bio, Op};
use drystone_throttle::{Bound, DeviceThrottle, GroupCounter, GroupId};
use std::sync::Arc;

use super::slice::{SLICE_NS, Slice};
use super::table::Table;
use super::{QUEUE_LOCK, STATS_LOCK};

/// Bytes that a discard is charged, as in Linux.
const DISCARD_BYTES: u64 = 512;
/// The longest wait without another check, so that a bio notices a raised limit (Linux: 8 slices).
const LONGEST_NS: Ns = 8 * SLICE_NS;

/// A group on the device.
struct Group {
    bounds: [Vec<Bound>; 2],
    stats: Option<Lock<GroupCounter>>,
}

/// See the module's text.
#[derive(Default)]
pub(super) struct Queue {
    epoch: u64,
    groups: Table<Group>,
    /// By slot, for each direction.
    slices: Vec<[Slice; 2]>,
}

/// Reads are 0, writes 1.
pub(super) fn direction(bio: &Bio) -> usize {
    usize::from(bio.op.is_write())
}

impl Queue {
    /// A new queue behind the device's lock.
    pub(super) fn locked() -> Lock<Queue> {
        Lock::new(QUEUE_LOCK, Queue::default())
    }

    /// Take over changes of groups and limits.
    #[inline]
    pub(super) fn refresh(&mut self, device: &DeviceThrottle, locks: &LockCounters) {
        if device.epoch() != self.epoch {
            self.rebuild(device, locks);
        }
    }

    #[cold]
    fn rebuild(&mut self, device: &DeviceThrottle, locks: &LockCounters) {
        let (epoch, all) = device.bounds(locks);
        self.epoch = epoch;
        self.groups.rebuild(all, |now, before| Group {
            bounds: [now.reads, now.writes],
            stats: before.and_then(|group| group.stats),
        });
        self.slices.resize(self.groups.len(), Default::default());
    }

    /// Look up the group of `bio`, and charge `bio` at every limit on its way. Returns the time to
    /// ask again if a limit forbids it.
    #[inline]
    pub(super) fn charge(&mut self, bio: &Bio, now: impl FnOnce() -> Ns) -> Result<(), Ns> {
        let direction = direction(bio);
        match self.groups.get(GroupId::of(bio)) {
            Some(group) if !group.bounds[direction].is_empty() => {
                pay(&mut self.slices, &group.bounds[direction], bio, now())
            }
            _ => Ok(()),
        }
    }

    /// Count `bio`, which passes, under the lock of its group's statistics.
    #[inline]
    pub(super) fn count(&mut self, device: &Arc<DeviceThrottle>, locks: &LockCounters, bio: &Bio) {
        if let Some(group) = self.groups.get(GroupId::of(bio)) {
            let made = || Lock::new(STATS_LOCK, device.counter(GroupId::of(bio)));
            group.stats.get_or_insert_with(made).lock(locks).count(bio);
        }
    }
}

fn pay(slices: &mut [[Slice; 2]], bounds: &[Bound], bio: &Bio, now: Ns) -> Result<(), Ns> {
    let bytes = if bio.op == Op::Discard { DISCARD_BYTES } else { bio.bytes };
    let direction = direction(bio);
    let mut wait = 0;
    for bound in bounds {
        let slice = &mut slices[bound.group.slot()][direction];
        wait = wait.max(slice.wait(now, (bound.bps, bound.iops), bytes));
    }
    if wait > 0 {
        return Err(now + wait.min(LONGEST_NS));
    }
    for bound in bounds {
        slices[bound.group.slot()][direction].charge(now, (bound.bps, bound.iops), bytes);
    }
    Ok(())
}
