//! A mount by the real kernel. Whatever touches the mount is another process with a limit of time,
//! and the mount is torn down whatever happens: nothing that fails leaves anything stuck.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;

use drystone_core::ring::Engine;
use drystone_core::{IoBuf, Op};
use drystone_exports::fuse::kernel::{MountError, MountPoint, Mounted, is_dead_mount, mount};
use drystone_exports::fuse::server::{Incoming, Kind, Mount};
use drystone_exports::server::Inbox;
use rustix::fs::FallocateFlags;
use rustix::mount::UnmountFlags;

use crate::disk::{Disk, Handle};
use crate::kernel::{groups, options, user, volume, workers};

const SIZE: usize = 8 << 20;
const O_DIRECT: i32 = if cfg!(target_arch = "aarch64") { 0o200000 } else { 0o40000 };
/// The task of a child process, and its file.
const TASK: &str = "DRYSTONE_FUSE_TASK";
const FILE: &str = "DRYSTONE_FUSE_FILE";

/// A mount that is served, with the folder that it is in.
struct Served {
    folder: PathBuf,
    path: PathBuf,
    mounted: Option<Mounted>,
    mount: Arc<Mount>,
    inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
}

fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists() && rustix::process::geteuid().is_root();
    if !can {
        println!("SKIPPED: a real mount needs /dev/fuse and root");
    }
    can
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("drystone-fuse-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn point(path: &Path, kind: Kind) -> MountPoint {
    MountPoint { path: path.to_owned(), kind, source: "a volume".to_owned(), allow_other: false }
}

fn serve(name: &str, kind: Kind, disks: &[&Arc<Disk>], engine: Engine) -> Served {
    serve_in(folder(name), kind, disks, engine)
}

fn serve_in(folder: PathBuf, kind: Kind, disks: &[&Arc<Disk>], engine: Engine) -> Served {
    const THREADS: usize = 2;
    let path = folder.join("point");
    match kind {
        Kind::File => drop(File::create(&path).unwrap()),
        Kind::Folder => std::fs::create_dir_all(&path).unwrap(),
    }
    let groups = groups();
    let named = |(number, disk): (usize, &&Arc<Disk>)| {
        volume(&format!("vol{number}"), Arc::new(Handle((*disk).clone())), &groups)
    };
    let volumes = disks.iter().enumerate().map(named).collect();
    let shared = Mount::new(options(kind), volumes, THREADS);
    let (inboxes, threads) = workers(THREADS, engine);
    let mut served = Served {
        folder,
        path: path.clone(),
        mounted: None,
        mount: shared.clone(),
        inboxes,
        threads,
    };
    let (mounted, devices) = mount(&point(&path, kind), THREADS).unwrap();
    served.mounted = Some(mounted);
    for ((number, device), inbox) in devices.into_iter().enumerate().zip(&served.inboxes) {
        inbox.put(Incoming { mount: shared.clone(), number, device }, &user());
    }
    served
}

impl Served {
    /// Unmount as the program does when it ends.
    fn unmount(&mut self) {
        let mounted = self.mounted.take().unwrap();
        mounted.unmount().unwrap();
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        assert_eq!(self.mount.sessions_serving(), 0);
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // With force the connection is ended, and all that wait get an error.
        let _ = rustix::mount::unmount(&self.path, UnmountFlags::DETACH | UnmountFlags::FORCE);
        self.inboxes.iter().for_each(|inbox| {
            inbox.stop();
            inbox.abort();
        });
        self.threads.drain(..).for_each(|thread| _ = thread.join());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Run `task` on `file` in a process of its own.
fn child(task: &str, file: &Path) {
    child_as(task, file, rustix::process::geteuid().as_raw());
}

fn child_as(task: &str, file: &Path, uid: u32) {
    let status = Command::new("timeout")
        .args(["-s", "KILL", "60"])
        .uid(uid)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "real::what_a_child_does", "--nocapture"])
        .envs([(TASK, task.as_ref()), (FILE, file.as_os_str())])
        .status()
        .unwrap();
    assert!(status.success(), "{task}: {status}");
}

/// Does nothing unless it is asked to by [`child`].
#[test]
fn what_a_child_does() {
    let (Ok(task), Some(file)) = (std::env::var(TASK), std::env::var_os(FILE)) else { return };
    let file = Path::new(&file);
    match &*task {
        "buffered" => buffered(file),
        "direct" => direct(file),
        "holes" => holes(file),
        "many" => many(file),
        "folder" => list(file),
        "refused" => refused(file),
        "helper" => by_helper(file),
        other => panic!("no task {other}"),
    }
}

fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + seed) % 251) as u8 + 1).collect()
}

