//! Waiting for stripes, model-checked: contexts bring items to a shard that has fewer stripes than
//! they need, and take I/O to members away with them; the holder of the turn works for all.

use super::tests::conf;
use super::{Shard, TurnEffects};
use crate::engine::conf::Conf;
use crate::engine::turn::TurnInput;
use drystone_core::clock::ManualClock;
use drystone_core::primitive::{Arc, AtomicUsize, Ordering::*};
use drystone_core::sync::{LockClass, LockCounters};
use drystone_core::turn::{InsertAt, TurnLock};
use drystone_core::{Bio, BioList, ChannelId, IoBuf, PortId, Sector, Status};
use drystone_parity::Parity;

/// An array of three members with one shard.
struct Model {
    turn: TurnLock<Shard>,
    conf: Conf,
    /// The number of stripes that the shard must have; also the epoch of its configuration.
    stripes: AtomicUsize,
    ended: AtomicUsize,
}

/// A context.
struct Visitor {
    port: PortId,
    locks: std::sync::Arc<LockCounters>,
    brought: BioList,
    /// I/O to members that it has begun.
    flight: Vec<Box<Bio>>,
    out: TurnEffects,
}

impl Model {
    fn new(stripes: usize) -> Arc<Self> {
        let turn = TurnLock::new(LockClass::Stripes, Shard::new());
        let stripes = AtomicUsize::new(stripes);
        let model = Arc::new(Model { turn, conf: conf(3), stripes, ended: AtomicUsize::new(0) });
        // The lock must have been used before threads meet at it.
        model.visit(&mut Visitor::new(PortId(0)));
        model
    }

    /// Let a context work at the shard until no context has left anything there.
    fn visit(&self, visitor: &mut Visitor) {
        let Visitor { port, locks, brought, flight, out } = visitor;
        loop {
            // The context brings nothing: it has come because of the configuration.
            let guard = match brought.is_empty() {
                true => self.turn.enter_to_recheck(locks, *port),
                false => self.turn.enter(locks, *port, brought, InsertAt::Tail),
            };
            let Some(mut shard) = guard else { return };
            let mut all = brought.take();
            self.turn.take().into_iter().for_each(|(mut list, _)| all.append(&mut list));
            let (conf, parity, stripes) =
                (&self.conf, Parity::detect(), self.stripes.load(Relaxed));
            let turn = TurnInput {
                conf,
                epoch: stripes as u64,
                parity,
                fits_below: u64::MAX,
                port: *port,
            };
            shard.refresh(&turn, stripes, out);
            while let Some(bio) = all.pop() {
                match bio.is_of_channel() {
                    true => shard.run_ended(&turn, bio, out),
                    false => shard.accept(bio, false),
                }
            }
            shard.handle_ready(&turn, stripes, out);
            shard.make_runs(&turn, out, |_, _, mut bio| {
                bio.give_to_channel(ChannelId(0));
                flight.push(bio);
            });
            self.ended.fetch_add(out.done.take().len(), Relaxed);
            if !self.turn.leave(shard) {
                return;
            }
        }
    }

    /// Read blocks, and carry on the I/O that this context begins. The first `cancelled` bios of it
    /// come back undone.
    fn read(&self, port: PortId, blocks: &[u64], mut cancelled: usize) {
        let mut visitor = Visitor::new(port);
        let read = |block: &u64| Bio::read(Sector(block * 16), IoBuf::zeroed(4096));
        blocks.iter().for_each(|block| visitor.brought.push(read(block)));
        self.visit(&mut visitor);
        while let Some(mut bio) = visitor.flight.pop() {
            bio.status = if cancelled > 0 { Status::Cancelled } else { Status::Ok };
            cancelled = cancelled.saturating_sub(1);
            visitor.brought.push(bio);
            self.visit(&mut visitor);
        }
    }

    /// Set the number of stripes, and carry on the I/O that follows.
    fn resize(&self, port: PortId, stripes: usize) {
        self.stripes.store(stripes, Relaxed);
        self.read(port, &[], 0);
    }
}

impl Visitor {
    fn new(port: PortId) -> Self {
        Visitor {
            port,
            locks: LockCounters::new(ManualClock::new(1)),
            brought: BioList::new(),
            flight: Vec::new(),
            out: TurnEffects::default(),
        }
    }
}

/// The items of two contexts all end, whichever context has the turn when a stripe becomes free.
/// Each freed stripe wakes at most one item.
fn all_end(first: &'static [u64], second: &'static [u64], preemptions: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new(1);
        let other = model.clone();
        let other = loom::thread::spawn(move || other.read(PortId(1), second, 0));
        model.read(PortId(0), first, 0);
        other.join().unwrap();
        let items = first.len() + second.len();
        assert_eq!(model.ended.load(Relaxed), items, "an item waits for ever");
        let counts = model.turn.wait(&LockCounters::new(ManualClock::new(1))).counts();
        assert!(counts.woken <= counts.freed, "{counts:?}");
    });
}

/// One context has more items than the shard has stripes, while another one does `meanwhile`. All
/// items end, and the shard has as many idle stripes as it was last told to have.
fn all_end_meanwhile(meanwhile: fn(&Model), cancelled: usize, items: usize) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(1);
    builder.check(move || {
        let model = Model::new(1);
        let other = model.clone();
        let other = loom::thread::spawn(move || meanwhile(&other));
        model.read(PortId(0), &[0, 1], cancelled);
        other.join().unwrap();
        assert_eq!(model.ended.load(Relaxed), items, "an item waits for ever");
        let shard = model.turn.wait(&LockCounters::new(ManualClock::new(1)));
        assert_eq!(
            shard.epoch(),
            model.stripes.load(Relaxed) as u64,
            "the last size came to the shard"
        );
        assert_eq!((shard.active(), shard.stripes.live()), (0, model.stripes.load(Relaxed)));
    });
}

#[test]
fn loom_stripe_waiters_one_each() {
    // The third costs more than all other models together: `make test-long` has it.
    let preemptions = if std::env::var_os("DRYSTONE_LONG").is_some() { 3 } else { 2 };
    all_end(&[0], &[1], preemptions);
}

/// Of three items, one joins another's stripe or waits for it; the third needs a stripe of its own.
#[test]
fn loom_stripe_waiters_that_join() {
    all_end(&[0, 1], &[1], 2);
}

/// The cache grows and shrinks while items wait.
#[test]
fn loom_stripe_waiters_of_a_cache_that_is_resized() {
    let resize = |model: &Model| {
        model.resize(PortId(1), 2);
        model.resize(PortId(1), 1);
    };
    all_end_meanwhile(resize, 0, 2);
}

/// The cache grows, and that alone lets a waiter go on.
#[test]
fn loom_stripe_waiters_of_a_cache_that_grows() {
    all_end_meanwhile(|model| model.resize(PortId(1), 2), 0, 2);
}

/// I/O that a dropped context had begun comes back undone, and is begun again. An item that waits
/// for its stripe goes on waiting.
#[test]
fn loom_stripe_waiters_behind_what_is_cancelled() {
    all_end_meanwhile(|model| model.read(PortId(1), &[2], 1), 1, 3);
}
