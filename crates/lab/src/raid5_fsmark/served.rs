//! A child process of the experiment: it serves an array as a file, and reports its counts on
//! request.
//!
//! ```text
//! fs_mark -> file system -> loop device -> /dev/fuse
//!      -> 64 lanes -> array (before, mailed) -> members
//!      -> the product's data threads (ours)
//! lab --"counts", "rescue"--> standard input of the child; its answers are a line each
//! ```
//!
//! When standard input ends, because the lab closes it or has ended, the child removes its file and
//! ends.

#![expect(clippy::disallowed_types, reason = "a laboratory joins its threads, and serves nobody")]

use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::{Context, Device};
use drystone_exports::fuse::kernel::{self, MountPoint, Mounted};
use drystone_exports::fuse::server::Kind;
use drystone_raid::layout::Layout;
use drystone_stack::StackSpec;
use drystone_stack::live::OpenEnv;

use super::lane::Lane;
use crate::raid5_wait::VARIANTS;
use crate::raid5_wait::array::{Array, Counts, Opening};
use crate::raid5_wait::scene::{ARRAY, Members, Scene};

/// Requests that are served at a time, as many as the mail has threads.
const LANES: usize = 64;
/// Loop devices and arrays have blocks of a page, so that no write is smaller.
const BLOCKS: &str = "logical_block_size = 4096";
/// The pause between two tries to unmount, and the number of tries.
const PAUSE: Duration = Duration::from_millis(50);
const TRIES: u32 = 200;

/// The task of a child.
#[derive(Clone, Debug)]
pub struct Task {
    /// `before`, `mailed` or `ours`.
    pub variant: String,
    /// True if the members are simulated disks, not RAM.
    pub disks: bool,
    /// The number of members, parity included.
    pub members: u32,
    /// Bytes of each.
    pub member_bytes: u64,
}

impl Task {
    fn scene(&self) -> Scene {
        let members = if self.disks { Members::Disks } else { Members::Ram };
        Scene { members, disks: self.members, threads: LANES as u32 }
    }

    /// The text of its stack file: disks keep their data, because a file system needs it.
    fn stack(&self, array: bool) -> String {
        let keys = if self.disks { "memory_backed = true\n" } else { "" };
        self.scene().text(array, self.member_bytes, &format!("{keys}{BLOCKS}"))
    }

    /// For *ours*: the stack with the array as `file` and as a loop device of that.
    ///
    /// # Errors
    /// The text has a mistake.
    pub fn product(&self, file: &Path) -> anyhow::Result<StackSpec> {
        let file = file.to_str().context("the folder of temporary files has no name in UTF-8")?;
        let export =
            format!("[export.vol]\ndevice = \"{ARRAY}\"\nfuse = {file:?}\nfuse_loop = true\n");
        self.scene().check(self.stack(true) + &export)
    }
}

/// Questions that an array answers.
pub trait Asked {
    /// Counts so far.
    fn counts(&self) -> Counts;

    /// Wakes forgotten waiters; how many there were.
    fn rescue(&self) -> usize;
}

impl Asked for &dyn Array {
    fn counts(&self) -> Counts {
        Array::counts(*self)
    }

    fn rescue(&self) -> usize {
        Array::rescue(*self)
    }
}

/// Answers the requests on standard input until that ends.
///
/// # Errors
/// When nothing can be read or written there.
pub fn execute(asked: &dyn Asked) -> anyhow::Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    for line in std::io::stdin().lock().lines() {
        match line?.as_str() {
            "counts" => {
                let Counts { woken, freed, written } = asked.counts();
                writeln!(out, "{woken} {freed} {written}")?;
            }
            "rescue" => writeln!(out, "{}", asked.rescue())?,
            other => bail!("`{other}` is no question"),
        }
        out.flush()?;
    }
    Ok(())
}

/// Serves *before* or *mailed* as `file`, which must be empty, while `body` runs.
///
/// # Errors
/// When the array cannot be opened, the file cannot be mounted, or `body` fails.
pub fn serve(
    task: &Task,
    file: &Path,
    body: impl FnOnce(&dyn Array) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some((_, open)) = VARIANTS.iter().find(|(name, _)| *name == task.variant) else {
        bail!("there is no variant `{}`", task.variant);
    };
    let clock: Arc<dyn Clock> = SystemClock::new();
    let (scene, at) = (task.scene(), OpenEnv::new(1, clock));
    let stack = scene.open_of(task.stack(false), &at)?;
    let (layout, members) = (scene.layout()?, scene.members_of(&stack));
    let array = open(&Opening { scene: &scene, layout, members: &members, at: &at })?;
    let lanes: Vec<Context> =
        (0..LANES).map(|_| at.contexts.open(Engine::Auto)).collect::<Result<_, _>>()?;
    let point = MountPoint {
        path: file.to_owned(),
        kind: Kind::File,
        source: task.variant.clone(),
        allow_other: false,
    };
    let (mounted, devices) = kernel::mount(&point, LANES)?;
    let unmount = Unmount(mounted);
    let bytes = array_bytes(&layout, task.member_bytes);
    thread::scope(|scope| {
        // Dropped before the threads are joined.
        let _unmount = unmount;
        for (device, mut cx) in devices.into_iter().zip(lanes) {
            let members = open_members(&mut cx, &members)?;
            let (device, writer) = (blocking(device)?, array.writer());
            let lane = Lane { device, writer, cx, members, layout, bytes };
            thread::Builder::new().name("lane".to_owned()).spawn_scoped(scope, || lane.run())?;
        }
        body(&*array)
    })
}

fn array_bytes(layout: &Layout, member_bytes: u64) -> u64 {
    let rows = member_bytes / 512 / layout.chunk_sectors();
    rows * layout.row_sectors() * 512
}

fn open_members(
    cx: &mut Context,
    members: &[Arc<dyn Device>],
) -> anyhow::Result<Vec<drystone_core::ChannelId>> {
    let opened = members.iter().map(|member| cx.open(member));
    Ok(opened.collect::<Result<Vec<_>, _>>()?)
}

fn blocking(device: OwnedFd) -> anyhow::Result<OwnedFd> {
    rustix::io::ioctl_fionbio(&device, false).context("/dev/fuse does not wait")?;
    Ok(device)
}

/// Unmounts the file in the end, so that its lanes end.
struct Unmount(Mounted);

impl Drop for Unmount {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if self.0.unmount().is_ok() {
                return;
            }
            thread::sleep(PAUSE);
        }
        // Processes that still have it open are answered until they close it.
        let _ = self.0.detach();
    }
}
