//! Packages of Debian, fetched and unpacked without being installed.
//!
//! The package index that apt keeps (and verifies by Debian's signatures) says which version is
//! current and which SHA-256 it has; a file that has another is refused.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command;

/// A package in the version that apt would install.
#[derive(Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// SHA-256 of its file, in hexadecimal.
    pub sha256: String,
    /// The first package that it depends on; the kernel's meta-packages name the kernel so.
    pub depends: Option<String>,
}

impl Package {
    /// Looks a package up in apt's index. The error is one sentence.
    pub fn current(name: &str) -> Result<Package, String> {
        let words = ["show", "--no-all-versions", name];
        let text = command::text(Path::new("/"), "apt-cache", &words)?;
        Package::parse(&text).ok_or_else(|| {
            format!("apt knows no file of the package {name}: try 'apt-get update' as root")
        })
    }

    fn parse(text: &str) -> Option<Package> {
        let field = |name: &str| {
            let value = |line: &str| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned());
            text.lines().find_map(value)
        };
        let first = |list: String| list.split([',', ' ']).next().map(str::to_owned);
        Some(Package {
            name: field("Package")?,
            version: field("Version")?,
            sha256: field("SHA256")?,
            depends: field("Depends").and_then(first),
        })
    }

    /// The package's file in the folder `store`, downloaded unless it is there. The file's name is
    /// its SHA-256, and it appears only after that has been checked.
    pub fn fetch(&self, store: &Path) -> Result<PathBuf, String> {
        let kept = store.join(format!("{}.deb", self.sha256));
        if !kept.exists() {
            let folder = tempfile::tempdir_in(store)
                .map_err(|error| format!("{}: {error}", store.display()))?;
            let file = self.download(folder.path())?;
            verify(&file, &self.sha256)?;
            fs::rename(&file, &kept).map_err(|error| format!("{}: {error}", kept.display()))?;
        }
        Ok(kept)
    }

    /// Downloads the package into an empty folder.
    fn download(&self, folder: &Path) -> Result<PathBuf, String> {
        let wanted = format!("{}={}", self.name, self.version);
        // Apt's user of its own may not write into the folder; being root, it would say so.
        let words = ["-qq", "-o", "APT::Sandbox::User=root", "download", &wanted];
        command::output(folder, "apt-get", &words).map_err(|error| {
            format!("{error} (if the version is gone, 'apt-get update' as root finds the next)")
        })?;
        let mut files = fs::read_dir(folder).into_iter().flatten().flatten();
        let file = files.next().ok_or_else(|| format!("apt-get downloaded no file of {wanted}"))?;
        Ok(file.path())
    }
}

/// Unpacks a package's file into a folder.
pub fn unpack(file: &Path, folder: &Path) -> Result<(), String> {
    let words = ["-x".as_ref(), file.as_os_str(), folder.as_os_str()];
    command::output(Path::new("/"), "dpkg-deb", &words).map(drop)
}

/// SHA-256 of a file, in hexadecimal.
pub fn sha256(file: &Path) -> Result<String, String> {
    let text = command::text(Path::new("/"), "sha256sum", &["-b".as_ref(), file.as_os_str()])?;
    text.split(' ').next().map(str::to_owned).ok_or("sha256sum printed nothing".to_owned())
}

fn verify(file: &Path, wanted: &str) -> Result<(), String> {
    let found = sha256(file)?;
    if found != wanted {
        let file = file.display();
        return Err(format!("{file} has the SHA-256 {found}, but apt's index says {wanted}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_index_is_read() {
        let text = "Package: linux-image-cloud\nVersion: 6.12-1\n\
                    Depends: linux-image-6.12 (= 6.12-1), x\n\
                    SHA256: 00ff\nDescription: a kernel\n Package: of lines\n";
        let found = Package::parse(text).expect("a package");
        assert_eq!((found.name.as_str(), found.version.as_str()), ("linux-image-cloud", "6.12-1"));
        assert_eq!(
            (found.sha256.as_str(), found.depends.as_deref()),
            ("00ff", Some("linux-image-6.12"))
        );
        assert_eq!(Package::parse("Package: purely-virtual\n"), None);
    }

    #[test]
    fn a_file_with_another_checksum_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "abc").expect("a file");
        // The example of FIPS 180-2.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(verify(&file, known), Ok(()));
        fs::write(&file, "abd").expect("a file");
        assert!(verify(&file, known).expect_err("another content").contains(known));
    }
}
