//! A chain of descriptors: which memory a request has (virtio 1.3, sections 2.7.4 and 2.7.5).
//!
//! Invariants:
//! * Each descriptor is copied once, checked, and then used.
//! * A walk ends after as many descriptors as its table has, and after [`DESCRIPTORS_MAX`] in all.
//! * Pieces that the device reads come before those that it writes.
//! * `pieces` never grows beyond its first capacity, and `table` not at all.

use super::super::memory::{Area, GuestMemory, Piece};
use super::super::proto::GuestAddress;
use super::error::RingError;
use super::setup::DESCRIPTORS_MAX;
use std::sync::Arc;

/// Room for pieces beyond one for each descriptor: a descriptor whose memory crosses from one
/// region into the next has more than one.
const CROSSINGS_MAX: usize = 64;
/// Bytes of a descriptor.
pub(super) const DESCRIPTOR_BYTES: usize = 16;

/// The flags of a descriptor; others are ignored, as the standard asks.
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// A chain that was taken: the memory of one request.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'r> {
    head: u16,
    memory: &'r Arc<GuestMemory>,
    walk: &'r Walk,
}

impl<'r> Chain<'r> {
    pub(super) fn new(head: u16, memory: &'r Arc<GuestMemory>, walk: &'r Walk) -> Self {
        Self { head, memory, walk }
    }

    /// The number of its first descriptor, by which it is given back.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// The map that its pieces belong to. What outlives the chain keeps the map beside its pieces.
    pub fn memory(&self) -> &'r Arc<GuestMemory> {
        self.memory
    }

    /// The pieces that the device reads, in order.
    pub fn readable(&self) -> &'r [Piece] {
        &self.walk.pieces[..self.walk.readable]
    }

    /// The pieces that the device writes, in order.
    pub fn writable(&self) -> &'r [Piece] {
        &self.walk.pieces[self.walk.readable..]
    }

    /// Bytes that the device reads.
    pub fn readable_bytes(&self) -> u32 {
        self.walk.readable_bytes
    }

    /// Bytes that the device writes.
    pub fn writable_bytes(&self) -> u32 {
        self.walk.writable_bytes
    }

    /// How many descriptors were read for it, all those of its table counted: at least one, and
    /// at most [`DESCRIPTORS_MAX`]. A server adds them and the pieces up to end a round that would
    /// last too long: one descriptor may have as many pieces as there are regions.
    pub fn descriptors(&self) -> u32 {
        self.walk.descriptors
    }
}

/// A descriptor as it was copied.
#[derive(Clone, Copy)]
struct Descriptor {
    address: GuestAddress,
    bytes: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn parse(bytes: &[u8; DESCRIPTOR_BYTES]) -> Self {
        let word = u128::from_le_bytes(*bytes);
        Self {
            address: GuestAddress(word as u64),
            bytes: (word >> 64) as u32,
            flags: (word >> 96) as u16,
            next: (word >> 112) as u16,
        }
    }

    /// Number `index` of the ring's table.
    #[inline]
    fn load(table: &Area, index: u16) -> Self {
        let mut bytes = [0; DESCRIPTOR_BYTES];
        table.read(usize::from(index) * DESCRIPTOR_BYTES, &mut bytes);
        Self::parse(&bytes)
    }

    fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// The number of the next one, in a table of `entries`; `None` for the last.
    #[inline]
    fn next(&self, entries: u16) -> Result<Option<u16>, RingError> {
        let next = self.next;
        match self.has(NEXT) {
            true if next >= entries => Err(RingError::NextOutside { next, entries }),
            true => Ok(Some(next)),
            false => Ok(None),
        }
    }
}

/// Walks along chains, and keeps what it found on the last walk.
#[derive(Debug)]
pub(super) struct Walk {
    pieces: Vec<Piece>,
    /// How many of the pieces are read.
    readable: usize,
    readable_bytes: u32,
    writable_bytes: u32,
    /// Descriptors that were read: those of the ring, without one that names a table, and all of
    /// that table.
    descriptors: u32,
    /// A copy of an indirect table; empty if there are none.
    table: Box<[[u8; DESCRIPTOR_BYTES]]>,
}

impl Walk {
    /// Room for the chains of a ring of `size` entries.
    pub(super) fn new(size: u16, has_tables: bool) -> Self {
        let most = DESCRIPTORS_MAX as usize;
        let entries = if has_tables { most } else { 0 };
        let descriptors_max = most.min(usize::from(size) + entries);
        let pieces = Vec::with_capacity(descriptors_max + CROSSINGS_MAX);
        let table = vec![[0; DESCRIPTOR_BYTES]; entries].into();
        let (readable, readable_bytes, writable_bytes, descriptors) = (0, 0, 0, 0);
        Self { pieces, readable, readable_bytes, writable_bytes, descriptors, table }
    }

