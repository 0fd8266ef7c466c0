//! Flush sequences through the whole queue.

use super::*;

const PRE: BioFlags = BioFlags::PREFLUSH;
const FUA: BioFlags = BioFlags::FUA;

/// The requests that the driver got, as text: `F` flush, `w` write, `W` write with FUA, `z` write
/// zeroes.
fn steps(rig: &Rig) -> String {
    let letter = |s: &Seen| match s.op {
        Op::Flush => 'F',
        Op::Write if s.flags.contains(FUA) => 'W',
        Op::Write => 'w',
        Op::WriteZeroes => 'z',
        _ => '?',
    };
    rig.stage.seen().iter().map(letter).collect()
}

#[test]
fn the_driver_gets_what_the_device_understands() {
    let zero = || without_data(Op::WriteZeroes, 0, 8);
    let no_cache = || Setup::limits(|_| ());
    let cases = [
        (no_cache(), Bio::flush(), ""),
        (no_cache(), with(write(0, 1), PRE | FUA), "w"),
        (Setup::cache(false), Bio::flush(), "F"),
        (Setup::cache(false), write(0, 1), "w"),
        (Setup::cache(false), with(write(0, 1), FUA), "wF"),
        (Setup::cache(false), with(write(0, 1), PRE), "Fw"),
        (Setup::cache(false), with(write(0, 1), PRE | FUA), "FwF"),
        (Setup::cache(true), with(write(0, 1), FUA), "W"),
        (Setup::cache(true), with(write(0, 1), PRE), "Fw"),
        (Setup::cache(true), with(write(0, 1), PRE | FUA), "FW"),
        (Setup::cache(true), with(zero(), FUA), "zF"),
        (Setup::cache(true), with(zero(), PRE | FUA), "FzF"),
    ];
    for inline in [true, false] {
        for (setup, bio, expected) in cases.iter().map(|(s, b, e)| (*s, copy(b), *e)) {
            let mut rig = Rig::new(setup);
            if !inline {
                rig.stage.otherwise(Answer::Hold);
            }
            rig.submit([bio]);
            let mut ended = rig.ended();
            assert!(inline || expected.is_empty() || ended.is_empty());
            ended.extend(rig.give_back_all());
            // If the device has FUA, the requests' flags show it.
            let got = steps(&rig);
            let fua = setup.limits.fua;
            assert_eq!(if fua { got } else { got.replace('W', "w") }, expected);
            assert_eq!(ended, [(0, Status::Ok)], "{expected}");
        }
    }
}

fn copy(bio: &Bio) -> Box<Bio> {
    let mut copy = match bio.op {
        Op::Write => write(0, bio.bytes / 512),
        op => without_data(op, 0, bio.bytes / 512),
    };
    copy.flags = bio.flags;
    copy
}

#[test]
fn a_failed_pre_flush_reaches_the_bio_and_no_data_is_written() {
    for flags in [PRE, PRE | FUA] {
        let mut rig = Rig::new(Setup::cache(true));
        rig.stage.next(Answer::Done(Status::IoError));
        rig.submit([with(write(9, 1), flags)]);
        assert_eq!((rig.ended(), steps(&rig).as_str()), (vec![(9, Status::IoError)], "F"));
    }
}

#[test]
fn a_failed_write_is_not_flushed_and_a_failed_post_flush_fails_the_bio() {
    let mut rig = Rig::new(Setup::cache(false));
    rig.stage.next(Answer::Done(Status::Medium));
    rig.submit([with(write(1, 1), FUA)]);
    assert_eq!(rig.ended(), [(1, Status::Medium)]);
    rig.stage.next(Answer::Done(Status::Ok));
    rig.stage.next(Answer::Done(Status::NoSpace));
    rig.submit([with(write(2, 1), FUA)]);
    assert_eq!(rig.ended(), [(2, Status::NoSpace)]);
    assert_eq!(rig.ops(), [Op::Write, Op::Write, Op::Flush]);
}