/// Truncates as `dd of=` does, writes, syncs, reads.
fn buffered(file: &Path) {
    let mut opened =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(file).unwrap();
    assert_eq!(opened.metadata().unwrap().len(), SIZE as u64);
    let data = pattern(3 << 20, 1);
    opened.write_all(&data).unwrap();
    opened.write_all_at(b"ragged", SIZE as u64 - 7).unwrap();
    opened.sync_all().unwrap();
    opened.seek(SeekFrom::Start(0)).unwrap();
    let mut back = vec![0; data.len()];
    opened.read_exact(&mut back).unwrap();
    assert!(back == data);
    assert!(opened.write_all_at(b"x", SIZE as u64).is_err(), "there is no more room");
}

fn open_direct(file: &Path) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(file).unwrap()
}

fn direct(file: &Path) {
    let opened = open_direct(file);
    for (offset, length) in [(0, 4096), (4096, 512), (1 << 20, 1 << 20), (3 << 20, 2 << 20)] {
        let data = IoBuf::from_slice(&pattern(length, offset));
        opened.write_all_at(&data, offset as u64).unwrap();
        let mut back = IoBuf::zeroed(length);
        opened.read_exact_at(&mut back, offset as u64).unwrap();
        assert!(back[..] == data[..], "{length} bytes at {offset}");
    }
    let mut past = [0; 512];
    assert_eq!(opened.read_at(&mut past, SIZE as u64).unwrap(), 0);
}

fn holes(file: &Path) {
    let opened = OpenOptions::new().read(true).write(true).open(file).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&opened, punch, 0, 1 << 20).unwrap();
    rustix::fs::fallocate(&opened, FallocateFlags::ZERO_RANGE, (2 << 20) + 5, 100).unwrap();
    rustix::fs::fallocate(&opened, FallocateFlags::empty(), 0, SIZE as u64).unwrap();
    assert!(rustix::fs::fallocate(&opened, FallocateFlags::empty(), 0, SIZE as u64 + 1).is_err());
    let data = rustix::fs::seek(&opened, rustix::fs::SeekFrom::Data(0)).unwrap();
    assert_eq!(data, 1 << 20);
    let hole = rustix::fs::seek(&opened, rustix::fs::SeekFrom::Hole(data)).unwrap();
    assert_eq!(hole, SIZE as u64);
}

/// Threads that write their own pieces, whole blocks and others, with and without the page cache.
fn many(file: &Path) {
    let write = |opened: &File, offset: usize, length: usize| {
        opened.write_all_at(&IoBuf::from_slice(&pattern(length, offset)), offset as u64).unwrap();
    };
    let (cached, past) = (OpenOptions::new().write(true).open(file).unwrap(), open_direct(file));
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (cached, past) = (&cached, &past);
            scope.spawn(move || {
                let start = thread << 20;
                for piece in 0..64 {
                    let at = start + piece * 16384;
                    let opened = if thread < 4 { past } else { cached };
                    write(opened, at, 4096);
                    write(opened, at + 4096, 3 * 4096);
                }
            });
        }
    });
    cached.sync_all().unwrap();
}

fn list(folder: &Path) {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["vol0", "vol1"]);
    assert_eq!(std::fs::metadata(folder.join("vol1")).unwrap().len(), 1 << 20);
    std::fs::write(folder.join("vol1"), b"text").unwrap();
    let made = File::create(folder.join("new"));
    assert_eq!(made.unwrap_err().raw_os_error(), Some(1));
    assert!(std::fs::remove_file(folder.join("vol0")).is_err());
}

fn refused(file: &Path) {
    let opened = OpenOptions::new().write(true).open(file);
    assert_eq!(opened.unwrap_err().raw_os_error(), Some(30));
    assert_eq!(std::fs::read(file).unwrap(), vec![0; SIZE]);
}

#[test]
fn a_volume_is_a_file() {
    if !can_mount() {
        return;
    }
    for engine in [Engine::Auto, Engine::Plain] {
        let disk = Disk::new(SIZE, 512);
        let mut served = serve("file", Kind::File, &[&disk], engine);
        let path = served.path.clone();
        child("buffered", &path);
        assert!(disk.bytes.lock().unwrap()[..3 << 20] == pattern(3 << 20, 1));
        assert_eq!(disk.bytes.lock().unwrap()[SIZE - 7..], *b"ragged\0");
        assert!(disk.count(Op::Flush) > 0 && served.mount.is_initialised());
        child("direct", &path);
        disk.delay_ns.store(200_000, Relaxed);
        child("many", &path);
        for start in (0..SIZE).step_by(16384) {
            let bytes = disk.bytes.lock().unwrap();
            assert!(bytes[start..start + 4096] == pattern(4096, start), "at {start}");
            let rest = start + 4096;
            assert!(bytes[rest..rest + 12288] == pattern(12288, rest), "at {rest}");
        }
        child("holes", &path);
        assert!(served.mount.requests() > 100);
        served.unmount();
        assert!(served.mount.volumes().all(|volume| volume.clients.count() == 0));
    }
}

