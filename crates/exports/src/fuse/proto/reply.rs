//! What the server answers. Every function writes after the place of the header, which is written
//! last, by [`header`], when the length of the reply is known; it returns how many bytes it wrote.

use super::fields::Writer;
use super::init::InitReply;
use super::{NAME_MAX, ROOT};

/// Length of the header of every reply.
pub const OUT_HEADER_BYTES: usize = 16;
/// How long the kernel may rely on a name or on attributes, seconds: a volume that has grown is seen
/// after this.
const VALID_S: u64 = 1;

/// Writes the header of a reply of `bytes` bytes (without the header) to request `unique`: `error` is
/// 0 or a positive errno, with which there are no bytes.
pub fn header(unique: u64, error: i32, bytes: usize) -> [u8; OUT_HEADER_BYTES] {
    debug_assert!(error == 0 || bytes == 0);
    let mut out = [0; OUT_HEADER_BYTES];
    let mut w = Writer::new(&mut out);
    w.u32((OUT_HEADER_BYTES + bytes) as u32);
    w.u32(error.wrapping_neg() as u32);
    w.u64(unique);
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

fn put_attributes(w: &mut Writer<'_>, a: &Attributes) {
    w.u64(a.node);
    w.u64(a.size);
    w.u64(a.size.div_ceil(512));
    (0..3).for_each(|_| w.u64(a.time_s));
    (0..3).for_each(|_| w.u32(0));
    w.u32(a.mode);
    // Links.
    w.u32(1);
    w.u32(a.uid);
    w.u32(a.gid);
    // Device number, block size for programs, flags.
    w.u32(0);
    w.u32(4096);
    w.u32(0);
}

/// Attributes alone.
pub fn attributes(out: &mut [u8], a: &Attributes) -> usize {
    attributes_for(out, a, VALID_S)
}

/// Attributes that the kernel may not rely on: it asks again before it tells them to anybody.
pub fn passing_attributes(out: &mut [u8], a: &Attributes) -> usize {
    attributes_for(out, a, 0)
}

fn attributes_for(out: &mut [u8], a: &Attributes, valid_s: u64) -> usize {
    let mut w = Writer::new(out);
    w.u64(valid_s);
    w.u64(0);
    put_attributes(&mut w, a);
    w.length
}

fn put_entry(w: &mut Writer<'_>, a: &Attributes) {
    w.u64(a.node);
    // Generation: an inode's number is never used for another.
    w.u64(0);
    w.u64(VALID_S);
    w.u64(VALID_S);
    w.u64(0);
    put_attributes(w, a);
}

/// An inode that was looked up.
pub fn entry(out: &mut [u8], a: &Attributes) -> usize {
    let mut w = Writer::new(out);
    put_entry(&mut w, a);
    w.length
}

/// A file or folder that was opened.
pub fn opened(out: &mut [u8], handle: u64, flags: u32) -> usize {
    let mut w = Writer::new(out);
    w.u64(handle);
    w.u32(flags);
    w.u32(0);
    w.length
}

/// Bytes that were written.
pub fn written(out: &mut [u8], bytes: u32) -> usize {
    let mut w = Writer::new(out);
    w.u32(bytes);
    w.u32(0);
    w.length
}

/// A place in a file.
pub fn number(out: &mut [u8], value: u64) -> usize {
    let mut w = Writer::new(out);
    w.u64(value);
    w.length
}

/// The answer to the first request.
pub fn init(out: &mut [u8], reply: &InitReply) -> usize {
    let flags = reply.flags.bits();
    let mut w = Writer::new(out);
    w.u32(reply.major);
    w.u32(reply.minor);
    w.u32(reply.max_readahead);
    w.u32(flags as u32);
    w.u16(reply.max_background);
    w.u16(reply.congestion_threshold);
    w.u32(reply.max_write);
    // Times are whole seconds.
    w.u32(1_000_000_000);
    w.u16(reply.max_pages);
    w.u16(0);
    w.u32((flags >> 32) as u32);
    (0..7).for_each(|_| w.u32(0));
    w.length
}

/// What `statfs` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistics {
    /// Bytes of all files.
    pub bytes: u64,
    /// Number of files.
    pub files: u64,
}

/// Statistics of the file system: it is full.
pub fn statistics(out: &mut [u8], s: &Statistics) -> usize {
    let mut w = Writer::new(out);
    w.u64(s.bytes / 4096);
    w.u64(0);
    w.u64(0);
    w.u64(s.files);
    w.u64(0);
    w.u32(4096);
    w.u32(NAME_MAX as u32);
    w.u32(4096);
    (0..7).for_each(|_| w.u32(0));
    w.length
}

/// An entry of a folder.
pub struct Entry<'a> {
    /// Its name, at most [`NAME_MAX`] bytes.
    pub name: &'a [u8],
    /// Place of the entry after it.
    pub next: u64,
    /// What it is.
    pub attributes: Attributes,
}

/// Entries of a folder, as many as fit.
pub struct Directory<'a> {
    out: &'a mut [u8],
    length: usize,
    plus: bool,
}

/// Length of an entry without its name; `plus` puts its attributes before it.
const ENTRY_BYTES: usize = 24;
const PLUS_BYTES: usize = 128;

impl<'a> Directory<'a> {
    /// None yet; `plus`: with their attributes.
    pub fn new(out: &'a mut [u8], plus: bool) -> Self {
        Directory { out, length: 0, plus }
    }

    /// Adds an entry; false if it does not fit.
    pub fn add(&mut self, entry: &Entry<'_>) -> bool {
        let plus = if self.plus { PLUS_BYTES } else { 0 };
        let bytes = (plus + ENTRY_BYTES + entry.name.len()).next_multiple_of(8);
        let Some(room) = self.out.get_mut(self.length..self.length + bytes) else { return false };
        room.fill(0);
        let mut w = Writer::new(room);
        if self.plus {
            put_entry(&mut w, &entry.attributes);
        }
        w.u64(entry.attributes.node.max(ROOT));
        w.u64(entry.next);
        w.u32(entry.name.len() as u32);
        // The kind, as in a directory entry: the upper bits of the mode.
        w.u32(entry.attributes.mode >> 12 & 0xf);
        w.bytes(entry.name);
        self.length += bytes;
        true
    }

    /// Bytes written.
    pub fn length(&self) -> usize {
        self.length
    }
}
