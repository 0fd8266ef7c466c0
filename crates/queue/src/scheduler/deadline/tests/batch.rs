//! A batch with orders of its own against the trees that it stands for.

use super::set_tunable;
use crate::scheduler::deadline::{BATCH_MAX, Batch, Deadline, Insertion, Position, Tunables};
use drystone_core::{Bio, BioList, IoBuf, Limits, Op, PortId, PriorityClass, Sector};
use proptest::prelude::*;

const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
struct New {
    sector: u64,
    sectors: u64,
    class: PriorityClass,
    age_ms: u64,
}

#[derive(Clone, Debug)]
struct Call {
    op: Op,
    /// The op of the last bio, if it is another.
    odd: Option<Op>,
    bios: Vec<New>,
    pass_ms: u64,
    fifo_batch: u32,
    nomerges: u8,
}

fn new_bio(space: u64) -> impl Strategy<Value = New> {
    use PriorityClass::*;
    let class =
        prop_oneof![40 => Just(None), 20 => Just(BestEffort), 1 => Just(RealTime), 1 => Just(Idle)];
    let age = prop_oneof![4 => Just(0u64), 1 => 0..9u64];
    (0..space, 1..3u64, class, age).prop_map(|(sector, sectors, class, age_ms)| New {
        sector,
        sectors,
        class,
        age_ms,
    })
}

fn call(space: u64) -> impl Strategy<Value = Call> {
    let ops = || prop::sample::select(vec![Op::Read, Op::Write, Op::Discard]);
    let bios = prop_oneof![
        3 => prop::collection::vec(new_bio(space), 1..9),
        1 => prop::collection::vec(new_bio(space), 1..36),
    ];
    let odd = prop_oneof![9 => Just(None), 1 => ops().prop_map(Some)];
    (ops(), odd, bios, 0..4u64, prop::sample::select(vec![0, 1, 3, 16]), 0..3u8).prop_map(
        |(op, odd, bios, pass_ms, fifo_batch, nomerges)| Call {
            op,
            odd,
            bios,
            pass_ms,
            fifo_batch,
            nomerges,
        },
    )
}

fn bios(call: &Call, now: u64) -> BioList {
    let mut list = BioList::new();
    for (number, new) in call.bios.iter().enumerate() {
        let last = number + 1 == call.bios.len();
        let op = call.odd.filter(|_| last).unwrap_or(call.op);
        let (sector, bytes) = (Sector(new.sector), new.sectors * 512);
        let mut bio = match op {
            Op::Read => Bio::read(sector, IoBuf::zeroed(bytes as usize)),
            Op::Write => Bio::write(sector, IoBuf::zeroed(bytes as usize)),
            op => Bio::without_data(op, sector, bytes),
        };
        bio.priority.class = new.class;
        bio.start_ns = now - new.age_ms * MS;
        bio.user_data = number as u64;
        list.push(bio);
    }
    list
}

fn numbers(list: &BioList) -> Vec<u64> {
    list.iter().map(|bio| bio.user_data).collect()
}

/// True if a batch must take the call, told bio by bio.
fn is_for_batch(call: &Call) -> bool {
    let write = |op: Op| op != Op::Read;
    let apart =
        |a: &New, b: &New| a.sector + a.sectors < b.sector || b.sector + b.sectors < a.sector;
    let pairs = call.bios.iter().enumerate();
    let all_apart = pairs.clone().all(|(n, a)| call.bios[..n].iter().all(|b| apart(a, b)));
    let same_way = call.odd.is_none_or(|odd| call.bios.len() == 1 || write(odd) == write(call.op));
    let best_effort =
        |new: &New| matches!(new.class, PriorityClass::None | PriorityClass::BestEffort);
    call.bios.len() <= BATCH_MAX && all_apart && same_way && call.bios.iter().all(best_effort)
}

/// The order in which an empty scheduler with that position dispatches them.
fn by_trees(list: BioList, position: &mut Position, now: u64, how: &Insertion) -> Vec<u64> {
    let mut trees = Deadline::new();
    let mut list = list;
    while let Some(bio) = list.pop() {
        trees.insert(PortId(0), bio, how);
    }
    let next = || trees.dispatch(position, now, how.tunables, |_| false);
    std::iter::from_fn(next).flat_map(|(_, unit)| numbers(&unit.bios)).collect()
}

fn run(calls: &[Call]) -> Result<u32, TestCaseError> {
    let (mut batch, mut position, mut now) = (Batch::default(), Position::default(), 1000 * MS);
    let mut taken = 0;
    for call in calls {
        now += call.pass_ms * MS;
        let mut tunables = Tunables::new(8);
        for (name, value) in
            [("read_expire", 3), ("write_expire", 5), ("fifo_batch", call.fifo_batch)]
        {
            set_tunable(&mut tunables, name, &value.to_string());
        }
        let limits = Limits::default();
        let how = Insertion { limits: &limits, nomerges: call.nomerges, tunables: &tunables };
        let (mut list, before) = (bios(call, now), position);
        let found = batch.order(&mut list, &mut position, now, &how);
        prop_assert_eq!(found, is_for_batch(call));
        if found {
            taken += 1;
            let mut expected = before;
            prop_assert_eq!(numbers(&list), by_trees(bios(call, now), &mut expected, now, &how));
            prop_assert_eq!(position, expected);
        } else {
            prop_assert_eq!(numbers(&list), (0..call.bios.len() as u64).collect::<Vec<_>>());
            prop_assert_eq!(position, before);
        }
    }
    Ok(taken)
}

proptest! {
    /// Much room: nearly all calls are taken.
    #[test]
    fn a_batch_goes_as_through_trees(calls in prop::collection::vec(call(1 << 30), 1..30)) {
        run(&calls)?;
    }

    /// Little room: bios touch, or are the same.
    #[test]
    fn what_touches_is_refused(calls in prop::collection::vec(call(30), 1..30)) {
        run(&calls)?;
    }
}

/// Both kinds of test above see both answers.
#[test]
fn a_full_plug_is_taken_and_one_more_is_not() {
    for (len, taken) in [(BATCH_MAX, 1), (BATCH_MAX + 1, 0)] {
        let new = |n| New { sector: n * 8, sectors: 1, class: PriorityClass::None, age_ms: 0 };
        let bios = (0..len as u64).rev().map(new).collect();
        let call = Call { op: Op::Read, odd: None, bios, pass_ms: 0, fifo_batch: 16, nomerges: 0 };
        assert_eq!(run(&[call]).expect("as the trees"), taken);
    }
    assert_eq!(BATCH_MAX, drystone_core::context::PLUG_MAX_BIOS);
}
