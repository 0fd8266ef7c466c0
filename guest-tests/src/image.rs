//! The image that guests boot: the kernel and the files that all guests have, made once and kept.
//!
//! Invariants of the cache:
//! - Under the lock at most one process builds; all may read without it.
//! - A folder `image-KEY` appears complete, by a rename, and never changes. KEY is the SHA-256 of
//!   its inputs: the packages' checksums, `init.sh`, and the code that builds.
//! - A folder `building-*` without a builder is left from a process that was killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use system_tests::client::{demand, requires};

use crate::cpio::Archive;
use crate::package::{Package, sha256, unpack};
use crate::{modules, vmlinux};

/// Debian's newest kernel for 12, in the build for virtual machines: a third of the size of the
/// full one, with all that [`modules::WANTED`] lists. The meta-package names the current version.
const KERNEL: &str = "linux-image-6.12-cloud-amd64";
const BUSYBOX: &str = "busybox-static";

const INIT: &str = include_str!("init.sh");

/// Everything that decides an image's contents, besides the packages.
const INPUTS: [&str; 5] = [
    INIT,
    include_str!("image.rs"),
    include_str!("modules.rs"),
    include_str!("vmlinux.rs"),
    include_str!("cpio.rs"),
];

/// The time that an unused image or package is kept when another one is built.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);

/// A bootable image in the cache.
#[derive(Debug)]
pub struct Image {
    /// The kernel, as ELF.
    pub vmlinux: PathBuf,
    /// An unpacked archive of first files: busybox, `init.sh`, modules.
    pub initramfs: PathBuf,
}

/// Says whether guests can be had here. If not, this fails the test, or, with
/// `DRYSTONE_SKIP_MISSING=1`, prints a line that begins with SKIPPED and gives false.
#[must_use]
pub fn available() -> bool {
    let tools = ["qemu-system-x86_64", "apt-get", "dpkg-deb", "zstd", "xz", "setpriv"];
    let has_kernel = || {
        let lack = sources().as_ref().err().map(|error| format!("no kernel for guests: {error}"));
        demand(lack.is_none(), &lack.unwrap_or_default())
    };
    demand(cfg!(target_arch = "x86_64"), "guests run programs of an x86-64 host only")
        && tools.into_iter().all(requires)
        && has_kernel()
}

/// The image that guests of this process boot; built if need be. The error is one sentence.
pub fn image() -> &'static Result<Image, String> {
    static IMAGE: OnceLock<Result<Image, String>> = OnceLock::new();
    IMAGE.get_or_init(|| Image::open(sources().as_ref().map_err(String::clone)?))
}

/// The packages and the cache, with all files that are needed from outside in it.
#[derive(Debug)]
struct Sources {
    cache: PathBuf,
    kernel: Package,
    busybox: Package,
}

fn sources() -> &'static Result<Sources, String> {
    static SOURCES: OnceLock<Result<Sources, String>> = OnceLock::new();
    SOURCES.get_or_init(Sources::find)
}

impl Sources {
    fn find() -> Result<Sources, String> {
        let meta = Package::current(KERNEL)?;
        let name = meta.depends.ok_or_else(|| format!("{KERNEL} names no kernel"))?;
        let sources = Sources {
            cache: cache_folder()?,
            kernel: Package::current(&name)?,
            busybox: Package::current(BUSYBOX)?,
        };
        if !sources.image_folder()?.exists() {
            let _lock = sources.lock()?;
            sources.kernel.fetch(&sources.store())?;
            sources.busybox.fetch(&sources.store())?;
        }
        Ok(sources)
    }

    /// The folder of packages.
    fn store(&self) -> PathBuf {
        self.cache.join("packages")
    }

    fn image_folder(&self) -> Result<PathBuf, String> {
        let recipe = tempfile::NamedTempFile::new_in(&self.cache).map_err(says(&self.cache))?;
        let packages = [self.kernel.sha256.as_str(), self.busybox.sha256.as_str()];
        fs::write(recipe.path(), [&packages[..], &INPUTS[..]].concat().join("\0"))
            .map_err(says(recipe.path()))?;
        Ok(self.cache.join(format!("image-{}", sha256(recipe.path())?)))
    }

    fn lock(&self) -> Result<File, String> {
        let path = self.cache.join("lock");
        let file = File::create(&path).map_err(says(&path))?;
        file.lock().map_err(says(&path))?;
        Ok(file)
    }
}

impl Image {
    fn open(sources: &Sources) -> Result<Image, String> {
        let folder = sources.image_folder()?;
        if !folder.exists() {
            let _lock = sources.lock()?;
            if !folder.exists() {
                build(sources, &folder)?;
            }
        }
        mark_used(&folder);
        Ok(Image { vmlinux: folder.join("vmlinux"), initramfs: folder.join("initramfs") })
    }
}

