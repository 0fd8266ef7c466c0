//! What is measured: arrays over members of some kind, and how many threads write to them.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use drystone_core::Device;
use drystone_raid::layout::{Layout, Level};
use drystone_stack::live::{Surroundings, open_device};
use drystone_stack::spec::DeviceSpec;

/// mdadm's default layout, left-symmetric.
const LEFT_SYMMETRIC: u32 = 2;
/// 64 KiB: small, so that a bio of the load covers whole rows of most arrays.
const CHUNK_SECTORS: u64 = 128;
/// Room for all files of the load on the smallest array, and some more.
const MEMBER_BYTES: u64 = 256 << 20;

/// A disk ten times as fast as one of 7200 revolutions, as in `reorder`: a tenth of half a
/// revolution for each request, and of the times from track to track and from edge to edge.
const REQUEST_NS: u64 = 417_000;
const SEEK_NS: (u64, u64) = (80_000, 1_700_000);
/// Requests that a disk of that kind takes at a time (NCQ).
const DISK_TAGS: u32 = 32;

/// What the members are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// RAM, which keeps what is written.
    Ram,
    /// Null devices with a head that has to move: time, and no data.
    Disks,
}

/// An array and the threads that write to it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Its members.
    pub members: Members,
    /// How many there are, parity included.
    pub disks: u32,
    /// Threads.
    pub threads: u32,
}

/// The mail's arrays, with its 64 threads (`most` at the most) and with one.
pub fn scenes(most: u32) -> Vec<Scene> {
    let arrays = [(Members::Ram, 4), (Members::Ram, 9), (Members::Disks, 3)];
    let threads: &[u32] = if most > 1 { &[64, 1] } else { &[1] };
    let scenes = arrays.into_iter().flat_map(|(members, disks)| {
        let scene = move |threads: &u32| Scene { members, disks, threads: most.min(*threads) };
        threads.iter().map(scene)
    });
    scenes.collect()
}

impl Scene {
    /// The members' name in rows.
    pub fn device(&self) -> &'static str {
        match self.members {
            Members::Ram => "ram",
            Members::Disks => "simulated disks",
        }
    }

    /// Where data and parity lie.
    ///
    /// # Errors
    /// When there is no such array.
    pub fn layout(&self) -> anyhow::Result<Layout> {
        let layout = Layout::new(Level::Raid5, LEFT_SYMMETRIC, self.disks, CHUNK_SECTORS);
        layout.map_err(|error| anyhow!(error))
    }

    /// Opens the members.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn open(&self, at: &Surroundings) -> anyhow::Result<Vec<Arc<dyn Device>>> {
        let text = match self.members {
            Members::Ram => format!("ram,size={MEMBER_BYTES}"),
            Members::Disks => format!(
                "null,size={MEMBER_BYTES},irqmode=timer,hw_queue_depth={DISK_TAGS},\
                 completion_nsec={REQUEST_NS},seek_min_nsec={},seek_max_nsec={}",
                SEEK_NS.0, SEEK_NS.1
            ),
        };
        let spec = DeviceSpec::parse(&text, Path::new("/"));
        let spec = spec.map_err(|report| anyhow!(report.render(false)))?;
        let members = (0..self.disks).map(|_| open_device(&spec, at));
        Ok(members.collect::<Result<_, _>>()?)
    }
}
