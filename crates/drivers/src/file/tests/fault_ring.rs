//! A ring whose file operations fail, or do less than was asked, when the test says so.

use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, FileOp, NetOp, Query, Ring, RingEvent, RingFile, Token, Waker};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::{Arc, Mutex};

/// The fate of an operation.
pub(super) enum Fault {
    /// It is not done and has this result.
    Result(i32),
    /// Only so many bytes of its first piece of memory are moved.
    Short(usize),
    /// It is begun once the plan gives another fate; the ring checks when results are collected.
    Held,
}

/// Decides the fate of each operation.
pub(super) type Plan = Box<dyn FnMut(&FileOp) -> Option<Fault> + Send>;

/// The plan in force; can be exchanged while the ring is in use.
pub(super) type Faults = Arc<Mutex<Plan>>;

pub(super) struct FaultRing {
    inner: Box<dyn Ring>,
    faults: Faults,
    ready: Vec<RingEvent>,
    held: Vec<(RingFile, FileOp, Token)>,
}

// SAFETY: the operations point at memory that their requests own, whichever thread has the ring.
unsafe impl Send for FaultRing {}

impl FaultRing {
    pub(super) fn around(inner: Box<dyn Ring>) -> (Box<dyn Ring>, Faults) {
        let faults: Faults = Arc::new(Mutex::new(Box::new(|_| None)));
        let ring = FaultRing { inner, faults: faults.clone(), ready: Vec::new(), held: Vec::new() };
        (Box::new(ring), faults)
    }
}

fn shorten(op: FileOp, bytes: usize) -> FileOp {
    match op {
        FileOp::Read { mut segment, offset } => {
            segment.len = segment.len.min(bytes);
            FileOp::Read { segment, offset }
        }
        FileOp::Write { mut segment, offset, dsync } => {
            segment.len = segment.len.min(bytes);
            FileOp::Write { segment, offset, dsync }
        }
        FileOp::Readv { iovecs, offset, .. } => FileOp::Readv { iovecs, count: 1, offset },
        FileOp::Writev { iovecs, offset, dsync, .. } => {
            FileOp::Writev { iovecs, count: 1, offset, dsync }
        }
        FileOp::Splice { pipe, offset, length } => {
            FileOp::Splice { pipe, offset, length: length.min(bytes as u32) }
        }
        other => other,
    }
}

impl Ring for FaultRing {
    unsafe fn file(&mut self, file: RingFile, op: FileOp, token: Token) {
        let fault = (self.faults.lock().unwrap())(&op);
        let op = match fault {
            Some(Fault::Result(result)) => {
                return self.ready.push(RingEvent { token, result, buffers: Buffers::None });
            }
            Some(Fault::Short(bytes)) => shorten(op, bytes),
            Some(Fault::Held) => return self.held.push((file, op, token)),
            None => op,
        };
        // SAFETY: the caller's promise is the same; the operation touches no more than before.
        unsafe { self.inner.file(file, op, token) }
    }

    fn register(&mut self, fd: RawFd) -> RingFile {
        self.inner.register(fd)
    }

    fn unregister(&mut self, file: RingFile) {
        self.inner.unregister(file);
    }

    fn net(&mut self, fd: RawFd, op: NetOp, token: Token) {
        self.inner.net(fd, op, token);
    }

    fn query(&mut self, query: Query, token: Token) {
        self.inner.query(query, token);
    }

    fn timer(&mut self, at: Ns, token: Token) {
        self.inner.timer(at, token);
    }

    fn cancel(&mut self, token: Token) {
        self.inner.cancel(token);
    }

    fn close(&mut self, fd: OwnedFd) {
        self.inner.close(fd);
    }

    fn submit(&mut self) {
        self.inner.submit();
    }

    fn wait(&mut self, deadline: Option<Ns>) {
        self.inner.wait(if self.ready.is_empty() { deadline } else { Some(0) });
    }

    fn reap(&mut self, out: &mut Vec<RingEvent>) {
        for (file, op, token) in std::mem::take(&mut self.held) {
            // SAFETY: as when it was given; nothing of it was given back.
            unsafe { self.file(file, op, token) };
        }
        self.inner.reap(out);
        out.append(&mut self.ready);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight() + self.ready.len() + self.held.len()
    }

    fn waker(&self) -> Arc<dyn Waker> {
        self.inner.waker()
    }

    fn watch(&mut self, others: [RawFd; 2], token: Token) {
        self.inner.watch(others, token);
    }

    fn unwatch(&mut self, others: [RawFd; 2], token: Token) {
        self.inner.unwatch(others, token);
    }

    fn descriptors(&self) -> [RawFd; 2] {
        self.inner.descriptors()
    }

    fn engine(&self) -> &'static str {
        self.inner.engine()
    }
}
