//! The guest's memory: its regions in this process, and where an address lies.
//!
//! A map does not change. Another one is made when a region comes or goes, and shares the regions
//! that stay, so that what is in flight keeps the old one. Where an address lies is found once and
//! noted as a [`Piece`]; the bytes are then copied, or handed to a bio as segments.
//!
//! Invariants:
//! * Regions are in the order of their guest addresses, share neither guest nor user addresses, and
//!   are each as long as their memory.
//! * A [`Piece`] that a map gave lies in one of its regions. A map that did not give it panics (for
//!   one of 65536 maps that may be missed, as numbers begin again).
//!
//! What is missing: a handler of SIGBUS, which any mapping of a file can raise ([`HostMemory`]).

#![deny(unsafe_code)]

mod area;
mod error;
mod host;
mod piece;
#[cfg(test)]
mod tests;

use super::proto::{GuestAddress, Region, UserAddress};
use drystone_core::buf::Segment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

pub use area::Area;
pub use error::{AreaError, MapError, Outside};
pub use host::HostMemory;
pub use piece::{Piece, within};

/// The guest's memory as it is mapped at a time. Any thread may use it.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    parts: Vec<Part>,
    /// Another one for each map that is made; clones share it, as their regions are the same.
    number: u16,
}

/// A number for a map.
fn next_number() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A region and its memory.
#[derive(Clone, Debug)]
struct Part {
    region: Region,
    memory: Arc<HostMemory>,
}

impl Part {
    /// The first guest address behind it; 2^64 does not fit.
    fn end(&self) -> u128 {
        u128::from(self.region.guest().0) + u128::from(self.region.bytes())
    }
}

