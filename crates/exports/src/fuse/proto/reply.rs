//! The server's answers. Every function writes behind the space of the header and returns how many
//! bytes it wrote. [`header`] writes the header last, when the length of the reply is known.

use super::init::InitReply;
use super::wire::{
    Attr, AttrOut, Dirent, EntryOut, InitOut, LseekOut, OpenOut, OutHeader, StatfsOut, WriteOut,
    write,
};
use super::{NAME_MAX, ROOT};
use zerocopy::IntoBytes;

/// Length of the header of every reply.
pub const OUT_HEADER_BYTES: usize = size_of::<OutHeader>();
/// The time, in seconds, for which the kernel may cache a name or attributes: it sees the growth of
/// a volume after this time.
const VALID_S: u64 = 1;

/// Writes the header of a reply of `bytes` bytes (without the header) to request `unique`: `error`
/// is 0 or a positive errno, with which there are no bytes.
pub fn header(unique: u64, error: i32, bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    debug_assert!(error == 0 || bytes == 0);
    let len = (OUT_HEADER_BYTES + bytes) as u32;
    let header = OutHeader { len, error: error.wrapping_neg(), unique };
    let mut out = [0; OUT_HEADER_BYTES];
    out.copy_from_slice(header.as_bytes());
    out
}

/// An inode as `stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Its number.
    pub node: u64,
    /// Size in bytes.
    pub size: u64,
    /// Kind and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// All its times, seconds since 1970.
    pub time_s: u64,
}

fn attr(a: &Attributes) -> Attr {
    Attr {
        ino: a.node,
        size: a.size,
        blocks: a.size.div_ceil(512),
        atime: a.time_s,
        mtime: a.time_s,
        ctime: a.time_s,
        mode: a.mode,
        nlink: 1,
        uid: a.uid,
        gid: a.gid,
        // For programs.
        blksize: 4096,
        ..Attr::default()
    }
}

/// Attributes alone.
pub fn attributes(out: &mut [u8], a: &Attributes) -> usize {
    attributes_for(out, a, VALID_S)
}

/// Attributes that the kernel must not cache: it asks again before it uses them.
pub fn passing_attributes(out: &mut [u8], a: &Attributes) -> usize {
    attributes_for(out, a, 0)
}

fn attributes_for(out: &mut [u8], a: &Attributes, valid_s: u64) -> usize {
    write(out, &AttrOut { attr_valid: valid_s, attr: attr(a), ..AttrOut::default() })
}

fn entry_out(a: &Attributes) -> EntryOut {
    // The generation stays 0: an inode's number is never used for another.
    let (nodeid, entry_valid, attr_valid) = (a.node, VALID_S, VALID_S);
    EntryOut { nodeid, entry_valid, attr_valid, attr: attr(a), ..EntryOut::default() }
}

/// An inode that was looked up.
pub fn entry(out: &mut [u8], a: &Attributes) -> usize {
    write(out, &entry_out(a))
}

/// A file or folder that was opened.
pub fn opened(out: &mut [u8], handle: u64, flags: u32) -> usize {
    write(out, &OpenOut { fh: handle, open_flags: flags, backing_id: 0 })
}

/// Bytes that were written.
pub fn written(out: &mut [u8], bytes: u32) -> usize {
    write(out, &WriteOut { size: bytes, padding: 0 })
}

/// A place in a file.
pub fn number(out: &mut [u8], value: u64) -> usize {
    write(out, &LseekOut { offset: value })
}

/// The answer to the first request.
pub fn init(out: &mut [u8], reply: &InitReply) -> usize {
    let flags = reply.flags.bits();
    let init = InitOut {
        major: reply.major,
        minor: reply.minor,
        max_readahead: reply.max_readahead,
        flags: flags as u32,
        max_background: reply.max_background,
        congestion_threshold: reply.congestion_threshold,
        max_write: reply.max_write,
        // Times are whole seconds.
        time_gran: 1_000_000_000,
        max_pages: reply.max_pages,
        flags2: (flags >> 32) as u32,
        ..InitOut::default()
    };
    write(out, &init)
}

/// The statistics that `statfs` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
}

/// The statistics of the file system, which is always full.
pub fn statistics(out: &mut [u8], s: &Statistics) -> usize {
    let statistics = StatfsOut {
        blocks: s.bytes / 4096,
        files: s.files,
        bsize: 4096,
        namelen: NAME_MAX as u32,
        frsize: 4096,
        ..StatfsOut::default()
    };
    write(out, &statistics)
}

/// An entry of a folder.
pub struct Entry<'a> {
    /// Its name, at most [`NAME_MAX`] bytes.
    pub name: &'a [u8],
    /// Place of the entry after it.
    pub next: u64,
    /// Its attributes.
    pub attributes: Attributes,
}

/// Entries of a folder, as many as fit.
pub struct Directory<'a> {
    out: &'a mut [u8],
    length: usize,
    plus: bool,
}

impl<'a> Directory<'a> {
    /// None yet; `plus`: with their attributes.
    pub fn new(out: &'a mut [u8], plus: bool) -> Self {
        Directory { out, length: 0, plus }
    }

    /// Adds an entry; false if it does not fit.
    pub fn add(&mut self, entry: &Entry<'_>) -> bool {
        let plus = if self.plus { size_of::<EntryOut>() } else { 0 };
        let bytes = (plus + size_of::<Dirent>() + entry.name.len()).next_multiple_of(8);
        let Some(room) = self.out.get_mut(self.length..self.length + bytes) else { return false };
        room.fill(0);
        if self.plus {
            write(room, &entry_out(&entry.attributes));
        }
        let dirent = Dirent {
            ino: entry.attributes.node.max(ROOT),
            off: entry.next,
            namelen: entry.name.len() as u32,
            // The kind, as in a directory entry: the upper bits of the mode.
            kind: entry.attributes.mode >> 12 & 0xf,
        };
        let name = plus + write(&mut room[plus..], &dirent);
        room[name..name + entry.name.len()].copy_from_slice(entry.name);
        self.length += bytes;
        true
    }

    /// Bytes written.
    pub fn length(&self) -> usize {
        self.length
    }
}
