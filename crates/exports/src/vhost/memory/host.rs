//! Memory of this process that holds a region of the guest's memory: a mapping of its file, or
//! memory of our own in tests and simulations.
//!
//! This is the only module of `vhost` with `unsafe`. The guest, and whoever else has the file,
//! changes the bytes at any time. There are two ways to use them:
//! * Numbers of rings, descriptors, headers and statuses: by atomic operations on 1, 2, 4 or 8
//!   bytes, here. A reference to such a number lives for its one operation.
//! * Data of requests: by whoever has a bio with a [`HostMemory::segment`], through its pointer, by
//!   the kernel or by plain copies. The guest may change data during such a copy, and a guest that
//!   names one place in two requests has two threads of ours copy there at once. Rust calls that
//!   a data race. It is relied on that a copy through a raw pointer does no more then than move
//!   bytes of any value, that nobody makes a reference to them, and that nobody reads them twice
//!   and takes both to be equal: the memory of such bios is never declared stable.
//!
//! Invariants:
//! * `start` is valid for reads and writes of `bytes` bytes as long as the value lives: it is
//!   unmapped or freed by `drop` only.
//! * Every access lies inside; an offset that does not is a mistake of ours, and panics.
//! * A regular file had all bytes of the region when it was mapped. An access can raise SIGBUS all
//!   the same, which ends the program: when another process cut the file, when no page is left
//!   (huge pages, of which there are few, or a tmpfs that is full), or when a page cannot be read.
//!   A seal against shrinking prevents the first only. No handler for that signal is here: one has
//!   to cover all mappings.

#![allow(unsafe_code, reason = "guest memory is a mapping that other processes change")]

use super::super::proto::Region;
use super::error::MapError;
use drystone_core::IoBuf;
use drystone_core::buf::Segment;
use rustix::fs::{FileType, fstat, fstatfs};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// The type of a file system of huge pages (`HUGETLBFS_MAGIC` of `linux/magic.h`).
const HUGETLBFS: i64 = 0x9584_58f6;

/// Memory that holds one region of the guest's. Any thread may use it.
#[derive(Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    bytes: usize,
    owner: Owner,
}

/// What keeps the memory.
enum Owner {
    /// A mapping, which has whole pages and so may be longer than the region.
    Mapping { start: NonNull<c_void>, bytes: usize },
    /// An allocation.
    Allocation(IoBuf),
}

