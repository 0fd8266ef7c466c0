//! The scheduler `mq-deadline`, shared without waiting: who may use the algorithm when.
//!
//! A submitter that gets the **turn** inserts and dispatches; one that does not publishes its
//! bios and goes on, and whoever has the turn takes them in. See `docs/design/0002-mq-deadline.md`;
//! the cure is that of "block/mq-deadline: use separate insertion lists" (Bart Van Assche and Jens
//! Axboe, linux-block, 23 January 2024) without its second lock and its faults.
//!
//! Invariants:
//! * Nobody waits for the turn, and nothing that was published without it is left behind
//!   ([`super::turn`]).
//! * While nothing is kept no trees are here: each channel brings its own, so that their memory
//!   stays in the cache of the core that uses them.
//! * While nothing is kept, best-effort bios for which there are tags go **alone**: through a FIFO
//!   and a sort order of their channel's, without the turn. None of them can be told from one that
//!   had the turn just before, but by the position that the order begins at.
//! * A class has `dispatched` in the turn, plus `passed` alone, minus `ended` requests in flight.
//!   What has ended is summed over the channels only when the answer is not known: never while
//!   best effort alone is in use.

use super::deadline::{
    BEST_EFFORT, Batch, CLASSES, Deadline, Home, Inserted, Insertion, Position, REAL_TIME, class_of,
};
use super::turn::TurnLock;
use super::{Alone, Caller, Place, Port, Ports, Scheduler};
use drystone_core::BioList;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicBool, AtomicU32, Ordering::*};
use drystone_core::sync::{Guard, LockCounters};

/// See the module's text.
pub struct MqDeadline {
    turn: TurnLock<Turn>,
    /// Units in the trees; written with the turn.
    kept: AtomicU32,
    /// Real-time requests may be in flight, so that others must wait for the turn; written with it.
    real_time: AtomicBool,
}

/// What belongs to whoever has the turn.
#[derive(Default)]
struct Turn {
    position: Position,
    counts: Counts,
    /// The units, if any are kept.
    trees: Option<Box<Deadline>>,
    /// Other channels whose published bios were inserted in this turn.
    arrivals: Vec<u32>,
}

/// Scheduled requests, by class.
#[derive(Default)]
struct Counts {
    dispatched: [u64; CLASSES],
    /// How many requests had ended when last summed, channels that are closed included.
    ended: [u64; CLASSES],
    /// Of these, how many were of channels that are closed.
    ended_closed: [u64; CLASSES],
    /// Requests that went alone, of channels that are closed.
    passed_closed: u64,
}

/// What a channel has of its own.
#[derive(Default)]
pub struct Local {
    /// Its trees, empty, while it has them.
    trees: Option<Box<Deadline>>,
    /// For what goes alone.
    batch: Batch,
    position: Position,
}

impl Default for MqDeadline {
    fn default() -> Self {
        MqDeadline {
            turn: TurnLock::new(Turn::default()),
            kept: AtomicU32::new(0),
            real_time: AtomicBool::new(false),
        }
    }
}

impl Counts {
    /// Whether requests of `class` are in flight.
    #[inline]
    fn in_flight(&mut self, class: usize, ports: &Ports) -> bool {
        let known = class != BEST_EFFORT && self.dispatched[class] == self.ended[class];
        !known && self.sum_ended(class, ports)
    }

    /// What ended is read first, so that none of it is missing in what passed.
    #[cold]
    fn sum_ended(&mut self, class: usize, ports: &Ports) -> bool {
        self.ended[class] = self.ended_closed[class] + ports.ended(class);
        let passed = match class {
            BEST_EFFORT => self.passed_closed + ports.passed(),
            _ => 0,
        };
        debug_assert!(self.ended[class] <= self.dispatched[class] + passed);
        self.dispatched[class] + passed != self.ended[class]
    }
}

