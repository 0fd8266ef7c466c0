//! How new connections and sessions reach the worker that will serve them.

use crate::fuse::server::Incoming as Session;
use crate::nbd::server::Incoming;
use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// What comes through a worker's door.
pub enum Arrival {
    /// An NBD connection.
    Connection(Incoming),
    /// A FUSE session.
    Session(Box<Session>),
}

/// The door of a worker. Any thread may put something in.
///
/// Invariant: nothing waits behind a door that is closed, so no client waits for a worker that has
/// ended.
pub struct Inbox {
    /// None once the worker has ended.
    waiting: Lock<Option<Vec<Arrival>>>,
    /// There may be something to take; so the worker does not take the lock for nothing.
    news: AtomicBool,
    stop: AtomicBool,
    abort: AtomicBool,
    /// Connections that the worker has, those waiting included.
    pub(crate) connections: AtomicU32,
    handle: Arc<Handle>,
}

impl Inbox {
    /// The door of the worker whose context has this handle.
    pub fn new(handle: Arc<Handle>) -> Arc<Self> {
        Arc::new(Inbox {
            waiting: Lock::new(LockClass::Control, Some(Vec::new())),
            news: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            handle,
        })
    }

    /// Connections that the worker has.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Hand a connection over. A worker that has ended takes none: then it is closed.
    pub fn put(&self, incoming: Incoming, user: &LockCounters) {
        self.add(Arrival::Connection(incoming), user);
    }

    /// Hand a FUSE session over. A worker that has ended takes none: then its descriptor is closed.
    pub fn put_session(&self, session: Session, user: &LockCounters) {
        self.add(Arrival::Session(Box::new(session)), user);
    }

    fn add(&self, arrival: Arrival, user: &LockCounters) {
        let mut waiting = self.waiting.lock(user);
        let Some(open) = &mut *waiting else { return };
        self.connections.fetch_add(connections_in(&arrival), Relaxed);
        open.push(arrival);
        drop(waiting);
        self.news.store(true, SeqCst);
        self.handle.wake();
    }

    /// Ask the worker to finish what is in flight, close its connections and return; FUSE sessions
    /// go on until their mounts are gone.
    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.handle.wake();
    }

    /// After [`Inbox::stop`]: do not wait for the mounts of FUSE sessions. Whoever still asks
    /// gets no answer, and an error once the last descriptor of the mount is closed.
    pub fn abort(&self) {
        self.abort.store(true, SeqCst);
        self.handle.wake();
    }

    pub(super) fn is_aborted(&self) -> bool {
        self.abort.load(SeqCst)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }

    pub(super) fn take(&self, user: &LockCounters) -> Vec<Arrival> {
        if !self.news.swap(false, SeqCst) {
            return Vec::new();
        }
        self.waiting.lock(user).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The worker ends: close what waits, and whatever comes.
    pub(super) fn close(&self, user: &LockCounters) {
        let waiting = self.waiting.lock(user).take().unwrap_or_default();
        let connections = waiting.iter().map(connections_in).sum();
        self.connections.fetch_sub(connections, Relaxed);
    }
}

/// For how many connections an arrival counts.
fn connections_in(arrival: &Arrival) -> u32 {
    u32::from(matches!(arrival, Arrival::Connection(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::server::{ExportTable, ListenerTls, Settings};
    use drystone_core::ContextSet;
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn incoming(table: &ExportTable) -> (Incoming, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let place = table.admit().unwrap();
        (Incoming { socket: server.into(), tls: ListenerTls::off(), table: 0, place }, client)
    }

    #[test]
    fn nobody_waits_behind_a_closed_door() {
        let set = ContextSet::new(ManualClock::new(1));
        let cx = set.open(Engine::Plain).unwrap();
        let locks = cx.locks().sibling();
        let inbox = Inbox::new(cx.handle().clone());
        let table = ExportTable::new(Vec::new(), usize::MAX, Settings::default());
        let (waiting, mut first) = incoming(&table);
        let (late, mut second) = incoming(&table);
        inbox.put(waiting, &locks);
        assert_eq!(inbox.connections(), 1);
        inbox.close(&locks);
        inbox.put(late, &locks);
        assert_eq!(inbox.connections(), 0);
        for client in [&mut first, &mut second] {
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the socket is closed");
        }
        assert!(inbox.take(&locks).is_empty());
    }
}
