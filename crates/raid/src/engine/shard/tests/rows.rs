//! Writes of whole rows.

use super::*;
use crate::engine::bitmap::Bitmap;

/// Sectors of a row of four disks with one parity and chunks of 8 KiB: two stripes.
const ROW: u64 = 48;

fn bench(stripes: usize) -> Bench {
    Bench::new(Level::Raid5, 2, 4, stripes)
}

/// A write of byte `fill` from memory that is stable or not.
fn write(bench: &mut Bench, sector: u64, sectors: u64, (fill, flags): (u8, BioFlags)) -> Box<Bio> {
    let bytes = vec![fill; (sectors * SECTOR_SIZE) as usize];
    let start = (sector * SECTOR_SIZE) as usize;
    bench.model[start..start + bytes.len()].copy_from_slice(&bytes);
    let mut bio = Bio::write(Sector(sector), IoBuf::from_slice(&bytes));
    (bio.flags, bio.user_data) = (flags, bench.next);
    bench.busy.push((bench.next, sector..sector + sectors));
    bench.next += 1;
    bio
}

/// Bring bios in one turn.
fn bring(bench: &mut Bench, bios: impl IntoIterator<Item = Box<Bio>>) {
    bench.turn(|shard, _, _| bios.into_iter().for_each(|bio| shard.accept(bio, false)));
}

/// Bytes of the writes that are on their way to each member, by its number.
fn flight(bench: &Bench) -> Vec<(u32, u64)> {
    let mut flight: Vec<_> = bench.flight.iter().map(|(n, bio)| (*n, bio.bytes)).collect();
    assert!(bench.flight.iter().all(|(_, bio)| bio.op == Op::Write));
    flight.sort_unstable();
    flight
}

fn check(bench: &mut Bench) {
    bench.drain();
    assert_eq!((bench.failed, bench.rows_that_do_not_fit()), (0, 0));
    bench.read_all();
}

#[test]
fn a_row_is_one_bio_for_each_member_from_the_writers_memory_or_from_a_copy() {
    for (flags, lent) in [(BioFlags::STABLE, 3), (BioFlags::empty(), 0)] {
        let mut bench = bench(4);
        let bio = write(&mut bench, ROW, ROW, (7, flags | BioFlags::FUA));
        let memory = bio.buf().expect("its own").as_ptr_range();
        bring(&mut bench, [bio]);
        assert_eq!(flight(&bench), [0, 1, 2, 3].map(|number| (number, 8192)));
        let is_lent =
            |bio: &Bio| bio.bufs().iter().all(|buf| memory.contains(&buf.as_ptr().cast_const()));
        assert_eq!(bench.flight.iter().filter(|(_, bio)| is_lent(bio)).count(), lent);
        assert!(bench.flight.iter().all(|(_, bio)| bio.flags == BioFlags::FUA));
        assert_eq!(bench.shard.active(), 2);
        check(&mut bench);
        let counts = bench.shard.counts();
        assert_eq!((counts.full, counts.writes), (2, 8));
    }
}

#[test]
fn rows_that_lie_side_by_side_are_written_together() {
    let mut bench = bench(16);
    let bios = [(0, ROW), (ROW, 2 * ROW), (4 * ROW, ROW)]
        .map(|(at, len)| write(&mut bench, at, len, (at as u8 + 1, BioFlags::STABLE)));
    bring(&mut bench, bios);
    let expected: Vec<_> = (0..4).flat_map(|member| [(member, 8192), (member, 3 * 8192)]).collect();
    assert_eq!(flight(&bench), expected);
    check(&mut bench);
}

#[test]
fn the_regions_of_a_row_with_long_chunks_come_as_items_of_their_own() {
    for level in [Level::Raid5, Level::Raid6] {
        let layout = Layout::new(level, 2, 5, REGION).unwrap();
        let data = u64::from(layout.data_disks());
        let mut bench = Bench::with_layout(layout, 16);
        let bios: Vec<_> = (0..data)
            .map(|n| write(&mut bench, n * REGION, REGION, (n as u8 + 3, BioFlags::STABLE)))
            .collect();
        bring(&mut bench, bios);
        assert_eq!(flight(&bench), [0, 1, 2, 3, 4].map(|number| (number, REGION * SECTOR_SIZE)));
        check(&mut bench);
        // Some of them are not a row, and nor is another order.
        for order in [&[0, 1][..], &[1, 0, 2, 3][..data as usize]] {
            let before = bench.shard.counts().full;
            let bios: Vec<_> = order
                .iter()
                .map(|n| write(&mut bench, n * REGION, REGION, (*n as u8, BioFlags::empty())))
                .collect();
            let is_whole = bios.len() as u64 == data;
            bring(&mut bench, bios);
            assert!(bench.flight.iter().all(|(_, bio)| bio.bufs().len() > 1), "by stripes");
            check(&mut bench);
            assert_eq!(bench.shard.counts().full > before, is_whole);
        }
    }
}

