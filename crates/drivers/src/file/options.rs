//! Options of a file device.

use std::path::PathBuf;

/// Whether to bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direct {
    /// Yes, if the host supports it with the logical block that the device has anyway.
    #[default]
    Auto,
    /// Yes, with logical blocks as large as that needs, or refuse to open.
    Yes,
    /// No.
    No,
}

/// How to open a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileOptions {
    /// The path of the file.
    pub path: PathBuf,
    /// Size in bytes. A file that does not exist is made sparse with this size; one that exists
    /// must be at least as large, and only this much of it is used.
    pub size_bytes: Option<u64>,
    /// Permission bits of a new file, regardless of the umask; without them, 0600 less the umask.
    pub mode: Option<u32>,
    /// Direct I/O.
    pub direct: Direct,
    /// Bytes of a logical block, a power of two from 512 to 4096. Without them, those of a block
    /// device of the host; of a file 512, or what direct I/O needs if that is demanded.
    pub logical_block_size: Option<u32>,
    /// True to never write.
    pub read_only: bool,
    /// Whether to ask the file system for holes; `None`: only if its answers are reliable.
    pub detect_holes: Option<bool>,
}
