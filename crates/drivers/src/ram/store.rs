//! Sparse anonymous memory. The first write of a page allocates memory, and a discard frees it.
//!
//! Invariants:
//! * The mapping lives as long as the store. Requests were checked against the device's size before
//!   they come here.
//! * A granule whose bit in `written` is clear reads as zeroes. A write sets the bits after its
//!   copy, a discard clears them before it frees: even if they overlap, no data is ever called a
//!   hole.
//! * One call zeroes or frees at most one piece; [`super::Zeroing`] divides longer ranges.
//! * No call locks. Overlapping I/O in flight leaves the bytes of either, as on a disk.

#![allow(unsafe_code, reason = "its memory is copied to and from without a lock")]

use super::stream::WriteCopy;
use drystone_core::buf::Segment;
use drystone_core::extent::ExtentList;
use drystone_core::{Bio, BioFlags, Error, Extent, Op, Pipe, Result, Status};
use drystone_queue::{INLINE_BYTES_MAX, Request};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};

/// The bytes that one bit of `written` describes: a page.
pub(super) const GRANULE: u64 = 4096;
/// The most words of `written` that one call scans to free their granules: 16 GiB, 0.1 ms.
pub(super) const WORK_MAX: u32 = 1 << 16;
/// The work of freeing one granule, in scanned words.
pub(super) const FREE_WORK: u32 = 64;
/// Bytes that one call overwrites, which may take new memory for all of them: 1 ms.
pub(super) const OVERWRITTEN_MAX: usize = INLINE_BYTES_MAX as usize;

/// A range that is still to be zeroed, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    from: usize,
    end: usize,
    /// True if its memory must stay allocated.
    keeps: bool,
}

impl Rest {
    /// All of a request.
    fn of(rq: &Request) -> Self {
        let from = rq.offset() as usize;
        let keeps = rq.unit.op == Op::WriteZeroes && rq.unit.flags.contains(BioFlags::NOUNMAP);
        Rest { from, end: from + rq.unit.bytes as usize, keeps }
    }

    /// True when all of it is zeroed.
    pub(crate) fn is_empty(&self) -> bool {
        self.from == self.end
    }
}

/// Sparse memory that requests are executed on.
pub struct RamStore {
    base: NonNull<u8>,
    len: usize,
    written: Box<[AtomicU64]>,
    /// True once the kernel has not taken pages into a pipe.
    refuses_pipes: AtomicBool,
}

// SAFETY: the mapping belongs to the store; it is accessed by raw copies only, which any thread
// may make (see the invariants for overlapping ones).
unsafe impl Send for RamStore {}
// SAFETY: as above.
unsafe impl Sync for RamStore {}

