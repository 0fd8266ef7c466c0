//! The bios that a channel has in flight, and its counts of them.
//!
//! Invariants:
//! * `items` counts the bios, or parts of them, that this channel brought to shards and has not got
//!   back.
//! * `member_io` counts the bios to members that this channel sent, for its own items or for those
//!   of other channels.
//! * `writes` counts the writes that passed and have not ended.
//! * `started` is published at the end of the call in which the bios came.

use drystone_core::context::RemappedDone;
use drystone_core::op::OpGroup;
use drystone_core::stats::{ChannelStats, StartedCounts};
use std::sync::Arc;

/// See the module's text.
pub(super) struct Traffic {
    items: usize,
    member_io: usize,
    writes: u64,
    /// Bios that passed in this call, by group.
    started: StartedCounts,
    stats: Arc<ChannelStats>,
}

impl Traffic {
    pub(super) fn new(stats: Arc<ChannelStats>) -> Self {
        Traffic { items: 0, member_io: 0, writes: 0, started: StartedCounts::default(), stats }
    }

    /// Count bios of the array that have passed.
    #[inline]
    pub(super) fn start(&mut self, group: OpGroup, bios: u64) {
        self.started.add(group, bios);
    }

    /// Count a write that has passed.
    #[inline]
    pub(super) fn start_write(&mut self) {
        self.writes += 1;
    }

    /// Count bios that had passed and have ended, at time `now`.
    #[inline]
    pub(super) fn end(&mut self, ended: &RemappedDone, now: u64) {
        if ended.group == OpGroup::Write {
            self.writes -= ended.count;
        }
        let latency = now.saturating_sub(ended.start_ns);
        self.stats.ended(ended.group, ended.count, ended.bytes, latency);
    }

    /// Publish the bios that have passed in this call.
    #[inline]
    pub(super) fn publish_started(&mut self) {
        self.started.publish(Some(&self.stats));
    }

    /// Writes that passed and have not ended.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Count an item that goes to a shard.
    #[inline]
    pub(super) fn bring_item(&mut self) {
        self.items += 1;
    }

    /// Count an item that has come back.
    #[inline]
    pub(super) fn end_item(&mut self) {
        self.items -= 1;
    }

    /// An item of this channel is in a shard.
    #[inline]
    pub(super) fn has_items(&self) -> bool {
        self.items > 0
    }

    /// Count a bio that goes to a member.
    #[inline]
    pub(super) fn send(&mut self) {
        self.member_io += 1;
    }

    /// Count a bio that has come back from a member.
    #[inline]
    pub(super) fn receive(&mut self) {
        self.member_io -= 1;
    }

    /// Items and bios to members that have not come back.
    pub(super) fn in_flight(&self) -> usize {
        self.items + self.member_io
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;
    use drystone_core::stats::DeviceStats;
    use drystone_core::sync::LockCounters;

    #[test]
    fn what_has_passed_is_counted_until_it_ends() {
        let stats = DeviceStats::new(LockCounters::new(ManualClock::new(1)));
        let mut traffic = Traffic::new(stats.for_channel());
        traffic.start(OpGroup::Write, 1);
        traffic.start_write();
        traffic.start(OpGroup::Read, 3);
        assert_eq!(stats.sum().in_flight(), (0, 0), "the call has not ended");
        traffic.publish_started();
        traffic.publish_started();
        assert_eq!((stats.sum().in_flight(), traffic.writes()), ((3, 1), 1));
        let reads = RemappedDone { group: OpGroup::Read, start_ns: 5, count: 2, bytes: 8192 };
        traffic.end(&reads, 9);
        traffic.end(&RemappedDone { group: OpGroup::Write, count: 1, ..reads }, 9);
        assert_eq!((stats.sum().in_flight(), traffic.writes()), ((1, 0), 0));
    }

    #[test]
    fn items_and_member_io_are_in_flight() {
        let stats = DeviceStats::new(LockCounters::new(ManualClock::new(1)));
        let mut traffic = Traffic::new(stats.for_channel());
        traffic.bring_item();
        traffic.send();
        assert_eq!((traffic.in_flight(), traffic.has_items()), (2, true));
        traffic.end_item();
        assert_eq!((traffic.in_flight(), traffic.has_items()), (1, false));
        traffic.receive();
        assert_eq!(traffic.in_flight(), 0);
    }
}
