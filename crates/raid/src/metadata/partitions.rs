//! The partitions of a whole disk, because members of arrays are often partitions: from a GPT (UEFI
//! specification 2.10, chapter 5.3) or the four entries of an MBR. They only serve messages that
//! suggest the right partition; the program does not serve partitions.

use super::{at, u16_at, u32_at, u64_at};

/// Sizes of a logical block that a GPT may count in.
const BLOCKS: [u64; 2] = [512, 4096];
/// The most entries of a GPT that are read: as many as a GPT of Linux usually has.
const ENTRIES_MAX: u64 = 128;
/// Bytes of an entry.
const ENTRY_BYTES: u64 = 128;

/// A part of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The number, from 1 on, as in the partition's device name.
    pub number: u64,
    /// Its first sector.
    pub start: u64,
    /// Its sectors.
    pub sectors: u64,
}

/// The partitions of a device of `device_sectors` sectors, without those that reach beyond it.
/// `read` returns a number of bytes from a sector on, fewer where the device ends.
///
/// # Errors
/// The error of `read`.
pub fn partitions<E>(
    device_sectors: u64,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Vec<Partition>, E> {
    let mut found = Vec::new();
    for block in BLOCKS {
        let header = read(block / 512, 512)?;
        if found.is_empty() && header.starts_with(b"EFI PART") {
            let (first, count, size) = (
                u64_at(&header, 72),
                u64::from(u32_at(&header, 80)),
                u64::from(u32_at(&header, 84)),
            );
            let sector = first.saturating_mul(block / 512).min(device_sectors);
            if size == ENTRY_BYTES {
                let bytes = count.min(ENTRIES_MAX) * ENTRY_BYTES;
                found = of_gpt(&read(sector, bytes as usize)?, block / 512);
            }
        }
    }
    if found.is_empty() {
        found = of_mbr(&read(0, 512)?);
    }
    found.retain(|part| {
        part.sectors > 0
            && part.start.checked_add(part.sectors).is_some_and(|end| end <= device_sectors)
    });
    Ok(found)
}

/// `factor`: sectors of a block.
fn of_gpt(entries: &[u8], factor: u64) -> Vec<Partition> {
    let entry = |(index, entry): (u64, &[u8])| {
        // A type of zeroes marks an unused entry.
        let is_used = at::<16>(entry, 0) != [0; 16];
        let start = u64_at(entry, 32).checked_mul(factor)?;
        let end = u64_at(entry, 40).checked_add(1)?.checked_mul(factor)?;
        let sectors = end.checked_sub(start)?;
        is_used.then_some(Partition { number: index + 1, start, sectors })
    };
    (0..).zip(entries.chunks_exact(ENTRY_BYTES as usize)).filter_map(entry).collect()
}

fn of_mbr(sector: &[u8]) -> Vec<Partition> {
    if sector.len() < 512 || u16_at(sector, 510) != 0xAA55 {
        return Vec::new();
    }
    let entry = |index: usize| {
        let at = 446 + 16 * index;
        let (kind, start) = (sector[at + 4], u64::from(u32_at(sector, at + 8)));
        let sectors = u64::from(u32_at(sector, at + 12));
        (kind != 0).then_some(Partition { number: index as u64 + 1, start, sectors })
    };
    (0..4).filter_map(entry).collect()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn of(disk: &[u8]) -> Vec<Partition> {
        let read = |sector: u64, bytes: usize| {
            let start = (sector as usize).saturating_mul(512).min(disk.len());
            Ok::<_, Infallible>(disk[start..(start + bytes).min(disk.len())].to_vec())
        };
        let Ok(found) = partitions(disk.len() as u64 / 512, read);
        found
    }

    fn gpt(block: usize, parts: &[(usize, u64, u64)]) -> Vec<u8> {
        let mut disk = vec![0; 1 << 20];
        disk[block..block + 8].copy_from_slice(b"EFI PART");
        disk[block + 72] = 2;
        disk[block + 80] = 128;
        disk[block + 84] = 128;
        for (number, first, last) in parts {
            let entry = &mut disk[2 * block + (number - 1) * 128..][..128];
            entry[..16].copy_from_slice(&[7; 16]);
            entry[32..40].copy_from_slice(&first.to_le_bytes());
            entry[40..48].copy_from_slice(&last.to_le_bytes());
        }
        disk
    }

    #[test]
    fn partitions_are_found_in_both_tables() {
        let part = |number, start, sectors| Partition { number, start, sectors };
        let disk = gpt(512, &[(1, 64, 127), (3, 128, 2047)]);
        assert_eq!(of(&disk), [part(1, 64, 64), part(3, 128, 1920)]);
        assert_eq!(of(&gpt(4096, &[(2, 16, 31)])), [part(2, 128, 128)]);
        let mut disk = vec![0; 1 << 20];
        disk[510..512].copy_from_slice(&[0x55, 0xAA]);
        disk[446 + 16 + 4] = 0xFD;
        disk[446 + 16 + 8..][..8].copy_from_slice(&[63, 0, 0, 0, 100, 0, 0, 0]);
        assert_eq!(of(&disk), [part(2, 63, 100)]);
    }

    #[test]
    fn what_makes_no_sense_is_no_partition() {
        // Entries beyond the disk, with the end before the start, or with an overflow.
        let wild = [(1, 64, 2048), (2, 128, 100), (3, u64::MAX, u64::MAX), (4, 1, u64::MAX)];
        assert_eq!(of(&gpt(4096, &wild)), []);
        let mut far = gpt(512, &[(1, 64, 127)]);
        far[512 + 72..512 + 80].copy_from_slice(&[0xFF; 8]);
        assert_eq!(of(&far), []);
        assert_eq!(of(&[]), []);
    }
}
