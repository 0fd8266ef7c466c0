//! Read-only arrays, and arrays that are started by force: data that is computed without a member,
//! and the part of it that is reported as suspect.

use super::stand::Stand;
use super::*;
use crate::ids::Role;
use crate::layout::Layout;
use std::ops::Range;

/// Bytes of a read.
const PART: usize = 192 << 10;
/// A block that was being written to member 1 when power went.
const IN_FLIGHT: usize = 3024;

/// A vector without some of its members, started read-only.
fn read_only(vector: &str, lost: &[usize], is_forced: bool) -> Stand {
    let left = crate::testing::members(vector).into_iter().enumerate();
    let left = left.filter(|(n, _)| !lost.contains(n));
    let mut stand = Stand::of(left.map(|(_, m)| m.read(0, m.bytes() as usize)).collect());
    (stand.is_read_only, stand.is_forced) = (true, is_forced);
    stand.start();
    stand
}

/// The contents of the array.
fn contents(stand: &mut Stand) -> Vec<u8> {
    let bytes = stand.array.as_ref().unwrap().0.info().size_bytes as usize;
    let mut all = Vec::with_capacity(bytes);
    while all.len() < bytes {
        let (status, part) = stand.read((all.len() / 512) as u64, PART.min(bytes - all.len()));
        assert!(status.is_ok(), "at byte {}", all.len());
        all.extend(part);
    }
    all
}

/// The numbers of the 4 KiB blocks that differ.
fn differences(one: &[u8], other: &[u8]) -> Vec<usize> {
    let pairs = one.chunks(4096).zip(other.chunks(4096)).enumerate();
    pairs.filter(|(_, (one, other))| one != other).map(|(block, _)| block).collect()
}

fn assert_nothing_written(stand: &mut Stand) {
    stand.pass(1);
    assert_eq!(stand.array.as_ref().unwrap().0.counts().writes, 0);
    stand.stop();
    let entries = stand.power.take();
    assert!(entries.iter().all(|entry| entry.op == Op::Read), "{entries:?}");
}

fn layout(stand: &Stand) -> Layout {
    stand.array.as_ref().unwrap().0.status().layout
}

fn suspects(stand: &Stand) -> Option<Vec<Range<u64>>> {
    stand.array.as_ref().unwrap().0.doubtful_ranges().map(|suspects| suspects.ranges().collect())
}

#[test]
fn what_the_logs_say_is_seen_though_nothing_is_written() {
    let right = contents(&mut read_only("r5-ls-ppl-torn-after", &[], false));
    // Without the logs the computed data differs.
    let mut torn = Stand::of_vector("r5-ls-ppl-torn");
    torn.devices.remove(1);
    torn.memories.remove(1);
    torn.memories.iter().for_each(|memory| {
        let own = memory.superblock();
        let log = own.ppl().expect("a log");
        let sector = own.super_offset.checked_add_signed(log.offset.into()).unwrap();
        memory.put(sector, &[0; 4096]);
    });
    (torn.is_read_only, torn.is_forced) = (true, true);
    torn.start();
    // The block that was being written to the missing member is lost.
    assert_eq!(layout(&torn).map_sector(IN_FLIGHT as u64 * 8).role, Role(1));
    assert!(differences(&contents(&mut torn), &right).len() > 1);
    for (lost, different) in [(vec![], vec![]), (vec![1], vec![IN_FLIGHT])] {
        let mut stand = read_only("r5-ls-ppl-torn", &lost, false);
        assert_eq!(differences(&contents(&mut stand), &right), different, "without {lost:?}");
        assert_eq!(suspects(&stand), None);
        assert_nothing_written(&mut stand);
    }
}

#[test]
fn a_block_that_cannot_be_read_is_computed_with_what_the_logs_say() {
    let right = contents(&mut read_only("r5-ls-ppl-torn-after", &[], false));
    let mut stand = read_only("r5-ls-ppl-torn", &[], false);
    // Row 20 of member 1 has data whose parity was torn.
    let bad = stand.memories[1].superblock().data_offset + 2624;
    stand.memories[1].bad_sector.store(bad, Relaxed);
    assert!(contents(&mut stand) == right);
    assert_nothing_written(&mut stand);
}

