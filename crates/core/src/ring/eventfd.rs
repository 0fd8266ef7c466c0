//! The descriptor that wakes the sleeper of a ring.
//!
//! Invariant: from a [`Waker::wake`] until the [`EventFd::clear`] after it the descriptor is
//! readable or about to become so. The sleeper clears first and looks for work *afterwards*: a
//! sender that finds `pending` set writes nothing, and relies on that check.

use crate::error::{Error, Result};
use crate::primitive::{AtomicBool, Ordering};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// Wakes the sleeper of a ring, from any thread.
pub trait Waker: Send + Sync {
    /// Make the current or next [`super::Ring::wait`] return. Cheap when a wake-up is already
    /// pending.
    fn wake(&self);
}

/// True while a wake-up is on its way; spares all but the first waker the system call.
pub(crate) struct Pending(AtomicBool);

impl Pending {
    pub(crate) fn new() -> Self {
        Pending(AtomicBool::new(false))
    }

    /// True if it was not yet: the caller has to make the descriptor readable.
    pub(crate) fn raise(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// After the descriptor was made unreadable, before the check for work. A swap, so that
    /// it acquires what the wakers that found it raised have written.
    pub(crate) fn clear(&self) {
        if crate::mutated!("pending_clear") {
            return self.0.store(false, Ordering::Relaxed);
        }
        self.0.swap(false, Ordering::AcqRel);
    }
}

/// An event descriptor that wakes a ring's sleeper.
pub(super) struct EventFd {
    fd: OwnedFd,
    pending: Pending,
}

impl EventFd {
    pub(super) fn new() -> Result<Arc<Self>> {
        // SAFETY: eventfd takes no pointers; the descriptor it returns is ours alone.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            let reason = std::io::Error::last_os_error();
            return Err(Error::os("no event descriptor for a context", reason));
        }
        // SAFETY: as above.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Arc::new(EventFd { fd, pending: Pending::new() }))
    }

    pub(super) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// True from a wake-up until it is cleared.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.is_raised()
    }

    /// Forget wake-ups so far; called by the sleeper before it looks for what it was woken for.
    pub(super) fn clear(&self) {
        let mut count = 0u64;
        // SAFETY: reads 8 bytes into a u64; the descriptor does not block.
        unsafe { libc::read(self.fd(), (&raw mut count).cast(), 8) };
        self.pending.clear();
    }
}

impl Waker for EventFd {
    fn wake(&self) {
        if !self.pending.raise() {
            return;
        }
        let one = 1u64;
        // SAFETY: writes 8 bytes from a u64. A full counter would mean it is readable already.
        unsafe { libc::write(self.fd(), (&raw const one).cast(), 8) };
    }
}

/// What a sleeper does with a wake-up: first `clear`, then `look` for what it was for. The waker
/// does its part the other way round.
#[inline]
pub(super) fn clear_and_look<T>(of: &mut T, clear: impl FnOnce(&mut T), look: impl FnOnce(&mut T)) {
    if crate::mutated!("look_before_clear") {
        look(of);
        return clear(of);
    }
    clear(of);
    look(of);
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::super::handover::handover;
    use super::*;
    use crate::mailbox::{Mailbox, Message};
    use crate::units::ChannelId;

    /// A reap clears the descriptor, which is a flag here.
    fn clear(pending: &Pending, readable: &AtomicBool) {
        readable.store(false, Ordering::SeqCst);
        pending.clear();
    }

    /// A sender whose wake-up is spared, because another one is on its way, is seen by the sleeper
    /// that clears that one: in the end the mailbox is empty or the descriptor readable.
    #[test]
    fn loom_pending_wakes_for_every_message() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Mailbox::new(), Pending::new(), AtomicBool::new(false)));
            let senders = [1, 2].map(ChannelId).map(|channel| {
                let shared = shared.clone();
                loom::thread::spawn(move || {
                    let (mailbox, pending, readable) = &*shared;
                    mailbox.push(Message::new(channel, 0));
                    if pending.raise() {
                        readable.store(true, Ordering::SeqCst);
                    }
                })
            });
            let (mailbox, pending, readable) = &*shared;
            let mut got = 0;
            let mut look = || {
                if !mailbox.is_empty() {
                    mailbox.take(|_| got += 1);
                }
            };
            clear(pending, readable);
            look();
            senders.into_iter().for_each(|s| s.join().unwrap());
            if readable.load(Ordering::SeqCst) {
                clear(pending, readable);
                look();
            }
            assert_eq!(got, 2, "a message without a wake-up");
        });
    }

    /// A job that the taker has done wakes its giver, who sleeps only while the descriptor is not
    /// readable: no job is left behind.
    #[test]
    fn loom_pending_wakes_for_every_job_done() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let shared = Arc::new((Pending::new(), AtomicBool::new(false)));
            let (mut giver, mut taker) = handover(2);
            [1, 2].into_iter().for_each(|job| giver.put(job).unwrap());
            giver.tell();
            let of_taker = shared.clone();
            let worker = loom::thread::spawn(move || {
                while let Some(job) = taker.next() {
                    taker.finish(job);
                    let (pending, readable) = &*of_taker;
                    if pending.raise() {
                        readable.store(true, Ordering::SeqCst);
                    }
                }
            });
            let (pending, readable) = &*shared;
            let mut back = 0;
            let mut reap = || {
                let clear_if_woken = |_: &mut u32| {
                    if readable.load(Ordering::SeqCst) {
                        clear(pending, readable);
                    }
                };
                clear_and_look(&mut back, clear_if_woken, |back| {
                    while giver.take_done().is_some() {
                        *back += 1;
                    }
                });
                back
            };
            let mut got = reap();
            worker.join().unwrap();
            while got < 2 {
                assert!(readable.load(Ordering::SeqCst), "the giver sleeps for ever");
                got = reap();
            }
        });
    }
}
