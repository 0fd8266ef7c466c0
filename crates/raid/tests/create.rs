//! New arrays: offsets and sizes as mdadm chooses them, and its superblocks byte for byte.

mod common;

use common::{meta, superblock};
use drystone_raid::layout::{Layout, Level, layout_number};
use drystone_raid::metadata::Uuid;
use drystone_raid::metadata::assemble::{Candidate, Start, assemble};
use drystone_raid::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use drystone_raid::metadata::create::{CreateOptions, NewDevice, Plan, Policy, plan, set_name};
use drystone_raid::metadata::ppl::{self, PplHeader};
use drystone_raid::metadata::superblock::{DevRole, Features, Minor, Superblock};
use drystone_raid::testing::{self, Image};

const KIB: u64 = 2;
const MIB: u64 = 2048;
const GIB: u64 = 1024 * MIB;
const TIB: u64 = 1024 * GIB;

fn options(level: Level, disks: u32, chunk: u64) -> CreateOptions {
    CreateOptions {
        layout: Layout::new(level, 2, disks, chunk).unwrap(),
        minor: Minor::V1_2,
        spare_devices: 0,
        policy: None,
        bitmap_chunk: None,
        size: None,
        data_offset: None,
        set_name: "vec:a".to_owned(),
        set_uuid: Uuid([9; 16]),
        ctime: 1_700_000_000,
        assume_clean: false,
        force: false,
    }
}

fn devices(sectors: &[u64]) -> Vec<Option<NewDevice>> {
    let device = |(index, sectors): (usize, &u64)| {
        let (name, uuid) = (format!("sd{index}"), Uuid([index as u8; 16]));
        (*sectors > 0).then_some(NewDevice { name, sectors: *sectors, block_sectors: 1, uuid })
    };
    sectors.iter().enumerate().map(device).collect()
}

fn first(plan: &Plan) -> &Superblock {
    &plan.members.iter().flatten().next().unwrap().superblock
}

/// The columns of a row of the table: data offset, data size, bitmap's or PPL's offset, bad block
/// log's.
type Row = (Minor, u64, u64, Option<Policy>, u64, u64, Option<i32>, i32);

#[test]
fn places_are_those_of_mdadm() {
    use Minor::{V1_0, V1_1, V1_2};
    use Policy::{Bitmap, Ppl};
    let rows: [Row; 17] = [
        (V1_2, 8 * MIB, 64 * KIB, None, 2048, 14336, None, 16),
        (V1_2, 16 * MIB, 512 * KIB, None, 4096, 28672, None, 16),
        (V1_2, GIB, 512 * KIB, None, 4096, 2093056, None, 16),
        (V1_2, GIB, 64 * KIB, None, 4096, 2093056, None, 16),
        (V1_2, 2109497, 512 * KIB, None, 4096, 2105401, None, 16),
        (V1_2, GIB, 512 * KIB, Some(Ppl), 6144, 2091008, Some(8), 2056),
        (V1_2, 8 * GIB, 512 * KIB, None, 18432, 16758784, None, 16),
        (V1_2, 10 * GIB, 512 * KIB, None, 18432, 20953088, None, 136),
        (V1_2, 32 * GIB, 512 * KIB, None, 67584, 67041280, None, 136),
        (V1_2, 100 * GIB, 512 * KIB, None, 133120, 209582080, None, 136),
        (V1_2, 100 * GIB, 512 * KIB, Some(Ppl), 135168, 209580032, Some(8), 2056),
        (V1_2, 150 * GIB, 512 * KIB, None, 264192, 314308608, Some(8), 16),
        (V1_2, TIB, 512 * KIB, None, 264192, 2147219456, Some(8), 16),
        (V1_2, 4 * TIB, 512 * KIB, None, 264192, 8589670400, Some(8), 32),
        (V1_0, GIB, 512 * KIB, None, 0, 2097120, None, -8),
        (V1_0, 100 * GIB, 512 * KIB, Some(Bitmap), 0, 209715168, Some(-16), -8),
        (V1_1, GIB, 512 * KIB, None, 4096, 2093056, None, 16),
    ];
    for row in rows {
        let (minor, sectors, chunk, policy, data_offset, data_size, log, bblog) = row;
        let options = CreateOptions { minor, policy, ..options(Level::Raid5, 4, chunk) };
        let made = plan(&options, &devices(&[sectors; 4])).unwrap();
        let found = first(&made);
        let ppl = found.ppl().map(|area| i32::from(area.offset));
        assert_eq!(
            (found.data_offset, found.data_size, found.bitmap_offset().or(ppl), found.bblog_offset),
            (data_offset, data_size, log, bblog),
            "{row:?}"
        );
        if let Some(offset) = found.bitmap_offset() {
            let member = made.members[0].as_ref().unwrap();
            assert_eq!(
                member.before[0].sector,
                found.super_offset.wrapping_add_signed(offset.into())
            );
            assert_eq!(BitmapHeader::parse(&member.before[0].bytes).unwrap().chunk_bytes, 64 << 20);
        }
        assert_eq!(found.super_offset, minor.sector(sectors).unwrap());
    }
    let used = |minor, sectors| {
        let options = CreateOptions { minor, ..options(Level::Raid5, 4, 512 * KIB) };
        plan(&options, &devices(&[sectors; 4])).unwrap().used
    };
    assert_eq!(used(V1_2, 2109497), 2105344);
    assert_eq!(used(V1_0, GIB), 2096128);
}

