//! The setup of one run: an array as a file, its loop device, and a file system on it. All of it is
//! removed again, whatever happens.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use drystone_exports::fuse::kernel::detach_dead;

use super::case::Case;
use super::fs_mark;
use super::tool::{self, Daemon};
use crate::folder::Folder;

/// The longest time in which the product must make its loop device.
const LOOP: Duration = Duration::from_secs(30);

/// See the module's text. A drop removes everything by force: the contents of the file system are
/// lost.
pub(super) struct Rig<'a> {
    folder: Folder,
    pub(super) daemon: Option<Daemon>,
    /// The loop device.
    device: Option<String>,
    /// True if the product made the loop device, and so removes it itself.
    is_products: bool,
    /// Mount points, the last one first to be unmounted.
    mounted: Vec<PathBuf>,
    stop: &'a AtomicBool,
}

impl<'a> Rig<'a> {
    /// Sets everything up for a variant of a case.
    ///
    /// # Errors
    /// A part could not be set up; then nothing remains.
    pub(super) fn build(case: &Case, variant: &str, stop: &'a AtomicBool) -> anyhow::Result<Self> {
        let mut rig = Rig {
            folder: Folder::make()?,
            daemon: None,
            device: None,
            is_products: variant == "ours",
            mounted: Vec::new(),
            stop,
        };
        match case.task(variant) {
            None => rig.make_plain_file(case.device_bytes())?,
            Some(task) => {
                // The product makes its own.
                if !rig.is_products {
                    File::create(rig.file())?;
                }
                rig.daemon = Some(Daemon::start(&task, &rig.file())?);
            }
        }
        rig.device = Some(rig.attach()?);
        rig.make_file_system(case.file_system)?;
        rig.in_folders(case, &["mkdir"])?;
        Ok(rig)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("vol.img")
    }

    /// The mount point of the file system.
    pub(super) fn mount_point(&self) -> PathBuf {
        self.folder.path().join("mnt")
    }

    fn make_plain_file(&mut self, bytes: u64) -> anyhow::Result<()> {
        let folder = self.folder.path().to_owned();
        tool::short(&["mount", "-t", "tmpfs", "-o", "size=90%", "lab", name(&folder)?], self.stop)?;
        self.mounted.push(folder);
        Ok(File::create(self.file())?.set_len(bytes)?)
    }

    fn attach(&self) -> anyhow::Result<String> {
        if self.is_products {
            return self.find_products();
        }
        let (file, direct) =
            (self.file(), format!("--direct-io={}", on_off(self.daemon.is_some())));
        let words = ["losetup", "--find", "--show", "--sector-size=4096", &direct, name(&file)?];
        Ok(tool::short(&words, self.stop)?.trim().to_owned())
    }

    /// The loop device that has the file behind it.
    fn find_products(&self) -> anyhow::Result<String> {
        let (start, file) = (Instant::now(), self.file());
        while start.elapsed() < LOOP {
            tool::check(self.stop)?;
            for entry in fs::read_dir("/sys/block")?.flatten() {
                let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
                if backing.is_ok_and(|found| Path::new(found.trim_end()) == file) {
                    return Ok(format!("/dev/{}", entry.file_name().to_string_lossy()));
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the server makes no loop device")
    }

    /// Makes the file system without discards, now or later, because not all variants support them.
    fn make_file_system(&mut self, kind: &str) -> anyhow::Result<()> {
        let device = self.device.clone().unwrap_or_default();
        let options: &[&str] = match kind {
            "btrfs" => &["mkfs.btrfs", "-q", "-f", "-K"],
            "xfs" => &["mkfs.xfs", "-q", "-f", "-K"],
            _ => &["mkfs.ext4", "-q", "-F", "-T", "largefile", "-E", EXT4],
        };
        tool::short(&[options, &[&device]].concat(), self.stop)?;
        let point = self.mount_point();
        fs::create_dir(&point)?;
        let words = ["mount", "-t", kind, "-o", "nodiscard", &device, name(&point)?];
        tool::short(&words, self.stop)?;
        self.mounted.push(point);
        Ok(())
    }

    /// The requests and sectors that the loop device has completed so far, and its flushes (fields
    /// 1, 3, 5, 7 and 16 of `stat` in sysfs).
    ///
    /// # Errors
    /// When it is gone.
    pub(super) fn done(&self) -> anyhow::Result<Vec<u64>> {
        let device = self.device.as_deref().unwrap_or_default();
        let path = format!("/sys/block/{}/stat", device.trim_start_matches("/dev/"));
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let fields: Vec<u64> =
            text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
        let done = [0, 2, 4, 6, 15].into_iter().filter_map(|at| fields.get(at).copied());
        let done: Vec<u64> = done.collect();
        ensure!(done.len() >= 4, "{path}: {text}");
        Ok(done)
    }

    /// Removes everything in order.
    ///
    /// # Errors
    /// A part cannot be removed in order; then it is removed by force.
    pub(super) fn end(mut self, case: &Case) -> anyhow::Result<()> {
        // Data that was not synced need not be written any more.
        self.in_folders(case, &["rm", "-r"])?;
        let point = self.mount_point();
        tool::short(&["umount", name(&point)?], self.stop)?;
        self.mounted.retain(|mounted| *mounted != point);
        self.detach()?;
        self.daemon.take().map_or(Ok(()), |mut daemon| daemon.end())
    }

    /// Runs a command on the folders of the load, as a program of its own, because this process
    /// must not hang.
    fn in_folders(&self, case: &Case, command: &[&str]) -> anyhow::Result<()> {
        let point = self.mount_point();
        let folders: Vec<PathBuf> =
            fs_mark::folders(case).map(|folder| point.join(folder)).collect();
        let names =
            folders.iter().map(|folder| name(folder)).collect::<anyhow::Result<Vec<_>>>()?;
        tool::short(&[command, &names].concat(), self.stop).map(drop)
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        let device = self.device.take().filter(|_| !self.is_products);
        device.map_or(Ok(()), |device| {
            tool::short(&["losetup", "--detach", &device], &AtomicBool::new(false)).map(drop)
        })
    }
}

/// Options that make ext4 write everything at once instead of later.
const EXT4: &str = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";

impl Drop for Rig<'_> {
    fn drop(&mut self) {
        let never = AtomicBool::new(false);
        let detach = |path: &PathBuf| {
            let words = name(path).map(|path| ["umount", "--lazy", path]);
            words.and_then(|words| tool::short(&words, &never)).map(drop)
        };
        // Without its server all I/O fails, so nothing hangs.
        self.daemon = None;
        self.is_products = false;
        let (tmpfs, mut above) = (self.folder.path().to_owned(), std::mem::take(&mut self.mounted));
        let below: Vec<PathBuf> = above.extract_if(.., |point| *point == tmpfs).collect();
        let mut done: Vec<anyhow::Result<()>> = above.iter().map(detach).collect();
        done.push(self.detach());
        done.extend(below.iter().map(detach));
        done.push(detach_dead(&self.file()).map_err(Into::into));
        for error in done.into_iter().filter_map(Result::err) {
            eprintln!("warning: left behind: {error:#}");
        }
    }
}

fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

fn name(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the folder of temporary files has no name in UTF-8")
}
