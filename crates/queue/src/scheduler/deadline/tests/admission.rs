//! Admission, against its promises.

use super::{read, write};
use crate::scheduler::deadline::{Admission, Load, Offered, is_sync_read};
use drystone_core::{BioFlags, Op, PortId};
use proptest::prelude::*;

const FULL: Load = Load { units: 1, others: 0, nr_requests: 1, async_depth: 1, writes_starved: 2 };

/// Admission with the counts that its user keeps.
struct Gate {
    admission: Admission,
    /// Without the units.
    limits: Load,
    /// Units that are in: reads, others.
    inside: [u32; 2],
    number: u64,
}

impl Gate {
    fn new(nr_requests: u32, async_depth: u32, writes_starved: u32) -> Self {
        let limits = Load { units: 0, others: 0, nr_requests, async_depth, writes_starved };
        Gate { admission: Admission::default(), limits, inside: [0; 2], number: 0 }
    }

    fn load(&self) -> Load {
        let [reads, others] = self.inside;
        Load { units: reads + others, others, ..self.limits }
    }

    /// Offer a bio: the number it got, and whether it went in.
    fn offer(&mut self, is_read: bool) -> (u64, bool) {
        let mut bio = if is_read { read(0) } else { write(0) };
        bio.user_data = self.number;
        self.number += 1;
        let went_in = match self.admission.offer(PortId(7), bio, &self.load()) {
            Offered::Now(_) => true,
            Offered::Waits => false,
            Offered::Again(_) => unreachable!("it may wait"),
        };
        self.inside[usize::from(!is_read)] += u32::from(went_in);
        (self.number - 1, went_in)
    }

    /// Let the next one in: its number, and whether it is a read.
    fn next(&mut self) -> Option<(u64, bool)> {
        let (port, bio) = self.admission.next(&self.load())?;
        assert_eq!(port, PortId(7));
        let is_read = is_sync_read(bio.op);
        self.inside[usize::from(!is_read)] += 1;
        Some((bio.user_data, is_read))
    }

    /// The number of waiting reads, or of other waiting bios.
    fn waits(&self, kind: usize) -> usize {
        let (reads, others) = self.admission.waiting();
        [reads, others][kind]
    }
}

#[test]
fn all_reads_are_synchronous_and_nothing_else_is() {
    let ops = [Op::Read, Op::Write, Op::Discard, Op::WriteZeroes];
    assert_eq!(ops.map(is_sync_read), [true, false, false, false]);
}

#[test]
fn there_is_room_for_so_many_and_fewer_of_the_others() {
    let mut gate = Gate::new(4, 2, 2);
    assert_eq!([false, false, false].map(|kind| gate.offer(kind).1), [true, true, false]);
    assert_eq!([true, true, true].map(|kind| gate.offer(kind).1), [true, true, false]);
    assert_eq!((gate.admission.waiting(), gate.next()), ((1, 1), None));
    gate.inside[1] -= 1;
    assert_eq!(gate.next(), Some((5, true)), "the read first");
    assert_eq!(gate.next(), None);
    gate.inside[0] -= 1;
    assert_eq!(gate.next(), Some((2, false)));
    assert!(gate.admission.is_empty());
}

#[test]
fn who_will_not_wait_gets_the_bio_back() {
    let mut load = FULL;
    let mut bio = read(3);
    bio.flags = BioFlags::NOWAIT;
    let mut admission = Admission::default();
    let Offered::Again(bio) = admission.offer(PortId(0), bio, &load) else { panic!("it waits") };
    load.units = 0;
    assert!(matches!(admission.offer(PortId(0), bio, &load), Offered::Now(_)));
}

#[test]
fn all_can_be_taken_out_in_order_of_submission() {
    let mut admission = Admission::default();
    for (time, mut bio) in [(1, write(10)), (2, read(20)), (2, write(30)), (3, read(40))] {
        bio.start_ns = time;
        assert!(matches!(admission.offer(PortId(0), bio, &FULL), Offered::Waits));
    }
    let mut sectors = Vec::new();
    admission.take_all(|_, bio| sectors.push(bio.sector.0));
    assert_eq!(sectors, [10, 20, 30, 40]);
    assert!(admission.is_empty());
}

proptest! {
    /// Never too many; each kind in its order; nothing waits that could go in; nobody is passed
    /// more often than permitted.
    #[test]
    fn random_histories_keep_the_promises(
        steps in prop::collection::vec(0u8..8, 1..300),
        nr_requests in 1u32..8, async_depth in 1u32..8, starved in 0u32..4,
    ) {
        let mut gate = Gate::new(nr_requests, async_depth, starved);
        let mut last = [None, None];
        let mut passed = 0;
        for step in steps {
            let went_in = match step {
                0..4 => {
                    let is_read = step % 2 == 0;
                    let (number, went_in) = gate.offer(is_read);
                    went_in.then_some((number, is_read))
                }
                4 | 5 => {
                    let kind = usize::from(step - 4);
                    gate.inside[kind] = gate.inside[kind].saturating_sub(1);
                    None
                }
                _ => {
                    let before = gate.load();
                    let next = gate.next();
                    let waits = |kind: usize| gate.waits(kind) > 0;
                    let could = waits(0) && before.has_room(true)
                        || waits(1) && before.has_room(false);
                    prop_assert!(next.is_some() || !could);
                    next
                }
            };
            prop_assert!(gate.inside[0] + gate.inside[1] <= nr_requests);
            prop_assert!(gate.inside[1] <= async_depth);
            let Some((number, is_read)) = went_in else { continue };
            let kind = usize::from(!is_read);
            prop_assert!(last[kind] < Some(number), "in order");
            last[kind] = Some(number);
            let mut before = gate.load();
            (before.units, before.others) = (before.units - 1, before.others - kind as u32);
            if is_read {
                passed += u32::from(gate.waits(1) > 0 && before.has_room(false));
                prop_assert!(passed <= starved, "{} reads passed one that could go in", passed);
            } else {
                let passes = gate.waits(0) > 0 && before.has_room(true);
                prop_assert!(!passes || passed == starved, "it passed a read after {}", passed);
                passed = 0;
            }
        }
    }
}
