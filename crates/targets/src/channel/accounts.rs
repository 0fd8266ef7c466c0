//! The statistics of a volume, as one of its channels counts them.
//!
//! Invariants:
//! * I/O that passes is published once in each call, with one write for each group of operations.
//! * With `queue/iostats` off only the busy time is counted.

use crate::shared::Shared;
use drystone_core::clock::Ns;
use drystone_core::context::RemappedDone;
use drystone_core::op::OpGroup;
use drystone_core::stats::{ChannelStats, StartedCounts};
use std::sync::Arc;

/// See the module's text.
pub(super) struct Accounts {
    shared: Arc<Shared>,
    stats: Arc<ChannelStats>,
    /// Bios that passed in this call.
    started: StartedCounts,
}

impl Accounts {
    /// The accounts of a new channel.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let stats = shared.stats.for_channel();
        Accounts { shared, stats, started: StartedCounts::default() }
    }

    /// Count a bio of `group` that passes.
    #[inline]
    pub(super) fn start(&mut self, group: OpGroup) {
        self.started.add(group, 1);
    }

    /// Publish the bios that passed in this call, if `counted`.
    #[inline]
    pub(super) fn publish(&mut self, counted: bool) {
        self.started.publish(counted.then_some(&*self.stats));
    }

    /// Note at `now` that bios come, and whether the channel was `busy` before them.
    #[inline]
    pub(super) fn submitted(&self, now: Ns, busy: bool) {
        self.shared.stats.busy.update(now, false, busy);
    }

    /// Note that bios have ended at `now`, and whether the channel is still `busy`. Counts the bios
    /// if `counted`.
    #[inline]
    pub(super) fn ended(&self, done: &[RemappedDone], counted: bool, now: Ns, busy: bool) {
        for run in done.iter().filter(|_| counted) {
            let latency = now.saturating_sub(run.start_ns);
            self.stats.ended(run.group, run.count, run.bytes, latency);
        }
        self.shared.stats.busy.update(now, true, busy);
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::shared;
    use super::*;

    #[test]
    fn bios_are_published_once_a_call_and_only_if_they_are_counted() {
        let shared = shared();
        let mut accounts = Accounts::new(shared.clone());
        let started = |group| shared.stats.sum().group(group).started;
        accounts.start(OpGroup::Read);
        accounts.start(OpGroup::Read);
        accounts.start(OpGroup::Flush);
        assert_eq!(started(OpGroup::Read), 0, "the call is not over");
        accounts.publish(true);
        accounts.publish(true);
        assert_eq!([OpGroup::Read, OpGroup::Write, OpGroup::Flush].map(started), [2, 0, 1]);
        accounts.start(OpGroup::Read);
        accounts.publish(false);
        accounts.publish(true);
        assert_eq!(started(OpGroup::Read), 2, "it was not counted in its call");
    }

    #[test]
    fn the_end_of_bios_is_counted_with_their_time_if_that_is_on() {
        let shared = shared();
        let accounts = Accounts::new(shared.clone());
        let run =
            |start_ns| RemappedDone { group: OpGroup::Write, start_ns, count: 2, bytes: 8192 };
        accounts.ended(&[run(100), run(300)], false, 400, false);
        assert_eq!(shared.stats.sum().group(OpGroup::Write).completed, 0);
        accounts.ended(&[run(100), run(300)], true, 400, false);
        let stats = *shared.stats.sum().group(OpGroup::Write);
        assert_eq!((stats.completed, stats.sectors, stats.time_ns), (4, 32, 2 * 300 + 2 * 100));
    }

    #[test]
    fn the_busy_time_is_counted_though_nothing_else_is() {
        const MS: Ns = 1_000_000;
        let shared = shared();
        let accounts = Accounts::new(shared.clone());
        accounts.submitted(5 * MS, false);
        accounts.ended(&[], false, 9 * MS, false);
        assert!(shared.stats.sum().io_ticks_ms > 0);
    }
}
