//! A device that may belong to an array, with all its metadata.

use crate::metadata::bitmap::BitmapHeader;
use crate::metadata::journal::{self, Journal};
use crate::metadata::places::Places;
use crate::metadata::superblock::{Minor, Superblock};
use crate::metadata::{MetadataError, SECTOR_BYTES, bad_blocks, ppl};
use std::fmt;

/// A device that may belong to an array.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name in messages.
    pub name: String,
    /// The result of [`crate::metadata::superblock::probe`].
    pub found: Result<(Minor, Superblock), MetadataError>,
    /// The bitmap's header at the place that the superblock names; `None` if it names none.
    pub bitmap: Option<Result<BitmapHeader, MetadataError>>,
    /// The reason why it cannot be used although its superblock is valid: its other metadata is
    /// damaged, or cannot lie where the superblock says.
    pub damage: Option<MetadataError>,
    /// The result of [`ppl::damage`]; if there is one, the contents of its log are not known.
    pub log_damage: Option<MetadataError>,
    /// Sectors of the device.
    pub device_sectors: u64,
    /// The result of [`Candidate::with_journal`]; `None` if the device is not a journal.
    pub journal: Option<Result<Journal, MetadataError>>,
}

impl Candidate {
    /// Reads the metadata of a device of `device_sectors` sectors with the superblock `found`.
    /// `read` returns a number of bytes from a sector on. Does not read a journal: see
    /// [`Candidate::with_journal`].
    pub fn look<E: fmt::Display>(
        name: String,
        device_sectors: u64,
        found: Result<(Minor, Superblock), MetadataError>,
        mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Self {
        let mut candidate = Candidate {
            name,
            found,
            bitmap: None,
            damage: None,
            log_damage: None,
            device_sectors,
            journal: None,
        };
        let Ok((_, own)) = &candidate.found else { return candidate };
        let is_on_device = |sector: &u64| *sector < device_sectors;
        let sector = own
            .bitmap_offset()
            .map(|offset| own.super_offset.checked_add_signed(offset.into()).filter(is_on_device));
        candidate.bitmap = sector.map(|sector| bitmap_header(sector, &mut read));
        let header = candidate.bitmap.as_ref().and_then(|found| found.as_ref().ok());
        match Places::of(own, device_sectors, header) {
            Err(error) => candidate.damage = Some(error),
            Ok(places) => {
                candidate.damage = bad_blocks::read(own, &places, device_sectors, &mut read).err();
                candidate.log_damage = ppl::damage(own, &places, &mut read);
            }
        }
        candidate
    }

    /// Adds the contents of its journal, if it is one. This reads the whole journal, maybe
    /// gigabytes.
    #[must_use]
    pub fn with_journal<E: fmt::Display>(
        mut self,
        read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Self {
        self.journal = superblock(&self).and_then(|(_, own)| journal::of(own, read));
        self
    }
}

fn bitmap_header<E: fmt::Display>(
    sector: Option<u64>,
    mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
) -> Result<BitmapHeader, MetadataError> {
    let nowhere = || MetadataError::Invalid("the bitmap is not on the device".to_owned());
    match read(sector.ok_or_else(nowhere)?, SECTOR_BYTES) {
        Ok(bytes) => BitmapHeader::parse(&bytes),
        Err(error) => Err(MetadataError::Invalid(format!("the bitmap cannot be read: {error}"))),
    }
}

/// Its superblock, if it has one.
pub(super) fn superblock(candidate: &Candidate) -> Option<(Minor, &Superblock)> {
    candidate.found.as_ref().ok().map(|(minor, found)| (*minor, found))
}

/// The events of its superblock.
pub(super) fn events(candidate: &Candidate) -> Option<u64> {
    superblock(candidate).map(|(_, found)| found.events)
}
