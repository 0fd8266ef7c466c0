//! The sort order alone, against a vector that is looked through.

use crate::scheduler::deadline::loose::Entry;
use crate::scheduler::deadline::loose::{Extent, LOOSE_MAX};
use crate::scheduler::deadline::sorted::Sorted;

use drystone_core::{Bio, Op, Sector};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Insert(Vec<u64>),
    /// Find the next from here on, and remove so many.
    Remove(u64, usize),
    /// Remove the one that was inserted longest ago.
    RemoveOldest,
    Look(u64),
    Renumber,
}

fn step(space: u64) -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop::collection::vec(0..space, 1..100).prop_map(Step::Insert),
        4 => (0..space, 0..120usize).prop_map(|(from, n)| Step::Remove(from, n)),
        2 => Just(Step::RemoveOldest),
        2 => (0..space).prop_map(Step::Look),
        1 => Just(Step::Renumber),
    ]
}

/// A unit of one sector, at even sectors only: so none adjoin.
fn extent(sector: u64) -> Extent {
    Extent::of(&Bio::without_data(Op::Discard, Sector(2 * sector), 512))
}

struct Both {
    sorted: Sorted,
    /// In order of insertion.
    entries: Vec<Entry>,
    number: u32,
}

impl Both {
    fn insert(&mut self, sector: u64) -> Result<(), TestCaseError> {
        let entry = Entry { sector: 2 * sector, place: self.number };
        self.number += 1;
        let extent = extent(sector);
        match self.sorted.loose() {
            Some(loose) => {
                let adjoins = self.entries.iter().any(|e| e.sector + 1 == entry.sector);
                prop_assert_eq!(loose.adjoins(&extent), adjoins);
                loose.push(entry, &extent);
            }
            None => {
                let index = self.sorted.index_for(entry.sector);
                let (lower, upper) = self.sorted.around(index);
                prop_assert_eq!(lower, self.last_below(entry.sector + 1));
                prop_assert_eq!(upper, self.first_from(entry.sector + 1));
                self.sorted.insert(index, entry);
            }
        }
        self.entries.push(entry);
        Ok(())
    }

    fn first_from(&self, from: u64) -> Option<Entry> {
        let from = self.entries.iter().filter(|e| e.sector >= from);
        from.min_by_key(|e| e.sector).copied()
    }

    fn last_below(&self, below: u64) -> Option<Entry> {
        let below = self.entries.iter().filter(|e| e.sector < below);
        below.max_by_key(|e| e.sector).copied()
    }

    fn remove(&mut self, entry: Entry) {
        self.sorted.remove_next(entry);
        self.entries.retain(|e| *e != entry);
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Insert(sectors) => sectors.iter().try_for_each(|s| self.insert(*s))?,
            Step::Remove(from, n) => {
                let mut from = 2 * from;
                for _ in 0..*n {
                    let next = self.sorted.next(from);
                    prop_assert_eq!(next, self.first_from(from));
                    let Some(entry) = next else { break };
                    self.remove(entry);
                    from = entry.sector;
                }
            }
            Step::RemoveOldest => {
                let Some(oldest) = self.entries.first().copied() else { return Ok(()) };
                prop_assert_eq!(*self.sorted.find(oldest.sector, oldest.place), oldest);
                self.remove(oldest);
            }
            Step::Look(from) => {
                prop_assert_eq!(self.sorted.next(2 * from), self.first_from(2 * from));
            }
            Step::Renumber => {
                self.sorted.renumber(&|place| place + 1000);
                self.entries.iter_mut().for_each(|e| e.place += 1000);
                self.number += 1000;
            }
        }
        Ok(())
    }
}

fn run(steps: &[Step]) -> Result<(), TestCaseError> {
    let mut both = Both { sorted: Sorted::default(), entries: Vec::new(), number: 0 };
    steps.iter().try_for_each(|step| both.step(step))?;
    both.step(&Step::Remove(0, usize::MAX))?;
    prop_assert!(both.entries.is_empty());
    Ok(())
}

/// The chunk that comes to be the first takes what is below all others.
#[test]
fn the_first_chunk_may_go() {
    let scrambled = |low: u64| (0..400u64).map(|n| low + n * 7919 % 400).collect();
    let mut steps =
        vec![Step::Insert(scrambled(1000)), Step::Remove(0, 100), Step::Insert(scrambled(500))];
    steps.extend((500..1400).map(Step::Look));
    run(&steps).unwrap_or_else(|error| panic!("{error}"));
}

proptest! {
    #[test]
    fn as_a_vector_with_room(steps in prop::collection::vec(step(1 << 50), 1..60)) {
        run(&steps)?;
    }

    #[test]
    fn as_a_vector_with_few_sectors(steps in prop::collection::vec(step(50), 1..60)) {
        run(&steps)?;
    }

    /// Each way of sorting what is loose: few and many, near and far, equal ones.
    #[test]
    fn what_is_loose_comes_in_order(
        sectors in prop::collection::vec(0u64..1 << 20, 1..=LOOSE_MAX),
        far in any::<bool>(), equal in any::<bool>(),
    ) {
        let change = |sector: u64| match (far, equal) {
            (_, true) => sector % 5,
            (true, _) => sector << 33,
            _ => sector,
        };
        run(&[Step::Insert(sectors.into_iter().map(change).collect())])?;
    }
}
