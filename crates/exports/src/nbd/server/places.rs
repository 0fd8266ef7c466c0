//! Who a client is, and how many connections of a listener there may be: in all, and of one client.
//!
//! Invariant: a place is taken when a client has chosen its export, so whoever has not shown a certificate
//! that the listener wants never has one; it is given back when the connection is forgotten.

use crate::nbd::tls::PeerNames;
use drystone_core::ring::peer_uid;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Where a connection comes from, as the operating system says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// A Unix socket that a process of this user connected.
    User(u32),
    /// This address of a network.
    Address(IpAddr),
    Unknown,
}

impl Origin {
    /// That of a connected socket.
    pub(super) fn of(socket: impl AsFd) -> Origin {
        let peer = rustix::net::getpeername(&socket).ok().flatten();
        if let Some(address) = peer.and_then(|peer| SocketAddr::try_from(peer).ok()) {
            return Origin::Address(address.ip().to_canonical());
        }
        peer_uid(&socket).map_or(Origin::Unknown, Origin::User)
    }

    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Origin::Address(address) => Some(*address),
            _ => None,
        }
    }

    pub(super) fn uid(&self) -> Option<u32> {
        match self {
            Origin::User(uid) => Some(*uid),
            _ => None,
        }
    }
}

/// Who a client is.
pub(super) struct Peer {
    pub(super) origin: Origin,
    /// The names in its certificate, once it has shown one.
    pub(super) names: Option<PeerNames>,
}

impl Peer {
    /// What its connections are counted under: the first name of its certificate, or else its origin.
    fn who(&self) -> Who {
        let name = self.names.iter().flat_map(PeerNames::all).next();
        name.map_or(Who::Origin(self.origin), |name| Who::Name(name.to_owned()))
    }
}

/// One client, whatever number of connections it has.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Name(String),
    Origin(Origin),
}

/// The places of a listener that are taken.
#[derive(Default)]
struct Taken {
    count: u32,
    by_client: BTreeMap<Who, u32>,
}

/// The places of a listener.
#[derive(Clone)]
pub(super) struct Places(Arc<Lock<Taken>>);

impl Default for Places {
    fn default() -> Self {
        Places(Arc::new(Lock::new(LockClass::Control, Taken::default())))
    }
}

impl Places {
    /// Take a place for `peer`, where there are `most`, and `most_of_one` for each client.
    ///
    /// # Errors
    /// Why there is none, for the client.
    pub(super) fn take(
        &self,
        peer: &Peer,
        (most, most_of_one): (u32, u32),
        user: &Arc<LockCounters>,
    ) -> Result<Place, &'static str> {
        let who = peer.who();
        let mut taken = self.0.lock(user);
        if taken.count >= most {
            return Err("the server has as many connections as max_connections allows");
        }
        let of_client = taken.by_client.get(&who).copied().unwrap_or(0);
        if of_client >= most_of_one {
            return Err("this client has as many connections as max_connections_per_client allows");
        }
        taken.count += 1;
        taken.by_client.insert(who.clone(), of_client + 1);
        drop(taken);
        Ok(Place { places: self.clone(), who, user: user.clone() })
    }
}

/// A place that is taken, until it is dropped.
pub(super) struct Place {
    places: Places,
    who: Who,
    /// Counts the locks of the thread that it belongs to.
    user: Arc<LockCounters>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.0.lock(&self.user);
        taken.count -= 1;
        if let Some(count) = taken.by_client.get_mut(&self.who) {
            *count -= 1;
            if *count == 0 {
                taken.by_client.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    fn peer(uid: u32, name: Option<&str>) -> Peer {
        let names = name
            .map(|name| PeerNames { common_name: Some(name.to_owned()), ..PeerNames::default() });
        Peer { origin: Origin::User(uid), names }
    }

    #[test]
    fn places_are_bounded_in_all_and_for_each_client() {
        let user = LockCounters::new(ManualClock::new(1));
        let places = Places::default();
        let take = |peer: &Peer| places.take(peer, (4, 2), &user);
        let first = take(&peer(1, None)).ok();
        let _second = take(&peer(1, None)).ok().unwrap();
        assert!(take(&peer(1, None)).err().unwrap().contains("per_client"));
        let _named = take(&peer(1, Some("alice"))).ok().unwrap();
        let _other = take(&peer(2, None)).ok().unwrap();
        assert!(take(&peer(3, None)).err().unwrap().ends_with("max_connections allows"));
        drop(first);
        assert!(take(&peer(1, None)).is_ok(), "a place was given back");
    }

    #[test]
    fn sockets_tell_who_connected_them() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(Origin::of(&one), Origin::User(rustix::process::getuid().as_raw()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Origin::of(&stream), Origin::Address(Ipv4Addr::LOCALHOST.into()));
    }
}