/// The options of the command line with which a vector was made.
fn options_of(vector: &str) -> CreateOptions {
    let meta = meta(vector);
    let words: Vec<&str> = meta["create"].as_str().unwrap().split_whitespace().collect();
    let after = |name: &str| words.iter().find_map(|word| word.strip_prefix(name));
    let next = |name: &str| words.iter().skip_while(|word| **word != name).nth(1).copied();
    let level = Level::from_number(after("--level=").unwrap().parse().unwrap()).unwrap();
    let layout = after("--layout=").map_or(0, |name| layout_number(name).unwrap());
    let disks = next("-n").unwrap().parse().unwrap();
    let chunk: u64 = next("-c").unwrap().parse().unwrap();
    let minor = Minor::ALL.into_iter().find(|m| Some(m.name()) == after("--metadata=")).unwrap();
    let policy = match (after("--bitmap="), after("--consistency-policy=")) {
        (Some("internal"), _) => Policy::Bitmap,
        (_, Some("ppl")) => Policy::Ppl,
        _ => Policy::Resync,
    };
    CreateOptions {
        layout: Layout::new(level, layout, disks, chunk * KIB).unwrap(),
        minor,
        policy: Some(policy),
        bitmap_chunk: after("--bitmap-chunk=").map(|kib| kib.parse::<u64>().unwrap() * 1024),
        set_name: set_name("vec", after("--name=").unwrap()),
        set_uuid: Uuid::parse(after("--uuid=").unwrap()).unwrap(),
        assume_clean: words.contains(&"--assume-clean"),
        ..options(level, 4, 8)
    }
}

/// The fields that Linux changes while the array runs, and those that are the user's or random.
fn settled(mut own: Superblock, seen: &Superblock) -> Superblock {
    let ppls = Features::PPL | Features::MULTIPLE_PPLS;
    if own.feature_map.intersects(ppls) && seen.feature_map.intersects(ppls) {
        own.feature_map = seen.feature_map;
    }
    Superblock {
        ctime: seen.ctime,
        utime: seen.utime,
        events: seen.events,
        resync_offset: seen.resync_offset,
        device_uuid: seen.device_uuid,
        checksum: seen.checksum,
        roles: seen.roles.clone(),
        ..own
    }
}

