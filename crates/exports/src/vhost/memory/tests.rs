//! Regions that touch, end, are short, or lie at odd places of their files.

use super::*;
use drystone_core::Op;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

const PAGE: u64 = 4096;

fn region(guest: u64, user: u64, bytes: u64, offset: u64) -> Region {
    Region::new(GuestAddress(guest), UserAddress(user), bytes, offset).expect("a good region")
}

/// A memory file of so many bytes.
fn file(bytes: u64, flags: MemfdFlags) -> OwnedFd {
    let file = memfd_create("guest", flags).expect("a memfd");
    ftruncate(&file, bytes).expect("a length");
    file
}

/// Memory of its own for each region.
fn memory(regions: &[Region]) -> GuestMemory {
    let zeroed = |region: &Region| (*region, HostMemory::zeroed(region.bytes() as usize));
    GuestMemory::new(regions.iter().map(zeroed))
}

/// The lengths of the pieces of a range.
fn lengths(memory: &GuestMemory, address: u64, bytes: u32) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    let result = memory.find(GuestAddress(address), bytes, |piece| found.push(piece.bytes()));
    result.ok().map(|()| found)
}

#[test]
fn a_mapping_is_the_region_of_its_file() {
    let file = file(3 * PAGE, MemfdFlags::empty());
    let all = HostMemory::map(&file, &region(0, 0, 3 * PAGE, 0)).expect("a mapping");
    let part = HostMemory::map(&file, &region(0, 0, 100, PAGE + 7)).expect("a mapping");
    drop(file);
    assert_eq!((all.bytes(), part.bytes()), (3 * 4096, 100));
    part.write(0, b"a sentence of 25 letters.");
    let mut found = [0; 25];
    all.read(4096 + 7, &mut found);
    assert_eq!(&found, b"a sentence of 25 letters.");
    all.write(4096 + 7 + 99, &[77]);
    let mut last = [0];
    part.read(99, &mut last);
    assert_eq!(last, [77]);
}

#[test]
fn a_file_that_ends_before_the_region_is_refused() {
    let file = file(2 * PAGE, MemfdFlags::empty());
    assert!(HostMemory::map(&file, &region(0, 0, PAGE, PAGE)).is_ok());
    let long = HostMemory::map(&file, &region(0x10, 0x20, PAGE + 1, PAGE)).expect_err("too short");
    assert_eq!(
        long.to_string(),
        "the region of 0x1001 bytes at guest 0x10, user 0x20 ends at byte 8193 of its file, which \
         has 8192"
    );
    let far = region(0, 0, 1, u64::MAX - 1);
    assert!(matches!(HostMemory::map(&file, &far), Err(MapError::FileTooShort { .. })));
}

#[test]
fn a_file_that_cannot_be_written_is_refused() {
    let path = std::env::current_exe().expect("a path");
    let file = std::fs::File::open(path).expect("a file");
    let error = HostMemory::map(&file, &region(1, 2, PAGE, 0)).expect_err("it is read-only");
    assert_eq!(
        error.to_string(),
        "the region of 0x1000 bytes at guest 0x1, user 0x2 cannot be mapped: Permission denied \
         (os error 13)"
    );
    let (reader, _writer) = std::io::pipe().expect("a pipe");
    let error = HostMemory::map(&reader, &region(1, 2, PAGE, 0)).expect_err("a pipe");
    assert!(matches!(error, MapError::Refused { .. }), "{error}");
}

#[test]
fn a_device_that_tells_no_length_is_mapped() {
    let mut options = std::fs::File::options();
    let device = options.read(true).write(true).open("/dev/zero").expect("a device");
    let memory = HostMemory::map(&device, &region(0, 0, PAGE, 0)).expect("a mapping");
    memory.write(PAGE as usize - 1, &[7]);
    let mut found = [0; 2];
    memory.read(PAGE as usize - 2, &mut found);
    assert_eq!(found, [0, 7]);
}

#[test]
fn a_file_of_huge_pages_is_mapped_by_whole_pages() {
    let huge = 2 << 20;
    let Ok(file) = memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB) else { return };
    if ftruncate(&file, huge).is_err() {
        return;
    }
    // Most machines have none; NORESERVE lets them be mapped, but not touched.
    let map = HostMemory::map(&file, &region(0, 0, PAGE, PAGE)).expect("a mapping");
    assert_eq!(map.bytes(), 4096);
    drop(map);
}

