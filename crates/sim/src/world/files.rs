//! Simulated backings of the file driver.

use super::ring::disk_descriptor;
use super::{DiskId, World};
use drystone_drivers::file::Backing;
use std::io;
use std::os::fd::RawFd;

impl World {
    /// The backing of the file driver for a disk.
    pub fn backing(&self, disk: DiskId) -> Box<dyn Backing> {
        Box::new(SimFile { world: self.clone(), disk })
    }
}

struct SimFile {
    world: World,
    disk: DiskId,
}

impl Backing for SimFile {
    fn descriptor(&self) -> RawFd {
        disk_descriptor(self.disk)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.world.disk(self.disk, |disk| disk.size()))
    }

    fn extend(&self, bytes: u64) -> io::Result<()> {
        self.world.disk(self.disk, |disk| disk.grow(bytes));
        Ok(())
    }

    /// A simulated flush that loses data always fails, so no loss stays unreported.
    fn reopened(&self) -> Option<Box<dyn Backing>> {
        Some(self.world.backing(self.disk))
    }

    fn next_data(&self, from: u64, end: u64) -> io::Result<u64> {
        Ok(self.world.disk(self.disk, |disk| disk.next_data(from, end)))
    }

    fn next_hole(&self, from: u64, end: u64) -> io::Result<u64> {
        Ok(self.world.disk(self.disk, |disk| disk.next_hole(from, end)))
    }
}
