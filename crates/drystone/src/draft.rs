//! A file that is written at the end of a long command: beside the one that it replaces, which
//! stays as it is until the new one is whole.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::output;

/// True if a path stands for the standard output.
pub fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Where a text goes; `-` is the standard output.
pub struct Draft {
    path: PathBuf,
}

impl Draft {
    /// Finds out now, before the command takes its time, whether it can be written.
    ///
    /// # Errors
    /// When it cannot.
    pub fn new(path: &Path) -> anyhow::Result<Self> {
        let draft = Draft { path: path.to_owned() };
        if !draft.is_written_in_place() {
            let beside = draft.beside();
            let made = File::create_new(&beside);
            made.with_context(|| format!("cannot write {}", path.display()))?;
            let _ = std::fs::remove_file(&beside);
        }
        Ok(draft)
    }

    /// Writes it whole, and then puts it in its place.
    ///
    /// # Errors
    /// When it cannot be written; what was there before is still there.
    pub fn write(&self, text: &str) -> anyhow::Result<()> {
        if is_standard_output(&self.path) {
            output::print(text)?;
            return Ok(());
        }
        self.put(text.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }

    fn put(&self, bytes: &[u8]) -> std::io::Result<()> {
        if self.is_written_in_place() {
            return OpenOptions::new().write(true).open(&self.path)?.write_all(bytes);
        }
        let beside = self.beside();
        let written = File::create_new(&beside).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&beside, &self.path)
        });
        if written.is_err() {
            let _ = std::fs::remove_file(&beside);
        }
        written
    }

    /// A pipe, a terminal or `/dev/null` is not replaced.
    fn is_written_in_place(&self) -> bool {
        let is_file = |meta: std::fs::Metadata| meta.is_file();
        is_standard_output(&self.path)
            || std::fs::metadata(&self.path).is_ok_and(|meta| !is_file(meta))
    }

    fn beside(&self) -> PathBuf {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        self.path.with_file_name(format!(".{name}.{}.new", std::process::id()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_the_new_one_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "old").unwrap();
        let draft = Draft::new(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        draft.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(Draft::new(&folder.path().join("none/a.json")).is_err());
        Draft::new(Path::new("/dev/null")).unwrap().write("gone").unwrap();
        assert!(
            std::fs::metadata("/dev/null").unwrap().file_type()
                != std::fs::metadata(&path).unwrap().file_type()
        );
    }
}
