//! The scheduler `mq-deadline`, shared without waiting: which context may use the algorithm when.
//!
//! A submitter that gets the **turn** inserts and dispatches; one that does not publishes its bios
//! and goes on, and the holder of the turn takes them in (flat combining). See
//! `docs/design/0002-mq-deadline.md`; the cure is that of "block/mq-deadline: use separate
//! insertion lists" (Bart Van Assche and Jens Axboe, linux-block, 23 January 2024) without its
//! second lock and its faults.
//!
//! Invariants:
//! * Nobody waits for the turn but a channel that is closed, and nothing that was published without
//!   it is left behind ([`drystone_core::turn`]).
//! * While nothing is kept no trees are here: each channel brings its own, so that their memory
//!   stays in the cache of the core that uses them.
//! * While nothing is kept, best-effort bios for which there are tags go **alone**: through a FIFO
//!   and a sort order of their channel's, without the turn. None of them can be told from one that
//!   had the turn just before, but by the position that its order begins at.

mod counts;
mod intake;
mod turn;

use super::deadline::{BEST_EFFORT, Batch, Deadline, Insertion, Position, class_of, is_sync_read};
use super::{Caller, Exclusive, InsertAt, Port, Scheduler};
use crate::config::Config;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicBool, AtomicU32, Ordering::*};
use drystone_core::sync::{Guard, LockClass, LockCounters};
use drystone_core::turn::TurnLock;
use drystone_core::{BioList, PortId};
use intake::Intake;
use turn::{Stop, Turn};

/// See the module's text.
pub struct MqDeadline {
    turn: TurnLock<Turn>,
    /// Units in the trees, and bios that wait for admission; written with the turn.
    kept: AtomicU32,
    /// Real-time requests may be in flight, so that others must wait for the turn; written with it.
    real_time: AtomicBool,
}

impl Default for MqDeadline {
    fn default() -> Self {
        MqDeadline {
            turn: TurnLock::new(LockClass::Scheduler, Turn::default()),
            kept: AtomicU32::new(0),
            real_time: AtomicBool::new(false),
        }
    }
}

/// The state that a channel keeps for the scheduler.
#[derive(Default)]
pub struct Local {
    /// Its trees, empty, while it has them.
    trees: Option<Box<Deadline>>,
    /// For what goes alone.
    batch: Batch,
    position: Position,
}

impl MqDeadline {
    #[inline]
    fn enter(
        &self,
        caller: &Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> Option<Guard<'_, Turn>> {
        self.turn.enter(caller.locks, caller.port().id(), bios, place)
    }

    /// Take in what others published.
    #[cold]
    fn take_published(
        &self,
        turn: &mut Turn,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
        intake: &mut Intake,
    ) {
        for (mut list, place) in self.turn.take() {
            for bio in list.iter().filter(|bio| bio.port != caller.port().id()) {
                if turn.arrivals.last() != Some(&bio.port) {
                    turn.arrivals.push(bio.port);
                }
            }
            turn.take_in(trees, caller, intake, &mut list, place);
        }
    }

    /// Leave the turn. True if there is reason to come again: something has come meanwhile that the
    /// turn did not find, and the context that brought it may have found the turn taken.
    #[inline]
    #[must_use]
    fn leave(
        &self,
        turn: Guard<'_, Turn>,
        kept: u32,
        stop: Stop,
        intake: Intake,
        caller: &mut Caller<'_>,
    ) -> bool {
        if self.kept.load(Relaxed) != kept {
            self.kept.store(kept, Release);
        }
        let real_time = turn.counts.knows_real_time();
        if self.real_time.load(Relaxed) != real_time {
            self.real_time.store(real_time, Release);
        }
        let (seen, waits) = (turn.counts.seen(), !turn.admission.is_empty());
        self.turn.leave(turn)
            || kept > 0
                && !caller.device_busy
                && (stop == Stop::NoTag && caller.tags_came_free()
                    || seen.is_old(caller)
                    || waits && intake.has_more_room(caller))
    }
}

/// Tells the channels whose bios came in this turn, and may be kept, that they wait for others'
/// tags; those whose bios came before were told before.
#[cold]
fn tell_lack_of_tags(arrivals: &mut Vec<PortId>, caller: &mut Caller<'_>) {
    caller.port().set_lacks_tags();
    for id in arrivals.drain(..) {
        let port = caller.port_of(id);
        if port.set_lacks_tags() {
            caller.notify_lazily(&port);
        }
    }
}