impl RamStore {
    /// Memory for `size_bytes` bytes, all of it a hole.
    ///
    /// # Errors
    /// When that much address space cannot be had.
    pub fn new(size_bytes: u64) -> Result<Self> {
        let too_large = || Error::invalid(format!("{size_bytes} bytes of RAM cannot be mapped"));
        let len = usize::try_from(size_bytes).map_err(|_| too_large())?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new anonymous mapping, placed by the kernel, touches nothing of ours.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(too_large());
        }
        let words = (size_bytes.div_ceil(GRANULE)).div_ceil(64) as usize;
        Ok(RamStore {
            base: NonNull::new(base.cast()).ok_or_else(too_large)?,
            len,
            // SAFETY: zeroes are a value of an atomic number. Memory of the kernel is zero without
            // being touched.
            written: unsafe { Box::<[AtomicU64]>::new_zeroed_slice(words).assume_init() },
            refuses_pipes: AtomicBool::new(false),
        })
    }

    /// Bytes of the memory.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.len as u64
    }

    /// True for a request that must be fast and cannot be, because it would overwrite memory that
    /// it keeps.
    #[inline]
    fn is_slow_for(&self, rq: &Request) -> bool {
        let both = BioFlags::FAST_ZERO | BioFlags::NOUNMAP;
        rq.unit.op == Op::WriteZeroes && rq.unit.flags.contains(both)
    }

    /// The range that the request zeroes, if that is too long for one call ([`super::Zeroing`]).
    #[inline]
    pub(crate) fn long_zeroing(&self, rq: &Request) -> Option<Rest> {
        let is_long = !rq.unit.op.has_data() && rq.unit.bytes > INLINE_BYTES_MAX;
        let is_inside =
            || rq.offset().checked_add(rq.unit.bytes).is_some_and(|end| end <= self.len as u64);
        (is_long && is_inside() && !self.is_slow_for(rq)).then(|| Rest::of(rq))
    }

    /// Execute a request, which lies inside the store.
    #[inline]
    pub fn execute(&self, rq: &Request) -> Status {
        let (offset, bytes) = (rq.offset() as usize, rq.unit.bytes as usize);
        if offset.checked_add(bytes).is_none_or(|end| end > self.len) {
            return Status::IoError;
        }
        match rq.unit.op {
            Op::Read => self.read(rq, offset),
            Op::Write => self.write(rq, offset),
            Op::WriteZeroes if self.is_slow_for(rq) => return Status::NotSupported,
            Op::Discard | Op::WriteZeroes => {
                let mut rest = Rest::of(rq);
                while !rest.is_empty() {
                    self.zero_some(&mut rest);
                }
            }
            Op::Flush => {}
        }
        Status::Ok
    }

    /// Execute a read or write of one segment, which lies inside the store; `None` for others. A
    /// read that came with a pipe gets references to the store's memory there instead of a copy.
    #[inline]
    pub fn do_bio(&self, bio: &mut Bio) -> Option<Status> {
        let (segment, offset) = (bio.single_segment()?, bio.sector.bytes() as usize);
        let end = offset.checked_add(segment.len).filter(|end| *end <= self.len);
        let place = end.map(|_| self.base.as_ptr().wrapping_add(offset))?;
        if bio.bytes >= Pipe::BYTES_MIN && self.fill_pipe(bio, place) {
            return Some(Status::Ok);
        }
        // SAFETY: the range lies inside the mapping, the bio's memory is vouched for until it ends.
        unsafe {
            match bio.op {
                Op::Read => std::ptr::copy(place, segment.ptr, segment.len),
                Op::Write => {
                    let copy = WriteCopy::of(bio.bytes);
                    copy.put(segment.ptr, place, segment.len);
                    copy.end();
                }
                _ => return None,
            }
        }
        if bio.op == Op::Write {
            self.mark(offset as u64, bio.bytes);
        }
        Some(Status::Ok)
    }

    /// Fill the pipe of a long read from `place`. False if it has none, or the kernel refuses: then
    /// the data is copied.
    #[cold]
    fn fill_pipe(&self, bio: &mut Bio, place: *mut u8) -> bool {
        let memory = Segment { ptr: place, len: bio.bytes as usize };
        let Some(pipe) = bio.pipe_to_fill() else { return false };
        let filled = pipe.fill_from(memory);
        if filled.is_err_and(Pipe::is_refusal) {
            self.refuses_pipes.store(true, Relaxed);
        }
        filled.is_ok()
    }

    /// True unless the kernel has refused to take pages into a pipe.
    pub(crate) fn fills_pipes(&self) -> bool {
        !self.refuses_pipes.load(Relaxed)
    }

    #[inline]
    fn read(&self, rq: &Request, offset: usize) {
        let mut from = self.base.as_ptr().wrapping_add(offset);
        rq.each_segment(|s| {
            // SAFETY: the segments sum up to the request's bytes, which lie inside the mapping
            // (checked by execute); the bio's memory is vouched for until it completes.
            unsafe { std::ptr::copy(from, s.ptr, s.len) };
            from = from.wrapping_add(s.len);
        });
    }

    #[inline]
    fn write(&self, rq: &Request, offset: usize) {
        let mut to = self.base.as_ptr().wrapping_add(offset);
        let copy = WriteCopy::of(rq.unit.bytes);
        rq.each_segment(|s| {
            // SAFETY: as for read.
            unsafe { copy.put(s.ptr, to, s.len) };
            to = to.wrapping_add(s.len);
        });
        copy.end();
        self.mark(offset as u64, rq.unit.bytes);
    }

    /// Note that the granules of a range hold data.
    fn mark(&self, offset: u64, bytes: u64) {
        for granule in offset / GRANULE..(offset + bytes).div_ceil(GRANULE) {
            let (word, bit) = (&self.written[(granule / 64) as usize], 1 << (granule % 64));
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Release);
            }
        }
    }

    /// Zero the first part of `rest`, as much as one call should do. Granules that lie wholly in it
    /// are freed, unless the caller keeps them; partial ones are overwritten.
    pub(crate) fn zero_some(&self, rest: &mut Rest) {
        let Rest { from, end, keeps } = *rest;
        if keeps {
            rest.from = end.min(from + OVERWRITTEN_MAX);
            self.overwrite_with_zeroes(from, rest.from);
            return self.mark(from as u64, (rest.from - from) as u64);
        }
        let granule = GRANULE as usize;
        let (first, last) = (from.div_ceil(granule), end / granule);
        rest.from = end;
        if first >= last {
            return self.zero_parts(from, end);
        }
        self.zero_parts(from, first * granule);
        let next = self.free_some(first, last);
        match next == last {
            true => self.zero_parts(last * granule, end),
            false => rest.from = next * granule,
        }
    }

    /// Zero parts of granules. A granule without data reads as zeroes already, and gets no memory.
    fn zero_parts(&self, from: usize, end: usize) {
        let granule = GRANULE as usize;
        let mut at = from;
        while at < end {
            let next = end.min((at / granule + 1) * granule);
            let (word, bit) = (&self.written[at / granule / 64], 1 << (at / granule % 64));
            if word.load(Acquire) & bit != 0 {
                self.overwrite_with_zeroes(at, next);
            }
            at = next;
        }
    }

    /// Free the first of the granules `first..last`, as many as one call should. Returns the
    /// granule after them.
    fn free_some(&self, first: usize, last: usize) -> usize {
        let (mut at, mut work, mut run) = (first, 0, first..first);
        while at < last && work < WORK_MAX {
            let next = last.min((at / 64 + 1) * 64);
            let mask = u64::MAX >> (64 - (next - at)) << (at % 64);
            let word = &self.written[at / 64];
            let held = word.load(Relaxed) & mask;
            if held != 0 {
                word.fetch_and(!mask, AcqRel);
                if run.end != at {
                    self.give_back(std::mem::replace(&mut run, at..at));
                }
                run.end = next;
            }
            (at, work) = (next, work + 1 + held.count_ones() * FREE_WORK);
        }
        self.give_back(run);
        at
    }

    /// Give the memory of granules back to the system; they read as zeroes afterwards.
    fn give_back(&self, granules: Range<usize>) {
        let (from, end) = (granules.start * GRANULE as usize, granules.end * GRANULE as usize);
        if from == end {
            return;
        }
        // SAFETY: the range lies inside our own mapping and is page aligned.
        let freed = unsafe {
            let start = self.base.as_ptr().add(from);
            libc::madvise(start.cast(), end - from, libc::MADV_DONTNEED) == 0
        };
        if !freed {
            self.overwrite_with_zeroes(from, end);
        }
    }

    fn overwrite_with_zeroes(&self, from: usize, to: usize) {
        // SAFETY: inside the mapping, as checked when the request came.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(from), 0, to - from) };
    }

    /// The allocation query.
    pub fn extents(&self, offset: u64, length: u64, max: usize) -> Vec<Extent> {
        let mut list = ExtentList::new();
        let (mut at, end) = (offset, offset + length);
        while at < end && list.as_slice().len() <= max {
            let (data, until) = self.run(at / GRANULE, end.div_ceil(GRANULE));
            let until = (until * GRANULE).min(end);
            list.push(match data {
                true => Extent::data(at, until - at),
                false => Extent::hole(at, until - at),
            });
            at = until;
        }
        let mut extents = list.into_vec();
        extents.truncate(max);
        extents
    }

    /// True if `granule` holds data, and the first granule (at most `end`) that differs.
    fn run(&self, granule: u64, end: u64) -> (bool, u64) {
        let bits = |g: u64| self.written[(g / 64) as usize].load(Acquire);
        let data = bits(granule) >> (granule % 64) & 1 == 1;
        let mut at = granule;
        while at < end {
            let differing = if data { !bits(at) } else { bits(at) } >> (at % 64);
            if differing != 0 {
                return (data, (at + u64::from(differing.trailing_zeros())).min(end));
            }
            at = (at / 64 + 1) * 64;
        }
        (data, end)
    }
}

impl Drop for RamStore {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nobody uses the store any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
