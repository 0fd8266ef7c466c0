//! Checks, merging, splitting and the plug: which requests reach the driver, in which order.

use super::*;

#[test]
fn neighbours_in_one_call_are_one_request() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.submit([read(10, 2), read(12, 1), read(8, 2), read(20, 1), read(13, 1)]);
    assert_eq!(rig.taken(), [(8, 5 * 512), (20, 512), (13, 512)]);
    let first = rig.stage.seen()[0];
    assert_eq!((first.bios, first.segments), (3, 3));
    assert_eq!(rig.ended().len(), 5);
    assert_eq!(rig.device.stats().fields()[1], 2, "two reads merged");
}

#[test]
fn nomerges_decides_where_bios_merge() {
    for (nomerges, in_plug, in_scheduler) in
        [("0", 1, &[(10, 2048)][..]), ("1", 1, &ONE_EACH), ("2", 2, &ONE_EACH)]
    {
        let mut rig = Rig::new(Setup::depth(8));
        rig.device.set_attribute("queue/nomerges", nomerges).unwrap();
        assert_eq!(rig.attribute("queue/nomerges"), nomerges);
        rig.submit([read(10, 1), read(11, 1)]);
        assert_eq!(rig.taken().len(), in_plug, "nomerges={nomerges}");

        let mut rig = Rig::new(Setup::depth(1));
        rig.device.set_attribute("queue/nomerges", nomerges).unwrap();
        rig.stage.next(Answer::Hold);
        rig.submit([read(100, 1)]);
        for sector in 10..14 {
            rig.submit([read(sector, 1)]);
        }
        rig.stage.give_back(0, Status::Ok);
        assert_eq!(rig.all_ended().len(), 5, "nomerges={nomerges}");
        assert_eq!(rig.taken()[1..], *in_scheduler, "nomerges={nomerges}");
    }
}

const ONE_EACH: [(u64, u64); 4] = [(10, 512), (11, 512), (12, 512), (13, 512)];

#[test]
fn bios_are_cut_to_the_limits_and_end_once() {
    let mut rig = Rig::new(Setup::limits(|l| (l.max_bytes, l.chunk_bytes) = (4096, 6144)));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(2, 26)]);
    // Chunks end at sectors 12 and 24; a request has 8 sectors at most.
    let expected = [(2, 8), (10, 2), (12, 8), (20, 4), (24, 4)].map(|(s, n)| (s, n * 512));
    assert_eq!(rig.taken(), expected);
    for left in (1..5).rev() {
        assert!(rig.stage.give_back(left / 2, Status::Ok));
        assert!(rig.ended().is_empty(), "{left} parts are still with the driver");
    }
    rig.stage.give_back(0, Status::Ok);
    assert_eq!(rig.ended(), [(2, Status::Ok)]);
    assert_eq!(rig.cx.outstanding(), 0);
}

#[test]
fn a_bio_of_many_segments_is_cut_between_them() {
    let mut rig = Rig::new(Setup::limits(|l| l.max_segments = 2));
    let parts = [1usize, 2, 1, 3, 1].map(|n| (IoBuf::zeroed(n * 512), 0..n * 512));
    rig.submit([Bio::vectored(Op::Write, Sector(4), parts)]);
    assert_eq!(rig.taken(), [(4, 3 * 512), (7, 4 * 512), (11, 512)]);
    assert!(rig.stage.seen().iter().all(|s| s.segments <= 2));
    assert_eq!(rig.ended().len(), 1);
}

#[test]
fn the_first_error_of_a_cut_bio_is_the_bios() {
    let mut rig = Rig::new(Setup::limits(|l| l.max_bytes = 512));
    for status in [Status::Ok, Status::Medium, Status::IoError, Status::Ok] {
        rig.stage.next(Answer::Done(status));
    }
    rig.submit([read(0, 4)]);
    assert_eq!(rig.ended(), [(0, Status::Medium)]);
}