/// The sectors of a region, which is the longest piece of a row.
const REGION: u64 = crate::engine::region::REGION_SECTORS;

#[test]
fn a_row_that_a_member_fails_is_written_by_its_stripes() {
    for which in 0..4 {
        let mut bench = bench(4);
        bench.broken[2] = true;
        let bio = write(&mut bench, 0, ROW, (5, BioFlags::STABLE));
        bring(&mut bench, [bio]);
        bench.end_one(which);
        bench.drain();
        assert_eq!(bench.failed, 0);
        assert!(bench.unwritten.iter().any(|report| report.number == MemberNumber(2)));
        // What the other members hold makes up for it.
        bench.read_all();
    }
}

/// Stripes have their buffers beforehand, so a write never fails for want of memory.
#[test]
fn a_row_without_memory_for_it_is_written_by_its_stripes() {
    for flags in [BioFlags::STABLE, BioFlags::empty()] {
        let mut bench = bench(4);
        bench.shard.rows.exhaust_memory();
        let bio = write(&mut bench, ROW, ROW, (5, flags));
        bring(&mut bench, [bio]);
        let is_of_stripes = |bio: &Bio| bio.bufs().iter().all(|buf| buf.len() == BLOCK_BYTES);
        assert!(bench.flight.len() == 4 && bench.flight.iter().all(|(_, bio)| is_of_stripes(bio)));
        check(&mut bench);
    }
}

#[test]
fn a_cancelled_row_is_written_again() {
    let mut bench = bench(4);
    let bio = write(&mut bench, 0, ROW, (5, BioFlags::empty()));
    bring(&mut bench, [bio]);
    while let Some((_, mut bio)) = bench.flight.pop().filter(|(_, bio)| bio.bufs().len() == 1) {
        bio.status = Status::Cancelled;
        bench.turn(|shard, turn, out| shard.run_ended(turn, bio, out));
        if bench.flight.iter().any(|(_, bio)| bio.bufs().len() > 1) {
            break;
        }
    }
    check(&mut bench);
    assert!(bench.unwritten.is_empty());
}

/// A check and a read that wait in a row see nothing of a row that was written in part.
#[test]
fn a_row_that_fails_is_written_before_anything_else_is_done_to_its_stripes() {
    let mut bench = bench(4);
    let row = write(&mut bench, 0, ROW, (5, BioFlags::STABLE));
    bring(&mut bench, [row]);
    let mut check_bio = Bio::without_data(Op::Discard, Sector(0), 2 * BLOCK_BYTES as u64);
    check_bio.user_data = 100;
    bench.publish(|conf| conf.action = Some(SyncAction::Check));
    bench.busy.push((100, 0..0));
    bench.turn(|shard, _, _| shard.accept(check_bio, true));
    bench.submit(Op::Read, 20, 3);
    let (_, mut bio) = bench.flight.remove(1);
    bio.status = Status::Cancelled;
    bench.turn(|shard, turn, out| shard.run_ended(turn, bio, out));
    bench.drain();
    assert_eq!((bench.mismatches, bench.corrected), (0, 0));
    check(&mut bench);
}

/// A write of a part of a row waits in line behind a write of the row: it joins that.
#[test]
fn an_item_in_line_joins_the_row_that_it_waits_for() {
    let mut bench = bench(2);
    let first = write(&mut bench, 2 * ROW, ROW, (1, BioFlags::STABLE));
    let row = write(&mut bench, 0, ROW, (2, BioFlags::STABLE));
    let part = write(&mut bench, 4, 1, (3, BioFlags::STABLE));
    bring(&mut bench, [first, row, part]);
    assert_eq!(bench.shard.items.waiting().count(), 2);
    (0..4).for_each(|_| bench.end_one(0));
    assert_eq!(bench.shard.items.waiting().count(), 0, "both go on");
    assert_eq!(flight(&bench), [0, 1, 2, 3].map(|number| (number, 8192)));
    check(&mut bench);
}

#[test]
fn a_write_of_nothing_ends() {
    let mut bench = bench(4);
    let nothing = write(&mut bench, ROW, 0, (2, BioFlags::empty()));
    let row = write(&mut bench, 0, ROW, (1, BioFlags::empty()));
    bring(&mut bench, [row, nothing]);
    bench.broken[3] = true;
    bench.drain();
    assert_eq!(bench.failed, 0);
}

