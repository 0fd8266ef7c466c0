//! Devices that appear as files: mounting them, loop devices of them, and taking both away.
//!
//! Invariants:
//! - A mount is taken away by a thread that serves nobody, while the data threads answer.
//! - A file that was made to be mounted on is removed with the mount, unless something is in it.
//! - A loop device is made after its file is served, and is gone before that is unmounted.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow, bail};
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_exports::fuse::kernel::{self, MountError, MountPoint, Mounted};
use drystone_exports::fuse::server::{Incoming, Kind, Mount, MountOptions, Transport};
use drystone_exports::server::{Inbox, Volume};
use drystone_stack::live::LiveMount;

use super::growth::{Grown, Watch};
use super::loop_device::LoopDevice;
use super::mount_target::{MountTarget, remove_empty};
use crate::ending::Ending;
use crate::output;

/// Between two looks whether what is in use has become free.
const PAUSE: Duration = Duration::from_millis(100);
/// The same before it is said, and how often: a third of a second is not worth a word.
const MOMENT: Duration = Duration::from_millis(10);
const MOMENTS: u32 = 30;

/// The time that a first request may take until it counts as never answered.
const PATIENCE: Duration = Duration::from_secs(10);

/// Devices that appear as files at one place.
pub struct Files {
    /// The names of the exports.
    names: Vec<String>,
    mount: Arc<Mount>,
    mounted: Arc<Mounted>,
    /// Where it is, without symbolic links.
    path: PathBuf,
    kind: Kind,
    /// It was made to be mounted on.
    made: bool,
    /// By export.
    loops: Arc<Lock<Vec<LoopDevice>>>,
    /// One is being made, which is not among them yet.
    makes_loop: Arc<AtomicBool>,
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
        let place = MountTarget::prepare(&live.path, live.exports.len())?;
        let path = place.path.clone();
        let first = &live.exports[0].spec;
        let fuse = first.fuse.as_ref().context("an export without a file")?;
        if fuse.writeback_cache && place.kind == Kind::File {
            let path = path.display();
            place.remove();
            bail!(
                "{path}: `fuse_writeback_cache` is for files in a folder, not for a file that is \
                 the mount point, whose size the kernel would keep at 0: leave it out, or make \
                 {path} a folder"
            );
        }
        let options = MountOptions {
            kind: place.kind,
            uid: fuse.uid.unwrap_or_else(|| rustix::process::geteuid().as_raw()),
            gid: fuse.gid.unwrap_or_else(|| rustix::process::getegid().as_raw()),
            permissions: fuse.permissions(),
            writeback_cache: fuse.writeback_cache,
            ignore_truncate: fuse.ignore_truncate,
            direct_io: fuse.loop_device,
            over_ring: true,
            now_s,
            is_killed: kernel::is_killed,
        };
        let point = MountPoint {
            path: path.clone(),
            kind: place.kind,
            source: first.name.clone(),
            allow_other: fuse.allow_other,
        };
        let (mounted, devices) = match kernel::mount(&point, inboxes.len()) {
            Ok(mounted) => mounted,
            Err(error) => {
                place.remove();
                return Err(error.into());
            }
        };
        let volumes: Vec<Volume> = live.exports.into_iter().map(|export| export.volume).collect();
        let names = volumes.iter().map(|volume| volume.name.clone()).collect();
        let mount = Mount::new(options, volumes, inboxes.len());
        hand_out(&mount, devices, inboxes, locks);
        Ok(Files {
            names,
            mount,
            mounted: Arc::new(mounted),
            path,
            kind: place.kind,
            made: place.made,
            loops: Arc::new(Lock::new(LockClass::Control, Vec::new())),
            makes_loop: Arc::default(),
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

    /// Makes loop devices of all files, unless the process must end meanwhile. The workers must
    /// serve.
    ///
    /// # Errors The words of `losetup`, or that there can be no thread.
    pub fn make_loop_devices(&mut self, ending: &Ending) -> anyhow::Result<()> {
        let mut all = Vec::new();
        for (index, volume) in self.mount.volumes().enumerate() {
            if ending.is_asked() {
                break;
            }
            let (file, shape) = (self.file(index), volume.shape());
            let made = ending.making(|| {
                self.makes_loop.store(true, SeqCst);
                let made = LoopDevice::make(&file, shape.geometry);
                if shape.limits.max_write_zeroes_bytes == 0 {
                    self.mount.refuse_holes(true);
                    made.iter().for_each(|made| made.try_discard(shape.geometry));
                    self.mount.refuse_holes(false);
                }
                made.iter().for_each(|made| self.loops.lock(&self.locks).push(made.clone()));
                self.makes_loop.store(false, SeqCst);
                made
            })?;
            all.push(Grown::new(self.mount.clone(), index, file, made));
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
                bail!(
                    "{}: the kernel has not begun to use this mount in time",
                    self.path.display()
                );
            }
            thread::sleep(Duration::from_millis(1));
            waited += Duration::from_millis(1);
        }
        if self.mount.transport() == Transport::Ring {
            let path = self.path.display();
            output::note(&format!("{path}: requests come over io_uring"));
        }
        self.tell_sizes()
    }

    /// Has the kernel ask for the size of each file, before a client does something by a size of 0.
    fn tell_sizes(&self) -> anyhow::Result<()> {
        for file in (0..self.names.len()).map(|index| self.file(index)) {
            fs::metadata(&file)
                .with_context(|| format!("{}: its size cannot be read", file.display()))?;
        }
        Ok(())
    }

    /// Lets go of the loop devices: those that are in use go once they are not.
    ///
    /// # Errors The words of `losetup`.
    pub fn detach_loops(&mut self) -> anyhow::Result<()> {
        self.watch = None;
        // Each of them, though one refuses.
        let tried: Vec<_> = self.loops().iter().map(LoopDevice::detach).collect();
        tried.into_iter().collect()
    }

    /// Those that have not gone. Not with the lock: a second signal has them taken away at once.
    fn loops(&self) -> Vec<LoopDevice> {
        self.loops.lock(&self.locks).clone()
    }

    /// Takes the loop devices and the mount away, once nobody uses them: says which users it waits
    /// for.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn unmount(&mut self) -> anyhow::Result<()> {
        self.detach_loops()?;
        for device in self.loops() {
            let why = format!("{} is in use", device.path().display());
            wait_while(&why, || Ok(device.is_attached()))?;
            self.loops.lock(&self.locks).retain(|other| other.path() != device.path());
        }
        let path = self.path.display();
        wait_while(&format!("{path} is open"), || match self.mounted.unmount() {
            Ok(()) => Ok(false),
            Err(MountError::InUse { .. }) => Ok(true),
            Err(error) => Err(anyhow!(error)),
        })?;
        // The kernel tells the sessions, unless somebody else has taken it away lazily.
        let why = format!("{path} was unmounted or hidden by another process, and is still open");
        wait_while(&why, || Ok(self.mount.sessions_serving() > 0))?;
        self.remove_made();
        Ok(())
    }

