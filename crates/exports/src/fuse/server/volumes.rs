//! The volumes of a mount as one session uses them: devices of its context, and their sizes.
//!
//! Invariant: the size is queried again only when a request ends behind the known size, or asks for
//! the size itself. A device that has shrunk refuses I/O behind its end.

use super::mount::Mount;
use crate::server::{Blocks, Geometry, Work, errno};
use drystone_core::ChannelId;
use std::ops::Range;

/// The volume that a request's I/O goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) volume: usize,
    /// Bytes of the volume.
    pub(super) size: u64,
    /// Bytes of a block.
    pub(super) block: u64,
    pub(super) read_only: bool,
}

impl Target {
    /// The target that is `volume`.
    pub(super) fn of(volume: usize, geometry: Geometry) -> Self {
        let Geometry { size, block, read_only } = geometry;
        Target { volume, size, block, read_only }
    }

    /// The blocks of `range`.
    pub(super) fn blocks(&self, range: &Range<u64>) -> Blocks {
        Blocks::of(range.clone(), self.block)
    }
}

struct OpenVolume {
    /// `None` if the context could not open the device.
    device: Option<ChannelId>,
    geometry: Geometry,
}

/// The volumes of a session.
pub(super) struct Volumes(Vec<OpenVolume>);

impl Volumes {
    /// The volumes of `mount`, opened in the context of `work`.
    pub(super) fn open(mount: &Mount, work: &mut Work) -> Self {
        let mut open = |volume| OpenVolume {
            device: work.cx.open(&mount.shared(volume).volume.device).ok(),
            geometry: mount.geometry(volume),
        };
        Volumes((0..mount.volume_count()).map(&mut open).collect())
    }

    /// The device of a volume, if it is open.
    #[inline]
    pub(super) fn device(&self, volume: usize) -> Option<ChannelId> {
        self.0[volume].device
    }

    /// The geometry that is known.
    pub(super) fn geometry(&self, volume: usize) -> Geometry {
        self.0[volume].geometry
    }

    /// Asks for the geometry of a volume again. Allocates.
    pub(super) fn refresh(&mut self, mount: &Mount, volume: usize) -> Geometry {
        let geometry = mount.geometry(volume);
        self.0[volume].geometry = geometry;
        geometry
    }

    /// The target of a request for `node` whose range ends at `end`.
    ///
    /// # Errors
    /// The errno of the answer: no such file, or its device is not open.
    #[inline]
    pub(super) fn target(&mut self, mount: &Mount, node: u64, end: u64) -> Result<Target, i32> {
        let volume = mount.volume_at(node).ok_or(errno::EINVAL)?;
        let open = &self.0[volume];
        if open.device.is_none() {
            return Err(errno::EIO);
        }
        let mut geometry = open.geometry;
        if end > geometry.size {
            geometry = self.refresh(mount, volume);
        }
        Ok(Target::of(volume, geometry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::proto::ROOT;
    use crate::fuse::server::testing::{BLOCK, Disk, SIZE, mount_on, work};
    use drystone_core::range_lock::RangeLock;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn a_request_behind_the_known_end_asks_for_the_size() {
        let (mut work, disk) = (work(), Disk::new(2 * SIZE as usize, BLOCK as u32));
        disk.size.store(SIZE, Relaxed);
        let mount = mount_on(&disk, &RangeLock::new());
        let mut volumes = Volumes::open(&mount, &mut work);
        assert!(volumes.device(0).is_some());
        disk.size.store(2 * SIZE, Relaxed);
        let mut size_at = |end| volumes.target(&mount, ROOT, end).map(|target| target.size);
        assert_eq!(size_at(SIZE), Ok(SIZE), "what is known suffices");
        assert_eq!(size_at(SIZE + 1), Ok(2 * SIZE));
        assert_eq!(size_at(0), Ok(2 * SIZE), "it is known from now on");
        assert_eq!(volumes.geometry(0).size, 2 * SIZE);
    }

    #[test]
    fn only_files_of_the_mount_are_targets() {
        let mut work = work();
        let mount = mount_on(&Disk::new(SIZE as usize, BLOCK as u32), &RangeLock::new());
        let mut volumes = Volumes::open(&mount, &mut work);
        for node in [0, ROOT + 1, u64::MAX] {
            assert_eq!(volumes.target(&mount, node, 0), Err(errno::EINVAL));
        }
        let target = volumes.target(&mount, ROOT, 0).expect("the file");
        assert_eq!((target.volume, target.block, target.read_only), (0, BLOCK, false));
        assert_eq!(target.blocks(&(100..600)).all(), 0..1024);
        volumes.0[0].device = None;
        assert_eq!(volumes.target(&mount, ROOT, 0), Err(errno::EIO), "it could not be opened");
    }
}
