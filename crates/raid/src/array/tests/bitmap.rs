//! The write-intent bitmap: the bits on the members after a power failure, and the chunks that are
//! synchronised then.

use super::stand::{Entry, Memory, Stand, is_idle, uuid};
use super::*;
use crate::ids::Role;
use crate::layout::Level;
use crate::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use crate::metadata::create::Policy;
use crate::metadata::superblock::Features;
use drystone_core::primitive::Ordering::*;
use drystone_core::{Bio, IoBuf, Op, Sector};
use proptest::prelude::*;
use std::collections::BTreeSet;

const CHUNK: u64 = 64 << 10;
/// Sectors of a chunk.
const SECTORS: u64 = CHUNK / 512;

/// A new array with a bitmap whose bits are clear.
fn stand(level: Level, disks: usize) -> Stand {
    let mut stand = Stand::new(disks);
    stand.create_with(level, true, Some(Policy::Bitmap), Some(CHUNK));
    stand.start();
    assert_eq!(bits(&stand.memories[0]).len() as u64, header(&stand.memories[0]).bits());
    stand.write(0, 1, 4096);
    stand.pass(16);
    for memory in &stand.memories {
        assert!(bits(memory).is_empty(), "{:?}", bits(memory));
    }
    stand.power.take();
    stand
}

fn bitmap_sector(memory: &Memory) -> u64 {
    let own = memory.superblock();
    own.super_offset.checked_add_signed(own.bitmap_offset().expect("a bitmap").into()).unwrap()
}

fn header(memory: &Memory) -> BitmapHeader {
    BitmapHeader::parse(&memory.get(bitmap_sector(memory), 4096)).unwrap()
}

/// The bits that are set on a member.
fn bits(memory: &Memory) -> Vec<u64> {
    let header = header(memory);
    let bytes = memory.get(bitmap_sector(memory), header.area_sectors() as usize * 512);
    header.set_bits(&bytes[HEADER_BYTES..]).collect()
}

/// The chunks of members' data that `entries` touched.
fn chunks(stand: &Stand, entries: &[Entry], is_counted: impl Fn(&Entry) -> bool) -> Vec<u64> {
    let mut chunks = BTreeSet::new();
    for entry in entries.iter().filter(|entry| is_counted(entry)) {
        let data_offset = stand.memories[entry.device].superblock().data_offset;
        if entry.sectors.start >= data_offset {
            let first = (entry.sectors.start - data_offset) / SECTORS;
            chunks.extend(first..(entry.sectors.end - data_offset).div_ceil(SECTORS));
        }
    }
    chunks.into_iter().collect()
}

fn mismatches(stand: &mut Stand) -> u64 {
    stand.command(Command::Sync(SyncAction::Check)).unwrap();
    stand.until("check", is_idle).mismatch_cnt
}

#[test]
fn a_bit_is_on_all_members_before_what_it_stands_for() {
    for writes in 0.. {
        let mut stand = stand(Level::Raid5, 4);
        let before: Vec<_> = stand.memories.iter().map(|memory| memory.image()).collect();
        stand.power.goes_after(writes);
        // The write touches two chunks of the members.
        assert!(stand.write(3 * SECTORS - 8, 7, 3 * CHUNK as usize + 8192).is_ok());
        let is_over = !stand.power.is_off();
        for (memory, before) in stand.memories.iter().zip(&before) {
            let start = memory.superblock().data_offset as usize * 512;
            let (now, set) = (memory.image(), bits(memory));
            for (chunk, (now, before)) in now[start..]
                .chunks(CHUNK as usize)
                .zip(before[start..].chunks(CHUNK as usize))
                .enumerate()
            {
                let is_known = stand.memories.iter().all(|m| bits(m).contains(&(chunk as u64)));
                assert!(now == before || is_known, "chunk {chunk} after {writes} writes");
                assert!(now == before || !memory.superblock().is_clean());
            }
            assert!(set.iter().all(|bit| *bit < 3), "{set:?}");
        }
        if is_over {
            assert_eq!(bits(&stand.memories[0]), [0, 1, 2]);
            return assert!(writes > 8);
        }
    }
}

