//! The partial parity log of RAID-5: the parity of the data blocks that a write does not change.
//! With it, parity can be corrected after a crash (`drivers/md/raid5-ppl.c`).
//!
//! ```text
//! area: | header 4 KiB | partial parity of entry 0 | of entry 1 | ... | header | ... |
//! ```
//!
//! The log of a write is in the area of the member that holds the write's parity. Only the newest
//! header of an area matters, because a member has at most one log in flight.

use crate::ids::Role;
use std::fmt;
use std::mem::{offset_of, size_of};
use std::ops::Range;

use crc_fast::{CrcAlgorithm, Digest};
use zerocopy::FromBytes;

use super::places::Places;
use super::raw::{PPL_HEADER_SECTORS, RawPplEntry, RawPplHeader};
use super::superblock::Superblock;
use super::{MetadataError, Uuid, check_count, invalid, u32_at};
use crate::layout::{Layout, Level, MemberAddress, STRIPE_SECTORS};

/// Bytes of a header.
pub const HEADER_BYTES: usize = 4096;
/// Sectors of a header.
pub const HEADER_SECTORS: u64 = PPL_HEADER_SECTORS;
/// Most entries of a header.
pub const ENTRIES_MAX: usize = 148;
/// The most bytes of partial parity behind a header: as many as Linux reserves.
pub const PARITY_BYTES_MAX: u32 = 128 << 10;
/// Most members of an array with a PPL.
pub const DISKS_MAX: u32 = 64;
/// Bytes of a stripe on a member.
const STRIPE_BYTES: u32 = STRIPE_SECTORS as u32 * 512;
const SIGNATURE_AT: usize = offset_of!(RawPplHeader, signature);
const CHECKSUM_AT: usize = offset_of!(RawPplHeader, checksum);
const ENTRIES_AT: usize = offset_of!(RawPplHeader, entries);
const ENTRY_BYTES: usize = size_of::<RawPplEntry>();
const _: () = assert!(HEADER_BYTES == size_of::<RawPplHeader>());

/// The CRC-32C of some bytes, in the form that headers and entries use.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// The CRC-32C of a whole header, after that of its bytes up to the end of its `entries` entries:
/// the rest is zeroes. Most headers have few entries.
fn zeroes_after(crc: u32, entries: usize) -> u32 {
    !times(!crc, ZEROES[entries])
}

/// By entries of a header: the polynomial by which its zeroes multiply the checksum's register, `x`
/// to the power of their bits.
const ZEROES: [u32; ENTRIES_MAX + 1] = {
    let mut powers = [ONE; ENTRIES_MAX + 1];
    let mut entries = ENTRIES_MAX + 1;
    let mut power = times_x(ONE, 8 * (HEADER_BYTES - ENTRIES_AT - ENTRIES_MAX * ENTRY_BYTES));
    while entries > 0 {
        entries -= 1;
        powers[entries] = power;
        power = times_x(power, 8 * ENTRY_BYTES);
    }
    powers
};

/// The polynomial 1; as the CRC's register has it, the highest power is the lowest bit.
const ONE: u32 = 1 << 31;
/// The polynomial of CRC-32C in the same order, without its highest power.
const POLYNOMIAL: u32 = 0x82F6_3B78;

/// `a` times `x` to a power, modulo the polynomial.
const fn times_x(mut a: u32, power: usize) -> u32 {
    let mut left = power;
    while left > 0 {
        a = a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg();
        left -= 1;
    }
    a
}

/// The product of two polynomials, modulo the polynomial.
fn times(mut a: u32, b: u32) -> u32 {
    let mut product = 0;
    for bit in (0..u32::BITS).rev() {
        product ^= a & (b >> bit & 1).wrapping_neg();
        a = times_x(a, 1);
    }
    product
}

/// The signature of an array's headers.
pub fn signature(set_uuid: Uuid) -> u32 {
    crc32c(&set_uuid.0)
}

/// Stripes that one write changed. Fields are named as in Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PplEntry {
    /// The first array sector that was written.
    pub data_sector: u64,
    /// Bytes of partial parity; 0 if the stripes were written in full.
    pub pp_size: u32,
    /// Bytes of data that were written.
    pub data_size: u32,
    /// Role of the member that holds the parity.
    pub parity_disk: u32,
    /// CRC-32C of the partial parity.
    pub checksum: u32,
}