/// Why a dispatch came to its end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// No tag was found.
    NoTag,
    /// Nothing is kept, or what is may not go while higher classes are in flight.
    NoUnit,
}

impl Turn {
    /// Grant units while there are tags and units that may go.
    #[inline]
    fn dispatch(&mut self, trees: &mut Deadline, caller: &mut Caller<'_>) -> Stop {
        while !trees.is_empty() {
            if !caller.may_find_tag() {
                return Stop::NoTag;
            }
            let Some((home, class)) = self.place_next(trees, caller) else { return Stop::NoUnit };
            if let Err(mut unit) = caller.grant_placed() {
                trees.insert_at_head(home, unit.bios.take(), &caller.insertion());
                return Stop::NoTag;
            }
            self.counts.dispatched[class] += 1;
        }
        Stop::NoUnit
    }

    /// Put the unit that goes next where the caller wants it: its channel and class.
    #[inline]
    fn place_next(
        &mut self,
        trees: &mut Deadline,
        caller: &mut Caller<'_>,
    ) -> Option<(Home, usize)> {
        let now = caller.now;
        let (config, out) = caller.split();
        let counts = &mut self.counts;
        trees.dispatch_into(
            &mut self.position,
            now,
            &config.tunables,
            |class| counts.in_flight(class, &config.ports),
            |home| out.place(home.0),
        )
    }
}

impl MqDeadline {
    #[inline]
    fn enter(
        &self,
        caller: &Caller<'_>,
        bios: &mut BioList,
        place: Place,
    ) -> Option<Guard<'_, Turn>> {
        self.turn.enter(caller.locks, caller.port().index, bios, place)
    }

    /// Insert what others published.
    #[cold]
    fn insert_published(&self, turn: &mut Turn, trees: &mut Deadline, caller: &Caller<'_>) {
        for (mut list, place) in self.turn.take() {
            for bio in list.iter().filter(|bio| bio.home != caller.port().index) {
                if turn.arrivals.last() != Some(&bio.home) {
                    turn.arrivals.push(bio.home);
                }
            }
            insert(trees, caller, &mut list, place);
        }
    }

    /// Leave the turn, with `kept` units in the trees. True if there is reason to come again: what
    /// the turn did not find has come meanwhile, and whoever brought it may have found it taken.
    #[inline]
    fn leave(&self, turn: Guard<'_, Turn>, kept: u32, stop: Stop, caller: &mut Caller<'_>) -> bool {
        if self.kept.load(Relaxed) != kept {
            self.kept.store(kept, Release);
        }
        let counts = &turn.counts;
        let real_time = counts.dispatched[REAL_TIME] != counts.ended[REAL_TIME];
        if self.real_time.load(Relaxed) != real_time {
            self.real_time.store(real_time, Release);
        }
        let (ended, closed) = (turn.counts.ended, turn.counts.ended_closed);
        self.turn.leave(turn)
            || kept > 0
                && !caller.held
                && match stop {
                    Stop::NoTag => caller.tags_came_free(),
                    Stop::NoUnit => (0..CLASSES).any(|c| closed[c] + caller.ended(c) != ended[c]),
                }
    }
}

#[inline]
fn insert(trees: &mut Deadline, caller: &Caller<'_>, bios: &mut BioList, place: Place) {
    let how = caller.insertion();
    match place {
        Place::Tail => {
            while let Some(bio) = bios.pop() {
                let group = bio.op.group();
                if trees.insert(Home(bio.home), bio, &how) != Inserted::Kept {
                    caller.count_merged(group);
                }
            }
        }
        Place::Head => insert_at_head(trees, bios, &how),
    }
}

/// Batches of several channels, each in its own order, the later before the earlier.
#[cold]
fn insert_at_head(trees: &mut Deadline, bios: &mut BioList, how: &super::deadline::Insertion<'_>) {
    while let Some(first) = bios.pop() {
        let home = first.home;
        let mut batch = BioList::new();
        batch.push(first);
        while bios.front().is_some_and(|bio| bio.home == home) {
            batch.extend(bios.pop());
        }
        trees.insert_at_head(Home(home), batch, how);
    }
}

