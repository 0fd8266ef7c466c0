//! The partial parity log: its state on the members after a power failure, and the result of a
//! start.

use super::stand::{Entry, Stand, is_idle, uuid};
use super::*;
use crate::ids::Role;
use crate::layout::Level;
use crate::metadata::create::Policy;
use crate::metadata::ppl::{self, PplHeader};
use crate::metadata::superblock::Superblock;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Bio, IoBuf, Op, Sector};
use proptest::prelude::*;
use std::ops::Range;

/// Bytes of the array that are compared.
const LOOKED_AT: usize = 1 << 19;
/// Sectors of the array's chunks.
const CHUNK: u64 = 128;

/// A new array with logs, and the data that it holds.
fn stand(disks: usize) -> (Stand, Vec<u8>) {
    let mut stand = Stand::new(disks);
    stand.create_with(Level::Raid5, true, Some(Policy::Ppl), None);
    stand.start();
    let words = (0..LOOKED_AT as u64 / 8).flat_map(|n| (n * 0x9E37_79B9).to_le_bytes());
    let model: Vec<u8> = words.collect();
    assert!(stand.io(Bio::write(Sector(0), IoBuf::from_slice(&model))).status.is_ok());
    stand.power.take();
    (stand, model)
}

/// The area of a member's log.
fn area(stand: &Stand, device: usize) -> Range<u64> {
    let own = stand.memories[device].superblock();
    let area = own.ppl().expect("a log");
    let start = own.super_offset.checked_add_signed(area.offset.into()).unwrap();
    start..start + u64::from(area.sectors)
}

fn newest(stand: &Stand, device: usize) -> PplHeader {
    let memory = &stand.memories[device];
    let area = area(stand, device);
    let read = |sector| Ok::<_, ()>(memory.get(area.start + sector, ppl::HEADER_BYTES));
    let signature = ppl::signature(memory.superblock().set_uuid);
    ppl::newest(area.end - area.start, signature, read).unwrap().expect("a header").1
}

/// The devices whose logs were written, in order.
fn log_writes(stand: &Stand, entries: &[Entry]) -> Vec<usize> {
    let is_log = |entry: &&Entry| {
        entry.op == Op::Write && area(stand, entry.device).contains(&entry.sectors.start)
    };
    entries.iter().filter(is_log).map(|entry| entry.device).collect()
}

/// The devices of a crashed stand that are not in `lost`, as a stand of their own.
fn restarted(images: &[Vec<u8>], lost: &[usize]) -> Stand {
    let left = images.iter().enumerate().filter(|(n, _)| !lost.contains(n));
    let mut stand = Stand::of(left.map(|(_, image)| image.clone()).collect());
    stand.start();
    stand.until("resync", is_idle);
    stand
}

/// Check that all data except `torn`, which is in sectors of whole blocks, is unchanged.
fn assert_holds(stand: &mut Stand, model: &[u8], torn: &Range<u64>, what: &str) {
    let (status, read) = stand.read(0, LOOKED_AT);
    assert!(status.is_ok(), "{what}");
    assert_eq!(first_wrong(read, model, std::slice::from_ref(torn)), None, "{what}");
}

/// The first sector of `read` that differs from the model, in blocks without a `torn` sector.
fn first_wrong(mut read: Vec<u8>, model: &[u8], torn: &[Range<u64>]) -> Option<usize> {
    for range in torn {
        let blocks = range.start / 8 * 4096..range.end.div_ceil(8) * 4096;
        let blocks = blocks.start as usize..blocks.end as usize;
        read[blocks.clone()].copy_from_slice(&model[blocks]);
    }
    // Compare whole sectors: byte by byte takes seconds in a debug build.
    read.chunks(512).zip(model.chunks(512)).position(|(read, model)| read != model)
}

fn images(stand: &Stand) -> Vec<Vec<u8>> {
    stand.memories.iter().map(|memory| memory.image()).collect()
}

