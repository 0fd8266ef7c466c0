//! Bios that compete with kept units for tags: new bios after the scheduler is switched off,
//! flushes, and units that do not complete inline on a driver that completes most inline.

use super::*;

/// One tag; three units of one context are kept. A new bio comes for each one that ends.
#[test]
fn what_is_kept_goes_before_what_comes_later() {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut rig = Rig::with(Setup::depth(1), &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit([read(10, 1), read(20, 1), read(30, 1), read(40, 1)]);
    assert_eq!(rig.stage.held(), 1);
    rig.device.set_attribute("queue/scheduler", "none").unwrap();
    let mut ends = 0;
    for n in 0..20 {
        let mut list = BioList::new();
        list.push(read(1000 + 10 * n, 1));
        other.submit(dev, &mut list);
        assert!(rig.stage.give_back(0, Status::Ok));
        ends += rig.ended().len();
        let _ = ended(&mut other);
        ends += rig.ended().len();
    }
    let sectors: Vec<_> = rig.taken().iter().map(|t| t.0).collect();
    assert_eq!(ends, 4, "{sectors:?}");
    assert_eq!(sectors[..4], [10, 20, 30, 40], "{sectors:?}");
}

/// One tag; units of one context are kept. Another context sends a flush for each one that ends.
#[test]
fn what_is_kept_goes_on_beside_flushes() {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut setup = Setup::cache(false);
    setup.hw.depth = 1;
    let mut rig = Rig::with(setup, &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit([read(10, 1), read(20, 1), read(30, 1), read(40, 1)]);
    let mut ends = 0;
    let mut flushes = 0;
    for _ in 0..40 {
        let mut list = BioList::new();
        list.push(Bio::flush());
        other.submit(dev, &mut list);
        assert!(rig.stage.give_back(0, Status::Ok));
        ends += rig.ended().len();
        flushes += ended(&mut other).len();
        ends += rig.ended().len();
    }
    assert_eq!(ends, 4, "{flushes} {:?}", rig.ops());
}

/// Two tags. A real-time unit is granted after the scheduler was switched off, and the driver is
/// too busy for it. The bios that wait for the end of real-time units go once this one has ended.
#[test]
fn what_was_granted_and_refused_is_not_in_flight() {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut rig = Rig::with(Setup::depth(2), &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(10, 1), read(20, 1)]);
    let mut real_time = read(30, 1);
    real_time.priority.class = drystone_core::PriorityClass::RealTime;
    rig.submit([real_time, read(40, 1)]);
    rig.device.set_attribute("queue/scheduler", "none").unwrap();
    rig.stage.next(Answer::Busy(0));
    assert!(rig.stage.give_back(1, Status::Ok));
    assert_eq!((rig.ended(), rig.stage.refused()), (vec![(20, Status::Ok)], vec![30]));
    let mut rest: Vec<_> = rig.give_back_all().iter().map(|e| e.0).collect();
    rest.sort_unstable();
    assert_eq!(rest, [10, 30, 40], "all end");
}

/// One tag, which serves all units of a driver that completes them at once, except those that need
/// a flush afterwards.
#[test]
fn one_tag_is_enough_for_what_ends_at_once_and_what_does_not() {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut setup = Setup::cache(false);
    (setup.hw.depth, setup.completes_inline) = (1, true);
    let mut rig = Rig::with(setup, &options, Engine::Auto);
    let fua = |sector| with(write(sector, 1), BioFlags::FUA);
    rig.submit([read(10, 1), fua(20), read(30, 1), fua(40), write(50, 1)]);
    let mut ended: Vec<_> = rig.ended().iter().map(|e| e.0).collect();
    ended.sort_unstable();
    assert_eq!(ended, [10, 20, 30, 40, 50]);
}
