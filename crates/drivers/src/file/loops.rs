//! Loop devices of the host that have a file attached. They take no byte locks, so locks do not
//! show a writer through them.
//!
//! The search happens once, when a file is opened. It uses the path of the attached file in sysfs,
//! and opens neither a loop device nor another file: a hanging file system would hang the start. So
//! the search misses a device that is attached later, or by another path (a hard link, a bind
//! mount).

use super::options::FileOptions;
use super::system::stat;
use drystone_core::blocking::might_block;
use drystone_core::error::ErrorKind;
use drystone_core::{Error, Result};
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A loop device that has a file attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopDevice {
    /// Its name: `loop3`.
    pub(super) name: String,
    /// True if it is writable.
    pub(super) is_writable: bool,
}

/// Refuses to open a file for writing if a loop device may write to it, too. The result is the
/// warning about a harmless one: a sentence without its subject, which is the file.
pub(super) fn check(fd: &OwnedFd, options: &FileOptions) -> Result<Option<String>> {
    let Some(LoopDevice { name, is_writable }) = attached_to(fd) else { return Ok(None) };
    match (options.read_only, is_writable) {
        (false, true) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{} is attached to /dev/{name}, which may write to it: detach it first (losetup \
                 --detach /dev/{name})",
                options.path.display()
            ),
        )),
        (false, false) => Ok(Some(format!(
            "is attached to /dev/{name} as well, to be read: what is written here may change below \
             its readers"
        ))),
        (true, true) => Ok(Some(format!(
            "is attached to /dev/{name}, which may write to it while it is read here"
        ))),
        (true, false) => Ok(None),
    }
}

/// The loop device that has this file attached: a writable one, if there is any. `None` for a block
/// device.
pub(super) fn attached_to(fd: &OwnedFd) -> Option<LoopDevice> {
    might_block("sysfs");
    attached_in(Path::new("/sys/block"), fd)
}

/// The same for a sysfs in another place.
fn attached_in(sys: &Path, fd: &OwnedFd) -> Option<LoopDevice> {
    stat(fd.as_raw_fd()).ok().filter(|s| s.st_mode & libc::S_IFMT == libc::S_IFREG)?;
    // The kernel formats this path as it formats the path of an attached file.
    let path = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let mut found: Vec<LoopDevice> = fs::read_dir(sys)
        .ok()?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.starts_with("loop") && stands_on(&sys.join(name), &path))
        .map(|name| {
            let read_only = fs::read_to_string(sys.join(&name).join("ro"));
            let is_writable = read_only.map_or(true, |text| text.trim() != "1");
            LoopDevice { name, is_writable }
        })
        .collect();
    found.sort_by_key(|device| !device.is_writable);
    found.into_iter().next()
}

/// True if the loop device of this sysfs folder has the file `path` attached.
fn stands_on(folder: &Path, path: &Path) -> bool {
    // The folder exists only while a file is attached.
    let attached = fs::read(folder.join("loop/backing_file"));
    attached.is_ok_and(|text| text.trim_ascii_end() == path.as_os_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// A sysfs in which each of these has that file attached.
    fn sysfs(devices: &[(&str, &[u8], &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, backing, read_only) in devices {
            let device = folder.path().join(name);
            fs::create_dir_all(device.join("loop")).unwrap();
            fs::write(device.join("loop/backing_file"), backing).unwrap();
            fs::write(device.join("ro"), read_only).unwrap();
        }
        folder
    }

    #[test]
    fn whatever_sysfs_has_is_no_error() {
        let images = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(images.path()).unwrap().join("disk.img");
        let file: OwnedFd = File::create(&path).unwrap().into();
        let line = [path.as_os_str().as_encoded_bytes(), b"\n"].concat();
        let found =
            |sys: &Path| attached_in(sys, &file).map(|device| (device.name, device.is_writable));
        assert_eq!(found(Path::new("/no/such/folder")), None);
        assert_eq!(found(&path), None, "a file");
        let odd = sysfs(&[
            ("loop0", b"", "0"),
            ("loop1", b"\xff\xfe\0\n", "0"),
            ("loop2", b"/no/such/file (deleted)\n", "0"),
            ("sda", &line, "0"),
        ]);
        fs::create_dir(odd.path().join("loop3")).unwrap();
        fs::create_dir_all(odd.path().join("loop4/loop/backing_file")).unwrap();
        fs::write(odd.path().join("loop5"), "").unwrap();
        assert_eq!(found(odd.path()), None);
        let reader = sysfs(&[("loop0", &line, "1\n"), ("loop1", b"/etc/passwd\n", "0")]);
        assert_eq!(found(reader.path()), Some(("loop0".to_owned(), false)));
        let both =
            sysfs(&[("loop7", &line, "1\n"), ("loop8", &line, "0\n"), ("loop9", &line, "1")]);
        assert_eq!(found(both.path()), Some(("loop8".to_owned(), true)), "a writer first");
        fs::remove_file(both.path().join("loop8/ro")).unwrap();
        assert_eq!(found(both.path()), Some(("loop8".to_owned(), true)), "if it cannot be told");
    }
}