impl PplEntry {
    fn of_raw(raw: &RawPplEntry) -> Self {
        PplEntry {
            data_sector: raw.data_sector.get(),
            pp_size: raw.pp_size.get(),
            data_size: raw.data_size.get(),
            parity_disk: raw.parity_disk.get(),
            checksum: raw.checksum.get(),
        }
    }

    fn raw(&self) -> RawPplEntry {
        RawPplEntry {
            data_sector: self.data_sector.into(),
            pp_size: self.pp_size.into(),
            data_size: self.data_size.into(),
            parity_disk: self.parity_disk.into(),
            checksum: self.checksum.into(),
        }
    }
}

/// A header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PplHeader {
    /// See [`signature`].
    pub signature: u32,
    /// Greater than that of all earlier headers.
    pub generation: u64,
    /// At most [`ENTRIES_MAX`].
    pub entries: Vec<PplEntry>,
}

impl PplHeader {
    /// A header without entries.
    pub fn empty(signature: u32, generation: u64) -> Self {
        PplHeader { signature, generation, entries: Vec::new() }
    }

    /// The fields of a header.
    ///
    /// # Errors
    /// The header is of another array or none, has too many entries or a wrong checksum, or its
    /// generation leaves no room for later ones.
    pub fn parse(bytes: &[u8], signature: u32) -> Result<Self, MetadataError> {
        let absent = |found: u32| {
            MetadataError::Absent(format!(
                "there is no PPL header: the signature is {found:08x}, expected {signature:08x}"
            ))
        };
        let raw = RawPplHeader::ref_from_prefix(bytes).map(|(raw, _)| raw);
        let raw = raw.map_err(|_| absent(u32_at(bytes, SIGNATURE_AT)))?;
        if raw.signature != signature {
            return Err(absent(raw.signature.get()));
        }
        let (stored, expected) = (raw.checksum.get(), header_checksum(bytes));
        if stored != expected {
            return Err(invalid(format!(
                "PPL header checksum is {stored:08x}, expected {expected:08x}"
            )));
        }
        let count = raw.entries_count.get() as usize;
        if count > ENTRIES_MAX {
            return Err(invalid(format!(
                "the PPL header has {count} entries, expected up to {ENTRIES_MAX}"
            )));
        }
        let generation = raw.generation.get();
        check_count("the generation of the PPL header", generation)?;
        let entries = raw.entries[..count].iter().map(PplEntry::of_raw).collect();
        Ok(PplHeader { signature, generation, entries })
    }

    /// The header's bytes; entries beyond [`ENTRIES_MAX`] are left out.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0; HEADER_BYTES];
        self.write_to(&mut out);
        out
    }

    /// Writes the header's bytes into `out`, whose former contents do not matter.
    ///
    /// # Panics
    /// If `out` does not have [`HEADER_BYTES`] bytes.
    pub fn write_to(&self, out: &mut [u8]) {
        assert_eq!(out.len(), HEADER_BYTES);
        out.fill(0);
        let raw = RawPplHeader::mut_from_bytes(out).expect("the length was asserted");
        raw.reserved.fill(0xFF);
        let entries = &self.entries[..self.entries.len().min(ENTRIES_MAX)];
        raw.signature.set(self.signature);
        raw.generation.set(self.generation);
        raw.entries_count.set(entries.len() as u32);
        for (raw, entry) in raw.entries.iter_mut().zip(entries) {
            *raw = entry.raw();
        }
        // The checksum's field is 0 so far, as it is for the checksum.
        let sum =
            zeroes_after(crc32c(&out[..ENTRIES_AT + entries.len() * ENTRY_BYTES]), entries.len());
        out[CHECKSUM_AT..CHECKSUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Bytes of partial parity behind the header.
    pub fn parity_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| u64::from(entry.pp_size)).sum()
    }

    /// The entries, each with the sector of its partial parity in the area; `at` is the header's
    /// sector.
    pub fn entries_at(&self, at: u64) -> impl Iterator<Item = (u64, &PplEntry)> {
        let mut next = at + HEADER_SECTORS;
        self.entries.iter().map(move |entry| {
            let here = next;
            next += u64::from(entry.pp_size) / 512;
            (here, entry)
        })
    }
}