#[test]
fn bytes_are_copied_at_any_place_and_length() {
    let memory = HostMemory::zeroed(64);
    for at in 0..20 {
        for length in 0..40 {
            let bytes: Vec<u8> = (1..=length as u8).collect();
            memory.write(0, &[0; 64]);
            memory.write(at, &bytes);
            let mut all = [0; 64];
            memory.read(0, &mut all);
            assert!(all[..at].iter().chain(&all[at + length..]).all(|byte| *byte == 0));
            let mut found = vec![0; length];
            memory.read(at, &mut found);
            assert_eq!((found, &all[at..at + length]), (bytes.clone(), &bytes[..]));
        }
    }
}

#[test]
fn numbers_are_little_endian() {
    let memory = HostMemory::zeroed(8);
    memory.store_u16(2, 0x0102, Relaxed);
    memory.store_u32(4, 0x0304_0506);
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes);
    assert_eq!(bytes, [0, 0, 2, 1, 6, 5, 4, 3]);
    assert_eq!(memory.load_u16(6, Relaxed), 0x0304);
}

#[test]
#[should_panic(expected = "2 bytes at 7 of 8 of guest memory")]
fn an_access_outside_is_our_mistake() {
    HostMemory::zeroed(8).read(7, &mut [0; 2]);
}

#[test]
#[should_panic(expected = "a number that is not aligned")]
fn a_number_at_an_odd_place_is_our_mistake() {
    HostMemory::zeroed(8).load_u16(3, Relaxed);
}

#[test]
fn a_range_is_found_in_one_region_or_in_neighbours() {
    // In another order than that of addresses; a hole before the last page.
    let memory = memory(&[
        region(0x3000, 0x9000, 0x1000, 0),
        region(0, 0x5000, 0x1000, 0),
        region(0x1000, 0x1000, 0x1000, 0),
    ]);
    assert_eq!(lengths(&memory, 0, 0x1000), Some(vec![0x1000]));
    assert_eq!(lengths(&memory, 0xfff, 2), Some(vec![1, 1]));
    assert_eq!(lengths(&memory, 0x10, 0x1ff0), Some(vec![0xff0, 0x1000]));
    assert_eq!(lengths(&memory, 0x1fff, 1), Some(vec![1]));
    assert_eq!(lengths(&memory, 0x1fff, 2), None);
    assert_eq!(lengths(&memory, 0x2000, 1), None);
    assert_eq!(lengths(&memory, 0x2fff, 2), None);
    assert_eq!(lengths(&memory, 0x3fff, 1), Some(vec![1]));
    assert_eq!(lengths(&memory, 0x4000, 1), None);
    assert_eq!(lengths(&memory, 0x2000, 0), Some(vec![]), "no byte is outside");
    assert_eq!(lengths(&GuestMemory::default(), 0, 1), None);
}

#[test]
fn a_range_that_wraps_is_outside() {
    let last = memory(&[region(u64::MAX - 0xfff, 0, 0x1000, 0), region(0, 0x8000, 0x1000, 0)]);
    assert_eq!(lengths(&last, u64::MAX, 1), Some(vec![1]));
    assert_eq!(lengths(&last, u64::MAX, 2), None);
    assert_eq!(lengths(&last, u64::MAX - 0xfff, u32::MAX), None);
    let error = last.copy_from_guest(GuestAddress(u64::MAX), &mut [0; 2]).expect_err("it wraps");
    assert_eq!(
        error.to_string(),
        "2 bytes at guest address 0xffffffffffffffff are not all in memory"
    );
}

#[test]
fn copies_cross_from_one_region_into_the_next() {
    let memory = memory(&[region(0, 0x5000, 0x1000, 0), region(0x1000, 0x1000, 0x1000, 0)]);
    memory.copy_to_guest(GuestAddress(0xffd), b"abcdef").expect("inside");
    let mut found = [0; 6];
    memory.copy_from_guest(GuestAddress(0xffd), &mut found).expect("inside");
    assert_eq!(&found, b"abcdef");
    memory.copy_from_guest(GuestAddress(0x1000), &mut found[..3]).expect("inside");
    assert_eq!(&found, b"defdef");
    assert!(memory.copy_to_guest(GuestAddress(0x1ffe), b"abc").is_err());
}

