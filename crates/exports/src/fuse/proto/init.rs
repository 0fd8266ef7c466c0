//! The first request, which negotiates the features of kernel and server.

use super::wire::{InitIn, InitInExt, read};

/// The protocol's major number.
pub const MAJOR: u32 = 7;
/// The newest minor number that this server was written for.
const MINOR: u32 = 38;
/// The oldest that it works with: Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// Longest write, and read, in bytes: what 256 pages hold, the most that the kernel permits without
/// a setting of the machine.
pub const MAX_WRITE: u32 = 1 << 20;
/// The same over io_uring, where every entry has room for the longest.
pub const MAX_WRITE_OVER_RING: u32 = 256 << 10;
/// The most background requests (read-ahead, write-back, asynchronous direct I/O: no process waits
/// for them) that the kernel keeps in flight. The number is large enough for a fast disk; the
/// kernel's own default of 12 is from the time of hard disks.
const MAX_BACKGROUND: u16 = 256;
/// The number of background requests from which on the kernel slows writers down: three quarters,
/// as in the kernel itself.
const CONGESTION: u16 = MAX_BACKGROUND / 4 * 3;

bitflags::bitflags! {
    /// Features that one side has, or wants.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct InitFlags: u64 {
        /// Reads may be in flight together.
        const ASYNC_READ = 1 << 0;
        /// Writes may be longer than a page.
        const BIG_WRITES = 1 << 5;
        /// Entries of a folder may be read together with their attributes.
        const DO_READDIRPLUS = 1 << 13;
        /// The kernel decides when to do so.
        const READDIRPLUS_AUTO = 1 << 14;
        /// Direct I/O may be in flight together.
        const ASYNC_DIO = 1 << 15;
        /// The page cache holds writes back.
        const WRITEBACK_CACHE = 1 << 16;
        /// Look-ups in a folder may be in flight together.
        const PARALLEL_DIROPS = 1 << 18;
        /// The server's answer has the most pages of a request.
        const MAX_PAGES = 1 << 22;
        /// The messages have a second word of flags.
        const INIT_EXT = 1 << 30;
        /// A file opened for direct I/O may be mapped.
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests come over io_uring.
        const OVER_IO_URING = 1 << 41;
    }
}

impl InitFlags {
    /// Features that the server wants whenever they are offered.
    const WANTED: InitFlags = Self::ASYNC_READ
        .union(Self::BIG_WRITES)
        .union(Self::DO_READDIRPLUS)
        .union(Self::READDIRPLUS_AUTO)
        .union(Self::ASYNC_DIO)
        .union(Self::PARALLEL_DIROPS)
        .union(Self::MAX_PAGES)
        .union(Self::INIT_EXT)
        .union(Self::DIRECT_IO_ALLOW_MMAP);
}

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitAsk {
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// Its features.
    pub flags: InitFlags,
}

impl InitAsk {
    /// Reads the offer from the body of the request.
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let InitIn { major, minor, max_readahead, flags } = read(body)?;
        let low = u64::from(flags);
        // Older kernels end here.
        let is_extended = low & InitFlags::INIT_EXT.bits() != 0;
        let high = match is_extended {
            true => read::<InitInExt>(&body[size_of::<InitIn>()..])?.flags2.into(),
            false => 0,
        };
        let flags = InitFlags::from_bits_truncate(high << 32 | low);
        Some(InitAsk { major, minor, max_readahead, flags })
    }
}

/// The server's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitReply {
    /// Major number: ours.
    pub major: u32,
    /// Minor number: ours; the smaller of the two counts.
    pub minor: u32,
    /// Longest read-ahead, bytes.
    pub max_readahead: u32,
    /// The features in use.
    pub flags: InitFlags,
    /// Most requests in flight that no process waits for.
    pub max_background: u16,
    /// The number of background requests from which on the kernel slows writers down.
    pub congestion_threshold: u16,
    /// Longest write, bytes.
    pub max_write: u32,
    /// Longest request, pages.
    pub max_pages: u16,
}

/// The kernel is too old.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Refused { major, minor } = self;
        write!(
            f,
            "the kernel's FUSE has version {major}.{minor}, but {MAJOR}.{MINOR_MIN} is needed \
             (Linux 5.4 or later)"
        )
    }
}

/// The optional features that the server's options ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wishes {
    /// Let the page cache hold writes back.
    pub writeback_cache: bool,
    /// Take requests over io_uring.
    pub over_ring: bool,
}

/// Answers the kernel's offer, with the optional features if they are wished for and offered. The
/// answer to a newer major number has ours, and the kernel asks again.
///
/// # Errors
/// When the kernel is too old.
pub fn negotiate(ask: &InitAsk, wishes: Wishes) -> Result<InitReply, Refused> {
    let old = ask.major < MAJOR || ask.major == MAJOR && ask.minor < MINOR_MIN;
    if old || ask.major == MAJOR && !ask.flags.contains(InitFlags::MAX_PAGES) {
        return Err(Refused { major: ask.major, minor: ask.minor });
    }
    let mut wanted = InitFlags::WANTED;
    wanted.set(InitFlags::WRITEBACK_CACHE, wishes.writeback_cache);
    wanted.set(InitFlags::OVER_IO_URING, wishes.over_ring);
    let over_ring = (ask.flags & wanted).contains(InitFlags::OVER_IO_URING);
    let max_write = if over_ring { MAX_WRITE_OVER_RING } else { MAX_WRITE };
    Ok(InitReply {
        major: MAJOR,
        minor: MINOR,
        max_readahead: ask.max_readahead,
        flags: ask.flags & wanted,
        max_background: MAX_BACKGROUND,
        congestion_threshold: CONGESTION,
        max_write,
        max_pages: (max_write as usize / rustix::param::page_size()).max(1) as u16,
    })
}