#[test]
fn superblocks_are_those_of_mdadm() {
    let changed = ["r5-ls-reshape", "r5-ls-reshape-after", "r5-ls-journal", "r5-ls-badblocks"];
    let mut count = 0;
    for vector in testing::names().into_iter().filter(|v| !changed.contains(&&v[..])) {
        let options = options_of(&vector);
        let images = testing::members(&vector);
        let disks = options.layout.disks() as usize;
        let sectors: Vec<u64> = images[..disks].iter().map(Image::sectors).collect();
        let made = plan(&options, &devices(&sectors)).unwrap();
        for (index, (image, member)) in images.iter().zip(&made.members).enumerate() {
            let (_, seen) = superblock(image).unwrap();
            let own = settled(member.as_ref().unwrap().superblock.clone(), &seen);
            assert_eq!(own, seen, "{vector} m{index}");
            count += 1;
        }
        let last = made.members.last().unwrap().as_ref().unwrap();
        let rebuilt = made.rebuilt == Some(disks - 1);
        assert_eq!(last.superblock.role() == DevRole::Spare, rebuilt, "{vector}");
    }
    assert!(count > 190, "{count}");
}

#[test]
fn a_clean_array_is_that_of_mdadm_byte_for_byte() {
    let images = testing::members("r5-1T-meta");
    let (_, seen) = superblock(&images[0]).unwrap();
    let options = CreateOptions { ctime: seen.ctime, ..options_of("r5-1T-meta") };
    let device = |image| {
        let uuid = superblock(image).unwrap().1.device_uuid;
        NewDevice { name: String::new(), sectors: TIB, block_sectors: 1, uuid }
    };
    let devices: Vec<_> = images.iter().map(|image| Some(device(image))).collect();
    for (image, member) in images.iter().zip(plan(&options, &devices).unwrap().members) {
        let member = member.unwrap();
        let at = member.last.sector * 512;
        assert!(image.read(at, 512) == member.last.bytes);
        let [bitmap] = &member.before[..] else { panic!("one write for the bitmap") };
        let seen = image.read(bitmap.sector * 512, bitmap.bytes.len());
        assert!(seen[..HEADER_BYTES] == bitmap.bytes[..HEADER_BYTES]);
        // All bits were set; Linux cleared them when it ran, and left those behind the last.
        assert!(bitmap.bytes[HEADER_BYTES..].iter().all(|byte| *byte == 0xFF));
        let header = BitmapHeader::parse(&seen).unwrap();
        assert_eq!(header.set_bits(&seen[HEADER_BYTES..]).count(), 0);
        assert!(seen[HEADER_BYTES + header.bits() as usize / 8 + 1..].iter().all(|b| *b == 0xFF));
    }
}

#[test]
fn data_begins_with_a_block_of_every_device() {
    let mut devices = devices(&[64 * MIB; 3]);
    let of = |data_offset| CreateOptions { data_offset, ..options(Level::Raid5, 3, 64 * KIB) };
    assert!(plan(&of(Some(2052)), &devices).is_ok());
    let last = devices[2].as_mut().unwrap();
    (last.block_sectors, last.name) = (8, "c".to_owned());
    let why = plan(&of(Some(2052)), &devices).unwrap_err();
    assert!(
        why.contains("data at sector 2052 begins inside a block of c, which has 4096"),
        "{why}"
    );
    assert!(plan(&of(Some(2056)), &devices).is_ok() && plan(&of(None), &devices).is_ok());
}

#[test]
fn an_empty_log_is_written_first() {
    let options = CreateOptions { policy: Some(Policy::Ppl), ..options(Level::Raid5, 3, 64 * KIB) };
    let made = plan(&options, &devices(&[64 * MIB; 3])).unwrap();
    for member in made.members.iter().flatten() {
        let [log] = &member.before[..] else { panic!("one write for the PPL") };
        assert_eq!(log.sector, 16);
        let header = PplHeader::parse(&log.bytes, ppl::signature(options.set_uuid)).unwrap();
        assert!(header.entries.is_empty());
        let (bytes, at) = (&member.last.bytes, member.last.sector);
        let found = Superblock::parse(bytes, at, 64 * MIB).unwrap();
        assert_eq!(Superblock { checksum: 0, ..found }, member.superblock);
    }
}

