//! Nobody waits for ever, and nothing grows for ever.

use super::{Rig, read, write};
use crate::scheduler::deadline::{Deadline, Position};
use drystone_core::PriorityClass;
use proptest::prelude::*;

const MS: u64 = 1_000_000;

proptest! {
    /// Whatever reads come, a write waits for so many batches of reads at most, and for the batch
    /// that is under way.
    #[test]
    fn writes_wait_for_so_many_batches_at_most(
        reads in prop::collection::vec(0u64..1000, 200),
        batch in 1u64..6, starved in 0u64..4, before in 0usize..9,
    ) {
        let mut rig = Rig::new();
        rig.nomerges = 2;
        rig.set("fifo_batch", &batch.to_string());
        rig.set("writes_starved", &starved.to_string());
        let mut reads = reads.into_iter();
        let mut next = || read(reads.next().expect("enough reads"));
        rig.insert_all([next(), next()]);
        for _ in 0..before {
            rig.insert(next());
            prop_assert!(rig.dispatch().is_some());
        }
        rig.insert(write(5000));
        let most = batch * (starved + 1);
        let mut waited = 0;
        while rig.dispatch() != Some(5000) {
            waited += 1;
            prop_assert!(waited <= most, "{} reads passed, of {} at most", waited, most);
            rig.insert(next());
        }
    }

    /// A late read is the first of the next batch of its class, though writes may come before it.
    #[test]
    fn a_late_read_goes_with_the_next_batch_of_reads(
        reads in prop::collection::vec(100u64..1000, 100),
        writes in prop::collection::vec(100u64..1000, 0..40),
        batch in 1u64..6,
    ) {
        let mut rig = Rig::new();
        rig.nomerges = 2;
        rig.set("fifo_batch", &batch.to_string());
        rig.insert(read(50));
        prop_assert_eq!(rig.dispatch(), Some(50));
        rig.insert(read(7)); // below the position: never next in sector order
        rig.now += 500 * MS;
        rig.insert_all(writes.into_iter().map(write));
        // The batch under way, one of writes, then it begins one.
        let most = 2 * batch;
        let mut passed = 0;
        for sector in reads {
            rig.insert(read(sector));
            if rig.dispatch() == Some(7) {
                return Ok(());
            }
            passed += 1;
            prop_assert!(passed <= most, "{} passed, of {} at most", passed, most);
        }
    }

    /// An idle unit goes as soon as it is old enough, whatever real-time units there are.
    #[test]
    fn an_idle_unit_waits_no_longer_than_its_age(
        sectors in prop::collection::vec(0u64..1000, 300),
        step_ms in 40u64..200,
    ) {
        let mut rig = Rig::new();
        rig.nomerges = 2;
        rig.insert_class([5000], PriorityClass::Idle);
        rig.in_flight[0] = true;
        let born = rig.now;
        for sector in sectors {
            rig.insert_class([sector], PriorityClass::RealTime);
            let (now, next) = (rig.now, rig.dispatch());
            let is_old = now - born >= 10_000 * MS;
            prop_assert_eq!(next == Some(5000), is_old);
            if is_old {
                return Ok(());
            }
            rig.now += step_ms * MS;
        }
    }
}

#[test]
fn what_is_kept_for_long_does_not_make_it_grow() {
    let mut rig = Rig::new();
    rig.nomerges = 2;
    rig.insert_all([read(0), read(1_000_000)]);
    assert_eq!(rig.dispatch(), Some(0));
    let mut most = rig.deadline.memory();
    for n in 1..20_000u64 {
        // The old one is always last in sector order, and its deadline far away.
        rig.insert_all([read(2 * n), read(2 * n + 1)]);
        assert!(rig.dispatch().is_some() && rig.dispatch().is_some());
        if n == 100 {
            most = rig.deadline.memory();
        }
    }
    assert_eq!(rig.deadline.memory(), most, "one unit stayed, thousands came and went");
}

#[test]
fn memory_is_kept_for_as_many_units_again() {
    let mut rig = Rig::new();
    rig.nomerges = 2;
    let round = |rig: &mut Rig| {
        rig.insert_all((0..500u64).map(|n| read(n * 7919 % 500)));
        rig.insert_all((0..500u64).map(|n| write(n * 7919 % 500)));
        assert_eq!(rig.dispatch_all().len(), 1000);
        rig.deadline.memory()
    };
    let first = round(&mut rig);
    // Read 1 and write 1 of best effort are lanes 2 and 3; all others never needed any.
    assert!(first[2].0 >= 500 && first[3].0 >= 500 && first[0].0 == 0);
    assert_eq!([round(&mut rig), round(&mut rig)], [first, first]);
}

#[test]
fn a_position_is_small_and_a_scheduler_may_change_threads() {
    fn is_send<T: Send>() {}
    is_send::<Deadline>();
    assert!(size_of::<Position>() <= 64);
}
