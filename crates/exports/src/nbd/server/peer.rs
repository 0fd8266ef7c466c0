//! A connection's client: where it comes from, and the certificate that it has shown.

use crate::nbd::tls::PeerNames;
use drystone_core::ring::peer_uid;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

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
    /// The origin of a connected socket.
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

/// The identity of a client, as far as it is known.
pub(super) struct Peer {
    origin: Origin,
    /// The names in its certificate, once it has shown one.
    names: Option<PeerNames>,
}

impl Peer {
    /// The client behind a connected socket.
    pub(super) fn of(socket: impl AsFd) -> Self {
        Peer::new(Origin::of(socket), None)
    }

    /// A client from `origin`, with the names in its certificate if it has shown one.
    pub(super) fn new(origin: Origin, names: Option<PeerNames>) -> Self {
        Peer { origin, names }
    }

    /// Notes the names in the client's certificate.
    pub(super) fn show_names(&mut self, names: Option<PeerNames>) {
        self.names = names;
    }

    /// The origin of the connection.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    /// The names in the client's certificate; none before it has shown one.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().flat_map(PeerNames::all)
    }

    /// The key under which its connections count: the first name of its certificate, or else its
    /// origin.
    pub(super) fn client_key(&self) -> ClientKey {
        let name = self.names().next();
        name.map_or(ClientKey::Origin(self.origin), |name| ClientKey::Name(name.to_owned()))
    }
}

/// The identity of a client for the count of its connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientKey {
    Name(String),
    Origin(Origin),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn sockets_tell_their_origin() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert_eq!(Origin::of(&one), Origin::User(rustix::process::getuid().as_raw()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        assert_eq!(Origin::of(&stream), Origin::Address(Ipv4Addr::LOCALHOST.into()));
    }

    #[test]
    fn a_certificate_counts_before_the_origin() {
        let named =
            |name: &str| PeerNames { common_name: Some(name.to_owned()), ..PeerNames::default() };
        let peer = |uid, names| Peer::new(Origin::User(uid), names);
        assert_ne!(peer(1, None).client_key(), peer(2, None).client_key());
        let alice = peer(1, Some(named("alice"))).client_key();
        assert_eq!(alice, peer(2, Some(named("alice"))).client_key());
        assert_ne!(alice, peer(1, None).client_key());
    }
}
