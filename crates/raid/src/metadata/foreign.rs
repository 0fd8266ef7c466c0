//! Detects other data on a device by signatures, so that nothing is overwritten by mistake.
//!
//! The list has the formats that people use on disks, not all formats. Other data that is not zero
//! is reported as unknown.

use super::superblock::{MAGIC, Minor};
use super::{u16_at, u32_at};

/// The bytes from the start of a device that [`identify`] needs.
pub const HEAD_BYTES: usize = 1 << 20;
/// The bytes from its end that [`identify`] needs.
pub const TAIL_BYTES: usize = 64 << 10;

/// A signature at an offset from the start.
struct Signature {
    name: &'static str,
    offset: usize,
    bytes: &'static [u8],
}

const fn signature(name: &'static str, offset: usize, bytes: &'static [u8]) -> Signature {
    Signature { name, offset, bytes }
}

const SIGNATURES: [Signature; 24] = [
    signature("a LUKS volume", 0, b"LUKS\xBA\xBE"),
    signature("an XFS file system", 0, b"XFSB"),
    signature("a btrfs file system", 0x10040, b"_BHRfS_M"),
    signature("swap space", 4086, b"SWAPSPACE2"),
    signature("swap space", 4086, b"SWAP-SPACE"),
    signature("a suspended system (swap space)", 4086, b"S1SUSPEND"),
    signature("swap space", 65526, b"SWAPSPACE2"),
    signature("a bcache device", 4120, BCACHE),
    signature("an F2FS file system", 1024, &[0x10, 0x20, 0xF5, 0xF2]),
    signature("an NTFS file system", 3, b"NTFS    "),
    signature("an exFAT file system", 3, b"EXFAT   "),
    signature("a FAT file system", 82, b"FAT32   "),
    signature("a FAT file system", 54, b"FAT16   "),
    signature("a FAT file system", 54, b"FAT12   "),
    signature("an ISO 9660 file system", 32769, b"CD001"),
    signature("a ReiserFS file system", 65588, b"ReIsEr"),
    signature("a JFS file system", 32768, b"JFS1"),
    signature("a squashfs file system", 0, b"hsqs"),
    signature("an EROFS file system", 1024, &[0xE2, 0xE1, 0xF5, 0xE0]),
    signature("a GFS2 file system", 65536, &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1]),
    signature("a qcow2 image", 0, b"QFI\xFB"),
    signature("a VDO volume", 0, b"dmvdo001"),
    signature("a bcachefs file system", 4120, BCACHEFS),
    signature("a Ceph BlueStore device", 0, b"bluestore block device"),
];

const BCACHE: &[u8] = &[
    0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA, 0x82, 0x65, 0xF5, 0x7F, 0x48, 0xBA, 0x6D, 0x81,
];
const BCACHEFS: &[u8] = &[
    0xC6, 0x85, 0x73, 0xF6, 0x66, 0xCE, 0x90, 0xA9, 0xD9, 0x6A, 0x60, 0xCF, 0x80, 0x3D, 0xF7, 0xEF,
];

/// The contents of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Only zeroes, in the part that was read.
    Blank,
    /// A known format, as a noun with its article.
    Known(&'static str),
    /// Something that is not zero.
    Unknown,
}

/// Identifies the contents of a device of `device_sectors` sectors, given its first [`HEAD_BYTES`]
/// and last [`TAIL_BYTES`]; each is the whole device if that is smaller.
pub fn identify(head: &[u8], tail: &[u8], device_sectors: u64) -> Contents {
    let found = md(head, tail, device_sectors)
        .or_else(|| firmware_raid(tail))
        .or_else(|| lvm(head))
        .or_else(|| zfs(head, tail))
        .or_else(|| SIGNATURES.iter().find(|s| holds(head, s.offset, s.bytes)).map(|s| s.name))
        .or_else(|| ext(head))
        .or_else(|| partition_table(head, tail));
    match found {
        Some(name) => Contents::Known(name),
        None if [head, tail].iter().all(|part| part.iter().all(|byte| *byte == 0)) => {
            Contents::Blank
        }
        None => Contents::Unknown,
    }
}

fn holds(bytes: &[u8], offset: usize, wanted: &[u8]) -> bool {
    bytes.get(offset..).is_some_and(|rest| rest.starts_with(wanted))
}

/// True if the magic number of md stands at a sector of the device.
fn has_md_magic(head: &[u8], tail: &[u8], device_sectors: u64, sector: u64) -> bool {
    let magic = MAGIC.to_le_bytes();
    let tail_start = device_sectors.saturating_sub(tail.len() as u64 / 512);
    let in_tail = sector.checked_sub(tail_start).map(|sector| sector as usize * 512);
    holds(head, (sector as usize).saturating_mul(512), &magic)
        || in_tail.is_some_and(|offset| holds(tail, offset, &magic))
}

fn md(head: &[u8], tail: &[u8], device_sectors: u64) -> Option<&'static str> {
    let found = |sector| has_md_magic(head, tail, device_sectors, sector);
    if Minor::ALL.into_iter().filter_map(|minor| minor.sector(device_sectors)).any(found) {
        return Some("a member of an md array");
    }
    // Version 0.90 lies in the last complete 64 KiB.
    let old = (device_sectors & !127).checked_sub(128)?;
    let big_endian = tail_holds_big_endian(tail, device_sectors, old);
    (found(old) || big_endian).then_some("a member of an md array (metadata 0.90)")
}

/// A superblock of version 0.90 has the byte order of its machine.
fn tail_holds_big_endian(tail: &[u8], device_sectors: u64, sector: u64) -> bool {
    let tail_start = device_sectors.saturating_sub(tail.len() as u64 / 512);
    let offset = sector.checked_sub(tail_start).map(|sector| sector as usize * 512);
    offset.is_some_and(|offset| holds(tail, offset, &MAGIC.to_be_bytes()))
}

