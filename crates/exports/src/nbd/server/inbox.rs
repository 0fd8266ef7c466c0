//! How new connections reach the worker that will serve them.

use super::ListenerTls;
use super::exports::Client;
use drystone_core::context::Handle;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::*};

/// A socket that was accepted, with its listener's ways.
pub struct Incoming {
    /// The socket.
    pub socket: OwnedFd,
    /// How its listener treats TLS.
    pub tls: ListenerTls,
    /// Which of the server's export tables it is for.
    pub table: usize,
    /// Its place among the connections of that table.
    pub place: Client,
}

/// The door of a worker. Any thread may put something in.
pub struct Inbox {
    waiting: Lock<Vec<Incoming>>,
    /// There may be something to take; so the worker does not take the lock for nothing.
    news: AtomicBool,
    stop: AtomicBool,
    /// Connections that the worker has, those waiting included.
    pub(super) connections: AtomicU32,
    handle: Arc<Handle>,
}

impl Inbox {
    /// The door of the worker whose context has this handle.
    pub fn new(handle: Arc<Handle>) -> Arc<Self> {
        Arc::new(Inbox {
            waiting: Lock::new(LockClass::Control, Vec::new()),
            news: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            connections: AtomicU32::new(0),
            handle,
        })
    }

    /// Connections that the worker has.
    pub fn connections(&self) -> u32 {
        self.connections.load(Relaxed)
    }

    /// Hand a socket over.
    pub fn put(&self, incoming: Incoming, user: &LockCounters) {
        self.connections.fetch_add(1, Relaxed);
        self.waiting.lock(user).push(incoming);
        self.news.store(true, SeqCst);
        self.handle.wake();
    }

    /// Ask the worker to finish what is in flight, close its connections and return.
    pub fn stop(&self) {
        self.stop.store(true, SeqCst);
        self.handle.wake();
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }

    pub(super) fn take(&self, user: &LockCounters) -> Vec<Incoming> {
        if !self.news.swap(false, SeqCst) {
            return Vec::new();
        }
        std::mem::take(&mut *self.waiting.lock(user))
    }
}