/// A member that is two updates behind is not accepted after a crash. So an update in which a
/// member fails must count as one, although it is repeated.
#[test]
fn a_crash_while_a_member_fails_in_an_update_leaves_nobody_two_events_behind() {
    for writes in 0.. {
        let mut stand = stand(Level::Raid5, 4);
        stand.until("clean", |status| status.state == ArrayState::Clean);
        stand.memories[1].is_dead.store(true, Relaxed);
        stand.power.goes_after(writes);
        assert!(stand.write(0, 7, 4096).is_ok());
        let is_over = !stand.power.is_off();
        let events = [0, 2, 3].map(|disk| stand.memories[disk].superblock().events);
        let (least, most) = (events.iter().min().unwrap(), events.iter().max().unwrap());
        assert!(most - least <= 1, "after {writes} writes: {events:?}");
        if is_over {
            return assert!(writes > 8);
        }
    }
}

/// The same for an update that takes an event back, because the array becomes clean again.
#[test]
fn a_crash_while_a_member_fails_in_a_change_to_clean_leaves_nobody_two_events_behind() {
    for writes in 0.. {
        let mut stand = stand(Level::Raid5, 4);
        stand.until("clean", |status| status.state == ArrayState::Clean);
        assert!(stand.write(0, 7, 4096).is_ok());
        let failing = stand.memories[1].superblock();
        stand.memories[1].bad_sector.store(failing.super_offset, Relaxed);
        stand.power.goes_after(writes);
        stand.pass(1);
        let is_over = !stand.power.is_off();
        let events = [0, 2, 3].map(|disk| stand.memories[disk].superblock().events);
        let (least, most) = (events.iter().min().unwrap(), events.iter().max().unwrap());
        assert!(most - least <= 1, "after {writes} writes: {events:?}");
        if is_over {
            assert!(*least > failing.events, "{events:?}: it has failed, and is older");
            return assert!(writes > 8);
        }
    }
}

#[test]
fn after_a_crash_only_chunks_that_are_set_are_read() {
    let mut stand = stand(Level::Raid5, 4);
    stand.write(5 * 3 * SECTORS, 7, 4096);
    stand.write(9 * 3 * SECTORS, 7, 4096);
    let row = stand.array.as_ref().unwrap().0.status().layout.row(9);
    stand.crash();
    let parity = &stand.memories[row.p.index()];
    parity.put(parity.superblock().data_offset + 9 * SECTORS, &[9; 4096]);
    stand.start();
    assert_eq!(stand.until("resync", is_idle).mismatch_cnt, 8);
    let entries = stand.power.take();
    assert_eq!(chunks(&stand, &entries, |entry| entry.op == Op::Read), [5, 9]);
    assert_eq!(mismatches(&mut stand), 0);
    stand.pass(16);
    assert!(stand.memories.iter().all(|memory| bits(memory).is_empty()));
}

#[test]
fn a_clean_array_is_not_synchronised_whatever_the_bitmap_says() {
    let mut stand = stand(Level::Raid5, 4);
    stand.write(0, 1, 4096);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    stand.crash();
    assert_eq!(bits(&stand.memories[2]), [0]);
    stand.start();
    stand.pass(1);
    let entries = stand.power.take();
    assert!(chunks(&stand, &entries, |_| true).is_empty());
    stand.pass(16);
    assert!(bits(&stand.memories[2]).is_empty());
}

#[test]
fn a_bitmap_that_is_too_old_counts_as_all_set() {
    let mut stand = stand(Level::Raid5, 4);
    stand.write(0, 1, 4096);
    stand.crash();
    for memory in &stand.memories {
        let old = BitmapHeader { events: memory.superblock().events - 1, ..header(memory) };
        memory.put(bitmap_sector(memory), &old.to_bytes());
    }
    stand.start();
    stand.until("resync", is_idle);
    let entries = stand.power.take();
    let all = header(&stand.memories[0]).bits();
    assert_eq!(chunks(&stand, &entries, |entry| entry.op == Op::Read).len() as u64, all);
    assert_eq!(bits(&stand.memories[3]).len() as u64, all);
    assert!(header(&stand.memories[3]).events >= stand.memories[3].superblock().events);
}

fn take_out(stand: &mut Stand, name: &str) {
    stand.command(Command::Fail(name.to_owned())).unwrap();
    stand.command(Command::Remove(name.to_owned())).unwrap();
}

fn put_in(stand: &mut Stand, device: usize) {
    let (name, device) = (format!("d{device}"), stand.devices[device].clone());
    stand.command(Command::Add { name, device, uuid: uuid(77) }).unwrap();
}

fn is_whole(status: &ArrayStatus) -> bool {
    is_idle(status) && status.degraded() == 0
}

