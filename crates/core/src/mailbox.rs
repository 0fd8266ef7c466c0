//! A mailbox: messages from any thread to the owner of a context. An intrusive MPSC queue, made of
//! a Treiber stack that is taken as a whole (Linux: `llist`).
//!
//! Invariants:
//! * A [`Message`] is in at most one mailbox at a time (`queued`); pushing one that is already
//!   queued does nothing, so nothing overflows and nothing is allocated.
//! * The box holds one reference of each queued message; `take` hands it on.
//! * Messages of one sender arrive in the order in which they were sent.
//!
//! Memory order: `push` releases with its compare-exchange of `head`, `take` acquires with its
//! swap, so everything written before the push is seen by the taker. `queued` is cleared by the
//! taker before the message is looked at and set by the sender before its payload is read by
//! the taker: a sender that finds it set knows that a later `take` will see its payload only if
//! it wrote the payload before testing the flag (hence the swap is AcqRel on both sides).

#![allow(unsafe_code, reason = "a lock-free list of completions between contexts")]

use crate::context::Handle;
use crate::primitive::{Arc, AtomicBool, AtomicPtr, AtomicU64, Ordering};
use crate::units::ChannelId;
use std::ptr;
use std::sync::Weak;

/// A reusable message to one channel of a context.
pub struct Message {
    next: AtomicPtr<Message>,
    queued: AtomicBool,
    /// The context that it is for.
    receiver: Weak<Handle>,
    /// The channel that it is for.
    channel: ChannelId,
    /// A word for the receiver, set before the push.
    payload: AtomicU64,
}

impl Message {
    /// A message for channel `channel` of no context in particular, not yet sent.
    pub fn new(channel: ChannelId, payload: u64) -> Arc<Self> {
        Self::to(Weak::new(), channel, payload)
    }

    /// A message for channel `channel` of the context `receiver`, not yet sent.
    pub fn to(receiver: Weak<Handle>, channel: ChannelId, payload: u64) -> Arc<Self> {
        Arc::new(Message {
            receiver,
            next: AtomicPtr::new(ptr::null_mut()),
            queued: AtomicBool::new(false),
            channel,
            payload: AtomicU64::new(payload),
        })
    }

    /// The channel it is for.
    pub fn channel(&self) -> ChannelId {
        self.channel
    }

    /// The context that it is for, if it still exists.
    pub fn receiver(&self) -> Option<std::sync::Arc<Handle>> {
        self.receiver.upgrade()
    }

    /// Send it to its receiver and wake that if it sleeps. From any thread.
    pub fn send(self: Arc<Self>) {
        if let Some(handle) = self.receiver() {
            handle.send(self);
        }
    }

    /// Send it, and run its receiver's context even if the owner of that is away. From any thread
    /// that is in no context: [`crate::Env::send_and_kick`] is for one that is.
    ///
    /// It takes the reference: the receiver may look, during the call, whether anybody else has
    /// one.
    pub fn send_and_kick(self: Arc<Self>) {
        if let Some(handle) = self.receiver() {
            handle.send(self);
            handle.kick();
        }
    }

    /// The payload.
    pub fn payload(&self) -> u64 {
        self.payload.load(Ordering::Relaxed)
    }

    /// Set the payload; by the sender, before the push.
    pub fn set_payload(&self, payload: u64) {
        self.payload.store(payload, Ordering::Relaxed);
    }
}

/// Many senders, one taker at a time. Lock-free; neither side allocates.
pub struct Mailbox {
    head: AtomicPtr<Message>,
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

impl Mailbox {
    /// An empty mailbox.
    pub fn new() -> Self {
        Mailbox { head: AtomicPtr::new(ptr::null_mut()) }
    }

    /// True when there was nothing at the moment of the read.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head.load(Ordering::Relaxed).is_null()
    }

    /// Send `message`. False if it was queued already (it will be received anyway).
    pub fn push(&self, message: Arc<Message>) -> bool {
        if message.queued.swap(true, Ordering::AcqRel) {
            return false;
        }
        let raw = Arc::into_raw(message).cast_mut();
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: `queued` makes us the only thread that may link this message, and the
            // reference we turned into `raw` keeps it alive until it is taken.
            unsafe { &*raw }.next.store(head, Ordering::Relaxed);
            match self.head.compare_exchange_weak(head, raw, push_order(), Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
    }

    /// Take everything, first sent first, and call `f` with each.
    pub fn take(&self, mut f: impl FnMut(Arc<Message>)) {
        let mut at = self.head.swap(ptr::null_mut(), Ordering::Acquire);
        let mut reversed = ptr::null_mut::<Message>();
        while !at.is_null() {
            // SAFETY: the swap made these messages ours; each still holds its reference.
            let next = unsafe { &*at }.next.load(Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { &*at }.next.store(reversed, Ordering::Relaxed);
            (reversed, at) = (at, next);
        }
        while !reversed.is_null() {
            // SAFETY: `reversed` came from Arc::into_raw and is turned back once.
            let message = unsafe { Arc::from_raw(reversed) };
            reversed = message.next.load(Ordering::Relaxed);
            message.queued.store(false, Ordering::Release);
            f(message);
        }
    }
}

/// Order of the push's compare-exchange; the mutation check weakens it.
#[inline(always)]
fn push_order() -> Ordering {
    if crate::mutated!("mailbox_push") { Ordering::Relaxed } else { Ordering::Release }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.take(drop);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn first_sent_first_taken_and_never_twice() {
        let mailbox = Mailbox::new();
        let messages: Vec<_> =
            (0..5).map(|i| Message::new(ChannelId(i), u64::from(i) * 10)).collect();
        for m in &messages {
            assert!(mailbox.push(m.clone()));
            assert!(!mailbox.push(m.clone()));
        }
        let mut seen = Vec::new();
        mailbox.take(|m| seen.push((m.channel().0, m.payload())));
        assert_eq!(seen, [(0, 0), (1, 10), (2, 20), (3, 30), (4, 40)]);
        assert!(mailbox.is_empty());
        assert!(mailbox.push(messages[3].clone()));
        drop(mailbox);
        assert_eq!(Arc::strong_count(&messages[3]), 1);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    /// Two senders and a taker: every message arrives once, with the payload written before it.
    #[test]
    fn loom_mailbox_delivers_all() {
        loom::model(|| {
            let mailbox = Arc::new(Mailbox::new());
            let data = Arc::new(loom::cell::UnsafeCell::new(0));
            let sender = {
                let (mailbox, data) = (mailbox.clone(), data.clone());
                loom::thread::spawn(move || {
                    // SAFETY: the taker looks only after it has the message.
                    data.with_mut(|d| unsafe { *d = 7 });
                    mailbox.push(Message::new(ChannelId(1), 1));
                })
            };
            let other = {
                let mailbox = mailbox.clone();
                loom::thread::spawn(move || mailbox.push(Message::new(ChannelId(2), 2)))
            };
            let mut got = 0;
            let take = |got: &mut u32| {
                mailbox.take(|m| {
                    *got += 1;
                    if m.channel() == ChannelId(1) {
                        // SAFETY: ordered after the write by push and take.
                        data.with(|d| assert_eq!(unsafe { *d }, 7));
                    }
                })
            };
            take(&mut got);
            sender.join().unwrap();
            other.join().unwrap();
            take(&mut got);
            assert_eq!(got, 2);
        });
    }
}