pub(crate) fn header_checksum(bytes: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&bytes[..CHECKSUM_AT]);
    digest.update(&[0; 4]);
    digest.update(&bytes[CHECKSUM_AT + 4..HEADER_BYTES]);
    digest.finalize() as u32
}

/// The reason why the log of a superblock's device cannot be used, if there is one: its first
/// header, with which [`newest`] begins, is damaged. `read` returns a number of bytes from a sector
/// of the device on.
pub fn damage<E: fmt::Display>(
    own: &Superblock,
    places: &Places,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Option<MetadataError> {
    let error = match read(places.ppl()?.start, HEADER_BYTES) {
        Ok(bytes) => PplHeader::parse(&bytes, signature(own.set_uuid)).err()?,
        Err(error) => invalid(format!("the PPL header cannot be read: {error}")),
    };
    Some(invalid(format!("partial parity log: {error}")))
}

/// The newest header of an area of `area_sectors` sectors, and its sector in the area. `read`
/// returns the [`HEADER_BYTES`] from a sector of the area on.
///
/// # Errors
/// The error of `read`.
pub fn newest<E>(
    area_sectors: u64,
    signature: u32,
    mut read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<Option<(u64, PplHeader)>, E> {
    let mut best: Option<(u64, PplHeader)> = None;
    let mut next = 0;
    while next + HEADER_SECTORS <= area_sectors {
        let Ok(header) = PplHeader::parse(&read(next)?, signature) else { break };
        // An older round of the ring begins behind the newest header.
        if best.as_ref().is_some_and(|(_, last)| header.generation < last.generation) {
            break;
        }
        let here = next;
        next += HEADER_SECTORS + header.parity_bytes() / 512;
        best = Some((here, header));
    }
    Ok(best)
}

/// 4 KiB of parity to recompute: the exclusive or of the blocks `touched` and of the partial
/// parity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityBlock {
    /// Role of the member with the parity.
    pub role: Role,
    /// Its member sector.
    pub sector: u64,
    /// The blocks that were being written. If one of their members is missing or not in sync there,
    /// the parity is not changed.
    pub touched: Vec<MemberAddress>,
    /// The offset in the entry's partial parity; `None` if the stripe was written in full.
    pub parity_at: Option<usize>,
}

/// The parity blocks that an entry covers, in an array whose members use `used` sectors.
///
/// # Errors
/// The entry has sizes or places that no write has.
pub fn decode(
    entry: &PplEntry,
    layout: &Layout,
    used: u64,
) -> Result<Vec<ParityBlock>, MetadataError> {
    let Extent { strip, last } = extent(entry, layout)?;
    let first = entry.data_sector;
    let chunk = layout.chunk_sectors();
    if layout.array_sectors(used).is_none_or(|end| last > end) {
        return Err(invalid(format!(
            "a PPL entry ends with array sector {last}, beyond the array's end"
        )));
    }
    let row = first / layout.row_sectors();
    let p = layout.row(row).p;
    let one_chunk = first % chunk + strip <= chunk;
    if p != Role(entry.parity_disk) || (last - 1) / layout.row_sectors() != row || !one_chunk {
        return Err(invalid(format!(
            "a PPL entry from array sector {first} to {last} with parity on member {}, expected \
             part of a row with parity on member {p}",
            entry.parity_disk
        )));
    }
    let block = |offset: u64| {
        let touched = (first + offset..last).step_by(chunk as usize);
        let touched: Vec<MemberAddress> = touched.map(|sector| layout.map_sector(sector)).collect();
        let parity_at = (entry.pp_size > 0).then_some(offset as usize * 512);
        ParityBlock {
            role: p,
            sector: layout.map_sector(first + offset).sector,
            touched,
            parity_at,
        }
    };
    Ok((0..strip).step_by(STRIPE_SECTORS as usize).map(block).collect())
}

/// The extent of an entry on the members.
struct Extent {
    /// Sectors on each member.
    strip: u64,
    /// The end of the written array sectors.
    last: u64,
}

fn extent(entry: &PplEntry, layout: &Layout) -> Result<Extent, MetadataError> {
    let PplEntry { data_sector: first, pp_size, data_size, .. } = *entry;
    let wrong = || {
        invalid(format!(
            "a PPL entry of {data_size} bytes with {pp_size} bytes of partial parity at array \
             sector {first}, expected whole stripes of one row of a RAID-5"
        ))
    };
    let whole = |bytes: u32| bytes.is_multiple_of(STRIPE_BYTES);
    if layout.level() != Level::Raid5
        || !whole(pp_size)
        || !whole(data_size)
        || data_size == 0
        || first % STRIPE_SECTORS != 0
    {
        return Err(wrong());
    }
    let (chunk, data_disks) = (layout.chunk_sectors(), u64::from(layout.data_disks()));
    let (pp, data) = (u64::from(pp_size) / 512, u64::from(data_size) / 512);
    let (strip, span) = match pp {
        0 => (data / data_disks, (data_disks - 1) * chunk + data / data_disks),
        _ if pp < chunk => (pp, (data / pp).saturating_sub(1) * chunk + pp),
        _ => (chunk, data),
    };
    let even = data.is_multiple_of(strip) && strip % STRIPE_SECTORS == 0;
    let last = first.checked_add(span).filter(|_| strip > 0 && data >= strip && even);
    last.map(|last| Extent { strip, last }).ok_or_else(wrong)
}

/// A write to a stripe, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StripeWrite {
    /// Its member sector, a multiple of [`STRIPE_SECTORS`].
    pub sector: u64,
    /// The data slots that are written: consecutive, at least one. If they are all slots, the
    /// stripe is written in full.
    pub slots: Range<u32>,
}

