//! Arrays with changed fields in the superblocks of one to four members. Each array that starts is
//! written and read, stopped, and read again. No area that superblocks describe may overlap the
//! data, and impossible values are refused.

use super::*;
use crate::metadata::superblock::{Features, Superblock};
use proptest::prelude::*;

/// The used sectors of a member: few, to keep the comparison short.
const USED: u64 = 512;
/// Bytes of a block that is compared.
const BLOCK: usize = 4096;

/// A field that is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Size,
    BitmapOrPpl,
    PplSectors,
    BadBlocksAt,
    BadBlocksSize,
    BadBlocksShift,
    Feature,
    DataOffset,
    DataSize,
    Events,
    Number,
    DevRole,
    ResyncFrom,
    Recovered,
    LogicalBlock,
    Chunk,
    Layout,
    Disks,
}

use Field::*;

/// The fields that place an area. A change of them does not change the layout of the data.
const OF_PLACES: [Field; 7] =
    [Size, BitmapOrPpl, PplSectors, BadBlocksAt, BadBlocksSize, BadBlocksShift, Feature];
const OTHERS: [Field; 11] = [
    DataOffset,
    DataSize,
    Events,
    Number,
    DevRole,
    ResyncFrom,
    Recovered,
    LogicalBlock,
    Chunk,
    Layout,
    Disks,
];

/// The change of a field of a member: a number near a limit.
type Change = (usize, Field, u8, i64);

fn value(own: &Superblock, near: u8, by: i64) -> u64 {
    let bases = [
        0,
        8,
        own.size,
        own.data_offset,
        own.data_offset - own.super_offset,
        own.data_offset + USED - own.super_offset,
        own.data_offset + own.data_size - own.super_offset,
        u64::MAX,
        1 << 31,
        1 << 15,
    ];
    bases[usize::from(near) % bases.len()].wrapping_add_signed(by)
}

fn apply(own: &mut Superblock, (_, field, near, by): Change) {
    let value = value(own, near, by);
    match field {
        Size => own.size = value,
        BitmapOrPpl if own.ppl().is_some() => {
            own.bitmap_or_ppl[..2].copy_from_slice(&(value as i16).to_le_bytes());
        }
        BitmapOrPpl => own.bitmap_or_ppl = (value as i32).to_le_bytes(),
        PplSectors => own.bitmap_or_ppl[2..].copy_from_slice(&(value as u16).to_le_bytes()),
        BadBlocksAt => own.bblog_offset = value as i32,
        BadBlocksSize => own.bblog_size = value as u16 % 10,
        BadBlocksShift => own.bblog_shift = value as u8,
        Feature => own.feature_map ^= Features::from_bits_retain(1 << (near % 13)),
        DataOffset => own.data_offset = value,
        DataSize => own.data_size = value,
        Events => own.events = own.events.saturating_add_signed(by % 3),
        Number => own.dev_number = value as u32,
        DevRole => {
            let roles = [0, 1, 2, 3, 4, 0xFFFD, 0xFFFE, 0xFFFF, 0x8002];
            own.roles[usize::from(near) % 5] = roles[by.unsigned_abs() as usize % roles.len()];
        }
        ResyncFrom => own.resync_offset = value,
        Recovered => own.recovery_offset = value,
        LogicalBlock => own.logical_block_size = [512, 1024, 4096][usize::from(near) % 3],
        Chunk => own.chunk_sectors = [8, 16, 64, 256][usize::from(near) % 4],
        Layout => own.layout = u32::from(near) % 7,
        Disks => own.raid_disks = 2 + u32::from(near) % 5,
    }
}

fn pattern(block: u64) -> Vec<u8> {
    (block + 1).to_le_bytes().repeat(BLOCK / 8)
}