/// Builds an image in a folder beside its own and renames it. The lock is held.
fn build(sources: &Sources, target: &Path) -> Result<(), String> {
    let building = tempfile::Builder::new()
        .prefix("building-")
        .tempdir_in(&sources.cache)
        .map_err(says(&sources.cache))?;
    let (files, folder) = (building.path().join("files"), building.path().join("image"));
    fs::create_dir(&folder).map_err(says(&folder))?;
    for package in [&sources.kernel, &sources.busybox] {
        let file = package.fetch(&sources.store())?;
        unpack(&file, &files)?;
        mark_used(&file);
    }
    let release = only_name(&files.join("lib/modules"))?;
    vmlinux::extract(&files.join(format!("boot/vmlinuz-{release}")), &folder.join("vmlinux"))?;
    let initramfs = folder.join("initramfs");
    fs::write(&initramfs, first_files(&files, &release)?).map_err(says(&initramfs))?;
    fs::rename(&folder, target).map_err(says(target))?;
    drop(building);
    remove_unused(&sources.cache, target);
    Ok(())
}

/// The archive of files that all guests have.
fn first_files(files: &Path, release: &str) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    let busybox = files.join("bin/busybox");
    archive.file("/bin/busybox", 0o755, &fs::read(&busybox).map_err(says(&busybox))?);
    archive.file("/init", 0o755, INIT.as_bytes());
    // The kernel opens this node for /init before anything is mounted.
    archive.character_device("/dev/console", (5, 1));
    // The kernel itself requests modules by this path.
    archive.link("/sbin/modprobe", "../bin/busybox");
    for folder in ["/etc", "/proc", "/run", "/sys", "/tmp", "/mnt"] {
        archive.folder(folder);
    }
    modules::add(&mut archive, &files.join("lib/modules").join(release))?;
    Ok(archive.finish())
}

/// The name of the only entry of a folder.
fn only_name(folder: &Path) -> Result<String, String> {
    let mut entries = fs::read_dir(folder).map_err(says(folder))?.flatten();
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry.file_name().to_string_lossy().into_owned()),
        _ => Err(format!("{} should hold one folder", folder.display())),
    }
}

/// `$XDG_CACHE_HOME/drystone/guest`, or the same below `~/.cache`.
fn cache_folder() -> Result<PathBuf, String> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = variable("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
    let folder = base
        .filter(|path| path.is_absolute())
        .or_else(home)
        .ok_or("neither XDG_CACHE_HOME nor HOME says where a kernel can be kept")?
        .join("drystone/guest");
    let store = folder.join("packages");
    fs::create_dir_all(&store).map_err(says(&store))?;
    Ok(folder)
}

/// Notes the time of use, by which [`remove_unused`] goes. A failure makes it go earlier, no more.
fn mark_used(path: &Path) {
    let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
}

/// Removes remains of other builds that were not used lately. The caller holds the lock, so a
/// folder that is being built or downloaded belongs to a process that has ended. Files that cannot
/// be removed stay.
fn remove_unused(cache: &Path, own: &Path) {
    let entries = [cache.to_owned(), cache.join("packages")].map(fs::read_dir);
    for entry in entries.into_iter().flatten().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let age = entry.metadata().and_then(|data| data.modified()).map(|time| time.elapsed());
        let old = matches!(age, Ok(Ok(age)) if age > KEPT);
        if name.starts_with("building-")
            || (name.starts_with("image-") && old && entry.path() != own)
        {
            let _ = fs::remove_dir_all(entry.path());
        } else if name.ends_with(".deb") && old {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn says(path: &Path) -> impl FnOnce(std::io::Error) -> String {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_old_and_not_our_own_is_removed() {
        let cache = tempfile::tempdir().expect("a folder");
        let path = |name: &str| cache.path().join(name);
        for name in ["packages", "image-own", "image-old", "image-new", "building-x"] {
            fs::create_dir(path(name)).expect("a folder");
        }
        for name in ["packages/old.deb", "packages/new.deb", "lock"] {
            fs::write(path(name), "").expect("a file");
        }
        for name in ["image-own", "image-old", "packages/old.deb", "lock"] {
            let file = File::open(path(name)).expect("it is there");
            file.set_modified(SystemTime::now() - 2 * KEPT).expect("a time is set");
        }
        remove_unused(cache.path(), &path("image-own"));
        let left = |name: &&str| path(name).exists();
        let kept = ["packages/new.deb", "image-own", "image-new", "lock"];
        assert!(kept.iter().all(left));
        assert!(!["packages/old.deb", "image-old", "building-x"].iter().any(left));
    }

    #[test]
    fn a_folder_of_two_names_no_release() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("6.12")).expect("a folder");
        assert_eq!(only_name(folder.path()).as_deref(), Ok("6.12"));
        fs::create_dir(folder.path().join("6.13")).expect("a folder");
        assert!(only_name(folder.path()).is_err());
    }
}
