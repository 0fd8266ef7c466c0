//! The rules once more, as plainly as they can be written: one vector in FIFO order, looked
//! through from one end to the other for everything. Shares nothing with the code it checks but
//! the limits and the tunables.

use crate::scheduler::deadline::Tunables;
use drystone_core::{Bio, BioFlags, Limits, Op, PortId, Priority, PriorityClass};

/// A unit: numbers of its bios in order, and what the rules ask of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub port: PortId,
    pub bios: Vec<u64>,
    pub sector: u64,
    pub bytes: u64,
    pub start: u64,
    pub op: Op,
    flags: BioFlags,
    priority: Priority,
    group: u32,
    segments: usize,
    pub class: usize,
    deadline: u64,
    /// When it came to its place in the sort order.
    order: u64,
    /// Number of its insertion.
    serial: u64,
}

impl Entry {
    fn new(port: PortId, bio: &Bio, tunables: &Tunables) -> Self {
        let expire = match bio.op {
            Op::Read => tunables.read_expire_ns,
            _ => tunables.write_expire_ns,
        };
        Entry {
            port,
            bios: vec![bio.user_data],
            sector: bio.sector.0,
            bytes: bio.bytes,
            start: bio.start_ns,
            op: bio.op,
            flags: bio.flags,
            priority: bio.priority,
            group: bio.group,
            segments: bio.segment_count(),
            class: match bio.priority.class {
                PriorityClass::RealTime => 0,
                PriorityClass::BestEffort | PriorityClass::None => 1,
                PriorityClass::Idle => 2,
            },
            deadline: bio.start_ns + expire,
            order: 0,
            serial: 0,
        }
    }

    fn end(&self) -> u64 {
        self.sector + self.bytes / 512
    }

    pub fn writes(&self) -> bool {
        self.op != Op::Read
    }

    /// True if `next`, which begins where this ends, may belong to the same request.
    fn takes(&self, next: &Entry, limits: &Limits) -> bool {
        let alone = BioFlags::NOMERGE | BioFlags::FUA | BioFlags::PREFLUSH;
        let same = BioFlags::SYNC
            | BioFlags::POLLED
            | BioFlags::BACKGROUND
            | BioFlags::NOUNMAP
            | BioFlags::FAST_ZERO;
        let bytes = self.bytes + next.bytes;
        let fits = match self.op {
            Op::Read | Op::Write => {
                let chunk = limits.chunk_bytes;
                let (first, last) = (self.sector * 512, self.sector * 512 + bytes - 1);
                bytes <= u64::from(limits.max_bytes)
                    && (chunk == 0 || first / chunk == last / chunk)
            }
            Op::Discard => bytes <= limits.max_discard_bytes,
            _ => false,
        };
        fits && self.end() == next.sector
            && (self.port, self.op) == (next.port, next.op)
            && (self.priority, self.group) == (next.priority, next.group)
            && !self.flags.intersects(alone)
            && !next.flags.intersects(alone)
            && self.flags & same == next.flags & same
            && self.segments + next.segments <= usize::from(limits.max_segments)
    }

    /// This and `next`, with this one's places.
    fn with(&self, next: &Entry) -> Entry {
        Entry {
            bios: [self.bios.clone(), next.bios.clone()].concat(),
            bytes: self.bytes + next.bytes,
            segments: self.segments + next.segments,
            start: self.start.min(next.start),
            deadline: self.deadline.min(next.deadline),
            ..self.clone()
        }
    }
}

#[derive(Clone)]
pub struct Model {
    /// In the order of the FIFOs, all of them together.
    fifo: Vec<Entry>,
    head: Vec<Entry>,
    pos: [[u64; 2]; 3],
    last_dir: usize,
    batching: u64,
    starved: u64,
    inserted: u64,
    newest: Option<u64>,
}

impl Model {
    pub fn new() -> Self {
        Model {
            fifo: Vec::new(),
            head: Vec::new(),
            pos: [[0; 2]; 3],
            last_dir: 1,
            batching: 0,
            starved: 0,
            inserted: 0,
            newest: None,
        }
    }

    pub fn len(&self) -> usize {
        self.fifo.len() + self.head.len()
    }

    /// Units that are no reads.
    pub fn others(&self) -> usize {
        self.fifo.iter().chain(&self.head).filter(|e| e.writes()).count()
    }

    pub fn kept(&self, class: usize) -> usize {
        self.fifo.iter().chain(&self.head).filter(|e| e.class == class).count()
    }

    /// Indices of the units of a class and direction, in sort order.
    fn tree(&self, class: usize, dir: usize) -> Vec<usize> {
        let of_lane =
            |i: &usize| self.fifo[*i].class == class && usize::from(self.fifo[*i].writes()) == dir;
        let mut tree: Vec<usize> = (0..self.fifo.len()).filter(of_lane).collect();
        tree.sort_by_key(|i| (self.fifo[*i].sector, self.fifo[*i].order));
        tree
    }

