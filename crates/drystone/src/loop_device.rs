//! Loop devices, by util-linux's `losetup`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// A loop device with a file of ours behind it.
#[derive(Clone)]
pub struct LoopDevice {
    path: PathBuf,
    file: PathBuf,
}

impl LoopDevice {
    /// Makes one of `file`, whose server must answer meanwhile; direct I/O, so that pages are not kept
    /// twice.
    ///
    /// # Errors
    /// What `losetup` says, or that it is not there.
    pub fn make(file: &Path, block_bytes: u32, read_only: bool) -> anyhow::Result<LoopDevice> {
        let mut command = Command::new("losetup");
        command.args(["--find", "--show", "--direct-io=on"]);
        command.arg(format!("--sector-size={block_bytes}"));
        if read_only {
            command.arg("--read-only");
        }
        let path = said(command.arg("--").arg(file))?;
        Ok(LoopDevice { path: PathBuf::from(path.trim()), file: file.to_owned() })
    }

    /// All that have this file, or one in this folder, behind them.
    pub fn all_of(path: &Path) -> Vec<LoopDevice> {
        let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let loops = names.filter(|name| name.starts_with("loop"));
        let found = loops.filter_map(|name| {
            let file = backing_file(&name)?;
            file.starts_with(path).then(|| LoopDevice { path: Path::new("/dev").join(name), file })
        });
        found.collect()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets go of the file; if the device is in use, once it is not.
    ///
    /// # Errors
    /// What `losetup` says.
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
    /// # Errors
    /// What `losetup` says.
    pub fn follow_size(&self) -> anyhow::Result<()> {
        said(Command::new("losetup").arg("--set-capacity").arg(&self.path)).map(|_| ())
    }

    /// The file is still behind it.
    pub fn is_attached(&self) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.and_then(backing_file).is_some_and(|file| file == self.file)
    }
}

fn backing_file(name: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/sys/block/{name}/loop/backing_file")).ok()?;
    let text = text.trim_end_matches('\n');
    Some(PathBuf::from(text.strip_suffix(" (deleted)").unwrap_or(text)))
}

/// Runs a command; what it prints.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().context("`losetup` (package mount) cannot be run")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("a loop device is refused: {}", why.trim().trim_start_matches("losetup: "));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
