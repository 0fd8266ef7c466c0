//! The scenes that are measured: arrays over members of some kind, and how many threads write to
//! them.

use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use drystone_core::Device;
use drystone_raid::layout::{Layout, Level};
use drystone_stack::StackSpec;
use drystone_stack::diagnostic::Source;
use drystone_stack::live::{LiveStack, OpenEnv};

use super::cache::STRIPES;

/// mdadm's default layout, left-symmetric.
const LEFT_SYMMETRIC: u32 = 2;
/// The chunk, 64 KiB: small, so that a bio of the load covers whole rows of most arrays.
const CHUNK_SECTORS: u64 = 128;
/// Room for all files of the load on the smallest array, and some more.
const MEMBER_BYTES: u64 = 256 << 20;

/// The name of the array.
pub const ARRAY: &str = "array";

/// A disk ten times as fast as one of 7200 revolutions, as in `reorder`: a tenth of half a
/// revolution for each request, and of the times from track to track and from edge to edge.
const REQUEST_NS: u64 = 417_000;
const SEEK_NS: (u64, u64) = (80_000, 1_700_000);
/// Requests that a disk of that kind takes at a time (NCQ).
const DISK_TAGS: u32 = 32;

/// The kind of the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Members {
    /// RAM, which keeps its data.
    Ram,
    /// Null devices with a head that has to move: time, and no data.
    Disks,
}

/// An array and the threads that write to it.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    /// Its members.
    pub members: Members,
    /// Their number, parity included.
    pub disks: u32,
    /// Threads.
    pub threads: u32,
}

/// The mail's arrays, with its 64 threads (or `most`, if that is less) and with one.
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
    /// The parameters do not allow such an array.
    pub fn layout(&self) -> anyhow::Result<Layout> {
        let layout = Layout::new(Level::Raid5, LEFT_SYMMETRIC, self.disks, CHUNK_SECTORS);
        layout.map_err(|error| anyhow!(error))
    }

    /// Opens the members, and with `array` Drystone's own array over them.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn open(&self, array: bool, at: &OpenEnv) -> anyhow::Result<LiveStack> {
        self.open_of(self.text(array, MEMBER_BYTES, ""), at)
    }

    /// Opens a stack by its text.
    ///
    /// # Errors
    /// When a device in it cannot be opened.
    pub(crate) fn open_of(&self, text: String, at: &OpenEnv) -> anyhow::Result<LiveStack> {
        let spec = self.check(text)?;
        LiveStack::open(&spec, at).map_err(|report| anyhow!(report.render(false)))
    }

    /// Checks the text of a stack.
    ///
    /// # Errors
    /// The text has a mistake.
    pub(crate) fn check(&self, text: String) -> anyhow::Result<StackSpec> {
        let source = Source { name: "lab".to_owned(), text };
        let spec = drystone_stack::check("lab", source, Path::new("/"));
        spec.map_err(|report| anyhow!(report.render(false)))
    }

    /// The members' part of a stack file, and with `array` that of Drystone's own array over them;
    /// `keys` are further keys of each member.
    pub(crate) fn text(&self, array: bool, member_bytes: u64, keys: &str) -> String {
        let mut text = String::new();
        for number in 0..self.disks {
            text.push_str(&format!("[device.m{number}]\n{}\n{keys}\n", self.member(member_bytes)));
        }
        if array {
            let members: Vec<String> = (0..self.disks).map(|n| format!("\"m{n}\"")).collect();
            text.push_str(&format!(
                "[device.{ARRAY}]\ntype = \"raid5\"\nmembers = [{}]\nchunk = {}\n\
                 stripe_cache_size = {STRIPES}\n",
                members.join(", "),
                CHUNK_SECTORS * 512
            ));
        }
        text
    }

    fn member(&self, bytes: u64) -> String {
        match self.members {
            Members::Ram => format!("type = \"ram\"\nsize = {bytes}"),
            Members::Disks => format!(
                "type = \"null\"\nsize = {bytes}\nirqmode = \"timer\"\n\
                 hw_queue_depth = {DISK_TAGS}\ncompletion_nsec = {REQUEST_NS}\n\
                 seek_min_nsec = {}\nseek_max_nsec = {}",
                SEEK_NS.0, SEEK_NS.1
            ),
        }
    }

    /// The members of a stack, by role.
    pub fn members_of(&self, stack: &LiveStack) -> Vec<Arc<dyn Device>> {
        let devices = stack.devices().into_iter().take(self.disks as usize);
        devices.map(|live| live.device.clone()).collect()
    }
}