#[test]
fn volumes_are_files_of_a_folder() {
    if !can_mount() {
        return;
    }
    let disks = [Disk::new(SIZE, 4096), Disk::new(1 << 20, 512)];
    let mut served = serve("folder", Kind::Folder, &[&disks[0], &disks[1]], Engine::Auto);
    child("folder", &served.path);
    assert_eq!(disks[1].bytes.lock().unwrap()[..5], *b"text\0");
    served.unmount();
}

#[test]
fn a_read_only_volume_refuses_writers() {
    if !can_mount() {
        return;
    }
    let mut disk = Arc::into_inner(Disk::new(SIZE, 512)).unwrap();
    disk.read_only = true;
    let mut served = serve("read-only", Kind::File, &[&Arc::new(disk)], Engine::Auto);
    child("refused", &served.path);
    served.unmount();
}

/// A user without the right to mount mounts by the helper.
fn by_helper(folder: &Path) {
    let disk = Disk::new(SIZE, 512);
    let mut served = serve_in(folder.to_owned(), Kind::File, &[&disk], Engine::Plain);
    child("buffered", &served.path);
    child("direct", &served.path);
    served.unmount();
    let mut served = serve_in(folder.to_owned(), Kind::File, &[&disk], Engine::Plain);
    served.mounted.take().unwrap().detach().unwrap();
    served.inboxes.iter().for_each(|inbox| inbox.stop());
    served.threads.drain(..).for_each(|thread| thread.join().unwrap());
    let (mounted, devices) = mount(&point(&served.path, Kind::File), 1).unwrap();
    drop((mounted, devices));
    let (mounted, _devices) = mount(&point(&served.path, Kind::File), 1).unwrap();
    mounted.detach().unwrap();
}

#[test]
fn a_user_who_may_not_mount_has_a_helper() {
    if !can_mount() {
        return;
    }
    if Command::new("fusermount3").arg("-V").output().is_err() {
        println!("SKIPPED: fusermount3 is not installed");
        return;
    }
    // The helper opens it as the user that calls it.
    if std::fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        println!("SKIPPED: /dev/fuse is not for other users here (Linux makes it for all)");
        return;
    }
    const NOBODY: u32 = 65534;
    let ours = Command::new(std::env::current_exe().unwrap()).arg("--list").uid(NOBODY).output();
    if !ours.is_ok_and(|listed| listed.status.success()) {
        println!("SKIPPED: this program lies where other users cannot run it");
        return;
    }
    let folder = folder("helper");
    chown(&folder, Some(NOBODY), None).unwrap();
    let point = folder.join("point");
    let tried = std::panic::catch_unwind(|| child_as("helper", &folder, NOBODY));
    while rustix::mount::unmount(&point, UnmountFlags::DETACH | UnmountFlags::FORCE).is_ok() {}
    let _ = std::fs::remove_dir_all(&folder);
    tried.unwrap();
}

/// A server that was killed leaves a mount that answers nobody; the next one takes its place.
#[test]
fn a_dead_mount_is_replaced() {
    if !can_mount() {
        return;
    }
    let folder = folder("dead");
    let path = folder.join("point");
    File::create(&path).unwrap();
    let point = point(&path, Kind::File);
    for _ in 0..2 {
        let (mounted, devices) = mount(&point, 2).unwrap();
        assert_eq!(devices.len(), 2);
        drop((mounted, devices));
        assert!(is_dead_mount(&path).unwrap());
    }
    let (mounted, devices) = mount(&point, 1).unwrap();
    drop(devices);
    mounted.detach().unwrap();
    assert!(!is_dead_mount(&path).unwrap(), "all of them are gone");
    mounted.unmount().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_is_wrong_with_a_mount_point_is_said() {
    if !can_mount() {
        return;
    }
    let folder = folder("wrong");
    let file = folder.join("file");
    File::create(&file).unwrap();
    let refused = |path: &Path, kind| mount(&point(path, kind), 1).unwrap_err();
    let absent = refused(&folder.join("absent"), Kind::File);
    assert!(matches!(absent, MountError::Missing { .. }), "{absent}");
    assert!(absent.to_string().contains("absent\" cannot be used: No such file"), "{absent}");
    let wrong = refused(&folder, Kind::File);
    assert!(matches!(wrong, MountError::NotAFile { .. }), "{wrong}");
    let wrong = refused(&file, Kind::Folder);
    assert!(matches!(wrong, MountError::NotAFolder { .. }), "{wrong}");
    let busy = refused(Path::new("/proc"), Kind::Folder);
    assert!(busy.to_string().contains("\"/proc\" already: proc (proc)"), "{busy}");
    std::fs::remove_dir_all(&folder).unwrap();
}
