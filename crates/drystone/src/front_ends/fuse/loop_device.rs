//! Loop devices, by util-linux's `losetup`.
//!
//! Invariant: a device counts as ours while it is attached as it was when we made or found it. Its
//! file's name does not tell that: the kernel names a file by where it is now, which is nowhere
//! once it was unmounted.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use drystone_exports::server::Geometry;

use crate::output;

/// Ends the kernel's name of a file that was removed.
const REMOVED: &[u8] = b" (deleted)";

/// A loop device with a file of ours behind it.
#[derive(Clone, PartialEq, Eq)]
pub struct LoopDevice {
    path: PathBuf,
    /// The mark that tells this attachment from others of the device ([`attachment`]).
    attachment: Vec<u8>,
}

impl LoopDevice {
    /// Makes one of `file`, whose server must answer meanwhile; direct I/O, so that pages are not
    /// kept twice.
    ///
    /// # Errors The words of `losetup`, or that it is not there.
    pub fn make(file: &Path, geometry: Geometry) -> anyhow::Result<LoopDevice> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]);
        command.arg(format!("--sector-size={}", geometry.block));
        if geometry.read_only {
            command.arg("--read-only");
        }
        // Of other mount namespaces: their files may have the same name.
        let others = LoopDevice::all_of(file);
        let said = said(command.arg("--").arg(file)).inspect_err(|_| {
            // It may have come further than it says.
            let found = LoopDevice::all_of(file).into_iter();
            found.filter(|device| !others.contains(device)).for_each(|device| _ = device.detach());
        });
        let path = PathBuf::from(said?.trim());
        let attachment = attachment(&path).unwrap_or_default();
        Ok(LoopDevice { path, attachment })
    }

    /// Has the kernel find that the file takes no holes, and so announce no discards: it does so
    /// for every file of a file system that could, until one is refused (from Linux 6.10 on;
    /// before, it goes on). The server must refuse holes meanwhile, so that the one that is tried
    /// here costs nothing. Best effort: where there is no `blkdiscard`, discards stay announced,
    /// and are refused.
    pub fn try_discard(&self, geometry: Geometry) {
        let mut command = Command::new("blkdiscard");
        command.args(["--offset=0", &format!("--length={}", geometry.block)]).arg(&self.path);
        let _ = command.process_group(0).stdin(Stdio::null()).output();
    }

    /// All that have this file, or one in this folder, behind them. The path has no symbolic links.
    pub fn all_of(path: &Path) -> Vec<LoopDevice> {
        let found = devices().into_iter().filter_map(|device| {
            let is_behind = names_file(&backing_file(&device)?, path);
            let attachment = if is_behind { attachment(&device) } else { None };
            Some(LoopDevice { path: device, attachment: attachment? })
        });
        found.collect()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets go of the file; if the device is in use, once it is not.
    ///
    /// # Errors The words of `losetup`.
    pub fn detach(&self) -> anyhow::Result<()> {
        if !self.is_attached() {
            return Ok(());
        }
        match said(Command::new("losetup").arg("--detach").arg(&self.path)) {
            // Somebody else may have been faster.
            Err(_) if !self.is_attached() => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Takes the size that its file has now.
    ///
    /// # Errors The words of `losetup`.
    pub fn follow_size(&self) -> anyhow::Result<()> {
        said(Command::new("losetup").arg("--set-capacity").arg(&self.path)).map(|_| ())
    }

    /// The file is still behind it.
    pub fn is_attached(&self) -> bool {
        attachment(&self.path).is_some_and(|now| now == self.attachment)
    }
}

/// Says which loop devices have a file behind them that is in no folder any more. One of a server
/// that was killed after its file had been unmounted lazily looks so, but also one of a server that
/// lives: so it is only said.
pub fn tell_of_lost() {
    for device in devices() {
        if backing_file(&device).is_some_and(|name| is_lost(&name, Path::exists)) {
            let name = device.display();
            output::note(&format!(
                "the file of loop device {name} is in no folder any more; if its server has ended, \
                 remove the loop device with `losetup -d {name}`"
            ));
        }
    }
}

/// True if the kernel's name is that of a file whose mount is in no folder: it then begins at the
/// mount's own root, which is the file, or the folder that the file is in.
fn is_lost(name: &[u8], exists: impl Fn(&Path) -> bool) -> bool {
    let is_removed = name.ends_with(REMOVED);
    let name = PathBuf::from(OsString::from_vec(name.to_vec()));
    match name.parent() {
        None => true,
        Some(folder) => folder == Path::new("/") && !is_removed && !exists(&name),
    }
}

/// All loop devices that there are.
fn devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    let loops = names.filter(|name| name.as_encoded_bytes().starts_with(b"loop"));
    loops.map(|name| Path::new("/dev").join(name)).collect()
}

/// An attribute of a loop device in sysfs.
fn told(device: &Path, what: &str) -> Option<Vec<u8>> {
    let folder = Path::new("/sys/block").join(device.file_name()?);
    let mut text = fs::read(folder.join(what)).ok()?;
    text.pop_if(|last| *last == b'\n');
    Some(text)
}

/// The name of what is behind a device, as the kernel tells it; `None` if there is nothing.
fn backing_file(device: &Path) -> Option<Vec<u8>> {
    told(device, "loop/backing_file")
}

/// A number that is another each time that something is put behind the device; before Linux 5.15
/// the file's name has to do. `None` if there is nothing.
fn attachment(device: &Path) -> Option<Vec<u8>> {
    let file = backing_file(device)?;
    Some(told(device, "diskseq").unwrap_or(file))
}

/// True if the kernel's name is that of the file, or of one in that folder. A file may have been
/// removed since, or have a name that looks so.
fn names_file(name: &[u8], file: &Path) -> bool {
    let removed = name.strip_suffix(REMOVED);
    let names = [Some(name), removed].into_iter().flatten();
    names.map(|name| PathBuf::from(OsString::from_vec(name.to_vec()))).any(|n| n.starts_with(file))
}

/// Runs a command; what it prints.
fn said(command: &mut Command) -> anyhow::Result<String> {
    // A signal for us (a Ctrl-C goes to the whole group) must not end it half-way.
    let output = command.process_group(0).output();
    let output = output.context("`losetup` (package mount) cannot be run")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("losetup refuses a loop device: {}", why.trim().trim_start_matches("losetup: "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_names_are_understood() {
        let cases: [(&[u8], &str, bool); 7] = [
            (b"/a/vol.img", "/a/vol.img", true),
            (b"/a/vols/one", "/a/vols", true),
            (b"/a/vol.img (deleted)", "/a/vol.img", true),
            (b"/a/vol (deleted)", "/a/vol (deleted)", true),
            (b"/a/vol (deleted) (deleted)", "/a/vol (deleted)", true),
            (b"/a/vol.img2", "/a/vol.img", false),
            (b"/", "/a/vol.img", false),
        ];
        for (name, file, expected) in cases {
            assert_eq!(names_file(name, Path::new(file)), expected, "{file}");
        }
    }

    #[test]
    fn a_file_in_no_folder_is_known_by_its_name() {
        let cases: [(&[u8], bool); 6] = [
            (b"/", true),
            (b"/vol", true),
            (b"/there.img", false),
            (b"/was.img (deleted)", false),
            (b"/a/vol.img", false),
            (b"/a/vol.img (deleted)", false),
        ];
        for (name, expected) in cases {
            let exists = |path: &Path| path == Path::new("/there.img");
            assert_eq!(is_lost(name, exists), expected, "{}", String::from_utf8_lossy(name));
        }
    }
}