/// A stopped array filled with the pattern.
fn filled(policy: Policy) -> (Stand, u64) {
    let mut stand = Stand::new(4);
    let chunk = (policy == Policy::Bitmap).then_some(4096);
    stand.create_with(Level::Raid5, true, Some(policy), chunk);
    for memory in &stand.memories {
        let own = Superblock { size: USED, ..memory.superblock() };
        memory.put(8, &own.to_bytes());
    }
    stand.start();
    let bytes = stand.array.as_ref().unwrap().0.info().size_bytes;
    let all: Vec<u8> = (0..bytes / BLOCK as u64).flat_map(pattern).collect();
    let bio =
        drystone_core::Bio::write(drystone_core::Sector(0), drystone_core::IoBuf::from_slice(&all));
    assert!(stand.io(bio).status.is_ok());
    stand.stop();
    (stand, bytes / BLOCK as u64)
}

/// Reads all blocks; `None` where a block can't be read.
fn contents(stand: &mut Stand, blocks: u64) -> Vec<Option<Vec<u8>>> {
    let mut all = Vec::new();
    for block in 0..blocks {
        let (status, bytes) = stand.read(block * 8, BLOCK);
        all.push(status.is_ok().then_some(bytes));
    }
    all
}

/// Starts the array if possible, and returns the number of its blocks.
fn starts(stand: &mut Stand) -> Option<u64> {
    let (ctx, candidates, assembly) = stand.look();
    drop((ctx, candidates));
    assembly.ok()?;
    let opened = stand.try_open().ok()?;
    drop(opened);
    stand.start();
    Some(stand.array.as_ref().unwrap().0.info().size_bytes / BLOCK as u64)
}

proptest! {
    #![proptest_config(ProptestConfig { max_shrink_iters: 200, ..ProptestConfig::with_cases(
        std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(60)
    ) })]

    #[test]
    fn what_superblocks_say_never_comes_to_lie_in_the_data(
        policy in prop::sample::select(vec![Policy::Resync, Policy::Bitmap, Policy::Ppl]),
        changes in prop::collection::vec(
            (
                0usize..4,
                prop_oneof![
                    3 => prop::sample::select(OF_PLACES.to_vec()),
                    1 => prop::sample::select(OTHERS.to_vec()),
                ],
                0u8..20,
                prop_oneof![Just(0i64), Just(128), -20i64..20, -600i64..600, any::<i64>()],
            ),
            1..5,
        ),
        writes in prop::collection::vec((any::<u16>(), 1u8..255), 1..6),
    ) {
        let (mut stand, whole) = filled(policy);
        for change in &changes {
            let memory = &stand.memories[change.0];
            let own = Superblock::parse(&memory.get(8, 4096), 8, memory.sectors());
            let Ok(mut own) = own else { continue };
            apply(&mut own, *change);
            memory.put(8, &own.to_bytes());
        }
        let Some(blocks) = starts(&mut stand) else { return Ok(()) };
        let blocks = blocks.min(2 * whole);
        let mut model = contents(&mut stand, blocks);
        if changes.iter().all(|(_, field, _, _)| OF_PLACES.contains(field)) {
            for (block, bytes) in (0..whole).zip(&model) {
                let is_right = bytes.as_ref().is_none_or(|bytes| *bytes == pattern(block));
                prop_assert!(is_right, "block {block}");
            }
        }
        for (block, byte) in &writes {
            let block = u64::from(*block) % blocks;
            if stand.write(block * 8, *byte, BLOCK).is_ok() {
                model[block as usize] = Some(vec![*byte; BLOCK]);
            }
        }
        stand.pass(12);
        let compare = |stand: &mut Stand, when: &str| {
            for (block, bytes) in contents(stand, blocks).into_iter().enumerate() {
                let is_same = model[block].is_none() || bytes == model[block];
                prop_assert!(is_same, "block {block} {when}");
            }
            Ok(())
        };
        compare(&mut stand, "after the writes")?;
        stand.stop();
        prop_assert!(starts(&mut stand).is_some(), "it does not start again");
        compare(&mut stand, "after a stop")?;
        stand.stop();
    }
}
