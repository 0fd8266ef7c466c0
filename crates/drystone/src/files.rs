//! Devices that appear as files: mounting them, loop devices of them, and taking both away.
//!
//! Invariants:
//! - What is mounted is unmounted by a thread that serves nobody, while the data threads answer.
//! - A file that was made to be mounted on is removed with the mount, unless something is in it.
//! - A loop device is made after its file is served, and is gone before that is unmounted.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_exports::fuse::kernel::{self, MountError, MountPoint, Mounted, is_dead_mount};
use drystone_exports::fuse::server::{Incoming, Kind, Mount, MountOptions, Transport};
use drystone_exports::server::Inbox;
use drystone_stack::live::LiveMount;

use crate::growth::{Grown, Watch};
use crate::loop_device::LoopDevice;
use crate::output;

/// Between two looks whether what is in use has become free.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a first request may take until it counts as never answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices that appear as files at one place.
pub struct Files {
    /// The names of the exports.
    names: Vec<String>,
    mount: Arc<Mount>,
    mounted: Arc<Mounted>,
    /// The path as it was asked for.
    path: PathBuf,
    kind: Kind,
    /// It was made to be mounted on.
    made: bool,
    /// By export.
    loops: Arc<Lock<Vec<LoopDevice>>>,
    /// Has them follow the size of what is behind them.
    watch: Option<Watch>,
    locks: Arc<LockCounters>,
}

impl Files {
    /// Mounts, and hands a session to each worker.
    ///
    /// # Errors
    /// One sentence on what is wrong; then nothing is mounted.
    pub fn mount(
        live: LiveMount,
        inboxes: &[Arc<Inbox>],
        locks: &Arc<LockCounters>,
    ) -> anyhow::Result<Files> {
        let path = std::path::absolute(&live.path)?;
        let place = Place::prepare(&path, live.exports.len())?;
        let fuse = live.exports[0].fuse.as_ref().context("an export without a file")?;
        let options = MountOptions {
            kind: place.kind,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            permissions: if fuse.allow_other { 0o666 } else { 0o600 },
            writeback_cache: fuse.writeback_cache,
            direct_io: fuse.loop_device,
            over_ring: true,
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        };
        let source = live.exports[0].name.clone();
        let point = MountPoint {
            path: path.clone(),
            kind: place.kind,
            source,
            allow_other: fuse.allow_other,
        };
        let (mounted, devices) = match kernel::mount(&point, inboxes.len()) {
            Ok(mounted) => mounted,
            Err(error) => {
                place.remove(&path);
                return Err(error.into());
            }
        };
        let names = live.exports.iter().map(|export| export.name.clone()).collect();
        let mount = Mount::new(options, live.volumes, inboxes.len());
        hand_out(&mount, devices, inboxes, locks);
        Ok(Files {
            names,
            mount,
            mounted: Arc::new(mounted),
            path,
            kind: place.kind,
            made: place.made,
            loops: Arc::new(Lock::new(LockClass::Control, Vec::new())),
            watch: None,
            locks: locks.sibling(),
        })
    }

    /// The file of export number `index`.
    fn file(&self, index: usize) -> PathBuf {
        match self.kind {
            Kind::File => self.path.clone(),
            Kind::Folder => self.path.join(&self.names[index]),
        }
    }

