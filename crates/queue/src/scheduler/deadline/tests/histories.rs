//! Random histories, step by step the same as the model's.

use super::model::{Entry, Model};
use super::set_tunable;
use crate::scheduler::deadline::{Deadline, Inserted, Insertion, Position, Tunables};
use crate::unit::Unit;
use drystone_core::{
    Bio, BioFlags, BioList, IoBuf, Limits, Op, PortId, Priority, PriorityClass, Sector,
};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct New {
    op: Op,
    class: PriorityClass,
    level: u8,
    flags: BioFlags,
    sector: u64,
    sectors: u64,
    /// The time that it waited before it is inserted.
    age_ms: i64,
}

#[derive(Clone, Debug)]
enum Step {
    Insert(PortId, Vec<New>),
    /// A run of bios, each behind the one before.
    Run(PortId, New, u64),
    InsertAtHead(PortId, Vec<New>),
    Dispatch(usize),
    Pass(u64),
    InFlight([bool; 3]),
    NoMerges(u8),
    Tune(&'static str, u32),
    TakeAll,
}

fn new_bio(space: u64) -> impl Strategy<Value = New> {
    use PriorityClass::*;
    let op = prop_oneof![
        6 => Just(Op::Read),
        6 => Just(Op::Write),
        1 => Just(Op::Discard),
        1 => Just(Op::WriteZeroes),
    ];
    let class =
        prop_oneof![4 => Just(None), 2 => Just(BestEffort), 2 => Just(RealTime), 2 => Just(Idle)];
    let flags = prop_oneof![
        20 => Just(BioFlags::empty()), 2 => Just(BioFlags::SYNC),
        1 => Just(BioFlags::NOMERGE), 1 => Just(BioFlags::STABLE)
    ];
    let level = prop_oneof![9 => Just(0u8), 1 => Just(1)];
    // Below 0: another context's clock is ahead of the reading that dispatch is given.
    let age = prop_oneof![4 => Just(0i64), 1 => -3..9i64];
    (op, class, level, flags, 0..space, 1..4u64, age).prop_map(
        |(op, class, level, flags, sector, sectors, age_ms)| New {
            op,
            class,
            level,
            flags,
            sector,
            sectors,
            age_ms,
        },
    )
}

fn step(space: u64) -> impl Strategy<Value = Step> {
    let port = (0..2u32).prop_map(PortId);
    let bios = |most| prop::collection::vec(new_bio(space), 1..most);
    let tunable = prop::sample::select(vec![
        ("read_expire", vec![0, 3, 20]),
        ("write_expire", vec![0, 5, 40]),
        ("prio_aging_expire", vec![0, 6, 50]),
        ("writes_starved", vec![0, 1, 2]),
        ("fifo_batch", vec![0, 1, 3, 16]),
        ("front_merges", vec![0, 1]),
    ])
    .prop_flat_map(|(name, values)| (Just(name), prop::sample::select(values)));
    prop_oneof![
        8 => (port.clone(), bios(12)).prop_map(|(p, b)| Step::Insert(p, b)),
        3 => (port.clone(), new_bio(space), 2..7u64).prop_map(|(p, b, n)| Step::Run(p, b, n)),
        1 => (port, bios(4)).prop_map(|(p, b)| Step::InsertAtHead(p, b)),
        8 => (1..14usize).prop_map(Step::Dispatch),
        4 => (0..9u64).prop_map(Step::Pass),
        2 => prop::array::uniform3(any::<bool>()).prop_map(Step::InFlight),
        1 => (0..3u8).prop_map(Step::NoMerges),
        2 => tunable.prop_map(|(name, value)| Step::Tune(name, value)),
        1 => Just(Step::TakeAll),
    ]
}

/// Both sides, and what surrounds them.
struct Both {
    deadline: Deadline,
    position: Position,
    model: Model,
    now: u64,
    serial: u64,
    limits: Limits,
    nomerges: u8,
    tunables: Tunables,
    in_flight: [bool; 3],
}

impl Both {
    fn new(limits: Limits) -> Self {
        let mut tunables = Tunables::new(8);
        for (name, value) in
            [("read_expire", "20"), ("write_expire", "40"), ("prio_aging_expire", "50")]
        {
            set_tunable(&mut tunables, name, value);
        }
        Both {
            deadline: Deadline::new(),
            position: Position::default(),
            model: Model::new(),
            now: 10 * MS,
            serial: 0,
            limits,
            nomerges: 0,
            tunables,
            in_flight: [false; 3],
        }
    }

    fn bio(&mut self, new: &New) -> Box<Bio> {
        let (sector, bytes) = (Sector(new.sector), new.sectors * 512);
        let mut bio = match new.op {
            Op::Read => Bio::read(sector, IoBuf::zeroed(bytes as usize)),
            Op::Write => Bio::write(sector, IoBuf::zeroed(bytes as usize)),
            op => Bio::without_data(op, sector, bytes),
        };
        bio.flags = new.flags;
        bio.priority = Priority { class: new.class, level: new.level };
        bio.start_ns = self.now.saturating_add_signed(-new.age_ms * MS as i64);
        self.serial += 1;
        bio.user_data = self.serial;
        bio
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Insert(port, bios) => bios.iter().try_for_each(|new| self.insert(*port, new))?,
            Step::Run(port, first, n) => {
                for i in 0..*n {
                    // Every other one first, so that gaps close.
                    let at = if i < n.div_ceil(2) { 2 * i } else { 2 * (i - n.div_ceil(2)) + 1 };
                    let sector = first.sector + at * first.sectors;
                    self.insert(*port, &New { sector, ..first.clone() })?;
                }
            }
            Step::InsertAtHead(port, bios) => self.insert_at_head(*port, bios)?,
            Step::Dispatch(n) => (0..*n).try_for_each(|_| self.dispatch())?,
            Step::Pass(ms) => self.now += ms * MS,
            Step::InFlight(in_flight) => self.in_flight = *in_flight,
            Step::NoMerges(n) => self.nomerges = *n,
            Step::Tune(name, value) => {
                set_tunable(&mut self.tunables, name, &value.to_string());
            }
            Step::TakeAll => self.take_all()?,
        }
        self.compare_counts()
    }