#[test]
fn a_member_that_comes_back_is_given_what_it_has_missed() {
    for level in [Level::Raid5, Level::Raid6] {
        let mut stand = stand(level, 5);
        let row = (5 - level.parity_disks() as u64) * SECTORS;
        stand.write(0, 1, 1 << 20);
        stand.pass(16);
        take_out(&mut stand, "d1");
        for row_number in [2, 7] {
            stand.write(row_number * row, 9, row as usize * 512);
        }
        stand.pass(30);
        assert_eq!(bits(&stand.memories[0]), [2, 7], "bits stay while somebody lacks something");
        stand.power.take();
        put_in(&mut stand, 1);
        let own = stand.memories[1].superblock();
        assert!(own.feature_map.contains(Features::RECOVERY_BITMAP | Features::RECOVERY_OFFSET));
        // The member takes a write that comes meanwhile.
        stand.write(4 * row, 5, 4096);
        stand.until("recovery", is_whole);
        let entries = stand.power.take();
        let writes = |entry: &Entry| entry.op == Op::Write && entry.device == 1;
        let is_given = chunks(&stand, &entries, writes);
        assert!(is_given == [2, 7] || is_given == [2, 4, 7], "{is_given:?}");
        assert!(!stand.memories[1].superblock().feature_map.contains(Features::RECOVERY_BITMAP));
        assert_eq!(mismatches(&mut stand), 0);
        assert!(stand.reads(2 * row, 9, row as usize * 512));
        stand.pass(16);
        assert!(stand.memories.iter().all(|memory| bits(memory).is_empty()));
    }
}

#[test]
fn what_a_crash_interrupts_goes_on_by_the_bitmap() {
    let mut stand = stand(Level::Raid5, 4);
    take_out(&mut stand, "d1");
    stand.write(6 * SECTORS, 9, 12 * CHUNK as usize);
    stand.until("clean", |status| status.state == ArrayState::Clean);
    stand.command(Command::Freeze(true)).unwrap();
    put_in(&mut stand, 1);
    stand.crash();
    stand.start();
    stand.until("recovery", is_whole);
    let entries = stand.power.take();
    let writes = |entry: &Entry| entry.op == Op::Write && entry.device == 1;
    assert_eq!(chunks(&stand, &entries, writes), [2, 3, 4, 5]);
    assert_eq!(mismatches(&mut stand), 0);
}

#[test]
fn who_was_away_for_too_long_is_rebuilt_as_any_other() {
    let mut stand = stand(Level::Raid5, 5);
    let spare = stand.memories[4].clone();
    take_out(&mut stand, "d4");
    stand.write(0, 2, 1 << 20);
    // A replacement takes its place, and bits are cleared.
    let image = vec![0; spare.image().len()];
    stand.add_device(image);
    put_in(&mut stand, 5);
    stand.until("recovery", is_whole);
    stand.pass(16);
    assert!(bits(&stand.memories[5]).is_empty(), "it has the bitmap too");
    assert_eq!(header(&stand.memories[5]), header(&stand.memories[0]));
    take_out(&mut stand, "d5");
    stand.power.take();
    put_in(&mut stand, 4);
    stand.until("recovery", is_whole);
    let entries = stand.power.take();
    let writes = |entry: &Entry| entry.op == Op::Write && entry.device == 4;
    let all = header(&stand.memories[0]).bits();
    assert_eq!(chunks(&stand, &entries, writes).len() as u64, all);
    assert_eq!(mismatches(&mut stand), 0);
    assert!(stand.reads(0, 2, 1 << 20));
}

#[test]
fn who_had_the_error_flag_is_rebuilt_as_any_other() {
    let mut stand = stand(Level::Raid5, 5);
    take_out(&mut stand, "d1");
    let mut own = stand.memories[1].superblock();
    own.roles[1] = 0x8001;
    stand.memories[1].put(8, &own.to_bytes());
    stand.power.take();
    put_in(&mut stand, 1);
    stand.until("recovery", is_whole);
    let entries = stand.power.take();
    let writes = |entry: &Entry| entry.op == Op::Write && entry.device == 1;
    let all = header(&stand.memories[0]).bits();
    assert_eq!(chunks(&stand, &entries, writes).len() as u64, all);
}

#[test]
fn a_bit_stays_while_a_write_is_under_way() {
    let mut stand = stand(Level::Raid5, 4);
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let holder = layout.map_sector(0).role.index();
    stand.write(0, 3, 4096);
    stand.memories[holder].hold();
    stand.begin(Bio::write(Sector(0), IoBuf::from_slice(&[4; 4096])));
    stand.pass(20);
    assert!(stand.ended().is_none());
    stand.memories[holder].release();
    stand.wait_for(1);
    assert_eq!(bits(&stand.memories[0]), [0]);
    stand.pass(16);
    assert!(bits(&stand.memories[0]).is_empty());
}

