//! The allocation query: extents that the members report, and data where only parity has it.

use super::*;
use drystone_core::Extent;
use proptest::prelude::*;
use std::ops::Range;

/// The reported extents, sector by sector: true for a hole.
fn told(stand: &Stand, bytes: Range<u64>, max: usize) -> Vec<bool> {
    let array = &stand.array.as_ref().unwrap().0;
    let (mut holes, mut at) = (Vec::new(), bytes.start);
    while at < bytes.end {
        let extents = array.extents(at, bytes.end - at, max).unwrap();
        assert!((1..=max).contains(&extents.len()), "{extents:?}");
        for extent in extents {
            assert!(extent.offset == at && extent.length > 0 && extent.length <= bytes.end - at);
            let kinds = [Extent::data(at, extent.length), Extent::hole(at, extent.length)];
            assert!(kinds.contains(&extent), "{extent:?}");
            at += extent.length;
            holes.resize((at / 512 - bytes.start / 512) as usize, extent.zero);
        }
    }
    holes
}

/// The expected map, computed sector by sector from the members.
fn expected(
    stand: &Stand,
    sectors: Range<u64>,
    parity_knows: impl Fn(u32, u64) -> bool,
) -> Vec<bool> {
    let layout = stand.array.as_ref().unwrap().0.status().layout;
    let data_offset = stand.memories[3].superblock().data_offset;
    let is_hole = |sector| {
        let address = layout.map_sector(sector);
        let memory = &stand.memories[address.role.index()];
        memory.is_hole(data_offset + address.sector)
            && !parity_knows(address.role.0, address.sector)
    };
    sectors.map(is_hole).collect()
}

fn assert_told(stand: &Stand, parity_knows: impl Fn(u32, u64) -> bool) {
    let size = stand.array.as_ref().unwrap().0.info().size_bytes;
    for (bytes, max) in [(0..size, usize::MAX), (0..1 << 20, 1), (65536 + 512..size - 1536, 3)] {
        let expected = expected(stand, bytes.start / 512..bytes.end / 512, &parity_knows);
        let told = told(stand, bytes.clone(), max);
        let wrong = told.iter().zip(&expected).position(|(told, expected)| told != expected);
        assert_eq!((told.len(), wrong), (expected.len(), None), "{bytes:?}, {max} at a time");
    }
}

/// An array whose members have these holes, in member sectors.
fn stand(level: Level, disks: usize, holes: &[(usize, Range<u64>)]) -> Stand {
    let mut stand = Stand::new(disks);
    stand.create(level, true);
    for (device, hole) in holes {
        let memory = &stand.memories[device % disks];
        let start = memory.superblock().data_offset;
        memory.holes.lock(&memory.locks).push(start + hole.start..start + hole.end);
    }
    stand.start();
    stand
}

fn holes() -> impl Strategy<Value = Vec<(usize, Range<u64>)>> {
    let hole = (0usize..5, 0u64..4000, 1u64..1500);
    let hole = hole.prop_map(|(device, start, length)| (device, start..start + length));
    proptest::collection::vec(hole, 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// With all members, then without some.
    #[test]
    fn it_is_what_members_say_of_their_data(
        holes in holes(),
        level in prop_oneof![Just(Level::Raid4), Just(Level::Raid5), Just(Level::Raid6)],
        lost in 0u32..4,
    ) {
        let mut stand = stand(level, 5, &holes);
        assert_told(&stand, |_, _| false);
        stand.command(Command::Fail(format!("d{lost}"))).unwrap();
        assert_told(&stand, |role, _| role == lost);
    }
}

#[test]
fn all_holes_are_one_until_a_member_is_lost() {
    let all: Vec<_> = (0..4).map(|device| (device, 0..8192)).collect();
    let mut stand = stand(Level::Raid5, 4, &all);
    let array = stand.array.as_ref().unwrap().0.clone();
    let size = array.info().size_bytes;
    assert_eq!(array.extents(0, size, 9).unwrap(), [Extent::hole(0, size)]);
    assert_eq!(array.extents(4096, u64::MAX, 9).unwrap(), [Extent::hole(4096, size - 4096)]);
    assert_eq!(array.extents(size, 512, 9).unwrap(), []);
    stand.command(Command::Fail("d0".to_owned())).unwrap();
    assert_told(&stand, |role, _| role == 0);
    assert!(told(&stand, 0..size, 9).iter().any(|is_hole| !is_hole));
}

/// A block that its member failed to write is in parity, whatever the member reports. A block that
/// a rebuild has not reached is not on its member yet.
#[test]
fn a_member_with_a_bad_block_or_a_rebuild_is_not_believed() {
    let all: Vec<_> = (0..4).map(|device| (device, 0..8192)).collect();
    let mut bad = stand(Level::Raid5, 4, &all);
    let data_offset = bad.memories[0].superblock().data_offset;
    bad.memories[0].bad_sector.store(data_offset + 3, Relaxed);
    assert!(bad.write(0, 1, 4096).is_ok());
    assert!(!told(&bad, 0..4096, 9)[0], "its data is in parity");
    let mut rebuilt = stand(Level::Raid5, 4, &all);
    rebuilt.command(Command::Speed { min: Some(1), max: Some(1) }).unwrap();
    rebuilt.command(Command::Fail("d1".to_owned())).unwrap();
    rebuilt.command(Command::Remove("d1".to_owned())).unwrap();
    let (name, device) = ("d1".to_owned(), rebuilt.devices[1].clone());
    rebuilt.command(Command::Add { name, device, uuid: uuid(9) }).unwrap();
    rebuilt.pass(1);
    assert_eq!(rebuilt.states().last(), Some(&DiskState::Rebuilding(Role(1))));
    assert_told(&rebuilt, |role, _| role == 1);
}