    /// Makes loop devices of all files. The workers must serve.
    ///
    /// # Errors
    /// What `losetup` says, or that there can be no thread.
    pub fn make_loop_devices(&mut self) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for (index, volume) in self.mount.volumes().enumerate() {
            let limits = volume.device.info().limits;
            let read_only = volume.read_only || limits.read_only;
            let made = LoopDevice::make(&self.file(index), limits.logical_block_size, read_only)?;
            all.push(Grown::new(volume.device.clone(), self.file(index), made.clone()));
            self.loops.lock(&self.locks).push(made);
        }
        self.watch = Some(Watch::start(all).context("no thread to follow sizes")?);
        Ok(())
    }

    /// The files, each with its loop device.
    pub fn announce(&self) -> Vec<(PathBuf, Option<PathBuf>)> {
        let loops = self.loops.lock(&self.locks);
        let loops = |index: usize| loops.get(index).map(|device| device.path().to_owned());
        (0..self.names.len()).map(|index| (self.file(index), loops(index))).collect()
    }

    /// Waits until the kernel has been answered.
    ///
    /// # Errors
    /// When it has not been for a while.
    pub fn wait_until_served(&self) -> anyhow::Result<()> {
        let mut waited = Duration::ZERO;
        while !self.mount.is_initialised() {
            if let Some(why) = self.mount.failure() {
                bail!("{}: {why}", self.path.display());
            }
            if waited > PATIENCE {
                bail!("{}: the kernel does not speak to this file's server", self.path.display());
            }
            thread::sleep(Duration::from_millis(1));
            waited += Duration::from_millis(1);
        }
        if self.mount.transport() == Transport::Ring {
            let path = self.path.display();
            output::complain(&format!("drystone: {path}: requests come over io_uring"));
        }
        Ok(())
    }

    /// How many have the file of that export open.
    pub fn clients(&self) -> impl Fn(&str) -> u64 + Send + Sync + 'static {
        let (names, mount) = (self.names.clone(), self.mount.clone());
        move |name| {
            let found = names.iter().position(|own| own == name);
            found.map_or(0, |index| mount.clients(index).into())
        }
    }

    /// Takes the loop devices and the mount away, once nobody uses them: says who is waited for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unmount(&mut self) -> anyhow::Result<()> {
        self.watch = None;
        // Not with the lock: a second signal has them taken away at once.
        let loops = std::mem::take(&mut *self.loops.lock(&self.locks));
        for device in loops {
            device.detach()?;
            self.wait_while(&format!("{} is in use", device.path().display()), || {
                Ok(device.is_attached())
            })?;
        }
        self.wait_while(&format!("{} is open", self.path.display()), || {
            match self.mounted.unmount() {
                Ok(()) => Ok(false),
                Err(MountError::InUse { .. }) => Ok(true),
                Err(error) => Err(anyhow!(error)),
            }
        })?;
        self.remove_made();
        Ok(())
    }

    fn wait_while(&self, why: &str, busy: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        // A moment for who is about to close it.
        for _ in 0..3 {
            if !busy()? {
                return Ok(());
            }
            thread::sleep(PAUSE);
        }
        output::complain(&format!("drystone: {why}: waiting until it is not"));
        while busy()? {
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// What takes everything away at once, though it be in use.
    pub fn leaver(&self) -> impl FnOnce() + Send + 'static {
        let (mounted, loops, locks) =
            (self.mounted.clone(), self.loops.clone(), self.locks.sibling());
        let made = self.made.then(|| self.path.clone());
        move || {
            for device in loops.lock(&locks).drain(..) {
                let _ = device.detach();
            }
            let _ = mounted.detach();
            made.iter().for_each(|path| remove_empty(path));
        }
    }

    fn remove_made(&self) {
        if self.made {
            remove_empty(&self.path);
        }
    }
}

fn hand_out(
    mount: &Arc<Mount>,
    devices: Vec<OwnedFd>,
    inboxes: &[Arc<Inbox>],
    locks: &LockCounters,
) {
    for ((number, device), inbox) in devices.into_iter().enumerate().zip(inboxes) {
        inbox.put_session(Incoming { mount: mount.clone(), number, device }, locks);
    }
}

/// What is at the path before something is mounted there.
struct Place {
    kind: Kind,
    made: bool,
}

impl Place {
    /// Sees to it that there is something to mount on.
    fn prepare(path: &Path, exports: usize) -> anyhow::Result<Place> {
        detach_dead(path)?;
        let found = match fs::metadata(path) {
            Ok(found) => found,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && exports == 1 => {
                File::create_new(path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
                return Ok(Place { kind: Kind::File, made: true });
            }
            Err(error) => bail!("the mount point {} cannot be used: {error}", path.display()),
        };
        if found.is_dir() {
            return Ok(Place { kind: Kind::Folder, made: false });
        }
        if exports > 1 {
            bail!("{} is shared by {exports} exports, so it must be a folder", path.display());
        }
        if !found.is_file() || found.len() > 0 {
            bail!(
                "{} is not an empty file: name one that is, or a path where there is nothing, or a folder",
                path.display()
            );
        }
        Ok(Place { kind: Kind::File, made: false })
    }

    fn remove(&self, path: &Path) {
        if self.made {
            remove_empty(path);
        }
    }
}

/// A server that was killed leaves a mount that answers nothing, and perhaps loop devices of it.
fn detach_dead(path: &Path) -> anyhow::Result<()> {
    // What cannot be looked at is found out when it is mounted on.
    if is_dead_mount(path).unwrap_or(false) {
        for device in LoopDevice::all_of(path) {
            let name = device.path().display().to_string();
            device.detach()?;
            let rest = if device.is_attached() { "; it goes once it is not mounted" } else { "" };
            output::complain(&format!(
                "drystone: {name} was left by a server that is gone: detached{rest}"
            ));
        }
        kernel::detach_dead(path)?;
    }
    Ok(())
}

fn remove_empty(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0) {
        let _ = fs::remove_file(path);
    }
}