/// Builds a log: a header, and the order of the partial parities behind it.
///
/// Invariants: the stripes of an entry are adjacent in one row and write the same slots; the log
/// stays within [`ENTRIES_MAX`] and [`PARITY_BYTES_MAX`].
#[derive(Debug)]
pub struct PplBuilder {
    layout: Layout,
    header: PplHeader,
    parity_bytes: u32,
    /// The stripe that was added last.
    last: Option<StripeWrite>,
    digest: Digest,
}

impl PplBuilder {
    /// An empty log.
    pub fn new(layout: Layout, signature: u32, generation: u64) -> Self {
        PplBuilder {
            layout,
            header: PplHeader::empty(signature, generation),
            parity_bytes: 0,
            last: None,
            digest: Digest::new(CrcAlgorithm::Crc32Iscsi),
        }
    }

    /// Begins a new log with generation `generation`, and reuses the memory of the previous one.
    pub fn restart(&mut self, generation: u64) {
        self.header.generation = generation;
        self.header.entries.clear();
        (self.parity_bytes, self.last) = (0, None);
    }

    /// Adds a stripe. False if the log has no room; the log is unchanged then. All stripes of a log
    /// have their parity on the same member. `partial` is the stripe's partial parity of 4 KiB,
    /// which goes behind those added before; for a full stripe it is empty.
    ///
    /// # Panics
    /// On slots that the array does not have, and on a partial parity of another length.
    pub fn add(&mut self, stripe: StripeWrite, partial: &[u8]) -> bool {
        let data_disks = self.layout.data_disks();
        assert!(stripe.slots.start < stripe.slots.end && stripe.slots.end <= data_disks);
        let full = stripe.slots.len() as u32 == data_disks;
        let pp_size = if full { 0 } else { STRIPE_BYTES };
        assert_eq!(partial.len(), pp_size as usize, "bytes of partial parity");
        let follows = self.last.as_ref().is_some_and(|last| self.follows(last, &stripe));
        let entries = self.header.entries.len() + usize::from(!follows);
        if entries > ENTRIES_MAX || self.parity_bytes + pp_size > PARITY_BYTES_MAX {
            return false;
        }
        if !follows {
            self.begin(&stripe);
        }
        self.digest.update(partial);
        self.parity_bytes += pp_size;
        let checksum = self.digest.finalize() as u32;
        let entry = self.header.entries.last_mut().expect("begun above or before");
        entry.pp_size += pp_size;
        entry.data_size += stripe.slots.len() as u32 * STRIPE_BYTES;
        entry.checksum = checksum;
        self.last = Some(stripe);
        true
    }

    fn follows(&self, last: &StripeWrite, stripe: &StripeWrite) -> bool {
        let chunk = self.layout.chunk_sectors();
        last.slots == stripe.slots
            && last.sector + STRIPE_SECTORS == stripe.sector
            && last.sector / chunk == stripe.sector / chunk
    }