#[test]
fn pieces_are_cut_gathered_and_scattered() {
    let memory = memory(&[region(0, 0x5000, 0x10, 0), region(0x10, 0x1000, 0x10, 0)]);
    let mut pieces = Vec::new();
    memory.find(GuestAddress(8), 16, |piece| pieces.push(piece)).expect("inside");
    assert_eq!(memory.scatter(pieces.iter().copied(), b"0123456789abcdef+"), 16);
    let mut found = [0; 10];
    assert_eq!(memory.gather(within(&pieces, 6..10), &mut found), 4);
    assert_eq!(&found[..4], b"6789");
    let parts: Vec<u32> = within(&pieces, 6..10).map(|piece| piece.bytes()).collect();
    assert_eq!(parts, [2, 2]);
    assert_eq!(within(&pieces, 8..8).count() + within(&pieces, 16..20).count(), 0);
}

#[test]
#[allow(unsafe_code, reason = "a bio takes the memory of its segments on trust")]
fn segments_are_the_memory_of_a_bio() {
    let memory = memory(&[region(0, 0, 0x400, 0), region(0x400, 0x800, 0x400, 0)]);
    let mut segments = Vec::new();
    let add = |piece| segments.push(memory.segment(piece));
    memory.find(GuestAddress(0x300), 0x200, add).expect("inside");
    let sector = drystone_core::Sector(0);
    // SAFETY: the memory outlives the bio.
    let mut bio = unsafe { drystone_core::Bio::from_raw_segments(Op::Read, sector, &segments) };
    bio.fill_data_from(&[9; 0x200]);
    let mut found = [0; 0x202];
    memory.copy_from_guest(GuestAddress(0x2ff), &mut found).expect("inside");
    assert!(found[0] == 0 && found[0x201] == 0 && found[1..0x201].iter().all(|byte| *byte == 9));
}

#[test]
fn a_part_of_a_ring_lies_in_one_region_and_is_aligned() {
    let memory = memory(&[region(0, 0x5000, 0x1000, 0), region(0x1000, 0x6001, 0x1000, 0)]);
    let area = memory.area(UserAddress(0x5ff0), 16, 16).expect("inside");
    area.store_u16(14, 0x1234, Relaxed);
    let mut found = [0; 2];
    memory.copy_from_guest(GuestAddress(0xffe), &mut found).expect("inside");
    assert_eq!(found, [0x34, 0x12]);
    let outside = memory.area(UserAddress(0x5ff0), 17, 16).expect_err("two regions");
    assert_eq!(outside.to_string(), "17 bytes at user address 0x5ff0 lie in no region of memory");
    let odd = memory.area(UserAddress(0x6010), 16, 2).expect_err("an odd place");
    assert_eq!(odd.to_string(), "user address 0x6010 lies at no multiple of 2 in its file");
}

#[test]
#[should_panic(expected = "outside of a part of a ring")]
fn an_access_outside_of_an_area_is_our_mistake() {
    let memory = memory(&[region(0, 0, 0x1000, 0)]);
    let area = memory.area(UserAddress(0), 16, 16).expect("inside");
    area.load_u16(15, Relaxed);
}

#[test]
fn a_changed_map_shares_what_stays() {
    let (one, two) = (region(0, 0, 0x10, 0), region(0x10, 0x10, 0x10, 0x20));
    let before = memory(&[one]);
    let after = before.with(two, HostMemory::zeroed(0x10));
    before.copy_to_guest(GuestAddress(3), b"x").expect("inside");
    let mut found = [0];
    after.copy_from_guest(GuestAddress(3), &mut found).expect("inside");
    assert_eq!((&found, lengths(&before, 0x10, 1)), (b"x", None));
    // File offsets do not count.
    let last = after.without(&region(0, 0, 0x10, 0x99));
    assert_eq!((lengths(&last, 3, 1), lengths(&last, 0x10, 1)), (None, Some(vec![1])));
    assert_eq!(last.regions().count(), 1);
}

#[test]
#[should_panic(expected = "a piece of another map")]
fn a_piece_of_another_map_is_our_mistake() {
    let before = memory(&[region(0x10, 0x10, 0x10, 0)]);
    let after = before.with(region(0, 0, 0x10, 0), HostMemory::zeroed(0x10));
    let mut pieces = Vec::new();
    before.find(GuestAddress(0x10), 1, |piece| pieces.push(piece)).expect("inside");
    after.clone().write(pieces[0], &[1]);
}
