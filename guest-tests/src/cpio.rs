//! Archives that the kernel unpacks into its first file system: cpio in the form `newc`, by
//! Documentation/driver-api/early-userspace/buffer-format.rst of Linux.
//!
//! Archives can follow one another: a later one adds to the files of an earlier one.

use std::collections::BTreeSet;

const REGULAR: u32 = 0o100_000;
const FOLDER: u32 = 0o040_000;
const CHARACTER_DEVICE: u32 = 0o020_000;
const LINK: u32 = 0o120_000;

/// An archive in the making. Paths are absolute; folders above a path are added by themselves.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a file with its permissions.
    pub fn file(&mut self, path: &str, permissions: u32, content: &[u8]) {
        self.parents(path);
        self.entry(path, REGULAR | permissions, (0, 0), content);
    }

    /// Adds an empty folder.
    pub fn folder(&mut self, path: &str) {
        self.parents(path);
        if self.folders.insert(path.to_owned()) {
            self.entry(path, FOLDER | 0o755, (0, 0), &[]);
        }
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.parents(path);
        self.entry(path, LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds the node of a character device, with its major and minor number.
    pub fn character_device(&mut self, path: &str, number: (u32, u32)) {
        self.parents(path);
        self.entry(path, CHARACTER_DEVICE | 0o600, number, &[]);
    }

    /// The finished archive. Its length is a multiple of four, so that another one may follow.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("/TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }

    fn parents(&mut self, path: &str) {
        assert!(path.starts_with('/') && !path.ends_with('/'), "{path:?} is no absolute path");
        let ends: Vec<usize> = path.match_indices('/').map(|(at, _)| at).skip(1).collect();
        for end in ends {
            let folder = path[..end].to_owned();
            if self.folders.insert(folder.clone()) {
                self.entry(&folder, FOLDER | 0o755, (0, 0), &[]);
            }
        }
    }

    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        let name = &path[1..];
        let size = u32::try_from(content.len()).expect("files of this form are below 4 GiB");
        let name_size = u32::try_from(name.len() + 1).expect("a path is short");
        self.entries += 1;
        // Inode, mode, user, group, links, time, size, device, device of a node, length of the
        // name, checksum.
        let fields = [self.entries, mode, 0, 0, 1, 0, size, 0, 0, device.0, device.1, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive back: name, mode and content of each entry.
    fn entries(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let field = |index: usize| {
                let text = str::from_utf8(&bytes[6 + index * 8..][..8]).expect("ASCII");
                u32::from_str_radix(text, 16).expect("hexadecimal")
            };
            let (mode, size, name_size) = (field(1), field(6) as usize, field(11) as usize);
            let name = String::from_utf8(bytes[110..][..name_size - 1].to_vec()).expect("UTF-8");
            let start = (110 + name_size).next_multiple_of(4);
            found.push((name, mode, bytes[start..][..size].to_vec()));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
        }
        found
    }

    #[test]
    fn folders_come_before_what_they_hold_and_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/one", 0o755, b"12345");
        archive.file("/a/b/two", 0o644, b"");
        archive.link("/a/c", "b/one");
        archive.folder("/a/b");
        let found = entries(&archive.finish());
        let names: Vec<&str> = found.iter().map(|(name, _, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "a/b", "a/b/one", "a/b/two", "a/c", "TRAILER!!!"]);
        assert_eq!(found[0].1, 0o040_755);
        assert_eq!((found[2].1, found[2].2.as_slice()), (0o100_755, b"12345".as_slice()));
        assert_eq!((found[4].1, found[4].2.as_slice()), (0o120_777, b"b/one".as_slice()));
    }
}