    fn begin(&mut self, stripe: &StripeWrite) {
        self.digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        self.header.entries.push(PplEntry {
            data_sector: self.layout.array_sector(stripe.slots.start, stripe.sector),
            pp_size: 0,
            data_size: 0,
            parity_disk: self.layout.row_at(stripe.sector).p.0,
            checksum: 0,
        });
    }

    /// True if no stripe was added.
    pub fn is_empty(&self) -> bool {
        self.header.entries.is_empty()
    }

    /// Bytes of partial parity so far.
    pub fn parity_bytes(&self) -> u32 {
        self.parity_bytes
    }

    /// The header of the log so far.
    pub fn header(&self) -> &PplHeader {
        &self.header
    }

    /// The header.
    pub fn finish(self) -> PplHeader {
        self.header
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::put;
    use super::*;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::new(Level::Raid5, 2, 4, 128).unwrap()
    }

    const USED: u64 = 12288;

    #[test]
    fn signature_and_checksums_are_those_of_linux() {
        let uuid = Uuid::parse("0a0b0c0d:11223344:55667788:0000002a").unwrap();
        assert_eq!(signature(uuid), 0xAB68_9AA8);
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    /// The checksum of a header without its zeroes is that of all of its bytes.
    #[test]
    fn the_zeroes_of_a_header_count() {
        for count in 0..=ENTRIES_MAX {
            let entry = PplEntry {
                data_sector: 0x0123_4567_89AB_CDEF * count as u64,
                pp_size: 4096,
                data_size: 8192,
                parity_disk: 3,
                checksum: 0x9E37_79B9,
            };
            let header =
                PplHeader { signature: 7, generation: count as u64, entries: vec![entry; count] };
            let bytes = header.to_bytes();
            assert_eq!(u32_at(&bytes, CHECKSUM_AT), header_checksum(&bytes), "{count} entries");
            assert_eq!(PplHeader::parse(&bytes, 7).unwrap(), header);
        }
    }

    #[test]
    fn three_shapes_of_entries() {
        let entry = |data_sector, pp, data, parity_disk| PplEntry {
            data_sector,
            pp_size: pp,
            data_size: data,
            parity_disk,
            checksum: 0,
        };
        // Two members, part of a chunk: row 62 holds chunks 186 to 188.
        let blocks = decode(&entry(24008, 28672, 57344, 1), &layout(), USED).unwrap();
        assert_eq!(blocks.len(), 7);
        assert_eq!((blocks[0].role, blocks[0].sector), (Role(1), 62 * 128 + 72));
        assert_eq!(blocks[0].touched.iter().map(|t| t.slot).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((blocks[0].parity_at, blocks[6].parity_at), (Some(0), Some(6 * 4096)));
        // Whole chunks.
        let blocks = decode(&entry(128, 65536, 131072, 3), &layout(), USED).unwrap();
        assert_eq!((blocks.len(), blocks[15].touched.len()), (16, 2));
        // A full stripe.
        let blocks = decode(&entry(8, 0, 12288, 3), &layout(), USED).unwrap();
        assert_eq!((blocks.len(), blocks[0].touched.len(), blocks[0].parity_at), (1, 3, None));
    }

    #[test]
    fn entries_that_no_write_has_are_refused() {
        let good = PplEntry {
            data_sector: 128,
            pp_size: 4096,
            data_size: 8192,
            parity_disk: 3,
            checksum: 0,
        };
        assert!(decode(&good, &layout(), USED).is_ok());
        for bad in [
            PplEntry { parity_disk: 2, ..good },
            PplEntry { data_sector: 3, ..good },
            PplEntry { data_sector: u64::MAX - 7, ..good },
            PplEntry { data_sector: USED * 3 - 8, ..good },
            PplEntry { data_size: 0, ..good },
            PplEntry { data_size: 12288 * 2, ..good },
            PplEntry { data_size: 100, ..good },
            PplEntry { pp_size: 8192, data_size: 4096, ..good },
            PplEntry { pp_size: 0, data_size: 8192, ..good },
            PplEntry { data_sector: 248, pp_size: 8192, data_size: 8192, ..good },
        ] {
            let error = decode(&bad, &layout(), USED).unwrap_err();
            assert!(error.message().contains("a PPL entry"), "{bad:?}");
        }
        let six = Layout::new(Level::Raid6, 2, 5, 128).unwrap();
        assert!(decode(&good, &six, USED).is_err());
    }

    #[test]
    fn damaged_headers_end_the_walk() {
        let headers = [(4u64, 4096u32), (5, 0), (3, 0)].map(|(generation, pp_size)| {
            let mut header = PplHeader::empty(9, generation);
            header.entries.push(PplEntry {
                data_sector: 0,
                pp_size,
                data_size: 4096,
                parity_disk: 3,
                checksum: 0,
            });
            header.to_bytes()
        });
        let mut area = vec![0; 2048 * 512];
        put(&mut area, 0, &headers[0]);
        put(&mut area, 8192, &headers[1]);
        put(&mut area, 12288, &headers[2]);
        let newest = |area: &[u8]| {
            newest(2048, 9, |at| Ok::<_, ()>(area[at as usize * 512..][..4096].to_vec())).unwrap()
        };
        let (at, header) = newest(&area).unwrap();
        assert_eq!((at, header.generation), (16, 5));
        assert_eq!(header.entries_at(at).map(|(at, _)| at).collect::<Vec<_>>(), [24]);
        area[8192 + 600] ^= 1;
        assert_eq!(newest(&area).unwrap().0, 0);
        area[0] ^= 1;
        assert_eq!(newest(&area), None);
        let error = PplHeader::parse(&area[..4096], 9).unwrap_err();
        assert!(error.message().contains("checksum"), "{error}");
    }

    #[test]
    fn a_log_has_an_end() {
        let mut builder = PplBuilder::new(layout(), 0, 0);
        let stripe = |sector| StripeWrite { sector, slots: 0..1 };
        // Other rows of four have their parity on other members; the builder does not check that.
        let added = (0..200).take_while(|n| builder.add(stripe(n * 512), &[0; 4096])).count();
        assert_eq!((added, builder.parity_bytes()), (32, PARITY_BYTES_MAX));
        let mut builder = PplBuilder::new(layout(), 0, 0);
        let full = |sector| StripeWrite { sector, slots: 0..3 };
        assert_eq!((0..200).take_while(|n| builder.add(full(n * 512), &[])).count(), ENTRIES_MAX);
        assert_eq!(PplHeader::parse(&builder.finish().to_bytes(), 0).unwrap().entries.len(), 148);
    }

    proptest! {
        /// A built log decodes to the stripes that were added.
        #[test]
        fn built_entries_decode_to_their_stripes(
            stripes in prop::collection::vec((0u64..24, 0u64..16, 0u32..3, 1u32..4), 1..20),
            runs in 1u64..5,
        ) {
            let layout = layout();
            let mut builder = PplBuilder::new(layout, 7, 1);
            let (mut wanted, mut parity) = (Vec::new(), Vec::new());
            for (row, offset, start, count) in stripes {
                let slots = start..(start + count).min(3);
                for run in 0..runs {
                    // Rows whose parity is on member 3.
                    let sector = row * 4 * 128 + (offset + run) % 16 * 8;
                    let pp = vec![sector as u8; if slots.len() == 3 { 0 } else { 4096 }];
                    prop_assume!(builder.add(StripeWrite { sector, slots: slots.clone() }, &pp));
                    parity.extend_from_slice(&pp);
                    wanted.push((sector, slots.clone()));
                }
            }
            let header = PplHeader::parse(&builder.finish().to_bytes(), 7).unwrap();
            let (mut found, mut at) = (Vec::new(), 0);
            for entry in &header.entries {
                let own = &parity[at..at + entry.pp_size as usize];
                prop_assert_eq!(crc32c(own), entry.checksum);
                at += own.len();
                for block in decode(entry, &layout, USED).unwrap() {
                    prop_assert_eq!(block.role, Role(3));
                    let slots = block.touched[0].slot..block.touched.last().unwrap().slot + 1;
                    if let Some(at) = block.parity_at {
                        prop_assert_eq!(own[at], block.sector as u8);
                    }
                    found.push((block.sector, slots));
                }
            }
            prop_assert_eq!(found, wanted);
        }
    }
}