impl Scheduler for MqDeadline {
    type Local = Local;

    fn run(
        &self,
        local: &mut Local,
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> bool {
        let Some(mut turn) = self.enter(caller, bios, place) else { return false };
        let trees = turn.trees.take().or_else(|| local.trees.take());
        let mut trees = trees.unwrap_or_default();
        turn.counts.forget();
        let mut intake = Intake::new(&mut turn.counts, &trees, caller);
        if self.turn.has_published() {
            self.take_published(&mut turn, &mut trees, caller, &mut intake);
        }
        turn.take_in(&mut trees, caller, &mut intake, bios, place);
        let stop = turn.work(&mut trees, caller, &mut intake);
        let kept = turn.kept(&trees);
        if kept > 0 {
            caller.free_spare();
            intake.note(&trees);
            tell_lack_of_tags(&mut turn.arrivals, caller);
            turn.trees = Some(trees);
        } else {
            turn.arrivals.clear();
            local.trees = Some(trees);
        }
        self.leave(turn, kept, stop, intake, caller)
    }

    #[inline]
    fn exclusive(
        &self,
        local: &mut Local,
        bios: &mut BioList,
        now: Ns,
        config: &Config,
    ) -> Exclusive {
        let limited = config.tunables.async_depth < config.nr_requests;
        if self.real_time.load(Acquire) || limited && bios.iter().any(|bio| !is_sync_read(bio.op)) {
            return Exclusive::No;
        }
        if local.batch.order(bios, &mut local.position, now, &Insertion::of(config)) {
            return Exclusive::InOrder;
        }
        match bios.iter().all(|bio| class_of(bio.priority) == BEST_EFFORT) {
            true => Exclusive::Merged,
            false => Exclusive::No,
        }
    }

    fn run_exclusive(&self, local: &mut Local, caller: &mut Caller<'_>, bios: &mut BioList) {
        let trees = local.trees.get_or_insert_default();
        while let Some(bio) = bios.pop() {
            caller.insert(trees, bio);
        }
        while !trees.is_empty() {
            let now = caller.now;
            let (config, out) = caller.split();
            let (position, tunables) = (&mut local.position, &config.tunables);
            let next =
                trees.dispatch_into(position, now, tunables, |_| false, |port| out.place(port));
            let (_, lane) = next.expect("one class alone waits for nothing");
            caller.grant_exclusive(lane);
        }
    }

    fn expel(&self, _: &mut Local, caller: &mut Caller<'_>, port: PortId) -> (BioList, bool) {
        let mut out = BioList::new();
        let Some(mut turn) = self.enter(caller, &mut BioList::new(), InsertAt::Tail) else {
            return (out, false);
        };
        let mut trees = turn.trees.take().unwrap_or_default();
        turn.counts.forget();
        let mut intake = Intake::new(&mut turn.counts, &trees, caller);
        self.take_published(&mut turn, &mut trees, caller, &mut intake);
        turn.admission.expel(port, &mut out);
        let (mut head, mut others) = (BioList::new(), BioList::new());
        trees.take_head(|owner, mut unit| match owner == port {
            true => out.append(&mut unit.bios),
            false => head.append(&mut unit.bios),
        });
        trees.take_all(|owner, mut unit| match owner == port {
            true => out.append(&mut unit.bios),
            false => others.append(&mut unit.bios),
        });
        trees.insert_all_at_head(&mut head, &caller.insertion());
        while let Some(bio) = others.pop() {
            trees.insert(bio.port, bio, &caller.insertion());
        }
        let kept = turn.kept(&trees);
        intake.note(&trees);
        turn.trees = (!trees.is_empty()).then_some(trees);
        if kept > 0 {
            tell_lack_of_tags(&mut turn.arrivals, caller);
        }
        turn.arrivals.clear();
        let again = self.leave(turn, kept, Stop::NoUnit, intake, caller);
        (out, again || kept > 0)
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.kept.load(Relaxed) != 0 || self.turn.has_published()
    }

    fn is_busy(&self) -> bool {
        self.turn.is_busy()
    }

    fn last_publisher(&self) -> PortId {
        self.turn.publisher()
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        let mut turn = self.turn.wait(locks);
        turn.counts.closed(port);
        remove();
        // Nothing was dispatched: a context that found the turn taken must check once more.
        self.turn.leave(turn) || self.kept.load(Relaxed) > 0
    }
}
