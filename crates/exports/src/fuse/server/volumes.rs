//! The volumes of a mount as one session uses them: devices of its context, and their sizes.
//!
//! Invariant: a size is asked for again only when a request ends behind the one that is known, or
//! asks for the size itself. A device that shrinks refuses what is behind its end.

use super::mount::Mount;
use crate::server::{Blocks, Geometry, Work, errno};
use drystone_core::DevIndex;
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
    device: Option<DevIndex>,
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
    pub(super) fn device(&self, volume: usize) -> Option<DevIndex> {
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