/// A firmware RAID has its metadata in the last sectors.
fn firmware_raid(tail: &[u8]) -> Option<&'static str> {
    let ends_with = |bytes_from_end: usize, wanted: &[u8]| {
        tail.len().checked_sub(bytes_from_end).is_some_and(|offset| holds(tail, offset, wanted))
    };
    if ends_with(1024, b"Intel Raid ISM Cfg Sig.") {
        return Some("a member of an Intel firmware RAID (IMSM)");
    }
    ends_with(512, &[0xDE, 0x11, 0xDE, 0x11]).then_some("a member of a DDF RAID")
}

/// The label is in one of the first four sectors.
fn lvm(head: &[u8]) -> Option<&'static str> {
    let label = |sector: usize| {
        holds(head, sector * 512, b"LABELONE") && holds(head, sector * 512 + 24, b"LVM2 001")
    };
    (0..4).any(label).then_some("an LVM2 physical volume")
}

/// A ring of uberblocks begins 128 KiB into each label; the labels are at both ends.
fn zfs(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    const UBERBLOCK: u64 = 0x00BA_B10C;
    let mut slots = (128 << 10..256 << 10).chain(384 << 10..512 << 10).step_by(1024);
    let ring = |bytes: &[u8], offset: usize| {
        holds(bytes, offset, &UBERBLOCK.to_le_bytes())
            || holds(bytes, offset, &UBERBLOCK.to_be_bytes())
    };
    let front = slots.any(|offset| ring(head, offset));
    let back = (0..tail.len()).step_by(1024).any(|offset| ring(tail, offset));
    (front || back).then_some("a member of a ZFS pool")
}

fn ext(head: &[u8]) -> Option<&'static str> {
    if u16_at(head, 1024 + 56) != 0xEF53 {
        return None;
    }
    let (compatible, incompatible) = (u32_at(head, 1024 + 92), u32_at(head, 1024 + 96));
    // ext4 alone has extents, 64-bit numbers and flexible groups; ext3 has the journal. A journal
    // device has nothing else.
    Some(match (compatible & 4 != 0, incompatible) {
        (_, incompatible) if incompatible & 8 != 0 => "the journal of an ext file system",
        (_, incompatible) if incompatible & 0x2C0 != 0 => "an ext4 file system",
        (true, _) => "an ext3 file system",
        (false, _) => "an ext2 file system",
    })
}

fn partition_table(head: &[u8], tail: &[u8]) -> Option<&'static str> {
    let last = |sector: usize| tail.len().checked_sub(sector);
    let gpt = [512, 4096].iter().any(|block| {
        holds(head, *block, b"EFI PART")
            || last(*block).is_some_and(|offset| holds(tail, offset, b"EFI PART"))
    });
    if gpt {
        return Some("a GPT partition table");
    }
    (u16_at(head, 510) == 0xAA55).then_some("an MBR partition table or a boot sector")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECTORS: u64 = 8192;

    fn told(parts: &[(usize, &[u8])]) -> Contents {
        let mut device = vec![0; SECTORS as usize * 512];
        for (offset, bytes) in parts {
            device[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        identify(&device[..HEAD_BYTES], &device[device.len() - TAIL_BYTES..], SECTORS)
    }

    fn is(parts: &[(usize, &[u8])], wanted: &str) {
        let Contents::Known(found) = told(parts) else { panic!("nothing, wanted {wanted}") };
        assert!(found.contains(wanted), "{found}, wanted {wanted}");
    }

    #[test]
    fn what_is_on_a_device_is_named() {
        assert_eq!(told(&[]), Contents::Blank);
        assert_eq!(told(&[(5, &[1])]), Contents::Unknown);
        assert_eq!(told(&[(SECTORS as usize * 512 - 1, &[1])]), Contents::Unknown);
        let magic = MAGIC.to_le_bytes();
        for sector in [0, 8, 8176] {
            is(&[(sector * 512, &magic)], "md array");
        }
        is(&[(8064 * 512, &magic)], "0.90");
        is(&[(8064 * 512, &MAGIC.to_be_bytes())], "0.90");
        is(&[(512, b"LABELONE"), (536, b"LVM2 001")], "LVM2");
        let end = SECTORS as usize * 512;
        is(&[(end - 1024, b"Intel Raid ISM Cfg Sig. 1.2")], "IMSM");
        is(&[(end - 512, &[0xDE, 0x11, 0xDE, 0x11])], "DDF");
        is(&[(128 << 10, &0x00BA_B10Cu64.to_le_bytes())], "ZFS");
        for signature in &SIGNATURES {
            is(&[(signature.offset, signature.bytes)], signature.name);
        }
        let ext = (1080, &[0x53, 0xEF][..]);
        is(&[ext], "ext2");
        is(&[ext, (1116, &[4])], "ext3");
        is(&[ext, (1116, &[4]), (1120, &[0xC2])], "ext4");
        is(&[ext, (1120, &[8])], "journal");
        is(&[(510, &[0x55, 0xAA])], "MBR");
        is(&[(510, &[0x55, 0xAA]), (512, b"EFI PART")], "GPT");
        is(&[(SECTORS as usize * 512 - 512, b"EFI PART")], "GPT");
    }

    #[test]
    fn small_devices_are_looked_at_too() {
        assert_eq!(identify(&[], &[], 0), Contents::Blank);
        assert_eq!(identify(&[0; 512], &[0; 512], 1), Contents::Blank);
        let found = identify(b"XFSB", b"XFSB", 1);
        assert_eq!(found, Contents::Known("an XFS file system"));
    }
}
