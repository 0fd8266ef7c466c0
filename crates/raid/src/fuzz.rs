//! Entry points of the fuzz targets. Their inputs stand for bytes that anybody may have written to
//! a disk.

use std::convert::Infallible;
use std::ops::Range;

use crate::layout::{Layout, Level};
use crate::metadata::assemble::{Candidate, assemble};
use crate::metadata::bitmap::{BitmapHeader, HEADER_BYTES};
use crate::metadata::examine::{bitmap_text, superblock_text};
use crate::metadata::places::Places;
use crate::metadata::ppl::{self, PplHeader};
use crate::metadata::superblock::{DevRole, Minor, Superblock, checksum};

/// The most devices of an array that is assembled.
const DEVICES_MAX: usize = 8;

/// Assemble devices from superblocks of 512 bytes each, one behind the other. The first byte says
/// whether their checksums are corrected, and how large the devices are.
pub fn fuzz_superblock(input: &[u8]) {
    let Some((flags, rest)) = input.split_first() else { return };
    let sectors = [16384, 24, 1 << 31, u64::MAX][usize::from(flags >> 1 & 3)];
    let candidates = rest.chunks(512).take(DEVICES_MAX).enumerate().map(|(index, bytes)| {
        let mut bytes = bytes.to_vec();
        if flags & 1 == 1 && bytes.len() >= 220 {
            let sum = checksum(&bytes).to_le_bytes();
            bytes[216..220].copy_from_slice(&sum);
        }
        let _ = superblock_text("m", &bytes, sectors, None);
        let found = Superblock::parse(&bytes, 8, sectors);
        if let Ok(found) = &found {
            round_trip(found);
        }
        let found = found.map(|found| (Minor::V1_2, found));
        Candidate {
            name: format!("m{index}"),
            found,
            bitmap: None,
            damage: None,
            log_damage: None,
            device_sectors: sectors,
            journal: None,
        }
    });
    let candidates: Vec<Candidate> = candidates.collect();
    if let Ok(array) = assemble(&candidates, None) {
        assert_eq!(array.members.len(), array.layout.disks() as usize);
        let mut devices: Vec<usize> = array.members.iter().filter_map(|m| m.device()).collect();
        devices.extend(array.replacements.iter().flatten().map(|r| r.device));
        devices.extend(&array.spares);
        devices.extend(array.left_out.iter().map(|(device, _)| *device));
        let places = devices.len();
        devices.sort_unstable();
        devices.dedup();
        assert_eq!(places, devices.len(), "a device has two places");
        assert!(!array.start.to_string().is_empty());
    }
}

fn round_trip(found: &Superblock) {
    let again = Superblock::decode(&found.to_bytes()).expect("what is written is a superblock");
    let plain = |s: &Superblock| Superblock { checksum: 0, ..s.clone() };
    assert_eq!(plain(&again), plain(found));
}

/// The most devices whose areas are checked together.
const PLACES_DEVICES_MAX: usize = 4;

/// Devices with their areas beside the data. The first byte says whether checksums are corrected,
/// and how large the devices are. The rest is divided into four parts: the sectors of each device
/// from its superblock on. Behind these, devices hold zeroes.
pub fn fuzz_places(input: &[u8]) {
    let Some((flags, rest)) = input.split_first() else { return };
    let sectors = [8192, 24, 2048, 1 << 31][usize::from(flags >> 1 & 3)];
    let each = (rest.len() / PLACES_DEVICES_MAX / 512 * 512).max(512);
    let devices = rest.chunks(each).take(PLACES_DEVICES_MAX).enumerate();
    let candidates: Vec<Candidate> = devices
        .map(|(index, bytes)| placed(index, bytes.to_vec(), flags & 1 == 1, sectors))
        .collect();
    let Ok(mut array) = assemble(&candidates, None) else { return };
    array.force(&candidates);
    let used = array.fresh.size;
    for device in array.members.iter().filter_map(|member| member.device()) {
        let Ok((_, own)) = &candidates[device].found else {
            panic!("a member without a superblock")
        };
        // The superblock of a spare may lack its role and the size.
        let is_untold = own.events < array.fresh.events || own.role() == DevRole::Spare;
        assert!(own.size == used || is_untold, "a member of another size");
        assert!(own.data_size >= used, "a member that is too small");
        let own = Superblock { size: used, ..own.clone() };
        assert!(Places::of(&own, sectors, None).is_ok(), "a member without room");
        assert!(candidates[device].damage.is_none(), "a member that is damaged");
    }
}