#[test]
fn the_bitmap_tells_what_is_suspect_without_a_member() {
    let torn = ["r5-ls-bitmap-torn", "r5-ls-torn"];
    for lost in 0..4 {
        let mut stand = read_only(torn[0], &[lost], true);
        let layout = layout(&stand);
        let found = suspects(&stand).expect("suspects");
        let (used, row) = (layout.array_sectors(14336).unwrap(), layout.chunk_sectors());
        for block in 0..used / 8 {
            let address = layout.map_sector(block * 8);
            let is_marked = [0, 20, 62, 63].contains(&(address.sector / row));
            let is_suspect = found.iter().any(|range| range.contains(&(block * 4096)));
            assert_eq!(is_suspect, is_marked && address.role == Role(lost as u32), "block {block}");
        }
        let right = contents(&mut read_only("r5-ls-bitmap-torn-after", &[], false));
        let read = contents(&mut stand);
        let wrong = (0..right.len()).step_by(512).find(|at| {
            let is_suspect = found.iter().any(|range| range.contains(&(*at as u64)));
            !is_suspect && right[*at..at + 512] != read[*at..at + 512]
        });
        assert_eq!(wrong, None, "without {lost}");
        assert_nothing_written(&mut stand);
        // Without a bitmap all data of the member is suspect.
        let bytes: u64 = suspects(&read_only(torn[1], &[lost], true))
            .expect("suspects")
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        assert_eq!(bytes, used * 512 / 4);
    }
    assert_eq!(suspects(&read_only(torn[0], &[], true)), None, "nothing is computed");
    assert_eq!(suspects(&read_only("r5-ls-bitmap", &[1], true)), None, "it was stopped cleanly");
}

#[test]
fn too_few_members_are_made_up_for_by_a_stale_one_if_that_is_insisted_upon() {
    let mut stand = read_only("r5-ls-stale", &[0], true);
    assert_eq!(stand.states(), [1, 2, 3].map(Role).map(DiskState::InSync));
    let found = suspects(&stand).expect("suspects");
    let layout = layout(&stand);
    let right = contents(&mut read_only("r5-ls-stale", &[], false));
    let read = contents(&mut stand);
    for at in (0..right.len()).step_by(4096) {
        let role = layout.map_sector(at as u64 / 512).role;
        let is_suspect = found.iter().any(|range| range.contains(&(at as u64)));
        assert_eq!(is_suspect, [Role(0), Role(2)].contains(&role), "byte {at}");
        assert!(is_suspect || right[at..at + 4096] == read[at..at + 4096], "byte {at}");
    }
    assert!(right != read, "what was written without the stale member is not there");
    assert_nothing_written(&mut stand);
}

#[test]
fn what_is_insisted_upon_can_be_written_too() {
    let mut stand = Stand::of_vector("r5-ls-stale");
    stand.devices.remove(0);
    stand.memories.remove(0);
    stand.is_forced = true;
    stand.start();
    assert!(stand.write(0, 7, PART).is_ok() && stand.reads(0, 7, PART));
    stand.stop();
    stand.is_forced = false;
    stand.start();
    assert_eq!(
        stand.states(),
        [1, 2, 3].map(Role).map(DiskState::InSync),
        "they agree from then on"
    );
    assert!(stand.reads(0, 7, PART));
}

#[test]
fn an_array_whose_bitmap_cannot_be_used_is_only_read() {
    let break_bitmap = |stand: &mut Stand| {
        for memory in &stand.memories {
            let own = memory.superblock();
            let offset = own.bitmap_offset().expect("a bitmap");
            memory.put(own.super_offset.checked_add_signed(offset.into()).unwrap(), &[0; 512]);
        }
    };
    let right = contents(&mut read_only("r5-ls-bitmap", &[], false));
    let mut stand = Stand::of_vector("r5-ls-bitmap");
    break_bitmap(&mut stand);
    let (_, _, assembly) = stand.look();
    assert!(assembly.unwrap().read_only.unwrap().contains("no-bitmap"));
    stand.is_read_only = true;
    stand.start();
    assert!(contents(&mut stand) == right);
}