    /// A function that takes everything away at once, though it be in use.
    pub fn leaver(&self) -> impl FnOnce() + Send + 'static {
        let (mounted, loops, locks) =
            (self.mounted.clone(), self.loops.clone(), self.locks.sibling());
        let (path, made, makes_loop) = (self.path.clone(), self.made, self.makes_loop.clone());
        move || {
            let known = loops.lock(&locks).clone();
            known.iter().for_each(|device| _ = device.detach());
            // One may just have been made. Else whatever has a file of this name may be somebody
            // else's, of another mount namespace.
            if makes_loop.load(SeqCst) {
                LoopDevice::all_of(&path).iter().for_each(|device| _ = device.detach());
            }
            let _ = mounted.detach();
            if made {
                remove_empty(&path);
            }
        }
    }

    fn remove_made(&self) {
        if self.made {
            remove_empty(&self.path);
        }
    }
}

/// Seconds since 1970.
fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Waits until something is not so any more; says what, if that takes long.
fn wait_while(why: &str, busy: impl Fn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    // A moment for a user that is about to close it.
    for _ in 0..MOMENTS {
        if !busy()? {
            return Ok(());
        }
        thread::sleep(MOMENT);
    }
    output::warning(&format!("{why}: waiting until it is free"));
    while busy()? {
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn hand_out(
    mount: &Arc<Mount>,
    devices: Vec<OwnedFd>,
    inboxes: &[Arc<Inbox>],
    locks: &LockCounters,
) {
    for ((number, device), inbox) in devices.into_iter().enumerate().zip(inboxes) {
        inbox.put(Incoming { mount: mount.clone(), number, device }, locks);
    }
}
