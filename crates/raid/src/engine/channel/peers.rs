//! The channels of an array as one of them reaches the others.
//!
//! Invariants:
//! * The own port is opened before the configuration is read for the first time, so that each later
//!   change finds the port. The port is closed when the array has been stopped and nothing of the
//!   channel is in flight ([`Peers::close`]), at the latest when `Peers` is dropped.
//! * `ports` may be older than the newest open ports: [`Peers::find`] refreshes it before each
//!   search.

use crate::engine::port::{Origin, Port, Ports};
use crate::engine::shared::Shared;
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, PortId, Subscription};
use std::sync::Arc;

/// See the module's text.
pub(super) struct Peers {
    shared: Arc<Shared>,
    own: Arc<Port>,
    ports: Subscription<Ports>,
}

impl Peers {
    /// Open a port for a channel whose items are of this origin.
    pub(super) fn open(
        shared: Arc<Shared>,
        origin: Origin,
        doorbell: Arc<Message>,
        locks: &LockCounters,
    ) -> Self {
        let own = shared.open_port(origin, doorbell);
        let ports = Subscription::new(&shared.ports, locks);
        Peers { shared, own, ports }
    }

    /// The own port.
    #[inline]
    pub(super) fn own(&self) -> &Port {
        &self.own
    }

    /// This channel brings member sectors to synchronise, not I/O of the array.
    #[inline]
    pub(super) fn is_sync(&self) -> bool {
        self.own.origin == Origin::Sync
    }

    /// The port of this number, if it is open.
    pub(super) fn find(&mut self, id: PortId, locks: &LockCounters) -> Option<&Arc<Port>> {
        if !self.ports.is_current(&self.shared.ports) {
            self.ports.refresh(&self.shared.ports, locks);
        }
        self.ports.get(id)
    }

    /// The kind of items that come through a port, if it is open.
    pub(super) fn origin_of(&mut self, id: PortId, locks: &LockCounters) -> Option<Origin> {
        match id == self.own.id() {
            true => Some(self.own.origin),
            false => self.find(id, locks).map(|port| port.origin),
        }
    }

    /// Note that items of a port are in the hands of another context. Returns the doorbell that
    /// tells the port's channel so, unless the channel knows already.
    pub(super) fn mark_remote(&mut self, id: PortId, locks: &LockCounters) -> Option<Arc<Message>> {
        if id == self.own.id() {
            self.own.set_remote();
            return None;
        }
        let port = self.find(id, locks).filter(|port| port.set_remote())?;
        Some(port.doorbell().clone())
    }

    /// Hand an item that has ended back to the channel that it came from. Returns that channel's
    /// doorbell.
    pub(super) fn hand_back(
        &mut self,
        item: Box<Bio>,
        locks: &LockCounters,
    ) -> Option<Arc<Message>> {
        let Some(port) = self.find(item.port, locks) else {
            debug_assert!(false, "a port stays open while items of it are in a shard");
            return None;
        };
        let mut list = BioList::new();
        list.push(item);
        port.done.add(&mut list);
        Some(port.doorbell().clone())
    }

    /// Take the items of this channel that others have ended.
    pub(super) fn take_done(&self) -> BioList {
        self.own.done.take()
    }

    /// Close the own port once nothing of the channel is in flight. True if no other thread can
    /// ring its doorbell any more.
    pub(super) fn close(&mut self) -> bool {
        self.shared.close_port(&self.own);
        // The old copy of the ports still refers to the own port.
        self.shared.refresh_ports(&mut self.ports);
        Port::is_ours_alone(&mut self.own)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.shared.close_port(&self.own);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::engine::shard::tests::conf;
    use drystone_core::ChannelId;
    use drystone_core::clock::ManualClock;
    use std::sync::Weak;

    const FIRST: PortId = PortId(0);
    const SECOND: PortId = PortId(1);
    const ABSENT: PortId = PortId(2);

    fn open(shared: &Arc<Shared>, origin: Origin, locks: &LockCounters) -> Peers {
        Peers::open(shared.clone(), origin, Message::to(Weak::new(), ChannelId(0), 0), locks)
    }

    #[test]
    fn items_go_back_to_the_port_that_they_came_through() {
        let locks = LockCounters::new(ManualClock::new(1));
        let shared = Shared::new("a", conf(3), &locks);
        let mut first = open(&shared, Origin::Io, &locks);
        let mut second = open(&shared, Origin::Sync, &locks);
        assert_eq!((first.own().id(), second.own().id()), (FIRST, SECOND));
        let mut item = Bio::flush();
        item.port = SECOND;
        assert_eq!(first.origin_of(SECOND, &locks), Some(Origin::Sync));
        assert_eq!(second.origin_of(FIRST, &locks), Some(Origin::Io));
        assert_eq!(
            (first.origin_of(FIRST, &locks), first.origin_of(ABSENT, &locks)),
            (Some(Origin::Io), None)
        );
        assert!(first.hand_back(item, &locks).is_some());
        assert_eq!((second.take_done().len(), first.take_done().len()), (1, 0));
        drop(second);
        assert!(first.find(SECOND, &locks).is_none());
    }

    #[test]
    fn a_channel_is_told_once_that_items_are_elsewhere() {
        let locks = LockCounters::new(ManualClock::new(1));
        let shared = Shared::new("a", conf(3), &locks);
        let mut first = open(&shared, Origin::Io, &locks);
        let second = open(&shared, Origin::Io, &locks);
        assert!(first.mark_remote(FIRST, &locks).is_none() && first.own().expects_remote());
        assert!(first.mark_remote(SECOND, &locks).is_some() && second.own().expects_remote());
        assert!(first.mark_remote(SECOND, &locks).is_none(), "it knows");
        second.own().clear_remote();
        assert!(first.mark_remote(SECOND, &locks).is_some());
    }

    #[test]
    fn the_channels_of_a_stopped_array_are_let_go_of() {
        let locks = LockCounters::new(ManualClock::new(1));
        let shared = Shared::new("a", conf(3), &locks);
        let mut first = open(&shared, Origin::Io, &locks);
        let mut second = open(&shared, Origin::Io, &locks);
        assert!(first.find(SECOND, &locks).is_some() && second.find(FIRST, &locks).is_some());
        assert!(!first.close(), "the other one has it");
        let ports = shared.ports();
        assert!(ports.get(FIRST).is_none() && ports.get(SECOND).is_some());
        drop(ports);
        assert!(!second.close(), "the first one has it as it was then");
        assert!(first.close() && second.close());
        let mut third = open(&shared, Origin::Io, &locks);
        let bell = third.own().doorbell().clone();
        assert!(!third.close(), "its doorbell may be on its way");
        drop(bell);
        assert!(third.close());
    }
}