#[test]
fn the_last_member_is_rebuilt() {
    let roles = |options: &CreateOptions, sectors: &[u64]| {
        let made = plan(options, &devices(sectors)).unwrap();
        let own = made.members.iter().flatten();
        let own: Vec<_> = own.map(|m| (m.superblock.dev_number, m.superblock.role())).collect();
        (made.rebuilt, made.clean, own)
    };
    let (a, s) = (DevRole::Active, DevRole::Spare);
    let five = options(Level::Raid5, 3, 64 * KIB);
    let size = 64 * MIB;
    assert_eq!(roles(&five, &[size; 3]), (Some(2), true, vec![(0, a(0)), (1, a(1)), (3, s)]));
    let force = CreateOptions { force: true, ..five.clone() };
    assert_eq!(roles(&force, &[size; 3]), (None, false, vec![(0, a(0)), (1, a(1)), (2, a(2))]));
    let clean = CreateOptions { assume_clean: true, ..five.clone() };
    assert_eq!(roles(&clean, &[size; 3]), (None, true, vec![(0, a(0)), (1, a(1)), (2, a(2))]));
    // With one missing there is nothing to rebuild from.
    assert_eq!(roles(&five, &[size, 0, size]), (None, true, vec![(0, a(0)), (2, a(2))]));
    let spare = CreateOptions { spare_devices: 1, ..five };
    let wanted = vec![(0, a(0)), (1, a(1)), (4, s), (3, s)];
    assert_eq!(roles(&spare, &[size; 4]), (Some(2), true, wanted));
    let six = options(Level::Raid6, 4, 64 * KIB);
    let whole: Vec<_> = (0..4u16).map(|n| (n.into(), a(n))).collect();
    assert_eq!(roles(&six, &[size; 4]), (None, false, whole));
    let wanted = vec![(0, a(0)), (1, a(1)), (4, s)];
    assert_eq!(roles(&six, &[size, size, size, 0]), (Some(2), true, wanted));
    assert_eq!(roles(&six, &[size, size, 0, 0]), (None, true, vec![(0, a(0)), (1, a(1))]));
}

/// The power goes while an array is made: what is there does not start of itself.
#[test]
fn an_array_that_was_made_in_part_does_not_start() {
    let size = 16 * MIB;
    let five = options(Level::Raid5, 3, 64 * KIB);
    let clean = CreateOptions { assume_clean: true, ..five.clone() };
    let spare = CreateOptions { spare_devices: 1, policy: Some(Policy::Bitmap), ..five.clone() };
    let six = CreateOptions { policy: None, ..options(Level::Raid6, 4, 64 * KIB) };
    for (options, sectors) in [
        (five.clone(), vec![size; 3]),
        (clean, vec![size; 3]),
        (spare, vec![size; 4]),
        (five, vec![size, 0, size]),
        (six.clone(), vec![size; 4]),
        (six, vec![size, size, 0, size]),
    ] {
        let made = plan(&options, &devices(&sectors)).unwrap();
        let order = made.order();
        for written in 0..=order.len() {
            let mut images: Vec<Image> = sectors.iter().map(|s| Image::new(s * 512)).collect();
            for index in &order[..written] {
                let last = &made.members[*index].as_ref().unwrap().last;
                images[*index].write(last.sector * 512, &last.bytes);
            }
            let found = started(&images);
            let of_itself =
                matches!(found, Ok(Start::Whole | Start::Degraded { unexpected: None }));
            assert_eq!(of_itself, written == order.len(), "{written} of {order:?}: {found:?}");
        }
    }
}

