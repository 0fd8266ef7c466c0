//! The rules one by one, each in a case of its own that can be read.

use super::{Rig, bio, read, set_tunable, write};
use crate::scheduler::deadline::{Inserted, Tunable, Tunables};
use drystone_core::{BioFlags, Limits, Op, PortId, PriorityClass};

const MS: u64 = 1_000_000;
const BEST_EFFORT: usize = 1;

#[test]
fn a_batch_goes_upwards_and_the_next_begins_at_the_oldest() {
    let mut rig = Rig::new();
    rig.insert_all([read(50), read(10), read(70), read(30)]);
    assert_eq!(rig.dispatch_all(), [10, 30, 50, 70], "from position 0");
    rig.insert_all([read(60), read(90), read(20), read(80)]);
    // The position is 70. Nothing is behind 90: then the oldest is first, 60.
    assert_eq!(rig.dispatch_all(), [80, 90, 60, 20]);
}

#[test]
fn equal_sectors_go_in_the_order_of_their_insertion() {
    let mut rig = Rig::new();
    rig.nomerges = 2;
    let bios: Vec<_> = (0..40).map(|n| read(if n % 2 == 0 { 8 } else { 4 })).collect();
    rig.insert_all(bios);
    let order: Vec<u64> = (0..20).map(|n| 2 * n + 1).chain((0..20).map(|n| 2 * n)).collect();
    assert_eq!(rig.dispatch_numbers(), order);
}

#[test]
fn a_unit_at_the_position_itself_is_next() {
    let mut rig = Rig::new();
    rig.insert_all([read(40)]);
    assert_eq!(rig.dispatch_all(), [40]);
    rig.insert_all([read(10), read(40)]);
    assert_eq!(rig.dispatch_all(), [40, 10]);
}

#[test]
fn deadlines_count_only_when_a_batch_begins() {
    let mut rig = Rig::new();
    rig.set("fifo_batch", "3");
    rig.insert_all([read(90)]);
    rig.now += 600 * MS; // the read at 90 is late
    rig.insert_all([read(10), read(20), read(30), read(40)]);
    // The first batch begins at once, so with the late one; nothing is behind it, so the next
    // batch begins with the oldest.
    assert_eq!(rig.dispatch_all(), [90, 10, 20, 30, 40]);

    let mut rig = Rig::new();
    rig.set("fifo_batch", "3");
    rig.insert_all([read(5), read(90), read(10), read(20), read(30)]);
    assert_eq!(rig.dispatch(), Some(5));
    rig.now += 600 * MS; // all are late, and 90 is the oldest
    assert_eq!(rig.dispatch_all(), [10, 20, 90, 30], "after the batch of three");
}

#[test]
fn a_batch_of_no_units_looks_at_the_deadlines_each_time() {
    let mut rig = Rig::new();
    rig.set("fifo_batch", "0");
    rig.set("read_expire", "0");
    rig.insert_all([read(50), read(10), read(70)]);
    assert_eq!(rig.dispatch_all(), [50, 10, 70], "first in, first out");
}

#[test]
fn a_deadline_counts_from_the_submission() {
    let mut rig = Rig::new();
    rig.set("fifo_batch", "1");
    rig.insert_all([read(10)]);
    assert_eq!(rig.dispatch(), Some(10));
    let mut late = read(5);
    late.start_ns = rig.now - 500 * MS;
    rig.insert_as_it_is(late); // it waited for admission all the time
    rig.insert_all([read(20)]);
    assert_eq!(rig.dispatch_all(), [5, 20]);
}

#[test]
fn the_third_decision_takes_the_writes() {
    let mut rig = Rig::new();
    rig.set("fifo_batch", "1");
    rig.insert_all([read(5)]);
    assert_eq!(rig.dispatch(), Some(5));
    rig.insert_all([read(10), read(20), read(30), read(40), write(50), write(60)]);
    // writes_starved is 2: two batches of reads may pass.
    assert_eq!(rig.dispatch_all(), [10, 20, 50, 30, 40, 60]);
}

#[test]
fn before_the_first_decision_the_direction_is_write() {
    let mut rig = Rig::new();
    rig.insert_all([read(10), write(50), write(60)]);
    assert_eq!(rig.dispatch_all(), [50, 60, 10], "as if a batch of writes were under way");
}