#[test]
fn torn_members_of_linux_are_made_whole_as_linux_does() {
    let mut stand = Stand::of_vector("r5-ls-ppl-torn");
    stand.start();
    assert!(is_idle(&stand.array.as_ref().unwrap().0.status()), "nothing is synchronised");
    for (memory, after) in
        stand.memories.iter().zip(crate::testing::members("r5-ls-ppl-torn-after"))
    {
        let own = memory.superblock();
        assert!(own.is_clean());
        let (start, bytes) = (own.data_offset * 512, own.size as usize * 512);
        assert!(memory.get(own.data_offset, bytes) == after.read(start, bytes), "{}", memory.name);
    }
    assert!((0..4).all(|device| newest(&stand, device).entries.is_empty()));
    assert!((0..4).all(|device| newest(&stand, device).generation > 6));
    assert_eq!(mismatches(&mut stand), 0);
}

#[test]
fn without_a_member_of_linux_what_was_never_written_is_right() {
    for lost in 0..4 {
        let images = images(&Stand::of_vector("r5-ls-ppl-torn"));
        let mut stand = restarted(&images, &[lost]);
        let blocks = stand.array.as_ref().unwrap().0.info().size_bytes / 4096;
        for block in 0..blocks {
            let written = [5..6, 1000..1003, 3001..3041].iter().any(|range| range.contains(&block));
            let word = (0xB10C_0000_0000_0000 + block).to_le_bytes();
            let (status, read) = stand.read(block * 8, 4096);
            assert!(status.is_ok());
            assert!(written || read == word.repeat(512), "block {block} without member {lost}");
        }
    }
}

/// The logs are older than the mixture of members.
#[test]
fn members_of_two_ages_are_resynced_whatever_the_logs_say() {
    for is_clean in [false, true] {
        let (mut stand, _) = stand(4);
        stand.until("clean", |status| status.state == ArrayState::Clean);
        let old = images(&stand);
        assert!(stand.write(0, 9, LOOKED_AT / 2).is_ok());
        if is_clean {
            stand.stop();
        } else {
            stand.crash();
            assert!((0..4).any(|device| !newest(&stand, device).entries.is_empty()));
        }
        for memory in &stand.memories[..2] {
            let mut own = memory.superblock();
            own.events += 100;
            memory.put(8, &own.to_bytes());
        }
        let images = [&images(&stand)[..2], &old[2..]].concat();
        let mut again = Stand::of(images);
        assert!(again.try_open().is_err(), "two members are too old");
        again.is_forced = true;
        again.start();
        let status = again.until("resync", is_idle);
        assert!(status.mismatch_cnt > 0 && status.degraded() == 0);
        assert_eq!(mismatches(&mut again), 0);
        again.stop();
        assert!(again.memories.iter().all(|memory| memory.superblock().is_clean()));
    }
}

/// The logs correct the stripes that were being written when the power failed, but not those that
/// the resync has yet to do.
#[test]
fn a_resync_that_was_not_for_a_crash_outlives_one() {
    let (mut stand, _) = stand(4);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    // Parity does not fit in the last rows.
    let own = stand.memories[3].superblock();
    stand.memories[3].put(own.data_offset + own.used() - CHUNK, &[7; 4096]);
    stand.stop();
    // This is the state of an array that was stopped during its first resync.
    for memory in &stand.memories {
        let new = Superblock { resync_offset: CHUNK, ..memory.superblock() };
        memory.put(8, &new.to_bytes());
    }
    for _ in 0..2 {
        // The resync must not reach its end.
        let opened = stand.open();
        stand.memories[3].hold_from(own.used() - CHUNK);
        stand.start_opened(opened);
        assert!(stand.write(0, 9, LOOKED_AT / 2).is_ok());
        stand.memories[3].release();
        stand.crash();
        assert!((0..4).any(|device| !newest(&stand, device).entries.is_empty()));
    }
    stand.start();
    assert!(stand.until("resync", is_idle).mismatch_cnt > 0);
    assert_eq!(mismatches(&mut stand), 0);
    // If parity fitted everywhere before the crash, the logs make the array whole without a resync.
    assert!(stand.write(0, 8, LOOKED_AT / 2).is_ok());
    stand.crash();
    assert!(stand.memories.iter().all(|memory| memory.superblock().resync_offset == 0));
    stand.start();
    assert!(is_idle(&stand.array.as_ref().unwrap().0.status()), "nothing is synchronised");
}

