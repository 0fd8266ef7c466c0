//! The statistics of a volume, as one of its channels counts them.
//!
//! Invariants:
//! * What passes in a call is published once a call, in one write for each group of operations.
//! * With `queue/iostats` off nothing is counted but the busy time.

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
    /// Those of a new channel.
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let stats = shared.stats.for_channel();
        Accounts { shared, stats, started: StartedCounts::default() }
    }

    /// A bio of `group` passes.
    #[inline]
    pub(super) fn start(&mut self, group: OpGroup) {
        self.started.add(group, 1);
    }

    /// Publish what passed in this call, if it is `counted`.
    #[inline]
    pub(super) fn publish(&mut self, counted: bool) {
        self.started.publish(counted.then_some(&*self.stats));
    }

    /// Bios come at `now`, while the channel is `busy` or not.
    #[inline]
    pub(super) fn submitted(&self, now: Ns, busy: bool) {
        self.shared.stats.busy.update(now, false, busy);
    }

    /// Bios have ended at `now`, which are counted if that is on; the channel is `busy` after that
    /// or not.
    #[inline]
    pub(super) fn ended(&self, done: &[RemappedDone], counted: bool, now: Ns, busy: bool) {
        for run in done.iter().filter(|_| counted) {
            let latency = now.saturating_sub(run.start_ns);
            self.stats.ended(run.group, run.count, run.bytes, latency);
        }
        self.shared.stats.busy.update(now, true, busy);
    }
}