// SAFETY: the value owns its mapping or allocation, which belongs to no thread.
unsafe impl Send for HostMemory {}
// SAFETY: shared access here is by atomic operations; a segment is a raw pointer, and who uses it
// vouches for that.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps the part of `file` that a region names. The descriptor may be closed afterwards.
    ///
    /// # Errors
    /// When the file is a regular one that ends before the region, or cannot be mapped to be read
    /// and written.
    pub fn map(file: impl AsFd, region: &Region) -> Result<Arc<Self>, MapError> {
        let (file, bytes) = (file.as_fd(), region.bytes());
        check_length(file, region)?;
        let page = page_bytes(file).map_err(MapError::Unreadable)?;
        let before = region.file_offset() % page;
        let whole = (before + bytes).checked_next_multiple_of(page);
        let whole = whole.and_then(|whole| usize::try_from(whole).ok());
        let whole = whole.ok_or(MapError::TooLong { bytes })?;
        let mapping = map_shared(file, region.file_offset() - before, whole)
            .map_err(|errno| MapError::Refused { region: *region, errno })?;
        // SAFETY: the mapping has at least `before` bytes.
        let start = unsafe { mapping.cast::<u8>().add(before as usize) };
        let owner = Owner::Mapping { start: mapping, bytes: whole };
        Ok(Arc::new(Self { start, bytes: bytes as usize, owner }))
    }

    /// Memory of zeroes that no file has, for tests and simulations.
    pub fn zeroed(bytes: usize) -> Arc<Self> {
        let mut buf = IoBuf::zeroed(bytes);
        let start = NonNull::new(buf.as_mut_ptr()).expect("a buffer is never null");
        Arc::new(Self { start, bytes, owner: Owner::Allocation(buf) })
    }

    /// Its length, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory from `at` on, for a bio. It is valid as long as this value lives. The guest may
    /// change it at any time, so that there must be no reference to its bytes.
    ///
    /// # Panics
    /// If it lies outside: a mistake of the caller.
    pub fn segment(&self, at: usize, bytes: usize) -> Segment {
        Segment { ptr: self.place(at, bytes), len: bytes }
    }

    /// Copies bytes from `at` on out of the memory, each once.
    ///
    /// # Panics
    /// If they lie outside: a mistake of the caller.
    pub fn read(&self, at: usize, to: &mut [u8]) {
        let from = self.place(at, to.len());
        let (words, rest) = to.as_chunks_mut::<8>();
        let words_bytes = size_of_val(words);
        match from.addr().is_multiple_of(8) {
            // SAFETY: `from` is aligned, and `place` made sure that all bytes are inside.
            true => unsafe { read_words(from.cast(), words) },
            // SAFETY: as above; a byte needs no alignment.
            false => unsafe { read_bytes(from, words.as_flattened_mut()) },
        }
        // SAFETY: as above.
        unsafe { read_bytes(from.add(words_bytes), rest) }
    }

    /// Copies bytes into the memory from `at` on.
    ///
    /// # Panics
    /// If they lie outside: a mistake of the caller.
    pub fn write(&self, at: usize, from: &[u8]) {
        let to = self.place(at, from.len());
        let (words, rest) = from.as_chunks::<8>();
        let words_bytes = size_of_val(words);
        match to.addr().is_multiple_of(8) {
            // SAFETY: `to` is aligned, and `place` made sure that all bytes are inside.
            true => unsafe { write_words(to.cast(), words) },
            // SAFETY: as above; a byte needs no alignment.
            false => unsafe { write_bytes(to, words.as_flattened()) },
        }
        // SAFETY: as above.
        unsafe { write_bytes(to.add(words_bytes), rest) }
    }

    /// Loads a little-endian number.
    ///
    /// # Panics
    /// If it lies outside or is not aligned: a mistake of the caller.
    #[inline]
    pub fn load_u16(&self, at: usize, order: Ordering) -> u16 {
        let place = self.aligned_place::<AtomicU16>(at).cast();
        // SAFETY: the place is aligned and inside. The guest changes it by whatever instructions it
        // likes; where that or a bio at the same place meets this load, the value is any, no worse.
        u16::from_le(unsafe { AtomicU16::from_ptr(place) }.load(order))
    }

    /// Stores a little-endian number.
    ///
    /// # Panics
    /// If it lies outside or is not aligned: a mistake of the caller.
    #[inline]
    pub fn store_u16(&self, at: usize, value: u16, order: Ordering) {
        let place = self.aligned_place::<AtomicU16>(at).cast();
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU16::from_ptr(place) }.store(value.to_le(), order);
    }

    /// Stores a little-endian number, with no order among other operations.
    ///
    /// # Panics
    /// If it lies outside or is not aligned: a mistake of the caller.
    #[inline]
    pub fn store_u32(&self, at: usize, value: u32) {
        let place = self.aligned_place::<AtomicU32>(at).cast();
        // SAFETY: as in `load_u16`.
        unsafe { AtomicU32::from_ptr(place) }.store(value.to_le(), Ordering::Relaxed);
    }

    /// True if the place of byte `at` is a multiple of `align`.
    pub fn is_aligned(&self, at: usize, align: usize) -> bool {
        self.start.addr().get().wrapping_add(at).is_multiple_of(align)
    }

    fn aligned_place<T>(&self, at: usize) -> *mut u8 {
        let place = self.place(at, size_of::<T>());
        assert!(place.addr().is_multiple_of(align_of::<T>()), "a number that is not aligned");
        place
    }

    /// The place of `bytes` bytes from `at` on.
    #[inline]
    fn place(&self, at: usize, bytes: usize) -> *mut u8 {
        let is_inside = at <= self.bytes && bytes <= self.bytes - at;
        assert!(is_inside, "{bytes} bytes at {at} of {} of guest memory", self.bytes);
        // SAFETY: `at` is at most the length of the memory.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Owner::Mapping { start, bytes } = self.owner {
            // SAFETY: the mapping is our own, of this length, and nobody uses it any more. It can
            // fail only for other arguments.
            let done = unsafe { munmap(start.as_ptr(), bytes) };
            debug_assert_eq!(done, Ok(()));
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::Mapping { bytes, .. } => write!(f, "mapping of {bytes} bytes"),
            Owner::Allocation(buf) => write!(f, "allocation of {} bytes", buf.len()),
        }
    }
}

