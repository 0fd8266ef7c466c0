//! Parses the requests of a queue.
//!
//! Invariants:
//! * A command that is not refused lies within the device.
//! * After `new` nothing is allocated: `segments` has room for all pieces that a chain can have.

use super::super::memory::{Piece, within};
use super::super::proto::Features;
use super::super::ring::{Chain, RingError};
use super::header::{HEADER_BYTES, Header};
use super::limits::BlkLimits;
use super::ranges::{Ranges, Rules};
use super::reply::{BlkReply, BlkStatus};
use super::request::{BlkCommand, BlkRequest, ID_BYTES};
use drystone_core::Sector;
use drystone_core::buf::Segment;

/// The types of requests (`VIRTIO_BLK_T_*`).
const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

/// Parses the requests of one queue. Belongs to the queue's thread.
#[derive(Debug)]
pub struct BlkParser {
    limits: BlkLimits,
    segments: Vec<Segment>,
    ranges: Ranges,
}

impl BlkParser {
    /// A parser for a device with these limits, and chains of at most `pieces_max` pieces
    /// ([`SplitRing::pieces_max`](super::super::ring::SplitRing::pieces_max)).
    pub fn new(limits: BlkLimits, pieces_max: usize) -> Self {
        let (segments, ranges) = (Vec::with_capacity(pieces_max), Ranges::new(&limits));
        Self { limits, segments, ranges }
    }

    /// The size of the device changed.
    pub fn set_capacity(&mut self, sectors: u64) {
        self.limits.set_capacity(sectors);
    }

    /// Parses the request in a chain.
    ///
    /// # Errors
    /// [`RingError::NoStatus`] when it cannot be answered: the caller then breaks its ring by
    /// [`SplitRing::refuse`](super::super::ring::SplitRing::refuse).
    #[inline]
    pub fn parse(&mut self, chain: &Chain<'_>) -> Result<BlkRequest<'_>, RingError> {
        let before = chain.writable_bytes().checked_sub(1).ok_or(RingError::NoStatus)?;
        let status = last_byte(chain.writable()).ok_or(RingError::NoStatus)?;
        let command = self.command(chain).unwrap_or_else(BlkCommand::End);
        let data = match command {
            BlkCommand::Read { .. } => before,
            BlkCommand::GetId => before.min(ID_BYTES as u32),
            _ => 0,
        };
        Ok(BlkRequest { reply: BlkReply::new(chain, status, before, data), command })
    }

    #[inline]
    fn command(&mut self, chain: &Chain<'_>) -> Result<BlkCommand<'_>, BlkStatus> {
        let header = Header::load(chain).ok_or(BlkStatus::IoError)?;
        let sector = header.sector();
        match header.kind() {
            IN => self.read(chain, sector),
            OUT => self.write(chain, sector),
            FLUSH => Ok(BlkCommand::Flush),
            GET_ID => Ok(BlkCommand::GetId),
            DISCARD if self.limits.has(Features::DISCARD) => self.discard(chain),
            WRITE_ZEROES if self.limits.has(Features::WRITE_ZEROES) => self.write_zeroes(chain),
            _ => Err(BlkStatus::Unsupported),
        }
    }

    #[inline]
    fn read(&mut self, chain: &Chain<'_>, sector: u64) -> Result<BlkCommand<'_>, BlkStatus> {
        let bytes = u64::from(chain.writable_bytes()) - 1;
        self.fill_segments(chain, sector, within(chain.writable(), 0..bytes), bytes)?;
        if bytes == 0 {
            return Ok(BlkCommand::End(BlkStatus::Ok));
        }
        Ok(BlkCommand::Read { sector: Sector(sector), segments: &self.segments })
    }

    #[inline]
    fn write(&mut self, chain: &Chain<'_>, sector: u64) -> Result<BlkCommand<'_>, BlkStatus> {
        self.check_writable()?;
        let (start, end) = (u64::from(HEADER_BYTES), u64::from(chain.readable_bytes()));
        self.fill_segments(chain, sector, within(chain.readable(), start..end), end - start)?;
        if end == start {
            return Ok(BlkCommand::End(BlkStatus::Ok));
        }
        Ok(BlkCommand::Write { sector: Sector(sector), segments: &self.segments })
    }

    /// Puts the memory of data into `segments`: there may be more than the driver was told
    /// (`seg_max`), since some drivers send more. The ring bounds them, and a bio is split below.
    #[inline]
    fn fill_segments(
        &mut self,
        chain: &Chain<'_>,
        sector: u64,
        pieces: impl Iterator<Item = Piece>,
        bytes: u64,
    ) -> Result<(), BlkStatus> {
        if !self.limits.has_blocks(sector, bytes) {
            return Err(BlkStatus::IoError);
        }
        self.segments.clear();
        self.segments.extend(pieces.map(|piece| chain.memory().segment(piece)));
        Ok(())
    }

    fn discard(&mut self, chain: &Chain<'_>) -> Result<BlkCommand<'_>, BlkStatus> {
        self.check_writable()?;
        let rules = Rules::of_discard(&self.limits);
        Ok(match self.ranges.parse(chain, &self.limits, rules)? {
            [] => BlkCommand::End(BlkStatus::Ok),
            ranges => BlkCommand::Discard { ranges },
        })
    }

    fn write_zeroes(&mut self, chain: &Chain<'_>) -> Result<BlkCommand<'_>, BlkStatus> {
        self.check_writable()?;
        let rules = Rules::of_write_zeroes(&self.limits);
        Ok(match self.ranges.parse(chain, &self.limits, rules)? {
            [] => BlkCommand::End(BlkStatus::Ok),
            ranges => BlkCommand::WriteZeroes { ranges },
        })
    }

    /// Fails if the device is read-only.
    fn check_writable(&self) -> Result<(), BlkStatus> {
        match self.limits.is_read_only() {
            true => Err(BlkStatus::IoError),
            false => Ok(()),
        }
    }
}

/// The last byte of pieces, none of which is empty.
#[inline]
fn last_byte(pieces: &[Piece]) -> Option<Piece> {
    let last = pieces.last()?;
    Some(last.part_of(last.bytes() - 1..last.bytes()))
}
