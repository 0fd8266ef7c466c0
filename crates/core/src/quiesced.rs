//! A channel's report that it is quiesced (Linux `blk_mq_quiesce_queue`), by which the control
//! plane suspends a device on others without waiting for the threads that own its channels.
//!
//! Invariant: after [`Quiesced::is_since`] said true of the epoch of a suspension, the channel uses
//! no table that was live before, until the suspension is over. The channel reads the epoch at the
//! beginning of every call. It reports only from inside its context's gate, after that read and
//! with nothing in flight. The control plane kicks it ([`crate::context::Handle::kick`]) after
//! publishing.
//!
//! Memory order: the report is a release, and the question an acquire: all that the channel did
//! with the old table comes before the swap.

use crate::mistake;
use crate::primitive::{AtomicU64, Ordering::*};

/// The epoch of the last suspension in which the channel was quiesced.
pub struct Quiesced(AtomicU64);

/// After all epochs: a channel that is gone is always quiesced.
const GONE: u64 = u64::MAX;

impl Quiesced {
    /// That of a channel that has seen no suspension.
    #[allow(clippy::new_without_default, reason = "the name says what the value stands for")]
    pub fn new() -> Self {
        Quiesced(AtomicU64::new(0))
    }

    /// The channel has seen the suspension that was published with `epoch`, and `in_flight` bios
    /// that it sent down before have not ended.
    pub fn report(&self, epoch: u64, in_flight: usize) {
        if in_flight == 0 || mistake!("quiesced_in_flight") {
            self.0.store(epoch, Release);
        }
    }

    /// The channel is gone.
    pub fn set_gone(&self) {
        self.0.store(GONE, Release);
    }

    /// True if the channel is quiesced in the suspension of `epoch`.
    pub fn is_since(&self, epoch: u64) -> bool {
        self.0.load(Acquire) >= epoch
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::primitive::{Arc, AtomicBool};
    use crate::published::Published;
    use crate::sync::LockCounters;
    use loom::sync::Mutex;

    #[derive(Clone)]
    struct Live {
        table: usize,
        suspended: bool,
    }

    /// The state behind the gate of the context; the gate is modelled elsewhere.
    #[derive(Default)]
    struct Channel {
        epoch: u64,
        table: usize,
        suspended: bool,
        /// Tables of the bios in flight.
        in_flight: Vec<usize>,
        kept: usize,
    }

    struct Model {
        live: Published<Live>,
        quiesced: Quiesced,
        gate: Mutex<Channel>,
        /// Tables whose devices may be gone.
        freed: [AtomicBool; 2],
    }

    impl Model {
        fn new() -> Self {
            let live = Published::new(Live { table: 0, suspended: false });
            let (quiesced, gate) = (Quiesced::new(), Mutex::new(Channel::default()));
            Model { live, quiesced, gate, freed: [AtomicBool::new(false), AtomicBool::new(false)] }
        }

        fn user(&self) -> std::sync::Arc<LockCounters> {
            LockCounters::new(ManualClock::new(1))
        }

        /// The beginning of a call.
        fn refresh(&self, channel: &mut Channel) {
            if self.live.epoch() == channel.epoch && !crate::mutated!("quiesced_epoch") {
                return;
            }
            if crate::mutated!("quiesced_epoch") && channel.epoch != 0 {
                return;
            }
            let (epoch, live) = self.live.get(&self.user());
            (channel.epoch, channel.table, channel.suspended) = (epoch, live.table, live.suspended);
            if !channel.suspended {
                (0..std::mem::take(&mut channel.kept)).for_each(|_| self.send(channel));
            }
        }

        fn send(&self, channel: &mut Channel) {
            self.assert_live(channel.table);
            channel.in_flight.push(channel.table);
        }

        fn assert_live(&self, table: usize) {
            assert!(!self.freed[table].load(Relaxed), "a table is used that was swapped out");
        }

        fn submit(&self) {
            let mut channel = self.gate.lock().unwrap();
            self.refresh(&mut channel);
            match channel.suspended {
                true => channel.kept += 1,
                false => self.send(&mut channel),
            }
        }

        /// All that is in flight ends, in a call of the owner or of a visitor.
        fn process_pending(&self) {
            let mut channel = self.gate.lock().unwrap();
            self.refresh(&mut channel);
            for table in std::mem::take(&mut channel.in_flight) {
                self.assert_live(table);
            }
            self.report(&channel);
        }

        fn kick(&self) {
            let mut channel = self.gate.lock().unwrap();
            self.refresh(&mut channel);
            self.report(&channel);
        }

        fn report(&self, channel: &Channel) {
            if channel.suspended {
                self.quiesced.report(channel.epoch, channel.in_flight.len());
            }
        }

        fn publish(&self, change: impl FnOnce(&mut Live)) {
            let done = self.live.update(&self.user(), |live| {
                change(live);
                Ok(())
            });
            assert!(done.is_ok());
        }

        fn swap(&self) {
            self.publish(|live| live.suspended = true);
            let epoch = self.live.epoch();
            self.kick();
            if !self.quiesced.is_since(epoch) {
                // Its I/O ends in a visit.
                self.process_pending();
            }
            assert!(self.quiesced.is_since(epoch));
            self.freed[0].store(true, Relaxed);
            self.publish(|live| (live.table, live.suspended) = (1, false));
            self.kick();
        }
    }

    /// A context submits, completes and submits again while the table is swapped: it never uses
    /// the old one after the swap, and what was kept goes on.
    #[test]
    fn loom_quiesced_swap() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let model = Arc::new(Model::new());
            // Every lock is used once before there are threads, as the checker's need to be.
            model.kick();
            let owner = {
                let model = model.clone();
                loom::thread::spawn(move || {
                    model.submit();
                    model.submit();
                    model.process_pending();
                    model.submit();
                })
            };
            model.swap();
            owner.join().unwrap();
            model.process_pending();
            let channel = model.gate.lock().unwrap();
            assert_eq!((channel.kept, channel.in_flight.len()), (0, 0), "a bio stays behind");
        });
    }
}
