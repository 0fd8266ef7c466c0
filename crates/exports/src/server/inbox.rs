//! A worker's inbox, through which listeners, connections and sessions reach it.

use super::{Arrival, Client, Clients};
use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

/// The inbox of a worker. Any thread may put something in.
///
/// Invariant: a closed inbox is empty, so no client waits for a worker that has ended.
pub struct Inbox {
    /// `None` once the worker has ended.
    waiting: Lock<Option<Vec<Arrival>>>,
    /// True if there may be arrivals; it saves the worker a useless lock.
    news: AtomicBool,
    stop: AtomicBool,
    abort: AtomicBool,
    /// Connections that the worker has, those waiting included.
    connections: Clients,
    handle: Arc<Handle>,
}

impl Inbox {
    /// The inbox of the worker whose context has this handle.
    pub fn new(handle: Arc<Handle>) -> Arc<Self> {
        Arc::new(Inbox {
            waiting: Lock::new(LockClass::Control, Some(Vec::new())),
            news: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            abort: AtomicBool::new(false),
            connections: Clients::default(),
            handle,
        })
    }

    /// Connections that were handed to the worker and are not closed. A front end that spreads its
    /// arrivals over workers goes by this number.
    pub fn connections(&self) -> u32 {
        self.connections.count()
    }

    /// Count one more connection, until the result is dropped.
    pub fn enter(&self) -> Client {
        self.connections.enter()
    }

    /// Hands an arrival to its front end. If the worker has ended, the arrival's descriptors are
    /// closed. Any thread may call.
    pub fn put(&self, arrival: impl Into<Arrival>, user: &LockCounters) {
        let arrival = arrival.into();
        let mut waiting = self.waiting.lock(user);
        let Some(open) = &mut *waiting else { return };
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

    /// After [`Inbox::stop`]: do not wait for the mounts of FUSE sessions. A client that still asks
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

    /// Closes the inbox: drops its arrivals, and all later ones.
    pub(super) fn close(&self, user: &LockCounters) {
        let waiting = self.waiting.lock(user).take();
        // Arrivals may refer to this inbox, so they are dropped after the lock is released.
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::server::{ExportTable, Incoming, ListenerTls, Settings};
    use drystone_core::ContextSet;
    use drystone_core::clock::ManualClock;
    use drystone_core::ring::Engine;
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    fn incoming(table: &Arc<ExportTable>, inbox: &Inbox) -> (Incoming, UnixStream) {
        let (server, client) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let assigned = inbox.enter();
        let (table, tls) = (table.clone(), ListenerTls::off());
        (Incoming { socket: server.into(), tls, table, assigned }, client)
    }

    #[test]
    fn nobody_waits_in_a_closed_inbox() {
        let set = ContextSet::new(ManualClock::new(1));
        let cx = set.open(Engine::Plain).unwrap();
        let locks = cx.locks().sibling();
        let inbox = Inbox::new(cx.handle().clone());
        let table = Arc::new(ExportTable::new(Vec::new(), usize::MAX, Settings::default()));
        let (waiting, mut first) = incoming(&table, &inbox);
        let (late, mut second) = incoming(&table, &inbox);
        inbox.put(waiting, &locks);
        assert_eq!(inbox.connections(), 2);
        inbox.close(&locks);
        inbox.put(late, &locks);
        assert_eq!(inbox.connections(), 0);
        for client in [&mut first, &mut second] {
            assert_eq!(client.read(&mut [0; 1]).unwrap(), 0, "the socket is closed");
        }
        assert!(inbox.take(&locks).is_empty());
    }
}
