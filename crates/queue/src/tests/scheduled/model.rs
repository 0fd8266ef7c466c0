//! A plain second implementation of mq-deadline as its channels see it: which bios bypass it, which
//! are let in, and which unit goes next. The order among kept units comes from the plain model of
//! the algorithm.

use crate::scheduler::deadline::Tunables;
use crate::scheduler::deadline::tests::model::{Entry, Model};
use drystone_core::{Bio, BioFlags, Limits, Op, PortId, PriorityClass};

/// A request that was sent to the driver: its context, sector and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub port: PortId,
    pub sector: u64,
    pub bytes: u64,
    pub op: Op,
    pub class: usize,
}

/// A bio as the model keeps it.
pub type Make = std::rc::Rc<dyn Fn() -> Box<Bio>>;

pub struct Scheduled {
    pub now: u64,
    pub tunables: Tunables,
    pub tags: usize,
    pub nr_requests: usize,
    pub limits: Limits,
    kept: Model,
    /// The scheduling position of each context, as a model that is empty between calls.
    own: Vec<Model>,
    waiting: Vec<(PortId, Make)>,
    /// The number of reads that were let in since other operations had their turn.
    passed: u32,
    flight: Vec<Sent>,
    /// The numbers of real-time requests: sent, ended, and ended at the last check.
    real_time: [usize; 3],
    /// The last turn saw real-time requests in flight when it ended.
    saw_real_time: bool,
    /// The requests that were sent in this step.
    pub sent: Vec<Sent>,
    /// The bios that were refused in this step, by number.
    pub refused: Vec<u64>,
}

fn is_read(bio: &Bio) -> bool {
    bio.op == Op::Read
}

fn is_best_effort(bio: &Bio) -> bool {
    matches!(bio.priority.class, PriorityClass::None | PriorityClass::BestEffort)
}

impl Scheduled {
    pub fn new(contexts: usize, tags: usize, nr_requests: usize, tunables: Tunables) -> Self {
        Scheduled {
            now: 0,
            tunables,
            tags: tags.min(nr_requests),
            nr_requests,
            limits: Limits::default(),
            kept: Model::new(),
            own: (0..contexts).map(|_| Model::new()).collect(),
            waiting: Vec::new(),
            passed: 0,
            flight: Vec::new(),
            real_time: [0; 3],
            saw_real_time: false,
            sent: Vec::new(),
            refused: Vec::new(),
        }
    }

    pub fn in_flight(&self) -> Vec<Sent> {
        self.flight.clone()
    }

    /// True if every bio has been sent or has ended.
    pub fn is_idle(&self) -> bool {
        self.kept.len() == 0 && self.waiting.is_empty() && self.flight.is_empty()
    }

    fn free_tags(&self) -> usize {
        self.tags - self.flight.len()
    }

    fn has_work(&self) -> bool {
        self.kept.len() > 0 || !self.waiting.is_empty()
    }

    fn class_in_flight(&self, class: usize) -> bool {
        self.flight.iter().any(|sent| sent.class == class)
    }

    fn send(&mut self, entry: Entry) {
        let Entry { port, sector, bytes, op, class, .. } = entry;
        let sent = Sent { port, sector, bytes, op, class };
        self.real_time[0] += usize::from(class == 0);
        self.flight.push(sent);
        self.sent.push(sent);
    }

    /// Submit the bios of one call. `fits` says whether a given number of tags is free in one
    /// place.
    pub fn submit(&mut self, port: PortId, bios: &[Make], fits: bool) {
        let made: Vec<Box<Bio>> = bios.iter().map(|make| make()).collect();
        let limited = (self.tunables.async_depth as usize) < self.nr_requests;
        let in_the_way = self.has_work() || self.saw_real_time;
        let all_counted = limited && made.iter().any(|bio| !is_read(bio));
        let alone = !in_the_way && !all_counted && self.free_tags() > 0;
        let mut left: Vec<Make> = bios.to_vec();
        if alone && is_batch(&made) {
            left = self.go_in_order(port, &made, bios);
        } else if alone && fits && made.iter().all(|bio| is_best_effort(bio)) {
            self.by_own(port, &made).into_iter().for_each(|entry| self.send(entry));
            left.clear();
        }
        if !left.is_empty() {
            self.turn(left.into_iter().map(|make| (port, make)).collect());
        }
    }

    /// The units that the context's own trees make of the bios.
    fn by_own(&mut self, port: PortId, bios: &[Box<Bio>]) -> Vec<Entry> {
        let Scheduled { own, limits, tunables, now, .. } = self;
        let own = &mut own[port.index()];
        bios.iter().for_each(|bio| own.insert(port, bio, limits, 0, tunables));
        std::iter::from_fn(|| own.dispatch(*now, tunables, [false; 3])).collect()
    }

