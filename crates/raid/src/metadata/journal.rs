//! The journal of an array on a device of its own (`drivers/md/raid5-cache.c`,
//! `Documentation/driver-api/md/raid5-cache.rst`). This module finds the members' blocks in it.
//!
//! ```text
//! data area, a ring: | meta block 4 KiB | block | block | ... | meta block | block | ... |
//! meta block:        | magic, checksum, version, size, sequence, position | payload | ...
//! ```
//!
//! A meta block names the blocks behind it: data by its array sector, parity by its member sector.
//! A flush payload says that the members have a stripe. The superblock of the journal
//! (`recovery_offset`) says where a replay begins. The replay goes on while sequence numbers rise
//! by one and checksums are right. Linux calls an array with a journal clean even while it is
//! written, so only the journal tells whether the members lack anything.

use super::ppl::crc32c;
use super::superblock::{DevRole, Superblock};
use super::{MetadataError, Uuid, at, invalid, u16_at, u32_at, u64_at};
use crate::ids::Role;
use crate::layout::{Layout, STRIPE_SECTORS};
use std::collections::BTreeMap;
use std::fmt;

/// First four bytes of a meta block.
const MAGIC: u32 = 0x6433_C509;
const VERSION: u8 = 1;
/// Bytes of a meta block, and of each block behind it.
pub const BLOCK_BYTES: usize = 4096;
const BLOCK_SECTORS: u64 = 8;
/// Bytes of a meta block before its payloads.
const META_HEADER_BYTES: usize = 32;
/// The most blocks of members that are noted: 4 GiB.
const BLOCKS_MAX: usize = 1 << 20;

/// The blocks of a stripe that the journal holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Logged {
    /// By role: the checksum of the newest block.
    pub checksums: BTreeMap<Role, u32>,
    /// Parity was logged with the newest data: the stripe's blocks were on their way to the
    /// members.
    pub has_parity: bool,
}

/// The blocks that a replay of the journal would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Journal {
    uuid: Uuid,
    stripes: BTreeMap<u64, Logged>,
}

impl Journal {
    /// Stripes by the member sector at which they begin, in order.
    pub fn stripes(&self) -> impl Iterator<Item = (u64, &Logged)> {
        self.stripes.iter().map(|(sector, logged)| (*sector, logged))
    }

    /// The checksum that a logged block with these bytes has.
    pub fn checksum(&self, bytes: &[u8]) -> u32 {
        checksum(self.uuid, bytes)
    }

    fn note(&mut self, block: &Named, role: Role, sector: u64) {
        let stripe = self.stripes.entry(sector & !(STRIPE_SECTORS - 1)).or_default();
        stripe.checksums.insert(role, block.checksum);
        stripe.has_parity = block.kind != Kind::Data;
    }
}

/// CRC-32C, seeded with the checksum of the UUID, without the final inversion.
fn checksum(uuid: Uuid, bytes: &[u8]) -> u32 {
    !crc32c(&[&uuid.0, bytes].concat())
}

/// The kind of a block behind a meta block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Data,
    P,
    Q,
}

/// A block that a payload names.
#[derive(Clone, Copy, Debug)]
struct Named {
    kind: Kind,
    /// For data an array sector, for parity a member sector.
    location: u64,
    checksum: u32,
}

impl Named {
    /// Role and member sector.
    fn member_address(&self, layout: &Layout) -> (Role, u64) {
        let row = || layout.row_at(self.location);
        match self.kind {
            Kind::Data => {
                let address = layout.map_sector(self.location);
                (address.role, address.sector)
            }
            Kind::P => (row().p, self.location),
            Kind::Q => (row().q.unwrap_or_else(|| row().p), self.location),
        }
    }
}

/// A meta block.
#[derive(Debug, Default)]
struct Meta {
    sequence: u64,
    /// In the order in which they lie behind the meta block.
    blocks: Vec<Named>,
    /// Member sectors of stripes that the members have.
    flushed: Vec<u64>,
}