#[test]
fn a_bitmap_that_cannot_be_written_fails_its_member_before_the_write_passes() {
    let mut stand = stand(Level::Raid5, 4);
    let memory = &stand.memories[2];
    memory.bad_sector.store(bitmap_sector(memory), Relaxed);
    assert!(stand.write(0, 7, 4096).is_ok());
    assert_eq!(stand.states()[2], DiskState::Faulty(Some(Role(2))));
    assert_eq!(stand.memories[0].superblock().roles[2], 0xFFFE);
    assert!(stand.reads(0, 7, 4096) && bits(&stand.memories[0]).contains(&0));
}

/// The members of a stand and of a vector have the same data.
fn assert_same_data(stand: &Stand, vector: &str) {
    for (memory, after) in stand.memories.iter().zip(crate::testing::members(vector)) {
        let own = memory.superblock();
        let (start, bytes) = (own.data_offset * 512, own.size as usize * 512);
        assert!(memory.get(own.data_offset, bytes) == after.read(start, bytes), "{}", memory.name);
    }
}

#[test]
fn torn_members_of_linux_are_made_whole_as_linux_does() {
    let mut stand = Stand::of_vector("r5-ls-bitmap-torn");
    stand.start();
    let status = stand.until("resync", is_idle);
    let entries = stand.power.take();
    assert_eq!(chunks(&stand, &entries, |entry| entry.op == Op::Read), [0, 20, 62, 63]);
    assert_eq!(status.mismatch_cnt, 32);
    assert_same_data(&stand, "r5-ls-bitmap-torn-after");
    assert_eq!(mismatches(&mut stand), 0);
    stand.stop();
    let after = Stand::of_vector("r5-ls-bitmap-torn-after");
    for (ours, theirs) in stand.memories.iter().zip(&after.memories) {
        assert_eq!(bits(ours), bits(theirs));
        assert!(ours.superblock().is_clean());
        assert!(header(ours).events >= ours.superblock().events);
    }
}

#[test]
fn an_array_of_linux_with_all_bits_set_is_synchronised_as_a_whole() {
    let mut stand = Stand::of_vector("r5-ls-bitmap-crash");
    stand.start();
    assert_eq!(stand.until("resync", is_idle).mismatch_cnt, 0);
    let entries = stand.power.take();
    assert_eq!(chunks(&stand, &entries, |entry| entry.op == Op::Read).len(), 112);
}

/// Steps of a stand: (kind, place, length).
fn steps() -> impl Strategy<Value = Vec<(u8, u64, u64)>> {
    proptest::collection::vec((0u8..8, any::<u64>(), 1u64..60), 1..40)
}

fn go(stand: &mut Stand, steps: &[(u8, u64, u64)], value: &mut u8) {
    for (what, at, much) in steps {
        let sectors = stand.array.as_ref().unwrap().0.info().size_bytes / 512;
        match what {
            0..=5 => {
                *value = value.wrapping_add(1);
                let at = at % (sectors - much);
                stand.write(at, *value, *much as usize * 512);
            }
            6 => stand.pass(*much % 3),
            _ => stand.pass(5 + much % 3),
        }
        if stand.power.is_off() {
            return;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// After any power failure, the bitmap marks every chunk that does not fit.
    #[test]
    fn nothing_is_out_of_step_that_is_not_marked(
        level in prop_oneof![Just(Level::Raid5), Just(Level::Raid6)],
        writes in 0u64..400,
        steps in steps(),
    ) {
        let mut stand = stand(level, 5);
        let mut value = 1;
        stand.power.goes_after(writes);
        go(&mut stand, &steps, &mut value);
        stand.crash();
        stand.start();
        stand.until("resync", is_idle);
        prop_assert_eq!(mismatches(&mut stand), 0);
    }

    /// A member that was away gets everything that it lacks, whatever is written meanwhile.
    #[test]
    fn who_comes_back_lacks_nothing(
        before in steps(),
        without in steps(),
        after in steps(),
    ) {
        let mut stand = stand(Level::Raid6, 5);
        let mut value = 1;
        go(&mut stand, &before, &mut value);
        take_out(&mut stand, "d2");
        go(&mut stand, &without, &mut value);
        put_in(&mut stand, 2);
        go(&mut stand, &after, &mut value);
        stand.until("recovery", is_whole);
        prop_assert_eq!(mismatches(&mut stand), 0);
    }
}