#[test]
fn nowait_never_waits_and_is_never_cut() {
    let mut rig = Rig::new(Setup::depth(1));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([with(read(0, 1), BioFlags::NOWAIT)]);
    rig.submit([with(read(8, 1), BioFlags::NOWAIT)]);
    assert_eq!(rig.ended(), [(8, Status::Again)], "no tag");
    assert_eq!(rig.give_back_all(), [(0, Status::Ok)]);
    let too_long = u64::from(drystone_core::Limits::DEFAULT_MAX_BYTES) / 512 + 1;
    rig.submit([with(read(16, too_long), BioFlags::NOWAIT)]);
    assert_eq!(rig.ended(), [(16, Status::Again)], "it would have to be cut");
    assert_eq!(rig.taken(), [(0, 512)]);
}

#[test]
fn bad_bios_end_with_the_right_status_and_never_reach_the_driver() {
    let end = (1 << 30) / 512;
    let mut rig = Rig::new(Setup::limits(|l| {
        (l.logical_block_size, l.max_discard_bytes) = (4096, 0);
        (l.max_write_zeroes_bytes, l.write_cache) = (1 << 20, true);
    }));
    let mut short = read(0, 8);
    short.bytes = 8192;
    let cases = [
        (read(end, 8), Status::IoError, "begins behind the end"),
        (read(end - 8, 16), Status::IoError, "ends behind the end"),
        (write(u64::MAX / 512, 8), Status::IoError, "as far as bytes can be counted"),
        (write(1 << 55, 8), Status::IoError, "the position in bytes overflows"),
        (without_data(Op::WriteZeroes, 8, u64::MAX >> 10), Status::IoError, "too long"),
        (read(1, 8), Status::Invalid, "begins inside a block"),
        (read(8, 1), Status::Invalid, "ends inside a block"),
        (short, Status::Invalid, "less memory than bytes"),
        (without_data(Op::Discard, 0, 8), Status::NotSupported, "no discard"),
        (
            with(without_data(Op::WriteZeroes, 0, 8), BioFlags::FAST_ZERO),
            Status::NotSupported,
            "zeroes are slow",
        ),
        (with(read(0, 8), BioFlags::FUA), Status::Invalid, "FUA on a read"),
        (with(read(0, 8), BioFlags::PREFLUSH), Status::Invalid, "PREFLUSH on a read"),
    ];
    for (bio, status, why) in cases {
        rig.submit([tag(bio, 7)]);
        assert_eq!(rig.ended(), [(7, status)], "{why}");
    }
    rig.submit([read(end - 8, 8)]);
    assert_eq!(rig.taken(), [(end - 8, 4096)], "only the good one");
}

#[test]
fn a_read_only_device_refuses_every_write() {
    let options = QueueOptions { read_only: true, ..QueueOptions::default() };
    let mut rig = Rig::with(Setup::cache(true), &options, Engine::Auto);
    let zero = without_data(Op::WriteZeroes, 0, 1);
    for bio in
        [write(0, 1), with(write(0, 1), BioFlags::FUA), zero, without_data(Op::Discard, 0, 1)]
    {
        rig.submit([bio]);
        assert_eq!(rig.ended(), [(0, Status::Permission)]);
    }
    assert_eq!(rig.attribute("ro"), "1");
    rig.submit([read(0, 1), Bio::flush()]);
    assert_eq!(rig.ended(), [(0, Status::Ok), (0, Status::Ok)]);
    assert_eq!(rig.ops(), [Op::Read, Op::Flush]);
}

#[test]
fn nothing_to_do_is_done() {
    let mut rig = Rig::new(Setup::cache(true));
    let fua = with(write(3, 0), BioFlags::FUA);
    for bio in [read(0, 0), write(1, 0), without_data(Op::Discard, 2, 0), fua] {
        rig.submit([bio]);
    }
    assert_eq!(rig.ended().len(), 4);
    assert!(rig.taken().is_empty());
    // With PREFLUSH and no data it is only a flush.
    rig.submit([with(write(4, 0), BioFlags::PREFLUSH | BioFlags::FUA)]);
    assert_eq!((rig.ops(), rig.ended()), (vec![Op::Flush], vec![(4, Status::Ok)]));
}

