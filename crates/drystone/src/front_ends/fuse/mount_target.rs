//! Targets of mounts: their state before a mount, and what an earlier server left there.
//!
//! Invariants:
//! - No call asks the path for anything before the server behind it is known to answer, or to be
//!   gone.
//! - A file or folder with contents is not mounted over, because that would hide them.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use drystone_core::threads;
use drystone_exports::fuse::kernel::{self, Found, look_at};
use drystone_exports::fuse::server::Kind;

use super::loop_device::LoopDevice;
use crate::output;

/// The time that a server may take to say that it is there: one that is alive needs less than a
/// millisecond, and a person waits.
const PATIENCE: Duration = Duration::from_secs(3);

/// The target of a mount: a file or folder that an export appears at.
#[derive(Debug)]
pub struct MountTarget {
    /// Without symbolic links.
    pub path: PathBuf,
    pub kind: Kind,
    /// It was made to be mounted on.
    pub made: bool,
}

impl MountTarget {
    /// Sees to it that there is something to mount on.
    ///
    /// # Errors
    /// One sentence on what is in the way.
    pub fn prepare(path: &Path, exports: usize) -> anyhow::Result<MountTarget> {
        let Found { path, is_dead } = look(std::path::absolute(path)?)?;
        if is_dead {
            detach_dead(&path)?;
        }
        let (kind, made) = match fs::metadata(&path) {
            Ok(found) => (usable(&path, &found, exports)?, false),
            Err(error) if error.kind() == ErrorKind::NotFound && exports == 1 => {
                File::create_new(&path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
                (Kind::File, true)
            }
            Err(error) => bail!("the mount point {} cannot be used: {error}", path.display()),
        };
        Ok(MountTarget { path, kind, made })
    }

    /// Takes away what was made.
    pub fn remove(&self) {
        if self.made {
            remove_empty(&self.path);
        }
    }
}

/// Looks at a path on a thread of its own, for a while: a call to a stopped server cannot be
/// interrupted.
fn look(path: PathBuf) -> anyhow::Result<Found> {
    let (tell, told) = sync_channel(1);
    let asked = path.clone();
    // It ends when it is answered, or with the program.
    threads::start("look", move || tell.send(look_at(&asked)))?;
    match told.recv_timeout(PATIENCE) {
        Ok(found) => found.map_err(|error| in_words(&path, error)),
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => bail!(
            "the file system mounted on {} does not answer: continue its server (kill -CONT), end \
             it, or name another path",
            path.display()
        ),
    }
}

/// That a folder is missing is said of what was to be made in it.
fn in_words(path: &Path, error: kernel::MountError) -> anyhow::Error {
    match error {
        kernel::MountError::Missing { source, .. } => {
            anyhow!(source).context(format!("cannot make {}", path.display()))
        }
        error => error.into(),
    }
}

/// The kind of mount for the file or folder that is there.
fn usable(path: &Path, found: &fs::Metadata, exports: usize) -> anyhow::Result<Kind> {
    let shown = path.display();
    if found.is_dir() {
        let mut entries =
            fs::read_dir(path).with_context(|| format!("the folder {shown} cannot be read"))?;
        if entries.next().is_some() {
            bail!(
                "{shown} is a folder with something in it, which would be hidden: name an empty \
                 folder, or a path where there is nothing"
            );
        }
        return Ok(Kind::Folder);
    }
    if exports > 1 {
        bail!("{shown} is shared by {exports} exports, so it must be a folder");
    }
    if !found.is_file() || found.len() > 0 {
        bail!(
            "{shown} is not an empty file: name an empty file, an empty folder, or a path where \
             there is nothing"
        );
    }
    Ok(Kind::File)
}

/// A server that was killed leaves a mount that answers nothing, and perhaps loop devices of it.
fn detach_dead(path: &Path) -> anyhow::Result<()> {
    for device in LoopDevice::all_of(path) {
        let name = device.path().display().to_string();
        device.detach()?;
        let rest = if device.is_attached() { "; it is removed once it is unmounted" } else { "" };
        output::note(&format!("{name} was left by a server that is gone: detached{rest}"));
    }
    Ok(kernel::detach_dead(path)?)
}

/// Removes a file that was made to be mounted on, unless something is in it.
pub fn remove_empty(path: &Path) {
    if fs::symlink_metadata(path).is_ok_and(|found| found.is_file() && found.len() == 0) {
        let _ = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &Path) -> String {
        format!("{:#}", MountTarget::prepare(path, 1).unwrap_err())
    }

    #[test]
    fn what_holds_something_is_not_mounted_over() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("empty")).unwrap();
        fs::write(at("full"), "text").unwrap();
        assert_eq!(MountTarget::prepare(&at("empty"), 2).unwrap().kind, Kind::Folder);
        assert!(refused(folder.path()).contains("with something in it, which would be hidden"));
        assert!(refused(&at("full")).contains("is not an empty file"));
        assert!(refused(&at("none/new")).contains("cannot make"));
        assert!(refused(Path::new("/proc")).contains("mounted on"));
        assert_eq!(fs::read(at("full")).unwrap(), b"text");
    }

    #[test]
    fn a_path_is_followed_to_where_it_leads() {
        let folder = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(folder.path()).unwrap();
        fs::create_dir(real.join("dir")).unwrap();
        let link = |name: &str, to: &str| std::os::unix::fs::symlink(to, real.join(name)).unwrap();
        for (name, to) in [("link", "dir/../vol.img"), ("folder", "dir"), ("round", "round")] {
            link(name, to);
        }
        for path in ["dir/../vol.img", "folder/../vol.img", "link", "vol.img"] {
            let place = MountTarget::prepare(&real.join(path), 1).unwrap();
            assert_eq!((place.path.clone(), place.made), (real.join("vol.img"), true), "{path}");
            place.remove();
            assert!(!real.join("vol.img").exists(), "{path}");
        }
        assert!(refused(&real.join("round")).contains("cannot make"));
    }
}
