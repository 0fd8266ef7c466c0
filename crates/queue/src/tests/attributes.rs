//! Attributes on a live queue.

use super::*;
use crate::HwQueues;

pub(super) fn refused(rig: &Rig, name: &str, value: &str, range: &str) {
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
    refused(&rig, "queue/scheduler", "cfq", "none or mq-deadline is");
    refused(&rig, "queue/write_cache", "writeback", "write back or write through");
    refused(&rig, "queue/nr_requests", "0", "from 1 to 8");
    refused(&rig, "queue/nr_requests", "9", "from 1 to 8");
    refused(&rig, "queue/discard_max_bytes", "100", "a multiple of 512 from 0 to 1073741824");
    refused(&rig, "queue/discard_max_bytes", "1073742336", "from 0 to 1073741824");
}

/// The depths that a scheduler sets are Linux's for drivers with enough depth.
#[test]
fn a_scheduler_brings_its_own_depths() {
    for (depth, nr_requests) in [(1, "256"), (128, "256"), (1000, "256")] {
        let rig = Rig::new(Setup::depth(depth));
        assert_eq!(rig.attribute("queue/nr_requests"), depth.to_string());
        assert_eq!(rig.device.attribute("queue/iosched/async_depth"), None);
        rig.device.set_attribute("queue/scheduler", "mq-deadline").unwrap();
        let depths =
            || ["queue/nr_requests", "queue/iosched/async_depth"].map(|n| rig.attribute(n));
        assert_eq!(depths(), [nr_requests, nr_requests]);
        refused(&rig, "queue/nr_requests", "0", "from 1 to 2048");
        refused(&rig, "queue/nr_requests", "2049", "from 1 to 2048");
        rig.device.set_attribute("queue/iosched/async_depth", "5").unwrap();
        assert_eq!(depths(), [nr_requests, "5"]);
        refused(&rig, "queue/iosched/async_depth", "0", "from 1 to 2147483647");
        rig.device.set_attribute("queue/nr_requests", "2048").unwrap();
        assert_eq!(depths(), ["2048", "2048"]);
        rig.device.set_attribute("queue/scheduler", "none").unwrap();
        assert_eq!(rig.attribute("queue/nr_requests"), depth.to_string());
    }
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
fn the_write_cache_is_what_the_user_says() {
    let mut rig = Rig::new(Setup::cache(true));
    rig.device.set_attribute("queue/write_cache", "write through").unwrap();
    assert_eq!(
        (rig.attribute("queue/write_cache"), rig.attribute("queue/fua")),
        ("write through".into(), "0".into())
    );
    assert!(!rig.device.has_volatile_cache());
    rig.submit([Bio::flush(), with(write(0, 1), BioFlags::FUA | BioFlags::PREFLUSH)]);
    assert_eq!(rig.ended().len(), 2);
    assert_eq!(rig.ops(), [Op::Write], "nothing to flush");
    assert!(!rig.stage.seen()[0].flags.contains(BioFlags::FUA));
    rig.device.set_attribute("queue/write_cache", "write back").unwrap();
    assert_eq!(
        (rig.attribute("queue/write_cache"), rig.attribute("queue/fua")),
        ("write back".into(), "1".into())
    );
    assert!(rig.device.has_volatile_cache());
    rig.submit([Bio::flush(), with(write(8, 1), BioFlags::FUA)]);
    assert_eq!(rig.all_ended().len(), 2);
    assert_eq!(rig.ops(), [Op::Write, Op::Write, Op::Flush]);
    assert!(rig.stage.seen()[1].flags.contains(BioFlags::FUA));
    // A later change in the driver does not undo the user's choice.
    rig.device.set_attribute("queue/write_cache", "write through").unwrap();
    rig.device.set_attribute("no_discard", "true").unwrap();
    assert_eq!(rig.attribute("queue/write_cache"), "write through");
}

#[test]
fn discards_are_cut_to_what_the_user_wants() {
    let mut rig = Rig::new(Setup::limits(|l| l.discard_granularity = 4096));
    refused(&rig, "queue/discard_max_bytes", "512", "a multiple of 4096");
    rig.device.set_attribute("queue/discard_max_bytes", "0").unwrap();
    rig.submit([without_data(Op::Discard, 0, 8)]);
    assert_eq!(rig.ended(), [(0, Status::NotSupported)]);
    for bytes in ["4096", "8192"] {
        rig.device.set_attribute("queue/discard_max_bytes", bytes).unwrap();
        assert_eq!(rig.attribute("queue/discard_max_bytes"), bytes);
        let before = rig.taken().len();
        rig.submit([without_data(Op::Discard, 0, 64)]);
        assert_eq!(rig.all_ended(), [(0, Status::Ok)]);
        let bytes: u64 = bytes.parse().unwrap();
        let cut: Vec<_> = (0..32768 / bytes).map(|i| (i * bytes / 512, bytes)).collect();
        assert_eq!(rig.taken()[before..], cut);
    }
    rig.device.set_attribute("no_discard", "true").unwrap();
    assert_eq!(rig.attribute("queue/discard_max_bytes"), "0");
    rig.device.set_attribute("no_discard", "false").unwrap();
    assert_eq!(rig.attribute("queue/discard_max_bytes"), "8192", "the wish is remembered");
}

#[test]
fn the_number_of_requests_changes_under_load() {
    let mut rig = Rig::new(Setup::depth(16));
    rig.stage.otherwise(Answer::Hold);
    rig.submit((0..40).map(|i| read(i * 10, 1)));
    assert_eq!(rig.stage.held(), 16);
    rig.device.set_attribute("queue/nr_requests", "3").unwrap();
    assert_eq!(rig.attribute("queue/nr_requests"), "3");
    // Held requests stay held; after these the limit is three.
    for held in (3..16).rev() {
        assert!(rig.stage.give_back(0, Status::Ok));
        rig.ended();
        assert!(rig.stage.held() >= held && rig.stage.held() <= 16);
    }
    while rig.stage.seen().len() < 30 {
        assert!(rig.stage.give_back(0, Status::Ok), "a tag is idle while bios wait");
        rig.ended();
    }
    assert_eq!(rig.stage.held(), 3);
    rig.device.set_attribute("queue/nr_requests", "16").unwrap();
    rig.stage.give_back(0, Status::Ok);
    rig.ended();
    assert_eq!(rig.stage.held(), 40 - 31 + 3);
    rig.give_back_all();
    assert_eq!(rig.cx.outstanding(), 0);
}

#[test]
fn more_requests_serve_those_who_wait_though_their_owners_are_away() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.stage.otherwise(Answer::Hold);
    rig.device.set_attribute("queue/nr_requests", "1").unwrap();
    let (mut other, dev) = rig.another();
    rig.submit([read(0, 1), read(10, 1)]);
    let mut list = BioList::new();
    list.extend((2..5).map(|i| read(i * 10, 1)));
    other.submit(dev, &mut list);
    assert_eq!(rig.taken(), [(0, 512)]);
    rig.device.set_attribute("queue/nr_requests", "8").unwrap();
    assert_eq!(rig.stage.held(), 5);
    rig.give_back_all();
    assert_eq!(ended(&mut other).len(), 3);
}

#[test]
fn an_option_for_fewer_requests_can_be_undone() {
    let options = QueueOptions { nr_requests: Some(2), ..QueueOptions::default() };
    let mut rig = Rig::with(Setup::depth(8), &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    rig.submit((0..8).map(|i| read(i * 10, 1)));
    assert_eq!((rig.stage.held(), rig.attribute("queue/nr_requests")), (2, "2".into()));
    rig.device.set_attribute("queue/nr_requests", "8").unwrap();
    rig.stage.give_back(0, Status::Ok);
    rig.ended();
    assert_eq!(rig.stage.held(), 7);
    rig.give_back_all();
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