#[test]
fn flushes_that_come_while_one_runs_share_the_next() {
    let mut rig = Rig::new(Setup::cache(false));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([tag(Bio::flush(), 1)]);
    for i in 2..6 {
        rig.submit([tag(Bio::flush(), i)]);
    }
    assert_eq!(steps(&rig), "F", "one at a time");
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended(), [(1, Status::Ok)], "the later ones may not ride on this one");
    assert_eq!(steps(&rig), "FF");
    rig.stage.give_back(0, Status::IoError);
    let all: Vec<_> = (2..6).map(|i| (i, Status::IoError)).collect();
    assert_eq!((rig.ended(), steps(&rig).as_str()), (all, "FF"));
}

#[test]
fn data_behind_a_flush_is_cut_to_the_limits_too() {
    let mut rig = Rig::new(Setup::limits(|l| {
        (l.write_cache, l.max_bytes, l.chunk_bytes) = (true, 4096, 6144);
    }));
    rig.submit([with(write(0, 24), PRE)]);
    let data = &rig.taken()[1..];
    assert_eq!(data, [(0, 4096), (8, 2048), (12, 4096), (20, 2048)]);
    assert_eq!((rig.ended(), steps(&rig).as_str()), (vec![(0, Status::Ok)], "Fwwww"));
}

#[test]
fn a_cut_fua_write_ends_when_every_part_is_durable() {
    let mut rig = Rig::new(Setup::limits(|l| (l.write_cache, l.max_bytes) = (true, 4096)));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([with(write(0, 16), FUA)]);
    assert_eq!(steps(&rig).to_lowercase(), "ww");
    rig.stage.give_back(0, Status::Ok);
    assert!(rig.ended().is_empty());
    assert_eq!(rig.ops()[2], Op::Flush, "the first part is flushed");
    rig.stage.give_back(0, Status::Ok);
    assert!(rig.ended().is_empty());
    rig.stage.give_back(0, Status::Ok);
    assert!(rig.ended().is_empty(), "that flush may have begun before the second part's end");
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended(), [(0, Status::Ok)]);
    assert_eq!(rig.ops().iter().filter(|op| **op == Op::Flush).count(), 2);
}

#[test]
fn flush_and_fua_do_not_merge() {
    let mut rig = Rig::new(Setup::cache(true));
    rig.submit([write(0, 1), with(write(1, 1), FUA), write(2, 1), write(3, 1)]);
    assert_eq!(rig.taken(), [(0, 512), (512 / 512, 512), (2, 1024)]);
    assert_eq!(rig.ended().len(), 4);
}

#[test]
fn the_override_of_the_write_cache_is_obeyed() {
    for (driver, given, expected) in [(true, false, ""), (false, true, "F")] {
        let options = QueueOptions { write_cache: Some(given), ..QueueOptions::default() };
        let setup = Setup::limits(|l| l.write_cache = driver);
        let mut rig = Rig::with(setup, &options, Engine::Auto);
        rig.submit([Bio::flush()]);
        assert_eq!((steps(&rig).as_str(), rig.ended().len()), (expected, 1));
        let name = if given { "write back" } else { "write through" };
        assert_eq!(rig.attribute("queue/write_cache"), name);
    }
}

#[test]
fn a_flush_waits_for_a_tag_like_everything_else() {
    let mut rig = Rig::new(Setup { limits: Setup::cache(false).limits, ..Setup::depth(1) });
    rig.stage.otherwise(Answer::Hold);
    rig.submit([write(0, 1)]);
    rig.submit([tag(Bio::flush(), 1)]);
    assert_eq!(rig.ops(), [Op::Write]);
    assert_eq!(rig.give_back_all(), [(0, Status::Ok), (1, Status::Ok)]);
}

#[test]
fn a_dropped_context_cancels_waiting_flushes_only() {
    let mut rig = Rig::new(Setup::cache(false));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([Bio::flush()]);
    rig.submit([Bio::flush(), with(write(0, 1), PRE)]);
    let (other, _) = rig.another();
    drop(std::mem::replace(&mut rig.cx, other));
    assert_eq!(rig.set.free_idle_orphans(), 1, "the driver has one flush");
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.set.free_idle_orphans(), 0);
    assert_eq!(steps(&rig), "F", "nothing more was sent");
}