impl GuestMemory {
    /// The map of these regions.
    ///
    /// # Panics
    /// If two share addresses, or one has another length than its memory: the session refuses the
    /// one, and who maps makes sure of the other.
    pub fn new(regions: impl IntoIterator<Item = (Region, Arc<HostMemory>)>) -> Self {
        let part = |(region, memory)| Part { region, memory };
        let mut parts: Vec<Part> = regions.into_iter().map(part).collect();
        parts.sort_by_key(|part| part.region.guest());
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(part.region.bytes(), part.memory.bytes() as u64);
            let mut others = parts[..index].iter();
            assert!(!others.any(|other| part.region.shares_guest_addresses(&other.region)));
            let mut others = parts[..index].iter();
            assert!(!others.any(|other| part.region.shares_user_addresses(&other.region)));
        }
        assert!(parts.len() <= usize::from(u16::MAX));
        Self { parts, number: next_number() }
    }

    /// The map with one region more.
    ///
    /// # Panics
    /// As [`GuestMemory::new`].
    pub fn with(&self, region: Region, memory: Arc<HostMemory>) -> Self {
        let known = self.parts.iter().map(|part| (part.region, part.memory.clone()));
        Self::new(known.chain([(region, memory)]))
    }

    /// The map without a region; one with all regions if none has these addresses.
    pub fn without(&self, named: &Region) -> Self {
        let stays = |part: &&Part| !part.region.is_named_by(named);
        let parts = self.parts.iter().filter(stays).cloned().collect();
        Self { parts, number: next_number() }
    }

    /// The regions with their memory, in the order of guest addresses.
    pub fn regions(&self) -> impl Iterator<Item = (&Region, &Arc<HostMemory>)> {
        self.parts.iter().map(|part| (&part.region, &part.memory))
    }

    /// Finds a range: calls `take` with each piece of it, in order. A range that goes on in the
    /// next region has several; an empty one has none, whatever its address.
    ///
    /// # Errors
    /// When a byte is in no region, or the range passes 2^64. Some pieces were then taken.
    #[inline]
    pub fn find(
        &self,
        address: GuestAddress,
        bytes: u32,
        mut take: impl FnMut(Piece),
    ) -> Result<(), Outside> {
        let outside = Outside { address, bytes: bytes.into() };
        let (mut next, mut left) = (address.0, bytes);
        let mut number = self.first_part(address);
        while left > 0 {
            let part = self.parts.get(number).ok_or(outside)?;
            let before = next.checked_sub(part.region.guest().0).ok_or(outside)?;
            let has = part.region.bytes().checked_sub(before).ok_or(outside)?;
            let piece_bytes = left.min(u32::try_from(has).unwrap_or(u32::MAX));
            take(Piece::new(self.number, number as u16, before as usize, piece_bytes));
            left -= piece_bytes;
            if left > 0 {
                next = next.checked_add(piece_bytes.into()).ok_or(outside)?;
                number += 1;
            }
        }
        Ok(())
    }

    /// The number of the first region that ends behind an address.
    #[inline]
    fn first_part(&self, address: GuestAddress) -> usize {
        self.parts.partition_point(|part| part.end() <= u128::from(address.0))
    }

    /// Copies bytes out of guest memory, each once.
    ///
    /// # Errors
    /// When a byte is in no region; some bytes may then be copied.
    ///
    /// # Panics
    /// If there are 4 GiB or more: a mistake of the caller.
    pub fn copy_from_guest(&self, address: GuestAddress, to: &mut [u8]) -> Result<(), Outside> {
        let mut done = 0;
        self.find(address, length(to), |piece| {
            self.read(piece, &mut to[done..done + piece.bytes() as usize]);
            done += piece.bytes() as usize;
        })
    }

    /// Copies bytes into guest memory.
    ///
    /// # Errors
    /// When a byte is in no region; some bytes may then be copied.
    ///
    /// # Panics
    /// If there are 4 GiB or more: a mistake of the caller.
    pub fn copy_to_guest(&self, address: GuestAddress, from: &[u8]) -> Result<(), Outside> {
        let mut done = 0;
        self.find(address, length(from), |piece| {
            self.write(piece, &from[done..done + piece.bytes() as usize]);
            done += piece.bytes() as usize;
        })
    }

    /// Copies the first bytes of a piece out of guest memory, each once.
    ///
    /// # Panics
    /// If the piece has fewer bytes or is none of this map: a mistake of the caller.
    #[inline]
    pub fn read(&self, piece: Piece, to: &mut [u8]) {
        assert!(to.len() <= piece.bytes() as usize);
        self.memory_of(piece).read(piece.at, to);
    }

    /// Copies bytes to the beginning of a piece.
    ///
    /// # Panics
    /// As [`GuestMemory::read`].
    #[inline]
    pub fn write(&self, piece: Piece, from: &[u8]) {
        assert!(from.len() <= piece.bytes() as usize);
        self.memory_of(piece).write(piece.at, from);
    }

    /// The memory of a piece, for a bio. It is valid as long as this map lives, or another one that
    /// shares its memory.
    ///
    /// # Panics
    /// If the piece is none of this map: a mistake of the caller.
    #[inline]
    pub fn segment(&self, piece: Piece) -> Segment {
        self.memory_of(piece).segment(piece.at, piece.bytes() as usize)
    }

    /// The memory of the region that a piece lies in.
    #[inline]
    fn memory_of(&self, piece: Piece) -> &HostMemory {
        assert_eq!(piece.map, self.number, "a piece of another map");
        &self.parts[usize::from(piece.part)].memory
    }

    /// Fills `to` from pieces, as far as they reach; returns how many bytes that are.
    pub fn gather(&self, pieces: impl IntoIterator<Item = Piece>, to: &mut [u8]) -> usize {
        let mut done = 0;
        for piece in pieces {
            let end = to.len().min(done + piece.bytes() as usize);
            self.read(piece, &mut to[done..end]);
            done = end;
        }
        done
    }

    /// Copies `from` to pieces, as far as they reach; returns how many bytes that are.
    pub fn scatter(&self, pieces: impl IntoIterator<Item = Piece>, from: &[u8]) -> usize {
        let mut done = 0;
        for piece in pieces {
            let end = from.len().min(done + piece.bytes() as usize);
            self.write(piece, &from[done..end]);
            done = end;
        }
        done
    }

    /// The range of a part of a ring, which must lie in one region.
    ///
    /// # Errors
    /// When no region has it, or it lies at no multiple of `align` there.
    pub fn area(&self, address: UserAddress, bytes: u64, align: usize) -> Result<Area, AreaError> {
        let mut parts = self.parts.iter();
        let part = parts.find(|part| part.region.has_user_range(address, bytes));
        let part = part.ok_or(AreaError::Outside { address, bytes })?;
        let start = (address.0 - part.region.user().0) as usize;
        if !part.memory.is_aligned(start, align) {
            return Err(AreaError::Unaligned { address, align });
        }
        Ok(Area::new(part.memory.clone(), start, bytes as usize))
    }
}

/// The length of bytes that are copied.
fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).expect("a copy of less than 4 GiB")
}
