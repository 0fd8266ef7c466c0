//! The algorithm against a model of it, against its rules one by one, and its bounds.

mod admission;
mod batch;
mod bounds;
mod cases;
mod histories;
pub(crate) mod model;
mod order;

use super::{Deadline, IOSCHED, Inserted, Insertion, Position, Tunable, Tunables};
use crate::unit::Unit;
use drystone_core::{Bio, BioList, IoBuf, Limits, Op, PortId, PriorityClass, Sector};

/// Set the tunable `name` (without [`IOSCHED`]) to a value that is permitted.
pub(crate) fn set_tunable(tunables: &mut Tunables, name: &str, value: &str) {
    let row = Tunable::of_attribute(&format!("{IOSCHED}{name}")).expect("a name");
    row.set(tunables, value).expect("a value");
}

/// A scheduler with what surrounds it. Bios are numbered in the order of their insertion.
struct Rig {
    deadline: Deadline,
    position: Position,
    now: u64,
    port: PortId,
    limits: Limits,
    nomerges: u8,
    tunables: Tunables,
    in_flight: [bool; 3],
    number: u64,
}

impl Rig {
    fn new() -> Self {
        Rig {
            deadline: Deadline::new(),
            position: Position::default(),
            now: 1_000_000_000_000,
            port: PortId(0),
            limits: Limits::default(),
            nomerges: 0,
            tunables: Tunables::new(256),
            in_flight: [false; 3],
            number: 0,
        }
    }

    fn set(&mut self, name: &str, value: &str) {
        set_tunable(&mut self.tunables, name, value);
    }

    fn insert_as_it_is(&mut self, mut bio: Box<Bio>) -> Inserted {
        bio.user_data = self.number;
        self.number += 1;
        let how =
            Insertion { limits: &self.limits, nomerges: self.nomerges, tunables: &self.tunables };
        self.deadline.insert(self.port, bio, &how)
    }

    /// Insert `bio` as submitted now.
    fn insert(&mut self, mut bio: Box<Bio>) -> Inserted {
        bio.start_ns = self.now;
        self.insert_as_it_is(bio)
    }

    fn insert_all(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        for bio in bios {
            self.insert(bio);
        }
    }

    /// Insert reads of `class`.
    fn insert_class(&mut self, sectors: impl IntoIterator<Item = u64>, class: PriorityClass) {
        for sector in sectors {
            let mut bio = read(sector);
            bio.priority.class = class;
            self.insert(bio);
        }
    }

    fn insert_at_head(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        list.stamp(self.now);
        self.insert_list_at_head(list);
    }

    fn insert_list_at_head(&mut self, list: BioList) {
        let Rig { deadline, limits, nomerges, tunables, port, .. } = self;
        let how = Insertion { limits, nomerges: *nomerges, tunables };
        deadline.insert_at_head(*port, list, &how);
    }

    fn dispatch_unit(&mut self) -> Option<(PortId, Unit)> {
        let in_flight = self.in_flight;
        let Rig { deadline, position, now, tunables, .. } = self;
        deadline.dispatch(position, *now, tunables, |class| in_flight[class])
    }

    /// Sector of the next unit.
    fn dispatch(&mut self) -> Option<u64> {
        self.dispatch_unit().map(|(_, unit)| unit.sector.0)
    }

    fn dispatch_all(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.dispatch()).collect()
    }

    /// Numbers of the bios in the order in which they go.
    fn dispatch_numbers(&mut self) -> Vec<u64> {
        let units = std::iter::from_fn(|| self.dispatch_unit());
        units.flat_map(|(_, u)| u.bios.iter().map(|b| b.user_data).collect::<Vec<_>>()).collect()
    }
}

fn bio(op: Op, sector: u64) -> Box<Bio> {
    match op {
        Op::Read => Bio::read(Sector(sector), IoBuf::zeroed(512)),
        Op::Write => Bio::write(Sector(sector), IoBuf::zeroed(512)),
        op => Bio::without_data(op, Sector(sector), 512),
    }
}

/// A read of one sector.
fn read(sector: u64) -> Box<Bio> {
    bio(Op::Read, sector)
}

/// A write of one sector.
fn write(sector: u64) -> Box<Bio> {
    bio(Op::Write, sector)
}
