//! The ports of the channels of one device: each channel has one, and the others find it by its
//! number.
//!
//! Invariants:
//! * No two ports of a device have the same number at a time; the lowest that is free is given
//!   first.
//! * [`Ports`] is a value that does not change once it is shared: it is published again
//!   ([`crate::Published`]) when a port is opened or closed.

use crate::mailbox::Message;
use crate::units::PortId;
use std::ops::Deref;
use std::sync::Arc;

/// A channel as the others know it. It reads as the state that it shares with them.
pub struct Port<P> {
    id: PortId,
    doorbell: Arc<Message>,
    state: P,
}

impl<P> Port<P> {
    /// Its number among the device's ports, free again when it is closed.
    #[inline]
    pub fn id(&self) -> PortId {
        self.id
    }

    /// The doorbell: it makes the channel look at its port.
    #[inline]
    pub fn doorbell(&self) -> &Arc<Message> {
        &self.doorbell
    }

    /// True if no other code has the port or its doorbell. For a port that is closed.
    pub fn is_ours_alone(port: &mut Arc<Self>) -> bool {
        Arc::get_mut(port).is_some_and(|port| Arc::get_mut(&mut port.doorbell).is_some())
    }
}

impl<P> Deref for Port<P> {
    type Target = P;

    #[inline]
    fn deref(&self) -> &P {
        &self.state
    }
}

/// The open ports of a device, by number. Equal if they are the same ports.
pub struct Ports<P>(Vec<Option<Arc<Port<P>>>>);

impl<P> Ports<P> {
    /// Port number `id`, if it is open.
    #[inline]
    pub fn get(&self, id: PortId) -> Option<&Arc<Port<P>>> {
        self.0.get(id.index())?.as_ref()
    }

    /// All of them, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Port<P>>> {
        self.0.iter().flatten()
    }

    /// Open a port with the lowest number that is free; `doorbell` reaches its channel.
    pub fn open(&mut self, doorbell: Arc<Message>, state: P) -> Arc<Port<P>> {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        let port = Arc::new(Port { id: PortId(free as u32), doorbell, state });
        self.0.resize(self.0.len().max(free + 1), None);
        self.0[free] = Some(port.clone());
        port
    }

    /// Close `port`; nothing happens if it is not open.
    pub fn close(&mut self, port: &Port<P>) {
        if let Some(entry) = self.0.get_mut(port.id.index()) {
            entry.take_if(|open| std::ptr::eq(&**open, port));
        }
    }
}

impl<P> Default for Ports<P> {
    fn default() -> Self {
        Ports(Vec::new())
    }
}

impl<P> Clone for Ports<P> {
    fn clone(&self) -> Self {
        Ports(self.0.clone())
    }
}

impl<P> std::fmt::Debug for Ports<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|port| port.id.0)).finish()
    }
}

impl<P> PartialEq for Ports<P> {
    fn eq(&self, other: &Self) -> bool {
        let address = |port: &Option<Arc<Port<P>>>| port.as_ref().map(Arc::as_ptr);
        self.0.iter().map(address).eq(other.0.iter().map(address))
    }
}

impl<P> Eq for Ports<P> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::units::ChannelId;

    fn open(ports: &mut Ports<&'static str>, state: &'static str) -> Arc<Port<&'static str>> {
        ports.open(Message::new(ChannelId(0), 0), state)
    }

    #[test]
    fn the_lowest_free_number_is_given_again() {
        let mut ports = Ports::default();
        let [a, b, c] = ["a", "b", "c"].map(|state| open(&mut ports, state));
        assert_eq!([a.id(), b.id(), c.id()], [PortId(0), PortId(1), PortId(2)]);
        let before = ports.clone();
        ports.close(&b);
        assert!(before != ports && ports.get(b.id()).is_none() && before.get(b.id()).is_some());
        let d = open(&mut ports, "d");
        ports.close(&b);
        let again = ***ports.get(b.id()).unwrap();
        assert_eq!((d.id(), again), (b.id(), "d"), "another one is not closed");
        assert!(before != ports, "another port has the number");
        assert_eq!(format!("{ports:?}"), "[0, 1, 2]");
        ports.close(&c);
        ports.close(&c);
        assert_eq!(ports.iter().map(|port| ***port).collect::<String>(), "ad");
    }

    #[test]
    fn a_port_is_ours_once_nobody_has_it_or_its_doorbell() {
        let mut ports = Ports::default();
        let mut port = open(&mut ports, "a");
        assert!(!Port::is_ours_alone(&mut port), "it is open");
        let bell = port.doorbell().clone();
        ports.close(&port);
        assert!(!Port::is_ours_alone(&mut port), "its doorbell may be on its way");
        drop(bell);
        assert!(Port::is_ours_alone(&mut port));
    }
}
