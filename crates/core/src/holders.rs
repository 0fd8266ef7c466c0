//! The devices on top of a device, which hear of its changes (sysfs: `holders/`).
//!
//! Invariant: no lock is held while a holder is told, so it may ask the device, and have its own
//! holders told.

use crate::sync::{Lock, LockClass, LockCounters};
use std::sync::{Arc, Weak};

/// A device on top of others. Told from control threads only.
pub trait Holder: Send + Sync {
    /// Polling is about to end at a device below: no device above may count on it any more. It
    /// takes effect when this has returned.
    fn polling_ends(&self);

    /// Limits, size or the polling of a device below have changed.
    fn member_changed(&self);
}

/// The holders of a device.
pub struct Holders {
    list: Lock<Vec<Weak<dyn Holder>>>,
    locks: Arc<LockCounters>,
}

impl Holders {
    /// None. `locks` must be used for nothing else.
    pub fn new(locks: Arc<LockCounters>) -> Self {
        Holders { list: Lock::new(LockClass::Control, Vec::new()), locks }
    }

    /// `holder` stands on the device from now on.
    pub fn add(&self, holder: Weak<dyn Holder>) {
        let mut list = self.list.lock(&self.locks);
        list.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &holder));
        list.push(holder);
    }

    /// `holder` no longer stands on the device.
    pub fn remove(&self, holder: &Weak<dyn Holder>) {
        self.list.lock(&self.locks).retain(|other| !Weak::ptr_eq(other, holder));
    }

    /// See [`Holder::polling_ends`].
    pub fn polling_ends(&self) {
        self.each(|holder| holder.polling_ends());
    }

    /// See [`Holder::member_changed`].
    pub fn changed(&self) {
        self.each(|holder| holder.member_changed());
    }

    fn each(&self, tell: impl Fn(&dyn Holder)) {
        let list = self.list.lock(&self.locks).clone();
        list.iter().filter_map(Weak::upgrade).for_each(|holder| tell(&*holder));
    }
}
