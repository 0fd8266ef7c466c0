//! A device's rules and channels, as all of its contexts read them.
//!
//! Invariant: both are published as a whole, and never changed in place.

use crate::port::{Port, PortState, Ports};
use crate::rules::Rules;
use drystone_core::Published;
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use std::sync::Arc;

/// See the module's text.
pub(crate) struct Shared {
    rules: Published<Rules>,
    ports: Published<Ports>,
}

impl Shared {
    /// A device without groups and channels.
    pub(crate) fn new() -> Self {
        let (rules, ports) = (Rules::default(), Ports::default());
        Shared { rules: Published::new(rules), ports: Published::new(ports) }
    }

    /// The count of changes of the rules.
    #[inline]
    pub(crate) fn epoch(&self) -> u64 {
        self.rules.epoch()
    }

    /// The rules, for a subscription.
    #[inline]
    pub(crate) fn published_rules(&self) -> &Published<Rules> {
        &self.rules
    }

    /// The rules and their epoch.
    pub(crate) fn rules(&self, locks: &LockCounters) -> (u64, Arc<Rules>) {
        self.rules.get(locks)
    }

    /// Publish other rules.
    pub(crate) fn set_rules(&self, new: Rules, locks: &LockCounters) {
        let published = self.rules.update(locks, |rules| {
            *rules = new;
            Ok(())
        });
        debug_assert!(published.is_ok());
    }

    /// All channels.
    pub(crate) fn ports(&self, locks: &LockCounters) -> Arc<Ports> {
        self.ports.get(locks).1
    }

    /// Open a channel.
    pub(crate) fn open_port(&self, doorbell: Arc<Message>, locks: &LockCounters) -> Arc<Port> {
        let mut port = None;
        let opened = self.ports.update(locks, |ports| {
            port = Some(ports.open(doorbell, PortState::default()));
            Ok(())
        });
        debug_assert!(opened.is_ok());
        port.expect("the update ran")
    }

    /// Close a channel.
    pub(crate) fn close_port(&self, port: &Arc<Port>, locks: &LockCounters) {
        let closed = self.ports.update(locks, |ports| {
            ports.close(port);
            Ok(())
        });
        debug_assert!(closed.is_ok());
    }
}