#[test]
fn without_patience_writes_go_first() {
    let mut rig = Rig::new();
    rig.set("writes_starved", "0");
    rig.set("fifo_batch", "1");
    rig.insert_all([read(10), write(50), read(20), write(60)]);
    assert_eq!(rig.dispatch_all(), [50, 60, 10, 20]);
}

#[test]
fn everything_that_is_no_read_goes_with_the_writes() {
    let mut rig = Rig::new();
    rig.insert_all([read(5)]);
    assert_eq!(rig.dispatch(), Some(5));
    rig.insert_all([bio(Op::Discard, 30), write(20), bio(Op::WriteZeroes, 10), read(40)]);
    assert_eq!(rig.dispatch_all(), [40, 10, 20, 30]);
}

#[test]
fn a_stronger_class_goes_first_and_blocks_the_weaker_while_in_flight() {
    let mut rig = Rig::new();
    rig.insert_class([10, 20], PriorityClass::Idle);
    rig.insert_class([30], PriorityClass::None);
    rig.insert_class([40], PriorityClass::BestEffort);
    rig.insert_class([50], PriorityClass::RealTime);
    assert_eq!(rig.dispatch(), Some(50));
    rig.in_flight[0] = true;
    assert_eq!(rig.dispatch(), None, "a real-time unit is in flight");
    rig.in_flight = [false, true, false];
    assert_eq!([rig.dispatch(), rig.dispatch()], [Some(30), Some(40)], "their own class does not");
    assert_eq!(rig.dispatch(), None);
    rig.in_flight = [false; 3];
    assert_eq!(rig.dispatch_all(), [10, 20]);
}

#[test]
fn what_is_old_enough_goes_before_stronger_classes() {
    let mut rig = Rig::new();
    rig.insert_class([10], PriorityClass::Idle);
    rig.now += 10_000 * MS - 1;
    rig.insert_class([20, 30], PriorityClass::RealTime);
    assert_eq!(rig.dispatch(), Some(20), "one ns too young");
    rig.now += 1;
    assert_eq!(rig.dispatch_all(), [10, 30]);
}

#[test]
fn what_was_submitted_after_the_reading_of_the_clock_goes_all_the_same() {
    for in_flight in [[false; 3], [false, true, true]] {
        let mut rig = Rig::new();
        rig.in_flight = in_flight;
        rig.insert(read(10));
        rig.now -= 1;
        assert_eq!(rig.dispatch(), Some(10));
    }
}

#[test]
fn nothing_is_old_before_the_clock_has_run_so_long() {
    let mut rig = Rig::new();
    rig.now = 0;
    rig.insert_class([10], PriorityClass::Idle);
    rig.insert_class([20], PriorityClass::RealTime);
    assert_eq!(rig.dispatch_all(), [20, 10]);
}

#[test]
fn the_head_goes_before_every_class() {
    let mut rig = Rig::new();
    rig.insert_class([10], PriorityClass::RealTime);
    rig.insert_at_head([write(50), read(40)]);
    rig.insert_at_head([read(70), write(60)]);
    rig.in_flight[0] = true;
    // Each list in its own order, the later list first.
    assert_eq!(rig.dispatch_all(), [70, 60, 50, 40, 10]);
}

#[test]
fn the_head_moves_the_position() {
    let mut rig = Rig::new();
    rig.insert_all([read(10), read(50)]);
    rig.insert_at_head([read(30)]);
    assert_eq!(rig.dispatch_all(), [30, 50, 10]);
}

#[test]
fn a_unit_that_comes_back_is_one_again() {
    let mut rig = Rig::new();
    rig.insert_all([read(10), read(11), read(12)]);
    let (_, mut unit) = rig.dispatch_unit().expect("a unit");
    assert_eq!(unit.bios.len(), 3);
    rig.insert_list_at_head(unit.bios.take());
    assert_eq!((rig.deadline.len(), rig.deadline.kept(BEST_EFFORT)), (1, 1));
    assert_eq!(rig.dispatch_unit().map(|(_, unit)| unit.bytes), Some(3 * 512));
}

#[test]
fn lists_at_the_head_do_not_merge_with_one_another() {
    let mut rig = Rig::new();
    rig.insert_at_head([read(10)]);
    rig.insert_at_head([read(11)]);
    assert_eq!(rig.deadline.len(), 2);
    rig.nomerges = 2;
    rig.insert_at_head([read(20), read(21)]);
    assert_eq!(rig.dispatch_all(), [20, 21, 11, 10]);
}