fn placed(index: usize, mut bytes: Vec<u8>, is_summed: bool, sectors: u64) -> Candidate {
    if is_summed && bytes.len() >= 220 {
        let sum = checksum(&bytes).to_le_bytes();
        bytes[216..220].copy_from_slice(&sum);
    }
    let read = |sector: u64, length: usize| {
        let end = sector.checked_add(length as u64 / 512).filter(|end| *end <= sectors);
        end.ok_or("beyond the end")?;
        let at = (sector as i64 - 8) * 512;
        let there = usize::try_from(at).ok().and_then(|at| bytes.get(at..)).unwrap_or(&[]);
        let mut out = vec![0; length];
        let len = there.len().min(length);
        out[..len].copy_from_slice(&there[..len]);
        Ok::<_, &str>(out)
    };
    let found = Superblock::parse(&bytes, 8, sectors).map(|found| (Minor::V1_2, found));
    let candidate = Candidate::look(format!("m{index}"), sectors, found, read);
    if let Ok((_, own)) = &candidate.found {
        let header = candidate.bitmap.as_ref().and_then(|found| found.as_ref().ok());
        check_places(own, sectors, header);
    }
    candidate
}

/// Check that the areas of a member do not overlap, and lie on the device.
fn check_places(own: &Superblock, sectors: u64, bitmap: Option<&BitmapHeader>) {
    let Ok(places) = Places::of(own, sectors, bitmap) else { return };
    let data = own.data_offset..own.data_offset.saturating_add(own.size);
    let superblock = own.super_offset..own.super_offset.saturating_add(own.sectors());
    let bitmap = places.bitmap().ok().flatten();
    let mut areas: Vec<_> =
        [bitmap, places.ppl(), places.bad_blocks()].into_iter().flatten().collect();
    assert!(areas.iter().all(|area| area.start < area.end && area.end <= sectors), "{places:?}");
    areas.push(superblock);
    // A superblock may place its own data anywhere; it is not accepted as a member then.
    let is_apart =
        |one: &Range<u64>, other: &Range<u64>| one.end <= other.start || other.end <= one.start;
    assert!(areas.iter().take(areas.len() - 1).all(|area| is_apart(area, &data)), "{places:?}");
    for (index, area) in areas.iter().enumerate() {
        assert!(areas[..index].iter().all(|other| is_apart(area, other)), "{places:?}");
    }
}

/// A bitmap: its header, then its bits.
pub fn fuzz_bitmap(input: &[u8]) {
    let _ = bitmap_text("m", input);
    if let Ok(header) = BitmapHeader::parse(input) {
        assert_eq!(BitmapHeader::parse(&header.to_bytes()), Ok(header.clone()));
        for bit in header.set_bits(&input[HEADER_BYTES..]).take(1000) {
            let sectors = header.sectors_of(bit);
            assert!(!sectors.is_empty() && sectors.end <= header.sync_size);
            assert_eq!(header.bit_of(sectors.start), bit);
        }
    }
}

/// A log area. The first byte chooses the layout, and says whether the checksum of the first header
/// is corrected.
pub fn fuzz_ppl(input: &[u8]) {
    let Some((flags, area)) = input.split_first() else { return };
    let mut area = area.to_vec();
    area.resize(area.len().next_multiple_of(512), 0);
    // The signature is taken from the first header.
    let signature = area
        .get(512..516)
        .map_or(0, |word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
    if flags & 1 == 1 && area.len() >= ppl::HEADER_BYTES {
        let sum = ppl::header_checksum(&area).to_le_bytes();
        area[532..536].copy_from_slice(&sum);
    }
    let disks = 2 + u32::from(flags >> 1 & 7);
    let layout = Layout::new(Level::Raid5, u32::from(flags >> 4) % 6, disks, 128);
    let layout = layout.expect("a layout of RAID-5");
    let read = |sector: u64| {
        let mut bytes = vec![0; ppl::HEADER_BYTES];
        let there = area.get(sector as usize * 512..).unwrap_or(&[]);
        let len = there.len().min(bytes.len());
        bytes[..len].copy_from_slice(&there[..len]);
        Ok::<_, Infallible>(bytes)
    };
    let Ok(newest) = ppl::newest(area.len() as u64 / 512, signature, read);
    if let Some((at, header)) = newest {
        check_header(&header, at, &layout);
    }
}

fn check_header(header: &PplHeader, at: u64, layout: &Layout) {
    let again = PplHeader::parse(&header.to_bytes(), header.signature);
    assert_eq!(again.as_ref(), Ok(header));
    for (_, entry) in header.entries_at(at) {
        for block in ppl::decode(entry, layout, 1 << 30).into_iter().flatten() {
            assert!(block.role.0 < layout.disks() && !block.touched.is_empty());
            assert!(block.touched.iter().all(|address| address.sector == block.sector));
            assert!(block.parity_at.is_none_or(|at| at + 4096 <= entry.pp_size as usize));
        }
    }
}
