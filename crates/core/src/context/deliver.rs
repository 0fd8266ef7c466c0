//! Lazy notification: a message to a context whose owner rechecks its mailbox when it leaves a
//! call, without the cost of a visit.
//!
//! Invariant: a sender puts a message into the mailbox and then asks [`owner_will_recheck`]; the
//! owner leaves the gate and then asks [`mail_came`]. At least one of them sees the other. The
//! owner rechecks while its context expects messages of others ([`crate::Env::expected_remote`]);
//! only such a message may be sent this way.
//!
//! Memory order: each side writes, passes a full fence and reads what the other writes (Dekker).
//! The gate's own light fence is not enough: its other side would have to be the heavy one.

use crate::primitive::{Ordering::SeqCst, fence};

/// After a message was put into the mailbox: true if the owner is inside and will see it.
pub(super) fn owner_will_recheck(is_inside: impl Fn() -> bool) -> bool {
    if !crate::mutated!("deliver_fence") {
        fence(SeqCst);
    }
    is_inside()
}

/// After the owner has left the gate: true if it must go in again for a message.
pub(super) fn mail_came(has_mail: impl Fn() -> bool) -> bool {
    if !crate::mutated!("deliver_leave_fence") {
        fence(SeqCst);
    }
    has_mail()
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::mailbox::{Mailbox, Message};
    use crate::primitive::{Arc, AtomicBool, AtomicUsize, Ordering::*};
    use crate::units::ChannelId;

    /// The gate's owner side without its fences, which order nothing here.
    #[derive(Default)]
    struct Model {
        inside: AtomicBool,
        mailbox: Mailbox,
        got: AtomicUsize,
    }

    impl Model {
        fn take(&self) {
            self.mailbox.take(|_| {
                self.got.fetch_add(1, Relaxed);
            });
        }

        /// A sender that visits only if the owner will not recheck.
        fn send(&self, channel: ChannelId) {
            self.mailbox.push(Message::new(channel, 0));
            if !owner_will_recheck(|| self.inside.load(Relaxed)) {
                self.take();
            }
        }

        fn owner_call(&self) {
            loop {
                self.inside.store(true, Relaxed);
                self.take();
                self.inside.store(false, Release);
                if !mail_came(|| !self.mailbox.is_empty()) {
                    return;
                }
            }
        }
    }

    fn run(senders: u32) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let model = Arc::new(Model::default());
            model.inside.store(true, Relaxed);
            let threads: Vec<_> = (0..senders)
                .map(|n| {
                    let model = model.clone();
                    loom::thread::spawn(move || model.send(ChannelId(n)))
                })
                .collect();
            model.owner_call();
            threads.into_iter().for_each(|t| t.join().unwrap());
            assert_eq!(model.got.load(Relaxed), senders as usize, "a message stays behind");
        });
    }

    /// A message is delivered though its sender did not visit and the owner stays away.
    #[test]
    fn loom_deliver_one() {
        run(1);
    }

    /// Two senders and the owner.
    #[test]
    fn loom_deliver_two() {
        run(2);
    }
}