/// As [`read`], if the superblock says that its device is a journal.
pub fn of<E: fmt::Display>(
    own: &Superblock,
    read_at: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Option<Result<Journal, MetadataError>> {
    (own.role() == DevRole::Journal).then(|| read(own, read_at))
}

/// Reads the journal on a superblock's device. `read` returns a number of bytes from a sector of
/// the device on.
///
/// # Errors
/// The journal cannot be read, has no meta block where the superblock says that it begins, or holds
/// too many blocks.
pub fn read<E: fmt::Display>(
    own: &Superblock,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<Journal, MetadataError> {
    let (layout, ring) = (own.geometry()?, own.data_size & !(BLOCK_SECTORS - 1));
    let is_place = own.recovery_offset < ring && own.recovery_offset.is_multiple_of(BLOCK_SECTORS);
    // Linux begins at 0 if the place is impossible.
    let tail = if is_place { own.recovery_offset } else { 0 };
    let mut block_at = |position: u64| {
        read(own.data_offset + position % ring, BLOCK_BYTES)
            .map_err(|error| invalid(format!("the journal cannot be read: {error}")))
    };
    let mut journal = Journal { uuid: own.set_uuid, stripes: BTreeMap::new() };
    let (mut position, end, mut next, mut noted) = (tail, tail + ring, None, 0);
    while position < end {
        let Some(meta) = parse(&block_at(position)?, own.set_uuid, position % ring, next) else {
            break;
        };
        position += BLOCK_SECTORS;
        for block in &meta.blocks {
            if checksum(own.set_uuid, &block_at(position)?) != block.checksum {
                // The block was being written at the crash, so its write was never acknowledged.
                return Ok(journal);
            }
            position += BLOCK_SECTORS;
        }
        noted += meta.blocks.len();
        if noted > BLOCKS_MAX {
            return Err(invalid(format!("the journal holds more than {BLOCKS_MAX} blocks")));
        }
        for block in &meta.blocks {
            let (role, sector) = block.member_address(&layout);
            if sector >= own.size {
                return Err(invalid(format!(
                    "the journal has a block for sector {sector} of member {role}, which has {}",
                    own.size
                )));
            }
            journal.note(block, role, sector);
        }
        for sector in &meta.flushed {
            journal.stripes.remove(sector);
        }
        next = Some(meta.sequence.wrapping_add(1));
    }
    match next {
        Some(_) => Ok(journal),
        None => Err(invalid(format!(
            "the journal has no block where its superblock says that it begins, at sector {tail} \
             of its data"
        ))),
    }
}

/// The meta block at a position of the ring, if it is valid and has the next sequence number.
fn parse(bytes: &[u8], uuid: Uuid, position: u64, next: Option<u64>) -> Option<Meta> {
    let (size, sequence) = (u32_at(bytes, 12) as usize, u64_at(bytes, 16));
    let is_meta = bytes.len() == BLOCK_BYTES
        && (u32_at(bytes, 0), at::<1>(bytes, 8)) == (MAGIC, [VERSION])
        && u64_at(bytes, 24) == position
        && next.is_none_or(|next| next == sequence)
        && (META_HEADER_BYTES..=BLOCK_BYTES).contains(&size);
    if !is_meta {
        return None;
    }
    let mut plain = bytes.to_vec();
    plain[4..8].fill(0);
    if checksum(uuid, &plain) != u32_at(bytes, 4) {
        return None;
    }
    let mut meta = Meta { sequence, ..Meta::default() };
    let mut payloads = &bytes[META_HEADER_BYTES..size];
    while !payloads.is_empty() {
        payloads = meta.payload(payloads)?;
    }
    Some(meta)
}

impl Meta {
    /// Takes in the payload at the start of `bytes`, and returns the bytes behind it. `None` if it
    /// is not valid.
    fn payload<'a>(&mut self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        const DATA: u16 = 0;
        const PARITY: u16 = 1;
        const FLUSH: u16 = 2;
        let (kind, size) = (u16_at(bytes, 0), u32_at(bytes, 4) as usize);
        if kind == FLUSH {
            let list = bytes.get(8..8usize.checked_add(size)?)?;
            self.flushed.extend(list.chunks_exact(8).map(|sector| u64_at(sector, 0)));
            return Some(&bytes[8 + size..]);
        }
        let kinds: &[Kind] = match (kind, size) {
            (DATA, 8) => &[Kind::Data],
            (PARITY, 8) => &[Kind::P],
            (PARITY, 16) => &[Kind::P, Kind::Q],
            _ => return None,
        };
        let sums = bytes.get(16..16 + 4 * kinds.len())?;
        let location = u64_at(bytes, 8);
        for (index, kind) in kinds.iter().enumerate() {
            let checksum = u32_at(sums, 4 * index);
            self.blocks.push(Named { kind: *kind, location, checksum });
        }
        Some(&bytes[16 + 4 * kinds.len()..])
    }
}