#[test]
fn neighbours_merge_in_front_and_behind_and_close_gaps() {
    let mut rig = Rig::new();
    assert_eq!(rig.insert(read(10)), Inserted::Kept);
    assert_eq!(rig.insert(read(12)), Inserted::Kept);
    assert_eq!(rig.insert(read(9)), Inserted::Merged);
    assert_eq!(rig.insert(read(13)), Inserted::Merged);
    assert_eq!(rig.insert(read(11)), Inserted::Joined);
    assert_eq!((rig.deadline.len(), rig.deadline.kept(BEST_EFFORT)), (1, 1));
    let (_, unit) = rig.dispatch_unit().expect("a unit");
    let sectors: Vec<u64> = unit.bios.iter().map(|b| b.sector.0).collect();
    assert_eq!(sectors, [9, 10, 11, 12, 13]);
    assert!(rig.deadline.is_empty());
}

#[test]
fn only_neighbours_of_one_port_class_and_direction_merge() {
    let mut rig = Rig::new();
    rig.insert(read(10));
    assert_eq!(rig.insert(write(11)), Inserted::Kept, "another direction");
    rig.port = PortId(1);
    assert_eq!(rig.insert(read(11)), Inserted::Kept, "another port");
    rig.port = PortId(0);
    let mut idle = read(11);
    idle.priority.class = PriorityClass::Idle;
    assert_eq!(rig.insert(idle), Inserted::Kept, "another class");
    let mut alone = read(9);
    alone.flags = BioFlags::NOMERGE;
    assert_eq!(rig.insert(alone), Inserted::Kept, "its flags");
    // At 11 the other port's read is in between: the neighbour is that, not the unit at 10.
    assert_eq!(rig.insert(read(11)), Inserted::Kept);
    assert_eq!(rig.deadline.len(), 6);
}

#[test]
fn limits_hold_for_merges() {
    let mut rig = Rig::new();
    rig.limits = Limits { max_bytes: 3 * 512, ..Limits::default() };
    rig.insert_all([read(10), read(11)]);
    rig.insert_all([read(13), read(14)]);
    assert_eq!(rig.insert(read(12)), Inserted::Merged, "three sectors, but not five");
    assert_eq!(rig.insert(read(12)), Inserted::Merged, "in front of 13 and 14");
    assert_eq!(rig.deadline.len(), 2);
}

#[test]
fn front_merges_can_be_switched_off() {
    let mut rig = Rig::new();
    rig.set("front_merges", "0");
    rig.insert(read(10));
    assert_eq!(rig.insert(read(9)), Inserted::Kept);
    assert_eq!(rig.insert(read(11)), Inserted::Merged);
}

#[test]
fn nomerges_2_merges_nothing_and_1_only_with_the_newest() {
    let mut rig = Rig::new();
    rig.nomerges = 2;
    rig.insert(read(10));
    assert_eq!(rig.insert(read(11)), Inserted::Kept);
    rig.nomerges = 1;
    assert_eq!(rig.insert(read(9)), Inserted::Kept, "10 is not the newest");
    assert_eq!(rig.insert(read(8)), Inserted::Merged, "9 is");
    rig.insert(write(50));
    assert_eq!(rig.insert(read(7)), Inserted::Kept, "8 is not any more");
    let mut rig = Rig::new();
    rig.nomerges = 1;
    rig.insert_all([read(12), read(10)]);
    assert_eq!(rig.insert(read(11)), Inserted::Merged, "into 10, which does not join 12");
}

#[test]
fn the_newest_is_gone_when_it_was_dispatched() {
    let mut rig = Rig::new();
    rig.nomerges = 1;
    rig.insert_all((0..16).map(|n| read(1000 - 10 * n))); // as many as the first ring holds
    assert_eq!((0..8).filter_map(|_| rig.dispatch()).max(), Some(920));
    assert_eq!(rig.insert(read(931)), Inserted::Kept, "930 is the newest that is left, but old");
}

#[test]
fn a_front_merge_moves_the_unit_below_the_position() {
    let mut rig = Rig::new();
    rig.insert(read(10));
    assert_eq!(rig.dispatch(), Some(10));
    rig.insert_all([read(10), read(20), read(9)]);
    assert_eq!(rig.dispatch_all(), [20, 9]);
}

