//! Messages about memory: the table of regions.

use super::super::proto::{MappedRegion, Region, Request};
use super::Session;
use super::action::Action;
use super::refusal::Refusal;
use super::region_table::RegionTable;
use super::served::{Pending, Served};

impl<F> Session<F> {
    pub(super) fn set_regions(&self, regions: Vec<MappedRegion<F>>) -> Result<Served<F>, Refusal> {
        let table =
            RegionTable::of(Request::SetMemTable, regions.iter().map(|mapped| mapped.region))?;
        Ok(Served::Act(Action::ReplaceMemory(regions), Pending::Regions(table)))
    }

    pub(super) fn add_region(&self, mapped: MappedRegion<F>) -> Result<Served<F>, Refusal> {
        let table = self.regions.with(Request::AddMemReg, mapped.region)?;
        Ok(Served::Act(Action::AddRegion(mapped), Pending::Regions(table)))
    }

    pub(super) fn remove_region(&self, named: &Region) -> Result<Served<F>, Refusal> {
        let (table, region) = self.regions.without(named)?;
        Ok(Served::Act(Action::RemoveRegion(region), Pending::Regions(table)))
    }
}
