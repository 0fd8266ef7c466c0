//! Attributes on a live queue.

use super::*;
use crate::HwQueues;

fn refused(rig: &Rig, name: &str, value: &str, range: &str) {
    let before = rig.device.attribute(name);
    let error = rig.device.set_attribute(name, value).expect_err(value).to_string();
    assert!(error.contains(name) && error.contains(value) && error.contains(range), "{error}");
    assert_eq!(rig.device.attribute(name), before, "a refused value changes nothing");
}

#[test]
fn refused_values_name_the_range_and_change_nothing() {
    let rig = Rig::new(Setup::depth(8));
    for value in ["3", "-1", "", "many", "1.5"] {
        refused(&rig, "queue/nomerges", value, "from 0 to 2");
    }
    refused(&rig, "queue/iostats", "2", "from 0 to 1");
    refused(&rig, "queue/io_timeout", "0", "from 1 to 4294967295");
    refused(&rig, "queue/max_sectors_kb", "3", "from 4 to 1280");
    refused(&rig, "queue/max_sectors_kb", "1281", "from 4 to 1280");
    refused(&rig, "queue/io_poll", "1", "from 0 to 0");
    refused(&rig, "queue/scheduler", "cfq", "none is");
}

#[test]
fn unknown_and_fixed_attributes_are_told_apart() {
    let rig = Rig::new(Setup::depth(8));
    let error = |name| rig.device.set_attribute(name, "1").unwrap_err().to_string();
    assert!(error("queue/nonsense").contains("is not an attribute of q0"));
    assert!(error("queue/logical_block_size").contains("cannot be changed"));
    assert_eq!(rig.device.attribute("queue/nonsense"), None);
}

#[test]
fn options_outside_their_range_are_refused() {
    let bad = [
        QueueOptions { nomerges: Some(3), ..QueueOptions::default() },
        QueueOptions { io_timeout_ms: Some(0), ..QueueOptions::default() },
        QueueOptions { max_sectors_kb: Some(1 << 20), ..QueueOptions::default() },
        QueueOptions { io_poll: Some(true), ..QueueOptions::default() },
    ];
    for options in bad {
        let (clock, stage) = (ManualClock::new(1), Stage::new());
        let fake = Fake::new(Setup::depth(8), &stage);
        let made = RequestQueue::new("q0", fake, &options, LockCounters::new(clock));
        assert!(made.err().unwrap().to_string().contains("is not permitted"), "{options:?}");
    }
}

#[test]
fn a_smaller_max_sectors_holds_from_the_next_submission() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.submit([read(0, 64)]);
    assert_eq!(rig.taken().len(), 1);
    rig.device.set_attribute("queue/max_sectors_kb", "4").unwrap();
    assert_eq!(rig.attribute("queue/max_sectors_kb"), "4");
    rig.submit([read(0, 64)]);
    assert_eq!(rig.taken().len(), 1 + 8);
    rig.device.set_attribute("queue/max_sectors_kb", "1280").unwrap();
    rig.submit([read(0, 64)]);
    assert_eq!(rig.taken().len(), 1 + 8 + 1);
}

#[test]
fn a_plug_is_flushed_by_the_limits_of_then() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.cx.start_plug();
    rig.submit([read(0, 64)]);
    rig.device.set_attribute("queue/max_sectors_kb", "4").unwrap();
    rig.cx.finish_plug();
    assert_eq!(rig.taken().len(), 8);
}

#[test]
fn what_the_driver_changes_is_taken_over() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.submit([without_data(Op::Discard, 0, 8)]);
    assert_eq!(rig.ended(), [(0, Status::Ok)]);
    rig.device.set_attribute("no_discard", "true").unwrap();
    assert_eq!(rig.attribute("queue/discard_max_bytes"), "0");
    rig.submit([without_data(Op::Discard, 0, 8)]);
    assert_eq!(rig.ended(), [(0, Status::NotSupported)]);
    let error = rig.device.set_attribute("no_discard", "perhaps").unwrap_err();
    assert_eq!(error.to_string(), "no_discard: true or false");
}

#[test]
fn a_device_that_grows_is_usable_at_once() {
    let mut rig = Rig::new(Setup::depth(64));
    let end = (1 << 30) / 512;
    rig.submit([read(end, 1)]);
    assert_eq!(rig.ended(), [(end, Status::IoError)]);
    rig.stage.size_bytes.store(2 << 30, std::sync::atomic::Ordering::SeqCst);
    rig.submit([read(end, 1)]);
    assert_eq!(rig.ended(), [(end, Status::Ok)]);
}

#[test]
fn polled_is_a_wish_that_the_queue_may_refuse() {
    for (poll, on, kept) in [(0, "0", false), (1, "0", false), (1, "1", true)] {
        let hw = HwQueues { default: 1, poll, depth: 8 };
        let mut rig = Rig::new(Setup { hw, ..Setup::depth(8) });
        rig.device.set_attribute("queue/io_poll", on).unwrap();
        rig.submit([with(read(0, 1), BioFlags::POLLED)]);
        assert_eq!(rig.stage.seen()[0].flags.contains(BioFlags::POLLED), kept);
    }
}
