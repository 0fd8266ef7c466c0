//! Going to sleep without missing a message (an event count; Linux: `prepare_to_wait`).
//!
//! Invariant: a thread leaves something for the owner (a message, a visit request) and then asks
//! [`Parking::should_wake`]; the owner calls [`Parking::park`] and then checks mailbox and
//! requests. At least one of them sees the other.
//!
//! Memory order: each side writes, passes a full fence and reads what the other writes (Dekker),
//! so at least one sees the other.

use crate::primitive::{AtomicBool, Ordering::*, fence};

/// The state that tells senders whether they must wake the owner of a context.
pub(super) struct Parking {
    /// The owner sleeps, or is about to.
    parked: AtomicBool,
    /// Somebody watches the ring's descriptors, so they must show what is left. Stays set: a
    /// context that was watched once pays a wake-up for a message from then on.
    watched: AtomicBool,
}

impl Default for Parking {
    fn default() -> Self {
        Parking { parked: AtomicBool::new(false), watched: AtomicBool::new(false) }
    }
}

impl Parking {
    /// The owner is about to sleep; it must check mailbox and visit requests after this.
    pub(super) fn park(&self) {
        self.parked.store(true, Relaxed);
        if !crate::mutated!("park_fence") {
            fence(SeqCst);
        }
    }

    /// The owner is awake; it must check its ring and mailbox after this.
    pub(super) fn unpark(&self) {
        self.parked.store(false, Relaxed);
        if !crate::mutated!("park_awake_fence") {
            fence(SeqCst);
        }
    }

    /// For a watcher: true if the owner sleeps, or is about to recheck. It then sees everything
    /// that was in its ring or mailbox before this call, and needs no visit for that.
    pub(super) fn will_recheck(&self) -> bool {
        if !crate::mutated!("park_recheck_fence") {
            fence(SeqCst);
        }
        self.parked.load(Relaxed)
    }

    /// A watcher is about to watch; it must kick the context after this.
    pub(super) fn watch(&self) {
        self.watched.store(true, Relaxed);
        if !crate::mutated!("park_watch_fence") {
            fence(SeqCst);
        }
    }

    /// True while the owner sleeps or is about to. The caller has requested a visit and passed a
    /// full fence since.
    pub(super) fn is_parked(&self) -> bool {
        self.parked.load(Relaxed)
    }

    /// True if the waker is needed for what was left before this call.
    pub(super) fn should_wake(&self) -> bool {
        if !crate::mutated!("park_send_fence") {
            fence(SeqCst);
        }
        self.parked.load(Relaxed) || self.watched.load(Relaxed)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::mailbox::{Mailbox, Message};
    use crate::primitive::Arc;
    use crate::primitive::AtomicU32;
    use crate::units::ChannelId;
    use loom::sync::{Condvar, Mutex};

    #[derive(Default)]
    struct Model {
        mailbox: Mailbox,
        parking: Parking,
        /// The wake-up descriptor.
        woken: Mutex<bool>,
        readable: Condvar,
    }

    impl Model {
        fn send(&self, channel: ChannelId) {
            self.mailbox.push(Message::new(channel, 0));
            if self.parking.should_wake() {
                *self.woken.lock().unwrap() = true;
                self.readable.notify_one();
            }
        }

        /// As a context's wait. A wake-up that is lost leaves the model without a thread that
        /// can go on, which the checker reports.
        fn wait(&self) {
            self.parking.park();
            if self.mailbox.is_empty() {
                let mut woken = self.woken.lock().unwrap();
                while !*woken {
                    woken = self.readable.wait(woken).unwrap();
                }
                *woken = false;
            }
            self.parking.unpark();
        }
    }

    /// The owner goes to sleep while messages are sent: it gets them all.
    #[test]
    fn loom_park_misses_no_message() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model::default());
            let senders = [1, 2].map(ChannelId).map(|channel| {
                let model = model.clone();
                loom::thread::spawn(move || model.send(channel))
            });
            let mut got = 0;
            while got < 2 {
                model.wait();
                model.mailbox.take(|_| got += 1);
            }
            senders.into_iter().for_each(|s| s.join().unwrap());
        });
    }

    /// A watcher that is told of news finds the owner parked, which wakes up just then for
    /// something else and stays away after that: the owner or the watcher takes the news.
    #[test]
    fn loom_park_news_are_taken() {
        loom::model(|| {
            let (parking, news) = (Parking::default(), AtomicU32::new(0));
            parking.park();
            let model = Arc::new((parking, news));
            let owner = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    model.0.unpark();
                    if model.1.load(Relaxed) > 0 {
                        model.1.store(0, Relaxed);
                    }
                })
            };
            model.1.store(1, Relaxed);
            if !model.0.will_recheck() {
                model.1.store(0, Relaxed);
            }
            owner.join().unwrap();
            assert_eq!(model.1.load(Relaxed), 0, "news that nobody takes");
        });
    }

    /// A watcher begins to watch and then looks itself: a message sent meanwhile is seen by
    /// that look or is announced.
    #[test]
    fn loom_park_watched_is_announced() {
        loom::model(|| {
            let model = Arc::new(Model::default());
            let sender = {
                let model = model.clone();
                loom::thread::spawn(move || model.send(ChannelId(1)))
            };
            model.parking.watch();
            let seen = !model.mailbox.is_empty();
            sender.join().unwrap();
            assert!(seen || *model.woken.lock().unwrap(), "neither seen nor announced");
        });
    }
}
