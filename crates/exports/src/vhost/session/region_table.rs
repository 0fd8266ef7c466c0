//! The regions of the guest's memory.
//!
//! Invariants:
//! * No two regions share a guest address or a user address.
//! * There are at most [`SLOTS_MAX`] regions.

use super::super::proto::{Region, Request, UserAddress};
use super::offer::SLOTS_MAX;
use super::refusal::{AddressSpace, Refusal};

/// The regions of the guest's memory. A change makes a new table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RegionTable {
    regions: Vec<Region>,
}

impl RegionTable {
    /// A table of these regions.
    pub(super) fn of(
        request: Request,
        regions: impl IntoIterator<Item = Region>,
    ) -> Result<Self, Refusal> {
        let mut table = Self::default();
        for region in regions {
            table.push(request, region)?;
        }
        Ok(table)
    }

    /// The table with one region more.
    pub(super) fn with(&self, request: Request, region: Region) -> Result<Self, Refusal> {
        let mut table = self.clone();
        table.push(request, region)?;
        Ok(table)
    }

    /// The table without a region, and the region as it was added.
    pub(super) fn without(&self, named: &Region) -> Result<(Self, Region), Refusal> {
        let index = self.regions.iter().position(|region| region.is_named_by(named));
        let index = index.ok_or(Refusal::NoSuchRegion(*named))?;
        let mut table = self.clone();
        let region = table.regions.remove(index);
        Ok((table, region))
    }

    /// True if one region has all these bytes.
    pub(super) fn has(&self, start: UserAddress, bytes: u64) -> bool {
        self.regions.iter().any(|region| region.has_user_range(start, bytes))
    }

    fn push(&mut self, request: Request, new: Region) -> Result<(), Refusal> {
        if self.regions.len() == SLOTS_MAX {
            return Err(Refusal::TooManyRegions);
        }
        for old in &self.regions {
            let space = match (new.shares_guest_addresses(old), new.shares_user_addresses(old)) {
                (true, _) => AddressSpace::Guest,
                (_, true) => AddressSpace::User,
                (false, false) => continue,
            };
            return Err(Refusal::RegionsOverlap { request, new, old: *old, space });
        }
        self.regions.push(new);
        Ok(())
    }
}
