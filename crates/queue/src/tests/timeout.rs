//! Requests that take too long.

use super::*;

fn rig() -> Rig {
    let options = QueueOptions { io_timeout_ms: Some(100), ..QueueOptions::default() };
    let rig = Rig::with(Setup::depth(4), &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    rig
}

#[test]
fn a_slow_request_is_reported_once_and_ends_when_given_back() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.clock.advance(99 * MS);
    rig.cx.wait(Some(0));
    assert!(rig.stage.timed_out().is_empty());
    for _ in 0..3 {
        rig.clock.advance(MS);
        rig.cx.wait(Some(0));
        assert_eq!(rig.stage.timed_out(), [1]);
        assert!(rig.ended().is_empty(), "the driver has its memory");
    }
    assert_eq!(rig.device.stats().in_flight(), (1, 0));
    rig.stage.give_back(0, Status::Cancelled);
    assert_eq!(rig.ended(), [(1, Status::Timeout)]);
    assert_eq!(rig.device.stats().in_flight(), (0, 0));
}

#[test]
fn news_do_not_keep_time_outs_from_being_seen() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.clock.advance(100 * MS);
    // Every wait finds a completion.
    rig.stage.next(Answer::Done(Status::Ok));
    rig.submit([read(2, 1)]);
    rig.cx.wait(None);
    assert_eq!(rig.stage.timed_out(), [1]);
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
    rig.give_back_all();
}

#[test]
fn a_loop_that_only_reaps_sees_time_outs() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.clock.advance(99 * MS);
    let before = rig.cx.clock_reads();
    for _ in 0..2560 {
        assert!(rig.ended().is_empty());
    }
    assert!(rig.stage.timed_out().is_empty());
    assert!((1..=10).contains(&(rig.cx.clock_reads() - before)), "few readings");
    rig.clock.advance(MS);
    for _ in 0..256 {
        rig.ended();
    }
    assert_eq!(rig.stage.timed_out(), [1]);
    rig.give_back_all();
    // Without a deadline the clock is not read at all.
    let before = rig.cx.clock_reads();
    (0..2560).for_each(|_| assert!(rig.ended().is_empty()));
    assert_eq!(rig.cx.clock_reads(), before);
}

#[test]
fn success_after_all_is_success() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.clock.advance(100 * MS);
    rig.cx.wait(Some(0));
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended(), [(1, Status::Ok)]);
    // The time of the slot's next request starts anew.
    rig.submit([read(2, 1)]);
    rig.stage.give_back(0, Status::IoError);
    assert_eq!(rig.ended(), [(2, Status::IoError)]);
}

#[test]
fn each_request_has_its_own_time() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.clock.advance(60 * MS);
    rig.submit([read(2, 1)]);
    rig.clock.advance(40 * MS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.stage.timed_out(), [1]);
    rig.stage.give_back(0, Status::Ok);
    rig.clock.advance(60 * MS);
    rig.cx.wait(Some(0));
    assert_eq!(rig.ended(), [(1, Status::Ok)]);
    rig.cx.wait(Some(0));
    assert_eq!(rig.stage.timed_out(), [1, 2]);
    rig.give_back_all();
}

#[test]
fn a_shorter_time_out_holds_for_what_comes_after_it() {
    let mut rig = rig();
    rig.submit([read(1, 1)]);
    rig.device.set_attribute("queue/io_timeout", "10").unwrap();
    rig.submit([read(2, 1)]);
    rig.clock.advance(10 * MS);
    rig.cx.wait(Some(0));
    assert!(rig.stage.timed_out().contains(&2), "{:?}", rig.stage.timed_out());
    rig.give_back_all();
}