    /// The most pieces that a chain can have.
    pub(super) fn pieces_max(&self) -> usize {
        self.pieces.capacity()
    }

    fn clear(&mut self) {
        self.pieces.clear();
        (self.readable, self.readable_bytes) = (0, 0);
        (self.writable_bytes, self.descriptors) = (0, 0);
    }

    /// Walks along the chain that begins at `head`, which the ring's table of `size` entries has.
    pub(super) fn walk(
        &mut self,
        memory: &GuestMemory,
        (table, size): (&Area, u16),
        head: u16,
    ) -> Result<(), RingError> {
        self.clear();
        let mut index = head;
        for _ in 0..size {
            let descriptor = Descriptor::load(table, index);
            if descriptor.has(INDIRECT) {
                return self.walk_table(memory, &descriptor);
            }
            self.count(1)?;
            self.push(memory, &descriptor)?;
            match descriptor.next(size)? {
                Some(next) => index = next,
                None => return Ok(()),
            }
        }
        Err(RingError::Loop(size))
    }

    /// Walks along the chain in an indirect table, which begins with its first entry.
    fn walk_table(&mut self, memory: &GuestMemory, named: &Descriptor) -> Result<(), RingError> {
        let entries = self.copy_table(memory, named)?;
        let mut index = 0;
        for _ in 0..entries {
            let descriptor = Descriptor::parse(&self.table[usize::from(index)]);
            if descriptor.has(INDIRECT) {
                return Err(RingError::IndirectInIndirect);
            }
            self.push(memory, &descriptor)?;
            match descriptor.next(entries)? {
                Some(next) => index = next,
                None => return Ok(()),
            }
        }
        Err(RingError::Loop(entries))
    }

    /// Counts descriptors that are read.
    #[inline]
    fn count(&mut self, more: u32) -> Result<(), RingError> {
        self.descriptors += more;
        match self.descriptors <= DESCRIPTORS_MAX {
            true => Ok(()),
            false => Err(RingError::TooManyDescriptors),
        }
    }

    /// Copies an indirect table; returns the number of its entries.
    fn copy_table(&mut self, memory: &GuestMemory, named: &Descriptor) -> Result<u16, RingError> {
        let bytes = named.bytes;
        if self.table.is_empty() {
            return Err(RingError::IndirectNotNegotiated);
        }
        if named.has(NEXT) {
            return Err(RingError::IndirectNext);
        }
        let entries = bytes / DESCRIPTOR_BYTES as u32;
        let is_whole = bytes.is_multiple_of(DESCRIPTOR_BYTES as u32);
        if !is_whole || !(1..=DESCRIPTORS_MAX).contains(&entries) {
            return Err(RingError::TableLength(bytes));
        }
        self.count(entries)?;
        let copy = self.table[..entries as usize].as_flattened_mut();
        memory.copy_from_guest(named.address, copy)?;
        Ok(entries as u16)
    }

    /// Adds the memory of a descriptor.
    #[inline]
    fn push(&mut self, memory: &GuestMemory, descriptor: &Descriptor) -> Result<(), RingError> {
        let total = self.readable_bytes.checked_add(self.writable_bytes);
        let total = total.and_then(|total| total.checked_add(descriptor.bytes));
        total.ok_or(RingError::TooManyBytes)?;
        let before = self.pieces.len();
        self.push_pieces(memory, descriptor)?;
        let added = self.pieces.len() - before;
        if descriptor.has(WRITE) {
            self.writable_bytes += descriptor.bytes;
        } else if before > self.readable {
            return Err(RingError::ReadAfterWrite);
        } else {
            self.readable_bytes += descriptor.bytes;
            self.readable += added;
        }
        Ok(())
    }

    #[inline]
    fn push_pieces(
        &mut self,
        memory: &GuestMemory,
        descriptor: &Descriptor,
    ) -> Result<(), RingError> {
        let (pieces, mut fits) = (&mut self.pieces, true);
        memory.find(descriptor.address, descriptor.bytes, |piece| {
            fits &= pieces.len() < pieces.capacity();
            if fits {
                pieces.push(piece);
            }
        })?;
        match fits {
            true => Ok(()),
            false => Err(RingError::TooManyPieces(self.pieces.capacity())),
        }
    }
}