#[test]
fn a_box_used_again_forgets_how_it_ended() {
    let mut rig = Rig::new(Setup::depth(4));
    for bytes in [512u64, 0] {
        rig.stage.next(Answer::Done(Status::Medium));
        rig.submit([read(5, 1)]);
        let mut out = BioList::new();
        rig.cx.reap(&mut out);
        let mut bio = out.pop().unwrap();
        assert_eq!(bio.status, Status::Medium);
        bio.bytes = bytes;
        rig.submit([bio]);
        assert_eq!(rig.ended(), [(5, Status::Ok)], "{bytes} bytes");
    }
}

#[test]
fn parts_go_behind_what_was_submitted_before() {
    let mut rig = Rig::new(Setup::limits(|l| l.max_bytes = 4096));
    rig.submit([write(100, 1), write(0, 16), write(200, 1)]);
    let sectors: Vec<_> = rig.taken().iter().map(|t| t.0).collect();
    assert_eq!(sectors, [100, 0, 8, 200]);
}

#[test]
fn more_bios_than_tags_keep_their_order() {
    for depth in [1, 2, 5] {
        let mut rig = Rig::new(Setup::depth(depth));
        rig.stage.otherwise(Answer::Hold);
        rig.submit((0..20).map(|i| read(i * 10, 1)));
        rig.submit((20..40).map(|i| read(i * 10, 1)));
        assert_eq!(rig.taken().len(), depth as usize);
        let mut ended = Vec::new();
        while rig.stage.give_back(0, Status::Ok) {
            ended.extend(rig.ended());
            assert!(rig.stage.held() <= depth as usize);
        }
        let all: Vec<_> = (0..40).map(|i| (i * 10, Status::Ok)).collect();
        assert_eq!(ended, all, "depth {depth}");
        let taken: Vec<_> = rig.taken().iter().map(|t| t.0).collect();
        assert_eq!(taken, (0..40).map(|i| i * 10).collect::<Vec<_>>(), "depth {depth}");
    }
}

#[test]
fn a_plug_holds_until_it_ends() {
    for engine in ENGINES {
        let mut rig = Rig::with(Setup::depth(64), &QueueOptions::default(), engine);
        rig.cx.start_plug();
        rig.cx.start_plug();
        rig.submit([read(0, 1)]);
        rig.submit([read(1, 1)]);
        assert!(rig.taken().is_empty() && rig.ended().is_empty());
        rig.cx.finish_plug();
        assert_eq!(rig.taken(), [(0, 1024)], "neighbours of two calls merged");
        rig.submit([read(8, 1)]);
        assert_eq!(rig.taken().len(), 2, "no plug any more");
        rig.cx.start_plug();
        rig.submit([read(16, 1)]);
        rig.cx.wait(Some(0));
        assert_eq!(rig.taken().len(), 3, "a wait flushes the plug");
        assert_eq!(rig.ended().len(), 4);
    }
}

#[test]
fn a_plug_flushes_at_its_limits() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.cx.start_plug();
    for i in 0..31 {
        rig.submit([read(i * 10, 1)]);
    }
    assert!(rig.taken().is_empty());
    rig.submit([read(310, 1)]);
    assert_eq!(rig.taken().len(), 32, "32 bios");
    rig.submit([read(1000, 255)]);
    assert_eq!(rig.taken().len(), 32, "512 bytes less than the limit");
    rig.submit([read(2000, 1)]);
    assert_eq!(rig.taken().len(), 34, "128 KiB");
    rig.submit([read(3000, 1)]);
    assert_eq!(rig.taken().len(), 34, "the count began again");
    rig.cx.finish_plug();
    assert_eq!(rig.ended().len(), 35);
}

#[test]
fn a_dropped_context_cancels_its_plug() {
    let mut rig = Rig::new(Setup::depth(4));
    rig.cx.start_plug();
    rig.submit([write(0, 1)]);
    let (other, _) = rig.another();
    drop(std::mem::replace(&mut rig.cx, other));
    assert!(rig.taken().is_empty());
    assert_eq!(rig.set.free_idle_orphans(), 0);
}