    /// Send as many bios as there are tags for; returns the others.
    fn go_in_order(&mut self, port: PortId, made: &[Box<Bio>], bios: &[Make]) -> Vec<Make> {
        let mut left = Vec::new();
        for entry in self.by_own(port, made) {
            if self.free_tags() > 0 {
                self.send(entry);
            } else {
                let which = made.iter().position(|bio| bio.user_data == entry.bios[0]);
                left.push(bios[which.expect("one of them")].clone());
            }
        }
        left
    }

    /// Take a turn: let new bios in, and send the units that may go.
    fn turn(&mut self, bios: Vec<(PortId, Make)>) {
        bios.into_iter().for_each(|(port, make)| self.take_in(port, make));
        loop {
            self.dispatch();
            if self.waiting.is_empty() || !self.let_in() {
                break;
            }
        }
        self.saw_real_time = self.real_time[0] != self.real_time[2];
    }

    fn dispatch(&mut self) {
        while self.kept.len() > 0 && self.free_tags() > 0 {
            if self.kept.kept(0) == 0 {
                self.real_time[2] = self.real_time[1];
            }
            let in_flight = [0, 1, 2].map(|class| self.class_in_flight(class));
            let Some(entry) = self.kept.dispatch(self.now, &self.tunables, in_flight) else {
                return;
            };
            self.send(entry);
        }
    }

    fn has_room(&self, read: bool) -> bool {
        let writes = self.flight.iter().filter(|sent| sent.op != Op::Read).count();
        let others = self.kept.others() + writes;
        let limited = (self.tunables.async_depth as usize) < self.nr_requests;
        self.kept.len() + self.flight.len() < self.nr_requests
            && (read || !limited || others < self.tunables.async_depth as usize)
    }

    fn take_in(&mut self, port: PortId, make: Make) {
        let bio = make();
        let mut merged = self.kept.clone();
        merged.insert(port, &bio, &self.limits, 0, &self.tunables);
        if merged.len() <= self.kept.len() {
            self.kept = merged;
            return;
        }
        let read = is_read(&bio);
        let waits = |kind: bool| self.waiting.iter().any(|(_, make)| is_read(&make()) == kind);
        let other_could = waits(!read) && self.has_room(!read);
        let has_turn =
            if read { self.passed < self.tunables.writes_starved } else { !self.reads_first() };
        if !waits(read) && self.has_room(read) && (!other_could || has_turn) {
            let others_wait = !read || waits(false);
            self.goes_in(read, others_wait);
            self.kept.insert(port, &bio, &self.limits, 0, &self.tunables);
        } else if bio.flags.contains(BioFlags::NOWAIT) {
            self.refused.push(bio.user_data);
        } else {
            self.waiting.push((port, make));
        }
    }

    fn reads_first(&self) -> bool {
        self.passed < self.tunables.writes_starved
    }

    fn goes_in(&mut self, read: bool, others_wait: bool) {
        if !read {
            self.passed = 0;
        } else if others_wait && self.has_room(false) {
            self.passed += 1;
        }
    }

    fn let_in(&mut self) -> bool {
        let mut any = false;
        loop {
            let first =
                |kind: bool| self.waiting.iter().position(|(_, make)| is_read(&make()) == kind);
            let read = first(true).filter(|_| self.has_room(true));
            let other = first(false).filter(|_| self.has_room(false));
            let next = match (read, other) {
                (Some(read), Some(other)) => {
                    if self.reads_first() {
                        read
                    } else {
                        other
                    }
                }
                (one, two) => match one.or(two) {
                    Some(next) => next,
                    None => return any,
                },
            };
            let others_wait = first(false).is_some();
            let (port, make) = self.waiting.remove(next);
            let bio = make();
            self.goes_in(is_read(&bio), others_wait);
            self.kept.insert(port, &bio, &self.limits, 0, &self.tunables);
            any = true;
        }
    }

    /// Let a context recheck, because time has passed.
    pub fn look(&mut self) {
        if self.has_work() {
            self.turn(Vec::new());
        }
    }

    /// End request number `index` of those in flight.
    pub fn complete(&mut self, index: usize) -> Sent {
        let sent = self.flight.remove(index);
        self.real_time[1] += usize::from(sent.class == 0);
        self.look();
        sent
    }
}

/// True if the bios go one by one: best effort, in one direction, and not adjacent.
fn is_batch(bios: &[Box<Bio>]) -> bool {
    let apart = |a: &Bio, b: &Bio| a.end_sector().0 < b.sector.0 || b.end_sector().0 < a.sector.0;
    let mut pairs =
        bios.iter().enumerate().flat_map(|(n, a)| bios[..n].iter().map(move |b| (a, b)));
    bios.len() <= 32
        && bios.iter().all(|bio| is_best_effort(bio) && is_read(bio) == is_read(&bios[0]))
        && pairs.all(|(a, b)| apart(a, b))
}