#[test]
fn a_front_merge_keeps_the_place_in_the_fifo() {
    let mut rig = Rig::new();
    rig.set("read_expire", "0"); // everything is late: first in, first out
    rig.set("fifo_batch", "1");
    rig.insert_all([read(50), read(10)]);
    assert_eq!(rig.insert(read(49)), Inserted::Merged);
    assert_eq!(rig.dispatch_all(), [49, 10]);
}

#[test]
fn what_two_became_has_the_earlier_deadline_and_its_place() {
    let mut rig = Rig::new();
    rig.set("fifo_batch", "1");
    rig.insert(read(12)); // the older
    rig.now += 1;
    rig.insert(read(30));
    rig.now += 1;
    rig.insert(read(10));
    assert_eq!(rig.insert(read(11)), Inserted::Joined, "10 survives, at the place of 12");
    rig.insert(read(1));
    rig.now += 500 * MS - 2; // just the first deadline
    assert_eq!(rig.dispatch(), Some(10), "and not 1, which comes first in sector order");
    assert_eq!(rig.dispatch_all(), [30, 1]);
}

#[test]
fn with_equal_deadlines_it_stays_at_the_lower_ones_place() {
    let mut rig = Rig::new();
    rig.set("read_expire", "0");
    rig.set("fifo_batch", "1");
    rig.insert_all([read(12), read(30), read(10)]);
    assert_eq!(rig.insert(read(11)), Inserted::Joined);
    assert_eq!(rig.dispatch_all(), [30, 10]);
}

#[test]
fn a_merged_unit_is_as_old_as_its_oldest_bio() {
    let mut rig = Rig::new();
    rig.insert_class([11], PriorityClass::Idle);
    let mut old = read(10);
    old.priority.class = PriorityClass::Idle;
    old.start_ns = rig.now - 10_000 * MS;
    assert_eq!(rig.insert_as_it_is(old), Inserted::Merged);
    rig.insert_class([20], PriorityClass::RealTime);
    assert_eq!(rig.dispatch_all(), [10, 20]);
}

#[test]
fn a_position_outlasts_an_empty_scheduler() {
    let mut rig = Rig::new();
    rig.insert_all([read(50)]);
    assert_eq!(rig.dispatch_all(), [50]);
    rig.deadline = Default::default();
    rig.insert_all([read(10), read(60)]);
    assert_eq!(rig.dispatch_all(), [60, 10]);
}

#[test]
fn all_can_be_taken_out_oldest_first() {
    let mut rig = Rig::new();
    rig.insert_all([write(50), read(60), read(70)]);
    rig.now += 1;
    rig.insert_class([10], PriorityClass::RealTime);
    rig.insert_at_head([read(80)]);
    let mut sectors = Vec::new();
    rig.deadline.take_all(|_, unit| sectors.push(unit.sector.0));
    assert_eq!(sectors, [80, 60, 70, 50, 10]);
    assert!(rig.deadline.is_empty() && rig.dispatch().is_none());
}

#[test]
fn tunables_have_linux_names_defaults_and_ranges() {
    let mut tunables = Tunables::new(256);
    let values = Tunable::ALL.iter().map(|row| (row.name(), row.get(&tunables)));
    let defaults = [
        ("read_expire", "500"),
        ("write_expire", "5000"),
        ("prio_aging_expire", "10000"),
        ("writes_starved", "2"),
        ("fifo_batch", "16"),
        ("front_merges", "1"),
        ("async_depth", "256"),
    ];
    assert!(values.eq(defaults.map(|(name, value)| (name, value.to_owned()))));
    for row in Tunable::ALL {
        let most = if row.name() == "front_merges" { "1" } else { "2147483647" };
        row.set(&mut tunables, most).expect("the most");
        assert_eq!(row.get(&tunables), most);
        let least = if row.name() == "async_depth" { "1" } else { "0" };
        row.set(&mut tunables, least).expect("the least");
        for bad in ["-1", "2147483648", "", "many"] {
            let before = tunables;
            let error = row.set(&mut tunables, bad).expect_err("a bad value");
            let range = format!("a whole number from {least} to {most} is");
            assert!(error.message.starts_with(row.attribute), "{error}");
            assert!(error.message.ends_with(&range), "{error}");
            assert_eq!(tunables, before, "nothing changed");
        }
        assert_eq!(row.get(&tunables), least);
    }
    assert!(Tunable::of_attribute("queue/iosched/starved").is_none());
    set_tunable(&mut tunables, "read_expire", " 7 ");
    assert_eq!(tunables.read_expire_ns, 7 * MS);
}