/// A write is cut off after each of its writes to members in turn. The array is then read with all
/// members, and without each one.
fn at_every_write(disks: usize, lost: Option<usize>, write: Range<u64>) {
    for writes in 0.. {
        let (mut stand, model) = stand(disks);
        if let Some(lost) = lost {
            stand.command(Command::Fail(format!("d{lost}"))).unwrap();
        }
        stand.until("clean", |status| status.state == ArrayState::Clean);
        stand.power.goes_after(writes);
        let bytes = (write.end - write.start) as usize * 512;
        assert!(stand.write(write.start, 0xEE, bytes).is_ok());
        let is_over = !stand.power.is_off();
        stand.crash();
        let images = images(&stand);
        for missing in (0..disks).filter(|_| lost.is_none()).map(Some).chain([lost]) {
            let lost: Vec<usize> = missing.into_iter().collect();
            let mut again = restarted(&images, &lost);
            let what = format!("{write:?} without {missing:?} after {writes} writes");
            assert_holds(&mut again, &model, &write, &what);
            if missing.is_none() {
                assert_eq!(mismatches(&mut again), 0, "{what}");
            }
        }
        if is_over {
            return assert!(writes > 4);
        }
    }
}

#[test]
fn a_write_that_is_cut_off_harms_nothing_else() {
    // A part of a block; two blocks of two chunks; a whole row and its neighbourhood.
    for write in [3..5, CHUNK - 8..CHUNK + 8, 3 * CHUNK - 16..6 * CHUNK + 8] {
        at_every_write(4, None, write);
    }
}

#[test]
fn nor_does_it_while_a_member_is_missing() {
    for (lost, write) in [(0, 3..5), (1, CHUNK - 8..CHUNK + 8), (2, 0..24), (3, 8..2 * CHUNK + 16)]
    {
        at_every_write(4, Some(lost), write);
    }
}

#[test]
fn the_next_log_waits_until_all_of_the_last_is_done() {
    let (mut stand, _) = stand(4);
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let (holder, parity) = (layout.map_sector(0).role.index(), layout.row(0).p.index());
    stand.memories[holder].hold();
    stand.begin(Bio::write(Sector(0), IoBuf::from_slice(&[4; 4096])));
    stand.turn();
    let entries = stand.power.take();
    assert_eq!(log_writes(&stand, &entries), [parity]);
    // Another stripe with the same parity member; its data goes to other members.
    stand.begin(Bio::write(Sector(CHUNK + 8), IoBuf::from_slice(&[5; 4096])));
    stand.pass(1);
    let entries = stand.power.take();
    assert!(log_writes(&stand, &entries).is_empty() && stand.ended().is_none());
    stand.memories[holder].release();
    stand.wait_for(2);
    let entries = stand.power.take();
    assert_eq!(log_writes(&stand, &entries), [parity]);
    assert!(stand.reads(0, 4, 4096) && stand.reads(CHUNK + 8, 5, 4096));
}