fn started(images: &[Image]) -> Result<Start, String> {
    let candidate = |image: &Image| Candidate {
        name: "sd".to_owned(),
        found: superblock(image),
        bitmap: Some(Ok(BitmapHeader::new(Uuid([9; 16]), 28672, 1 << 26))),
        damage: None,
        log_damage: None,
        device_sectors: 1 << 20,
        journal: None,
    };
    assemble(&images.iter().map(candidate).collect::<Vec<_>>(), None).map(|array| array.start)
}

#[test]
fn what_cannot_be_made_is_refused() {
    let five = options(Level::Raid5, 3, 64 * KIB);
    let refusal = |options: &CreateOptions, sectors: &[u64]| {
        plan(options, &devices(sectors)).map(|_| ()).unwrap_err()
    };
    let size = 64 * MIB;
    for (options, sectors, expected) in [
        (five.clone(), &[size; 2][..], "2 devices are named, expected 3"),
        (five.clone(), &[size, 0, 0], "2 members of a raid5 are missing, expected at most 1"),
        (five.clone(), &[size, size, 2048], "sd2 is too small"),
        (five.clone(), &[20, 20, 20], "too small"),
        (
            CreateOptions { size: Some(size), ..five.clone() },
            &[size; 3],
            "131072 sectors are to be used of each device, but sd",
        ),
        (
            CreateOptions { data_offset: Some(16), ..five.clone() },
            &[size; 3],
            "data at sector 16 leaves too little room",
        ),
        (
            CreateOptions { data_offset: Some(2048), minor: Minor::V1_0, ..five.clone() },
            &[size; 3],
            "leave the data offset out",
        ),
        (
            CreateOptions { bitmap_chunk: Some(65536), ..five.clone() },
            &[size; 3],
            "a bitmap chunk needs a bitmap",
        ),
        (
            CreateOptions { policy: Some(Policy::Ppl), ..options(Level::Raid6, 4, 64 * KIB) },
            &[size; 4],
            "a PPL needs a raid5",
        ),
        (
            CreateOptions { size: Some(64), ..five.clone() },
            &[size; 3],
            "64 sectors are to be used of each device, expected at least a chunk of 128",
        ),
        (
            CreateOptions { set_name: "a\nb".to_owned(), ..five.clone() },
            &[size; 3],
            "the name \"a\\nb\" has a control character",
        ),
        (options(Level::Raid5, 128, 64 * KIB), &[size; 128], "with --force all of the array"),
        (
            CreateOptions { spare_devices: 1, ..options(Level::Raid5, 128, 64 * KIB) },
            &[size; 129],
            "129 devices are named, expected up to 128",
        ),
        (CreateOptions { set_name: "x".repeat(33), ..five }, &[size; 3], "33 bytes"),
    ] {
        let text = refusal(&options, sectors);
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn as_many_members_as_an_array_may_have_are_made() {
    let most = CreateOptions { force: true, ..options(Level::Raid5, 128, 64 * KIB) };
    let made = plan(&most, &devices(&[64 * MIB; 128])).unwrap();
    let last = made.members[127].as_ref().unwrap();
    assert_eq!((made.rebuilt, last.superblock.role()), (None, DevRole::Active(127)));
    assert!(plan(&options(Level::Raid6, 128, 64 * KIB), &devices(&[64 * MIB; 128])).is_ok());
}

#[test]
fn a_device_that_is_too_large_is_told_of() {
    let five = options(Level::Raid5, 3, 64 * KIB);
    let made = plan(&five, &devices(&[64 * MIB, 65 * MIB, 64 * MIB])).unwrap();
    assert_eq!(made.larger, Some((1, 64 * MIB)));
    assert_eq!(plan(&five, &devices(&[64 * MIB; 3])).unwrap().larger, None);
}

#[test]
fn names_have_their_host_before_them() {
    assert_eq!(set_name("vec", "r5"), "vec:r5");
    assert_eq!(set_name("", "r5"), "r5");
    assert_eq!(set_name("vec", "any:r5"), "any:r5");
    assert_eq!(set_name("a-host-with-a-long-name", "and-an-array"), "and-an-array");
}
