//! Where control sockets are.
//!
//! Root's are in `/run/drystone`, another user's in `$XDG_RUNTIME_DIR/drystone`, or, if that is
//! not set, in `/tmp/drystone-UID`. `$DRYSTONE_RUNTIME_DIR` names another folder. The folder has
//! mode 0700 and belongs to the user; anything else is refused, since a user who can put a socket
//! there can pretend to be the server.

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The folder for this user, whether it exists or not.
pub fn control_folder() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    match variable("DRYSTONE_RUNTIME_DIR") {
        Some(folder) => folder,
        None => folder_of(rustix::process::geteuid().as_raw(), variable("XDG_RUNTIME_DIR")),
    }
}

/// The socket in that folder of the server of this name; `None` if it is not a name but a path.
pub fn socket_of(name: &Path) -> Option<PathBuf> {
    let text = name.to_str().filter(|text| !text.is_empty() && !text.contains('/'))?;
    let stem = text.strip_suffix(".sock").unwrap_or(text);
    (!stem.starts_with('.')).then(|| control_folder().join(format!("{stem}.sock")))
}

fn folder_of(uid: u32, runtime_dir: Option<PathBuf>) -> PathBuf {
    match (uid, runtime_dir) {
        (0, _) => PathBuf::from("/run/drystone"),
        (_, Some(folder)) => folder.join("drystone"),
        (uid, None) => PathBuf::from(format!("/tmp/drystone-{uid}")),
    }
}

/// Makes the folder if it does not exist and checks that it is only the user's.
pub fn make_control_folder() -> Result<PathBuf, Failure> {
    let folder = control_folder();
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(Failure::Refused(format!("cannot make {}: {error}", folder.display())))
        }
        _ => check(&folder).map(|()| folder),
    }
}

/// Refuses a folder that somebody else could write to. One that does not exist is fine.
pub fn check(folder: &Path) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::Refused(format!("{} {why}", folder.display())));
    let meta = match fs::symlink_metadata(folder) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return refuse(format!("cannot be read: {error}")),
    };
    let uid = rustix::process::geteuid().as_raw();
    if !meta.is_dir() {
        return refuse("is not a folder; remove it".to_owned());
    }
    if meta.uid() != uid {
        return refuse(format!("belongs to user {}, not to {uid}; remove it", meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return refuse("can be written by others; chmod it to 0700".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn each_user_has_a_folder() {
        let runtime = || Some(PathBuf::from("/run/user/7"));
        assert_eq!(folder_of(0, runtime()), Path::new("/run/drystone"));
        assert_eq!(folder_of(7, runtime()), Path::new("/run/user/7/drystone"));
        assert_eq!(folder_of(7, None), Path::new("/tmp/drystone-7"));
    }

    #[test]
    fn folders_that_others_write_to_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("f");
        assert!(check(&folder).is_ok(), "one that does not exist is fine");
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        assert!(check(&folder).is_ok());
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(check(&folder).unwrap_err().to_string().contains("chmod it to 0700"));
        let link = parent.path().join("link");
        symlink(&folder, &link).unwrap();
        assert!(check(&link).unwrap_err().to_string().contains("is not a folder"));
    }
}