#[test]
fn caches_are_flushed_before_a_log_is_written_over() {
    let (mut stand, _) = stand(4);
    stand.stop();
    stand.memories.iter().for_each(|memory| memory.has_cache.store(true, Relaxed));
    stand.start();
    stand.write(0, 1, 4096);
    stand.power.take();
    stand.write(0, 2, 4096);
    let entries = stand.power.take();
    let is_log = |entry: &Entry| {
        entry.op == Op::Write && area(&stand, entry.device).contains(&entry.sectors.start)
    };
    let log = entries.iter().position(is_log).expect("it is logged");
    let flushed =
        |device| entries[..log].iter().any(|entry| entry.op == Op::Flush && entry.device == device);
    assert!((0..4).all(flushed), "{entries:?}");
    // A member that has no cache any more gets no flush.
    stand.memories[0].has_cache.store(false, Relaxed);
    stand.write(0, 3, 4096);
    let entries = stand.power.take();
    let flushes = entries.iter().filter(|entry| entry.op == Op::Flush);
    assert_eq!(flushes.map(|entry| entry.device).collect::<Vec<_>>(), [1, 2, 3], "{entries:?}");
}

#[test]
fn blocks_that_are_not_side_by_side_are_logged_one_after_the_other() {
    let (mut stand, _) = stand(5);
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let bio =
        |slot: u64, value| Bio::write(Sector(slot * CHUNK), IoBuf::from_slice(&[value; 4096]));
    stand.begin_all([bio(0, 1), bio(1, 2), bio(3, 3)]);
    stand.wait_for(3);
    let entries = stand.power.take();
    let parity = layout.row(0).p.index();
    assert_eq!(log_writes(&stand, &entries), [parity, parity]);
    let last = newest(&stand, parity);
    assert_eq!((last.entries[0].data_sector, last.entries[0].data_size), (3 * CHUNK, 4096));
    for (slot, value) in [(0, 1), (1, 2), (3, 3)] {
        assert!(stand.reads(slot * CHUNK, value, 4096));
    }
}

#[test]
fn a_log_that_cannot_be_written_fails_its_member_before_the_write_passes() {
    let (mut stand, _) = stand(4);
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let parity = layout.row(0).p.index();
    stand.memories[parity].bad_sector.store(area(&stand, parity).start + 9, Relaxed);
    stand.power.take();
    assert!(stand.write(0, 7, 4096).is_ok());
    assert_eq!(stand.states()[parity], DiskState::Faulty(Some(Role(parity as u32))));
    let entries = stand.power.take();
    let other = (parity + 1) % 4;
    let data_offset = stand.memories[other].superblock().data_offset;
    let data = |e: &Entry| e.op == Op::Write && e.sectors.start >= data_offset;
    let superblock = |e: &Entry| e.op == Op::Write && e.device == other && e.sectors.start == 8;
    let (data, superblock) = (entries.iter().position(data), entries.iter().position(superblock));
    assert!(superblock.is_some() && superblock < data, "it is on record first");
    assert!(stand.reads(0, 7, 4096));
}

#[test]
fn a_new_member_gets_a_log_of_its_own() {
    let (mut stand, model) = stand(4);
    // The device was a member of this array before, and has headers from that time.
    let mut image = stand.memories[1].image();
    let area = area(&stand, 1);
    let old = PplHeader::empty(ppl::signature(stand.memories[1].superblock().set_uuid), 1 << 40);
    let at = (area.start as usize + 16) * 512;
    image[at..at + ppl::HEADER_BYTES].copy_from_slice(&old.to_bytes());
    image[..8192].fill(0);
    stand.command(Command::Fail("d1".to_owned())).unwrap();
    stand.add_device(image);
    let (name, device) = ("d4".to_owned(), stand.devices[4].clone());
    stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    stand.until("recovery", |status| is_idle(status) && status.degraded() == 0);
    assert!(newest(&stand, 4).generation < 1 << 40);
    assert_holds(&mut stand, &model, &(0..0), "rebuilt");
    stand.write(0, 1, 4096);
    stand.stop();
    stand.start();
    assert!(stand.reads(0, 1, 4096));
}