/// The buffers that are kept are no more than writes can use at once, whichever shard gets them.
#[test]
fn idle_buffers_are_bounded() {
    let mut bench = bench(4);
    let all = 4 / 2 * 4;
    for round in 0..20 {
        let rows = [0, ROW].map(|at| write(&mut bench, at, ROW, (round, BioFlags::empty())));
        bring(&mut bench, rows);
        // Another shard's buffers come to this context.
        bench.out.row_bufs.extend((0..3).map(|_| IoBuf::zeroed(8192)));
        check(&mut bench);
        assert!(bench.shard.rows.idle_buffers() <= all);
    }
    bench.stripes = 1;
    bench.publish(|_| {});
    bench.turn(|_, _, _| {});
    assert!(bench.shard.rows.idle_buffers() <= 4);
}

#[test]
fn work_for_a_row_that_is_being_written_waits_for_it() {
    let mut bench = bench(4);
    let row = write(&mut bench, 0, ROW, (5, BioFlags::STABLE));
    bring(&mut bench, [row]);
    let part = write(&mut bench, 3, 2, (6, BioFlags::empty()));
    let mut read = Bio::read(Sector(8), IoBuf::zeroed(512));
    read.user_data = 100;
    bench.busy.push((100, 8..9));
    bring(&mut bench, [part, read]);
    assert_eq!(flight(&bench), [0, 1, 2, 3].map(|number| (number, 8192)), "the row alone");
    check(&mut bench);
}

#[test]
fn the_next_row_waits_in_line_until_stripes_are_idle_and_goes_as_a_whole() {
    let mut bench = bench(2);
    let rows = [0, 2 * ROW, 4 * ROW]
        .map(|at| write(&mut bench, at, ROW, (at as u8 + 1, BioFlags::STABLE)));
    bring(&mut bench, rows);
    for ended in 1..=3 {
        assert_eq!(flight(&bench), [0, 1, 2, 3].map(|number| (number, 8192)), "row {ended}");
        (0..4).for_each(|_| bench.end_one(0));
    }
    let counts = bench.shard.counts();
    assert_eq!((counts.waited, counts.woken, counts.full), (2, 2, 6));
    check(&mut bench);
}

/// The write is done in pieces if anything about its rows is special.
#[test]
fn rows_with_a_busy_stripe_a_missing_member_or_no_bit_are_written_by_stripes() {
    type Prepare = fn(&mut Bench);
    let cases: [(&str, Prepare); 5] = [
        ("too few stripes", |bench| {
            bench.stripes = 1;
            bench.publish(|_| {});
        }),
        ("a read under way", |bench| {
            let mut check = Bio::without_data(Op::Discard, Sector(0), BLOCK_BYTES as u64);
            check.user_data = 50;
            bench.publish(|conf| conf.action = Some(SyncAction::Check));
            bench.busy.push((50, 0..0));
            bench.turn(|shard, _, _| shard.accept(check, true));
        }),
        ("a lost member", |bench| bench.publish(|conf| conf.role_slots[1].member = None)),
        ("a replacement", |bench| {
            bench.members.push(bench.members[0].clone());
            bench.broken.push(false);
            bench.publish(|conf| conf.role_slots[0].replacement = Some(member(4, IN_SYNC)));
        }),
        ("a bad block", |bench| {
            let report = Report { number: MemberNumber(3), sector: 8, fault: Fault::Lost };
            bench.list(report);
        }),
    ];
    for (what, prepare) in cases {
        let mut bench = bench(4);
        prepare(&mut bench);
        let bio = write(&mut bench, 0, ROW, (5, BioFlags::STABLE));
        bring(&mut bench, [bio]);
        let longest = bench.flight.iter().map(|(_, bio)| bio.bufs().first().map_or(0, |b| b.len()));
        assert!(longest.max().unwrap_or(0) <= BLOCK_BYTES, "{what}");
        bench.drain();
        assert_eq!(bench.failed, 0, "{what}");
        bench.read_all();
    }
}

#[test]
fn a_row_waits_for_the_bits_of_its_bitmap() {
    let mut bench = bench(4);
    let bitmap = Arc::new(Bitmap::new(USED, 8));
    let conf = bitmap.clone();
    bench.publish(move |to| to.bitmap = Some(conf));
    // The second stripe's bit is missing.
    bitmap.set(0);
    let bio = write(&mut bench, 0, ROW, (5, BioFlags::STABLE));
    bring(&mut bench, [bio]);
    assert!(bench.flight.iter().all(|(_, bio)| bio.sector.0 < OFFSET + 8));
    assert_eq!(std::mem::take(&mut bench.out.words), [1]);
    bitmap.set(1);
    bench.publish(|_| {});
    check(&mut bench);
    let bio = write(&mut bench, 0, ROW, (6, BioFlags::STABLE));
    bring(&mut bench, [bio]);
    assert_eq!(flight(&bench), [0, 1, 2, 3].map(|number| (number, 8192)));
    let mut under_way: Vec<_> = bench.shard.under_way(&bitmap).collect();
    under_way.sort_unstable();
    assert_eq!(under_way, [0, 1]);
    check(&mut bench);
}
