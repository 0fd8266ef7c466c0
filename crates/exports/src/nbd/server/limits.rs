//! The limits of a listener's connections: in all, and of one client.
//!
//! Invariant: a client takes a permit when it chooses its export. So a client without a certificate
//! that the listener demands never has one. The permit goes back when the connection is dropped or
//! its export cannot be opened.

use super::peer::{ClientKey, Peer};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The permits of a listener that are taken.
#[derive(Default)]
struct Taken {
    count: u32,
    by_client: BTreeMap<ClientKey, u32>,
}

/// The limits of a listener, and the permits taken.
#[derive(Clone)]
pub(super) struct ConnectionLimits(Arc<Lock<Taken>>);

impl Default for ConnectionLimits {
    fn default() -> Self {
        ConnectionLimits(Arc::new(Lock::new(LockClass::Control, Taken::default())))
    }
}

impl ConnectionLimits {
    /// Takes a permit for `peer`, where there are `most`, and `most_of_one` for each client.
    ///
    /// # Errors
    /// The reason why there is none, for the client.
    pub(super) fn take(
        &self,
        peer: &Peer,
        (most, most_of_one): (u32, u32),
        user: &Arc<LockCounters>,
    ) -> Result<Permit, &'static str> {
        let client = peer.client_key();
        let mut taken = self.0.lock(user);
        if taken.count >= most {
            return Err("the server has as many connections as max_connections allows");
        }
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        if of_client >= most_of_one {
            return Err("this client has as many connections as max_connections_per_client allows");
        }
        taken.count += 1;
        taken.by_client.insert(client.clone(), of_client + 1);
        drop(taken);
        Ok(Permit { limits: self.clone(), client, user: user.clone() })
    }
}

/// A permit for one connection, until it is dropped.
pub(super) struct Permit {
    limits: ConnectionLimits,
    client: ClientKey,
    /// Counts the locks of the thread that it belongs to.
    user: Arc<LockCounters>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = self.limits.0.lock(&self.user);
        taken.count -= 1;
        if let Some(count) = taken.by_client.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                taken.by_client.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::server::peer::Origin;
    use crate::nbd::tls::PeerNames;
    use drystone_core::clock::ManualClock;

    fn peer(uid: u32, name: Option<&str>) -> Peer {
        let names = name
            .map(|name| PeerNames { common_name: Some(name.to_owned()), ..PeerNames::default() });
        Peer::new(Origin::User(uid), names)
    }

    #[test]
    fn permits_are_bounded_in_all_and_for_each_client() {
        let user = LockCounters::new(ManualClock::new(1));
        let limits = ConnectionLimits::default();
        let take = |peer: &Peer| limits.take(peer, (4, 2), &user);
        let first = take(&peer(1, None)).ok();
        let _second = take(&peer(1, None)).ok().unwrap();
        assert!(take(&peer(1, None)).err().unwrap().contains("per_client"));
        let _named = take(&peer(1, Some("alice"))).ok().unwrap();
        let _other = take(&peer(2, None)).ok().unwrap();
        assert!(take(&peer(3, None)).err().unwrap().ends_with("max_connections allows"));
        drop(first);
        assert!(take(&peer(1, None)).is_ok(), "a permit was given back");
    }
}