/// Writes as (place, number of sectors), several at a time.
fn writes() -> impl Strategy<Value = Vec<Vec<(u64, u64)>>> {
    let end = LOOKED_AT as u64 / 512;
    let length = prop_oneof![Just(1), Just(8), 1u64..60, Just(3 * CHUNK), 8u64..600];
    let write = (0..end, length).prop_map(move |(at, much)| (at, much.min(end - at)));
    proptest::collection::vec(proptest::collection::vec(write, 1..5), 1..8)
}

/// Make writes until the power fails. The writes under way then count as torn; all others are in
/// `model`.
fn write_until_cut(
    stand: &mut Stand,
    model: &mut [u8],
    steps: &[Vec<(u64, u64)>],
) -> Vec<Range<u64>> {
    for (value, together) in (1..).zip(steps) {
        let ranges: Vec<_> = together.iter().map(|(at, much)| *at..*at + *much).collect();
        let bio = |range: &Range<u64>| {
            let bytes = vec![value; (range.end - range.start) as usize * 512];
            Bio::write(Sector(range.start), IoBuf::from_slice(&bytes))
        };
        stand.begin_all(ranges.iter().map(bio).collect::<Vec<_>>());
        stand.wait_for(ranges.len());
        if stand.power.is_off() {
            return ranges;
        }
        for range in ranges {
            model[range.start as usize * 512..range.end as usize * 512].fill(value);
        }
    }
    Vec::new()
}

/// The first wrong sector of those whose block was not being written.
fn harmed(stand: &mut Stand, model: &[u8], torn: &[Range<u64>]) -> Option<usize> {
    first_wrong(stand.read(0, LOOKED_AT).1, model, torn)
}

fn mismatches(stand: &mut Stand) -> u64 {
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    stand.until("check", is_idle).mismatch_cnt
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// After any power failure, with any member missing, data is unharmed unless it was being
    /// written.
    #[test]
    fn nothing_is_harmed_that_is_not_being_written(
        steps in writes(),
        cut in 0u64..150,
        lost_before in prop_oneof![Just(None), (0usize..4).prop_map(Some)],
        lost_after in 0usize..4,
    ) {
        let (mut stand, mut model) = stand(4);
        if let Some(lost) = lost_before {
            stand.command(Command::Fail(format!("d{lost}"))).unwrap();
        }
        stand.power.goes_after(cut);
        let torn = write_until_cut(&mut stand, &mut model, &steps);
        stand.crash();
        let lost = lost_before.unwrap_or(lost_after);
        let images = images(&stand);
        for lost in [vec![lost], lost_before.into_iter().collect()] {
            let mut again = restarted(&images, &lost);
            prop_assert_eq!(harmed(&mut again, &model, &torn), None, "without {:?}", lost);
            if lost.is_empty() {
                prop_assert_eq!(mismatches(&mut again), 0);
            }
        }
    }

    /// The same during the rebuild of a member, which goes on afterwards.
    #[test]
    fn nothing_is_harmed_while_a_member_is_rebuilt(
        steps in writes(),
        cut in 0u64..250,
        lost in 0usize..4,
        turns in 0u32..300,
    ) {
        let (mut stand, mut model) = stand(4);
        stand.command(Command::Fail(format!("d{lost}"))).unwrap();
        stand.add_device(vec![0; stand.memories[0].image().len()]);
        stand.command(Command::Speed { min: Some(1000), max: Some(2000) }).unwrap();
        let (name, device) = ("d4".to_owned(), stand.devices[4].clone());
        stand.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
        (0..turns).for_each(|_| {
            stand.turn();
        });
        stand.power.goes_after(cut);
        let torn = write_until_cut(&mut stand, &mut model, &steps);
        stand.crash();
        let mut again = restarted(&images(&stand), &[lost]);
        prop_assert_eq!(harmed(&mut again, &model, &torn), None, "before it is rebuilt");
        again.until("recovery", |status| is_idle(status) && status.degraded() == 0);
        prop_assert_eq!(harmed(&mut again, &model, &torn), None, "when it is");
        prop_assert_eq!(mismatches(&mut again), 0);
    }
}