/// The channels whose bios came in this turn, and may be kept, are to know that they wait for
/// others' tags; those whose bios came before were told before.
#[cold]
fn tell_starving(arrivals: &mut Vec<u32>, caller: &mut Caller<'_>) {
    caller.port().set_starving();
    for home in arrivals.drain(..) {
        let port = caller.port_of(home);
        if port.set_starving() {
            caller.leave_word(&port);
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
        place: Place,
    ) -> bool {
        let Some(mut turn) = self.enter(caller, bios, place) else { return false };
        let trees = turn.trees.take().or_else(|| local.trees.take());
        let mut trees = trees.unwrap_or_default();
        if self.turn.has_published() {
            self.insert_published(&mut turn, &mut trees, caller);
        }
        insert(&mut trees, caller, bios, place);
        let stop = turn.dispatch(&mut trees, caller);
        let kept = trees.len() as u32;
        if kept > 0 {
            tell_starving(&mut turn.arrivals, caller);
            turn.trees = Some(trees);
        } else {
            turn.arrivals.clear();
            local.trees = Some(trees);
        }
        self.leave(turn, kept, stop, caller)
    }

    #[inline]
    fn alone(&self, local: &mut Local, bios: &mut BioList, now: Ns, how: &Insertion<'_>) -> Alone {
        if self.real_time.load(Acquire) {
            return Alone::No;
        }
        if local.batch.order(bios, &mut local.position, now, how) {
            return Alone::InOrder;
        }
        match bios.iter().all(|bio| class_of(bio.priority) == BEST_EFFORT) {
            true => Alone::AsUnits,
            false => Alone::No,
        }
    }

    fn run_alone(&self, local: &mut Local, caller: &mut Caller<'_>, bios: &mut BioList) {
        let trees = local.trees.get_or_insert_default();
        insert(trees, caller, bios, Place::Tail);
        while !trees.is_empty() {
            let now = caller.now;
            let (config, out) = caller.split();
            let (position, tunables) = (&mut local.position, &config.tunables);
            let next =
                trees.dispatch_into(position, now, tunables, |_| false, |home| out.place(home.0));
            debug_assert!(next.is_some(), "one class alone waits for nothing");
            caller.pass();
        }
    }

    fn expel(&self, _: &mut Local, caller: &mut Caller<'_>, home: u32) -> BioList {
        let mut out = BioList::new();
        let Some(mut turn) = self.enter(caller, &mut BioList::new(), Place::Tail) else {
            return out;
        };
        let mut trees = turn.trees.take().unwrap_or_default();
        self.insert_published(&mut turn, &mut trees, caller);
        let mut others = BioList::new();
        trees.take_all(|whose, mut unit| match whose.0 == home {
            true => out.append(&mut unit.bios),
            false => others.append(&mut unit.bios),
        });
        while let Some(bio) = others.pop() {
            trees.insert(Home(bio.home), bio, &caller.insertion());
        }
        let kept = trees.len() as u32;
        turn.trees = (kept > 0).then_some(trees);
        turn.arrivals.clear();
        self.leave(turn, kept, Stop::NoTag, caller);
        out
    }

    #[inline]
    fn has_work(&self) -> bool {
        self.kept.load(Relaxed) != 0 || self.turn.has_published()
    }

    fn is_busy(&self) -> bool {
        self.turn.is_busy()
    }

    fn last_publisher(&self) -> u32 {
        self.turn.publisher()
    }

    fn closed(&self, port: &Port, locks: &LockCounters) {
        let mut turn = self.turn.wait(locks);
        for class in 0..CLASSES {
            turn.counts.ended_closed[class] += port.ended(class);
        }
        turn.counts.passed_closed += port.passed();
    }
}
