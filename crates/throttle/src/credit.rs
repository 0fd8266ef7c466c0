//! Local credit: the bytes and I/Os that a context may pass for a group and direction without a
//! write to shared memory.
//!
//! Invariants:
//! * Credit was charged in advance at every limit on the path, the same amount at each.
//! * `leased` is the leased amount at the time of the filling, so it is at least the rest.

use crate::budget::{Budget, UNLIMITED, ticks_of};
use crate::hierarchy::DEPTH_MAX;
use crate::meter::Meter;
use crate::rules::Path;
use drystone_core::clock::Ns;
use std::sync::Arc;

/// A number of bytes and a number of I/Os.
type Both = (u64, u64);

/// See the module's text.
#[derive(Default)]
pub(crate) struct LocalCredit {
    bytes: u64,
    ios: u64,
    leased: Both,
}

impl LocalCredit {
    /// The credit of a group without limits.
    pub(crate) fn unlimited() -> Self {
        LocalCredit { bytes: UNLIMITED, ios: UNLIMITED, leased: (0, 0) }
    }

    /// The group has no limits.
    #[inline]
    pub(crate) fn is_unlimited(&self) -> bool {
        self.ios == UNLIMITED && self.bytes == UNLIMITED
    }

    /// Spend the cost of an I/O of `bytes`, if the credit suffices. Unlimited credit stays
    /// unlimited.
    #[inline]
    pub(crate) fn try_spend(&mut self, bytes: u64) -> bool {
        self.try_spend_all(bytes, 1)
    }

    /// The same for `ios` I/Os, of `bytes` in all.
    #[inline]
    pub(crate) fn try_spend_all(&mut self, bytes: u64, ios: u64) -> bool {
        let enough = (self.bytes >= bytes || self.bytes == UNLIMITED) && self.ios >= ios;
        if enough {
            self.bytes -= if self.bytes == UNLIMITED { 0 } else { bytes };
            self.ios -= if self.ios == UNLIMITED { 0 } else { ios };
        }
        enough
    }

    /// Give the rest of the credit back. False if there is none.
    pub(crate) fn give_back(&mut self, path: &Path) -> bool {
        let left = std::mem::take(self);
        for meter in path.meters() {
            meter.bps.give_back(left.bytes.min(left.leased.0), left.leased.0);
            meter.iops.give_back(left.ios.min(left.leased.1), left.leased.1);
        }
        left.leased != (0, 0)
    }

    /// Pay for an I/O of `bytes` at every limit of `path`, if it may pass at `now`, and take a
    /// lease with it. The credit must be empty.
    pub(crate) fn fill(&mut self, path: &Path, now: Ns, bytes: u64) -> bool {
        let mut got = [(0, 0); DEPTH_MAX];
        for (at, meter) in path.meters().enumerate() {
            let Some(lease) = take(meter, now, bytes) else {
                let paid = path.meters().zip(&got[..at]);
                paid.for_each(|(meter, lease)| give_up(meter, bytes, *lease));
                return false;
            };
            got[at] = lease;
        }
        let all = path.meters().zip(&got);
        let least = all.clone().fold((UNLIMITED, UNLIMITED), |least, (_, lease)| {
            (least.0.min(lease.0), least.1.min(lease.1))
        });
        for (meter, lease) in all {
            trim(&meter.bps, lease.0, least.0);
            trim(&meter.iops, lease.1, least.1);
        }
        let limited = |lease| if lease == UNLIMITED { 0 } else { lease };
        let leased = (limited(least.0), limited(least.1));
        *self = LocalCredit { bytes: least.0, ios: least.1, leased };
        true
    }
}

/// Pay at one meter, for bytes and I/Os, or for neither.
fn take(meter: &Arc<Meter>, now: Ns, bytes: u64) -> Option<Both> {
    let now = ticks_of(now);
    let lease = meter.bps.take(now, bytes)?;
    match meter.iops.take(now, 1) {
        Some(ios) => Some((lease, ios)),
        None => {
            undo(&meter.bps, bytes, lease);
            None
        }
    }
}

fn give_up(meter: &Meter, bytes: u64, lease: Both) {
    undo(&meter.bps, bytes, lease.0);
    undo(&meter.iops, 1, lease.1);
}

/// Give back a charge and its lease.
fn undo(budget: &Budget, charged: u64, lease: u64) {
    if lease != UNLIMITED {
        budget.give_back(charged.saturating_add(lease), lease);
    }
}

/// Keep only `least` units of a lease.
fn trim(budget: &Budget, lease: u64, least: u64) {
    if lease != UNLIMITED && lease > least {
        budget.give_back(lease - least, lease - least);
    }
}