    pub fn insert(&mut self, port: PortId, bio: &Bio, limits: &Limits, nomerges: u8, t: &Tunables) {
        let mut new = Entry::new(port, bio, t);
        self.inserted += 1;
        (new.order, new.serial) = (self.inserted, self.inserted);
        let tree = self.tree(new.class, usize::from(new.writes()));
        let below = tree.iter().rposition(|i| self.fifo[*i].sector <= new.sector);
        let lower = below.map(|at| tree[at]);
        let upper = tree.get(below.map_or(0, |at| at + 1)).copied();
        let newest = self.newest;
        let may = |e: &Entry| nomerges == 0 || nomerges == 1 && Some(e.serial) == newest;

        if let Some(l) = lower
            && may(&self.fifo[l])
            && self.fifo[l].takes(&new, limits)
        {
            self.fifo[l] = self.fifo[l].with(&new);
            if let Some(u) = upper
                && nomerges == 0
                && self.fifo[l].takes(&self.fifo[u], limits)
            {
                self.join(l, u);
            }
            return;
        }
        if let Some(u) = upper
            && t.front_merges
            && may(&self.fifo[u])
            && new.takes(&self.fifo[u], limits)
        {
            let (deadline, start, old) = (new.deadline, new.start, &self.fifo[u]);
            let joined = new.with(old);
            self.fifo[u] = Entry {
                deadline: deadline.min(old.deadline),
                start: start.min(old.start),
                flags: old.flags,
                serial: old.serial,
                ..joined
            };
            return;
        }
        self.newest = Some(new.serial);
        self.fifo.push(new);
    }

    /// Two neighbours become one: the lower one, at the FIFO place of the earlier deadline.
    fn join(&mut self, l: usize, u: usize) {
        let joined = self.fifo[l].with(&self.fifo[u]);
        let place = if self.fifo[u].deadline < self.fifo[l].deadline { u } else { l };
        let gone = if place == u { l } else { u };
        let joined = Entry { serial: self.fifo[place].serial, ..joined };
        self.fifo[place] = joined;
        self.remove(gone);
    }

    pub fn insert_at_head(&mut self, port: PortId, bios: &[&Bio], l: &Limits, nomerges: u8) {
        let mut list: Vec<Entry> = Vec::new();
        for bio in bios {
            let new = Entry::new(port, bio, &Tunables::new(1));
            match list.last_mut() {
                Some(last) if nomerges < 2 && last.takes(&new, l) => *last = last.with(&new),
                _ => list.push(new),
            }
        }
        self.head = [list, std::mem::take(&mut self.head)].concat();
    }

    pub fn dispatch(&mut self, now: u64, t: &Tunables, in_flight: [bool; 3]) -> Option<Entry> {
        if !self.head.is_empty() {
            let first = self.head.remove(0);
            self.pos[first.class][usize::from(first.writes())] = first.sector;
            return Some(first);
        }
        let queued = |m: &Model, c: usize| m.kept(c) > 0 || in_flight[c];
        if (0..3).filter(|c| queued(self, *c)).count() >= 2 {
            for c in [1, 2] {
                let aged = i128::from(now) - i128::from(t.prio_aging_expire_ns);
                let before = (self.last_dir, self.batching, self.starved);
                if let Some(r) = self.pick(c, aged, now, t) {
                    return Some(r);
                }
                (self.last_dir, self.batching, self.starved) = before;
            }
        }
        for c in [0, 1, 2] {
            if let Some(r) = self.pick(c, i128::MAX, now, t) {
                return Some(r);
            }
            if queued(self, c) {
                return None;
            }
        }
        None
    }

    fn next(&self, c: usize, d: usize) -> Option<usize> {
        self.tree(c, d).into_iter().find(|i| self.fifo[*i].sector >= self.pos[c][d])
    }

    fn oldest(&self, c: usize, d: usize) -> Option<usize> {
        self.tree(c, d).into_iter().min()
    }

    fn pick(&mut self, c: usize, latest: i128, now: u64, t: &Tunables) -> Option<Entry> {
        let (mut d, mut r) = (self.last_dir, self.next(c, self.last_dir));
        if r.is_none() || self.batching >= u64::from(t.fifo_batch) {
            let (reads, writes) = (self.oldest(c, 0).is_some(), self.oldest(c, 1).is_some());
            if reads {
                d = 0;
                if writes {
                    if self.starved >= u64::from(t.writes_starved) {
                        (d, self.starved) = (1, 0);
                    } else {
                        self.starved += 1;
                    }
                }
            } else if writes {
                (d, self.starved) = (1, 0);
            } else {
                return None;
            }
            let oldest = self.oldest(c, d)?;
            r = match self.next(c, d) {
                Some(next) if self.fifo[oldest].deadline > now => Some(next),
                _ => Some(oldest),
            };
            (self.last_dir, self.batching) = (d, 0);
        }
        let r = r?;
        if i128::from(self.fifo[r].start) > latest {
            return None;
        }
        self.batching += 1;
        self.pos[c][d] = self.fifo[r].sector;
        Some(self.remove(r))
    }

    fn remove(&mut self, at: usize) -> Entry {
        let gone = self.fifo.remove(at);
        if self.newest == Some(gone.serial) {
            self.newest = None;
        }
        gone
    }

    /// The next one of those that go to another scheduler.
    pub fn take_oldest(&mut self) -> Option<Entry> {
        if !self.head.is_empty() {
            return Some(self.head.remove(0));
        }
        let lanes = (0..6).filter_map(|lane| self.oldest(lane / 2, lane % 2));
        let at = lanes.min_by_key(|i| self.fifo[*i].start)?;
        Some(self.remove(at))
    }
}
