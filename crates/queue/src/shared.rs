//! State that the channels of a device share.
//!
//! Invariant: a port is opened before its channel hands over its first bio, and closed after the
//! channel has taken back its last one.

use crate::config::{Config, ConfigCell};
use crate::queues::QueueMap;
use crate::scheduler::{CurrentHctx, Port, PortState, Scheduler};
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::stats::DeviceStats;
#[cfg(all(test, not(loom)))]
use drystone_core::sync::LockClass;
use drystone_core::sync::{Lock, LockCounters};
use drystone_core::{ContextId, Holders, Subscription};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*, fence};
use std::sync::{Arc, Weak};

/// The time until which the driver takes no scheduled unit (Linux `BLK_STS_DEV_RESOURCE`): the
/// greatest time means until the next completion, 0 means not busy.
///
/// Invariant: a context that ends the busy time passes a full fence and then tries the scheduler's
/// turn. A holder of the turn that found the device busy leaves the turn, passes a full fence and
/// reads the busy time again. So one of the two dispatches.
#[derive(Default)]
pub(crate) struct DeviceBusy(AtomicU64);

impl DeviceBusy {
    /// Make the device busy until `until`, or until the next completion if that is the greatest
    /// time.
    pub(crate) fn set(&self, until: Ns) {
        self.0.store(until, Release);
    }

    /// End the busy time if it is over at `now`. True if the device is still busy.
    #[inline]
    pub(crate) fn update(&self, now: Ns) -> bool {
        match self.0.load(Acquire) {
            0 => false,
            Ns::MAX => true,
            until if until > now => true,
            until => {
                let _ = self.0.compare_exchange(until, 0, AcqRel, Relaxed);
                fence(SeqCst);
                false
            }
        }
    }

    /// End a busy time that lasts until a completion, because a request completed.
    #[inline]
    pub(crate) fn completed(&self) {
        if self.0.load(Relaxed) == Ns::MAX {
            let _ = self.0.compare_exchange(Ns::MAX, 0, AcqRel, Relaxed);
            fence(SeqCst);
        }
    }

    /// The end of the busy time, if it is known.
    pub(crate) fn deadline(&self) -> Option<Ns> {
        let until = self.0.load(Acquire);
        (until != 0 && until != Ns::MAX).then_some(until)
    }
}

/// State that the channels of a device share.
pub(crate) struct Shared<D, S> {
    pub(crate) name: String,
    pub(crate) driver: D,
    pub(crate) config: ConfigCell,
    pub(crate) stats: DeviceStats,
    pub(crate) holders: Holders,
    pub(crate) scheduler: S,
    /// While the driver takes nothing, no channel dispatches units of the scheduler.
    pub(crate) busy: DeviceBusy,
    /// The channels that a retired device had when it was retired.
    pub(crate) retired: Lock<Vec<Weak<Port>>>,
    /// Counts the lock of `retired`; the lock's holder writes it.
    pub(crate) retired_locks: Arc<LockCounters>,
    /// Counts the lock of `config`; the lock's holder writes it.
    pub(crate) locks: Arc<LockCounters>,
    pub(crate) read_only: bool,
    /// The `write_cache` of the limits, for those who must not wait for `config`.
    pub(crate) has_volatile_cache: AtomicBool,
}

impl<D, S: Scheduler> Shared<D, S> {
    /// The shared state of a device with `driver`, without a scheduler.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn for_test(driver: D) -> Self {
        let locks = LockCounters::new(drystone_core::clock::ManualClock::new(1));
        Shared {
            name: "d0".to_owned(),
            driver,
            config: ConfigCell::new(Config::for_test()),
            stats: DeviceStats::new(locks.sibling()),
            holders: Holders::new(locks.sibling()),
            scheduler: S::default(),
            busy: DeviceBusy::default(),
            retired: Lock::new(LockClass::Control, Vec::new()),
            retired_locks: locks.sibling(),
            locks,
            read_only: false,
            has_volatile_cache: AtomicBool::new(true),
        }
    }

    /// Open a port for a new channel of `context`, which starts with the present queues.
    pub(crate) fn open_port(
        &self,
        context: ContextId,
        doorbell: Arc<Message>,
        locks: &LockCounters,
    ) -> (Arc<Port>, QueueMap) {
        let mut made = None;
        let added = self.config.update(locks, |config| {
            let slot = config.map.slot_of(context);
            let at = CurrentHctx::new(slot.hctx, slot.hint);
            let state = PortState::new(at, config.map.hw().depth);
            let port = config.ports.open(doorbell, state);
            made = Some((port, config.map.clone()));
            Ok(())
        });
        debug_assert!(added.is_ok());
        made.expect("the update ran")
    }

    /// Refresh a copy of the configuration, counted in the device's own lock counts.
    pub(crate) fn refresh(&self, config: &mut Subscription<Config>) {
        config.refresh(&self.config, &self.locks);
    }

    /// Close the port of a channel that has nothing with the scheduler any more and ends.
    pub(crate) fn close_port(&self, port: &Port) {
        let again = self.scheduler.closed(port, &self.locks, &mut || {
            let removed = self.config.update(&self.locks, |config| {
                config.ports.close(port);
                Ok(())
            });
            debug_assert!(removed.is_ok());
        });
        if again {
            let ports = self.config.get(&self.locks).1.ports.clone();
            ports.iter().for_each(|port| port.doorbell().clone().send_and_kick());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_busy_until_its_time_or_a_completion() {
        let busy = DeviceBusy::default();
        assert!(!busy.update(5) && busy.deadline().is_none());
        busy.set(10);
        busy.completed();
        assert!(busy.update(9) && busy.deadline() == Some(10));
        assert!(!busy.update(10) && busy.deadline().is_none() && !busy.update(0));
        busy.set(Ns::MAX);
        assert!(busy.update(Ns::MAX - 1) && busy.deadline().is_none());
        busy.completed();
        assert!(!busy.update(0));
    }
}
