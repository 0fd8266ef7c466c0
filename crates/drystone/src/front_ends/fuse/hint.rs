//! Hints for the use of a loop device: to mount the file system that is there, or to make one where
//! nothing is.
//!
//! Invariant: no thread of this process has the device open. It is this process that answers its
//! reads: if it is killed meanwhile, the close of the device waits for the reads, and the kernel
//! gives them up only when all threads of the process are gone.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use drystone_core::threads;
use drystone_raid::metadata::foreign::{Contents, HEAD_BYTES, TAIL_BYTES, identify};

/// The time that the device may take to tell what it holds: it may stand on a disk that does not
/// answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A command to try on `device`; none if nothing is certain to do no harm.
pub fn hint(device: &Path) -> Option<String> {
    let (tell, told) = channel();
    let own = device.to_owned();
    let look = move || _ = tell.send(sectors(&own).and_then(|size| contents(&own, size)));
    threads::start("hint", look).ok()?;
    let contents = told.recv_timeout(PATIENCE).ok()?.ok()?;
    let name = device.file_name()?.to_string_lossy();
    let flag = fs::read_to_string(format!("/sys/class/block/{name}/ro")).ok()?;
    command(&device.display().to_string(), &contents, flag.trim() == "1")
}

fn contents(device: &Path, sectors: u64) -> io::Result<Contents> {
    let head = end("head", HEAD_BYTES, sectors, device)?;
    let tail = end("tail", TAIL_BYTES, sectors, device)?;
    Ok(identify(&head, &tail, sectors))
}

fn sectors(device: &Path) -> io::Result<u64> {
    let name = device.file_name().unwrap_or_default();
    let size = fs::read_to_string(Path::new("/sys/class/block").join(name).join("size"))?;
    size.trim().parse().map_err(io::Error::other)
}

/// The first bytes of the device, or the last, by a program of coreutils.
fn end(program: &str, bytes: usize, sectors: u64, device: &Path) -> io::Result<Vec<u8>> {
    let bytes = (sectors * 512).min(bytes as u64);
    let mut command = Command::new(program);
    command.args(["-c", &bytes.to_string(), "--"]).arg(device);
    // A signal for us must not end it half-way.
    let output = command.process_group(0).stdin(Stdio::null()).output()?;
    match output.stdout.len() as u64 == bytes {
        true => Ok(output.stdout),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

fn command(device: &str, contents: &Contents, is_read_only: bool) -> Option<String> {
    match contents {
        Contents::Known(what) if is_file_system(what) && is_read_only => {
            Some(format!("mount -o ro {device} /mnt"))
        }
        Contents::Known(what) if is_file_system(what) => Some(format!("mount {device} /mnt")),
        Contents::Blank if !is_read_only => {
            Some(format!("mkfs.ext4 {device} && mount {device} /mnt"))
        }
        Contents::Known(_) | Contents::Unknown | Contents::Blank => None,
    }
}

/// One that can be mounted.
fn is_file_system(what: &str) -> bool {
    what.ends_with("file system") && !what.contains("journal")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    #[test]
    fn what_is_there_is_never_to_be_overwritten() {
        let command = |contents, read_only| command("/dev/loop7", &contents, read_only);
        let ext = Contents::Known("an ext2, ext3 or ext4 file system");
        assert_eq!(command(ext, false).as_deref(), Some("mount /dev/loop7 /mnt"));
        let xfs = Contents::Known("an XFS file system");
        assert_eq!(command(xfs, true).as_deref(), Some("mount -o ro /dev/loop7 /mnt"));
        for known in [Contents::Known("a GPT partition table"), Contents::Unknown] {
            assert_eq!(command(known, false), None);
        }
        let mkfs = "mkfs.ext4 /dev/loop7 && mount /dev/loop7 /mnt";
        assert_eq!(command(Contents::Blank, false).as_deref(), Some(mkfs));
        assert_eq!(command(Contents::Blank, true), None);
    }

    #[test]
    fn a_device_is_looked_at_from_both_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("xfs.img");
        let image = File::create(&path).unwrap();
        image.set_len(4096).unwrap();
        assert!(matches!(contents(&path, 8), Ok(Contents::Blank)));
        image.write_all_at(b"XFSB", 0).unwrap();
        assert!(contents(&path, 9).is_err(), "it is shorter");
        let found = contents(&path, 8).unwrap();
        assert!(
            matches!(found, Contents::Known(what) if what.contains("file system")),
            "{found:?}"
        );
    }
}