    fn compare_counts(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.deadline.len(), self.model.len());
        prop_assert_eq!(self.deadline.is_empty(), self.model.len() == 0);
        for class in 0..3 {
            prop_assert_eq!(self.deadline.kept(class) as usize, self.model.kept(class));
        }
        Ok(())
    }

    fn insert(&mut self, port: PortId, new: &New) -> Result<(), TestCaseError> {
        let bio = self.bio(new);
        let before = self.model.len();
        self.model.insert(port, &bio, &self.limits, self.nomerges, &self.tunables);
        let how =
            Insertion { limits: &self.limits, nomerges: self.nomerges, tunables: &self.tunables };
        let inserted = self.deadline.insert(port, bio, &how);
        let expected = match self.model.len() as i64 - before as i64 {
            1 => Inserted::Kept,
            0 => Inserted::Merged,
            _ => Inserted::Joined,
        };
        prop_assert_eq!(inserted, expected, "{:?}", new);
        Ok(())
    }

    fn insert_at_head(&mut self, port: PortId, bios: &[New]) -> Result<(), TestCaseError> {
        let bios: Vec<_> = bios.iter().map(|new| self.bio(new)).collect();
        let views: Vec<&Bio> = bios.iter().map(|bio| &**bio).collect();
        let before = self.model.len();
        self.model.insert_at_head(port, &views, &self.limits, self.nomerges);
        let mut list = BioList::new();
        list.extend(bios);
        let how =
            Insertion { limits: &self.limits, nomerges: self.nomerges, tunables: &self.tunables };
        let more = self.deadline.insert_at_head(port, list, &how);
        prop_assert_eq!(before + more as usize, self.model.len());
        Ok(())
    }

    fn dispatch(&mut self) -> Result<(), TestCaseError> {
        let in_flight = self.in_flight;
        let expected = self.model.dispatch(self.now, &self.tunables, in_flight);
        let found = self
            .deadline
            .dispatch(&mut self.position, self.now, &self.tunables, |class| in_flight[class]);
        compare(found, expected)
    }

    fn take_all(&mut self) -> Result<(), TestCaseError> {
        let mut all = Vec::new();
        self.deadline.take_all(|port, unit| all.push((port, unit)));
        for found in all {
            let expected = self.model.take_oldest();
            compare(Some(found), expected)?;
        }
        Ok(())
    }
}

fn compare(found: Option<(PortId, Unit)>, expected: Option<Entry>) -> Result<(), TestCaseError> {
    let found = found.map(|(port, unit)| {
        let bios: Vec<u64> = unit.bios.iter().map(|b| b.user_data).collect();
        (port, bios, unit.sector.0, unit.bytes, unit.start_ns, unit.op)
    });
    let expected = expected.map(|e| (e.port, e.bios, e.sector, e.bytes, e.start, e.op));
    prop_assert_eq!(found, expected);
    Ok(())
}

fn run(limits: Limits, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut both = Both::new(limits);
    steps.iter().try_for_each(|step| both.step(step))?;
    // The units that are left come out too, once nothing is in the way.
    both.in_flight = [false; 3];
    while both.model.len() > 0 {
        let before = both.model.len();
        both.now += MS;
        both.dispatch()?;
        prop_assert!(both.model.len() < before);
        both.compare_counts()?;
    }
    prop_assert!(both.deadline.is_empty());
    Ok(())
}

proptest! {
    /// Little room: much merging, many equal sectors, tight limits.
    #[test]
    fn crowded(
        steps in prop::collection::vec(step(40), 1..60),
        max_sectors in 4u32..20, chunk_sectors in 0u64..17, max_segments in 2u16..9,
    ) {
        let limits = Limits {
            max_bytes: max_sectors * 512,
            chunk_bytes: chunk_sectors * 512,
            max_segments,
            max_discard_bytes: 8 * 512,
            ..Limits::default()
        };
        run(limits, &steps)?;
    }

    /// Much room: order and batches, hardly a merge.
    #[test]
    fn wide(steps in prop::collection::vec(step(1 << 30), 1..60)) {
        run(Limits::default(), &steps)?;
    }

}

proptest! {
    // Slow, because the model is.
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// So many units that the sort order needs several chunks.
    #[test]
    fn many(
        first in prop::collection::vec(new_bio(1500), 200..500),
        steps in prop::collection::vec(step(1500), 1..60),
    ) {
        let first =
            first.into_iter().map(|new| New { op: Op::Read, class: PriorityClass::None, ..new });
        let insert = Step::Insert(PortId(0), first.collect());
        let steps: Vec<_> = std::iter::once(insert).chain(steps).collect();
        run(Limits { max_bytes: 8 * 512, ..Limits::default() }, &steps)?;
    }
}