/// Fails if a regular file ends before the region. Others, as devices, tell no length: whether they
/// have the region, `mmap` decides.
fn check_length(file: BorrowedFd<'_>, region: &Region) -> Result<(), MapError> {
    let stat = fstat(file).map_err(MapError::Unreadable)?;
    let (has, needs) = (stat.st_size as u64, region.file_offset() + region.bytes());
    if FileType::from_raw_mode(stat.st_mode).is_file() && has < needs {
        return Err(MapError::FileTooShort { region: *region, has, needs });
    }
    Ok(())
}

/// The length that a mapping of the file is a multiple of: that of a huge page, if it has those.
fn page_bytes(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let system = fstatfs(file)?;
    let is_huge = system.f_type as i64 == HUGETLBFS && (system.f_bsize as u64).is_power_of_two();
    let page = rustix::param::page_size() as u64;
    Ok(if is_huge { page.max(system.f_bsize as u64) } else { page })
}

fn map_shared(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> Result<NonNull<c_void>, Errno> {
    let (protection, flags) =
        (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::NORESERVE);
    // SAFETY: a new mapping, placed by the kernel, touches nothing of ours.
    let start = unsafe { mmap(std::ptr::null_mut(), bytes, protection, flags, file, offset) }?;
    // The guest's data does not belong into a dump of the server. A kernel that cannot keep it out
    // is no reason to fail.
    // SAFETY: the advice changes nothing that a program sees.
    let _ = unsafe { madvise(start, bytes, Advice::LinuxDontDump) };
    NonNull::new(start).ok_or(Errno::NOMEM)
}

/// # Safety
/// `from` is aligned, and valid for all of `to`.
unsafe fn read_words(from: *mut u64, to: &mut [[u8; 8]]) {
    for (index, word) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let atomic = unsafe { AtomicU64::from_ptr(from.add(index)) };
        *word = atomic.load(Ordering::Relaxed).to_ne_bytes();
    }
}

/// # Safety
/// `from` is valid for all of `to`.
unsafe fn read_bytes(from: *mut u8, to: &mut [u8]) {
    for (index, byte) in to.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *byte = unsafe { AtomicU8::from_ptr(from.add(index)) }.load(Ordering::Relaxed);
    }
}

/// # Safety
/// `to` is aligned, and valid for all of `from`.
unsafe fn write_words(to: *mut u64, from: &[[u8; 8]]) {
    for (index, word) in from.iter().enumerate() {
        // SAFETY: the caller's promise.
        let atomic = unsafe { AtomicU64::from_ptr(to.add(index)) };
        atomic.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
    }
}

/// # Safety
/// `to` is valid for all of `from`.
unsafe fn write_bytes(to: *mut u8, from: &[u8]) {
    for (index, byte) in from.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { AtomicU8::from_ptr(to.add(index)) }.store(*byte, Ordering::Relaxed);
    }
}
