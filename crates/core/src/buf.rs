//! Aligned I/O buffers and the memory segments a bio points at.
//!
//! Invariants:
//! * An [`IoBuf`] owns its allocation alone: no other code frees or resizes it, and it is never
//!   null. Its alignment ([`IoBuf::ALIGN`]) suits direct I/O on every device we know.
//! * While a bio is in flight it owns its `IoBuf`; the memory is freed only after the driver
//!   has given the bio back.

#![allow(unsafe_code, reason = "buffers are aligned memory that a kernel writes to")]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A heap buffer aligned for direct I/O. Dropping it frees the memory.
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    memory: Memory,
}

/// Where a buffer's memory comes from.
enum Memory {
    /// An allocation of its own.
    Heap,
    /// A mapping of its own: pages that are never touched take no memory.
    Mapped,
    /// A part of an arena, which this keeps alive.
    Arena { _whole: Arc<Arena> },
    /// Memory of another owner, which keeps it.
    Lent,
}

// SAFETY: an IoBuf is the only owner of its memory, like a Vec<u8>.
unsafe impl Send for IoBuf {}
// SAFETY: shared access only reads.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of every buffer in bytes: a page, the largest alignment that direct I/O asks
    /// for (a device's logical block size is at most a page, Linux `blk_validate_limits`).
    pub const ALIGN: usize = 4096;

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), Self::ALIGN).expect("buffer length below isize::MAX")
    }

    /// Buffers from this length on are mapped: an allocator would have to zero them, and touch
    /// memory that may never be used.
    const MAP_FROM: usize = 128 << 10;

    /// Bytes of memory that a new buffer of `len` bytes takes. An allocator has words of its own
    /// before each block, so the next that is aligned begins a page later.
    pub const fn memory_of(len: usize) -> usize {
        let pages = len.next_multiple_of(Self::ALIGN);
        if len >= Self::MAP_FROM { pages } else { pages + Self::ALIGN }
    }

    /// A zeroed buffer of `len` bytes. Ends the program when memory is short.
    pub fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|| handle_alloc_error(Self::layout(len)))
    }

    /// A zeroed buffer of `len` bytes, or `None` when memory is short.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        if len >= Self::MAP_FROM {
            return Self::mapped(len);
        }
        let layout = Layout::from_size_align(len.max(1), Self::ALIGN).ok()?;
        // SAFETY: the layout has a non-zero size.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(IoBuf { ptr, len, memory: Memory::Heap })
    }

    fn mapped(len: usize) -> Option<Self> {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let start = std::ptr::null_mut();
        // SAFETY: a new anonymous mapping, placed by the kernel, touches nothing of ours. It is
        // page aligned, and a page is ALIGN bytes or a multiple.
        let start = unsafe { libc::mmap(start, len.max(1), protection, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        NonNull::new(start.cast()).map(|ptr| IoBuf { ptr, len, memory: Memory::Mapped })
    }

    /// A buffer that holds a copy of `bytes`.
    pub fn from_slice(bytes: &[u8]) -> Self {
        let layout = Self::layout(bytes.len());
        // SAFETY: the layout has a non-zero size; the copy fills exactly what was allocated.
        unsafe {
            let Some(ptr) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr.as_ptr(), bytes.len());
            IoBuf { ptr, len: bytes.len(), memory: Memory::Heap }
        }
    }

    /// Memory of somebody else as a buffer; dropping it frees nothing.
    ///
    /// # Safety
    /// While the buffer lives the segment stays valid for reads from any thread, and nobody writes
    /// to it, through this buffer neither.
    pub unsafe fn lent(segment: Segment) -> Option<Self> {
        let ptr = NonNull::new(segment.ptr)?;
        Some(IoBuf { ptr, len: segment.len, memory: Memory::Lent })
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when it was cut from an [`Arena`].
    pub fn is_in_arena(&self) -> bool {
        matches!(self.memory, Memory::Arena { .. })
    }

    /// True for memory of another owner ([`IoBuf::lent`]).
    pub fn is_lent(&self) -> bool {
        matches!(self.memory, Memory::Lent)
    }

    /// True for a buffer of no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Start of the memory. Valid for `len` bytes while the buffer lives.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The whole buffer, or the part `range`, as a segment for a bio or a socket operation.
    ///
    /// # Panics
    /// If `range` lies outside the buffer (our own mistake).
    #[inline]
    pub fn segment(&self, range: std::ops::Range<usize>) -> Segment {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: the start lies inside the allocation, as just checked.
        Segment { ptr: unsafe { self.ptr.as_ptr().add(range.start) }, len: range.len() }
    }
}

impl std::ops::Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is initialised (zeroed or copied) and `len` bytes long.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl std::ops::DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for deref, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        match self.memory {
            // SAFETY: allocated with this very layout and freed once.
            Memory::Heap => unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.len)) },
            // A process has only so many mappings (`vm.max_map_count`), and a hole in one makes two
            // of it: where that is refused, the pages go at least.
            // SAFETY: mapped with this very length and unmapped once.
            Memory::Mapped => unsafe {
                let (start, len) = (self.ptr.as_ptr().cast(), self.len.max(1));
                if libc::munmap(start, len) != 0 {
                    libc::madvise(start, len, libc::MADV_DONTNEED);
                }
            },
            Memory::Arena { .. } | Memory::Lent => {}
        }
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuf({} bytes)", self.len)
    }
}

/// Memory from which buffers are cut, once each, so that a ring can know all of it beforehand
/// ([`crate::Context::register_memory`]). It lives until the last buffer and ring let go of it, and
/// then goes back to the kernel: it is a mapping of its own.
pub struct Arena {
    whole: IoBuf,
    /// Bytes handed out.
    used: AtomicUsize,
}

impl Arena {
    /// An arena of `bytes` zeroed bytes; `None` when memory is short.
    pub fn new(bytes: usize) -> Option<Arc<Self>> {
        let whole = IoBuf::mapped(bytes)?;
        Some(Arc::new(Arena { whole, used: AtomicUsize::new(0) }))
    }

    /// Cut a buffer of `bytes` bytes; `None` when too little is left. The memory of a
    /// dropped buffer is not handed out again: keep buffers and use them again.
    pub fn cut(self: &Arc<Self>, bytes: usize) -> Option<IoBuf> {
        let room = bytes.checked_next_multiple_of(IoBuf::ALIGN)?;
        let fits = |used: usize| used.checked_add(room).filter(|end| *end <= self.whole.len);
        let start = self.used.try_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok()?;
        let segment = self.whole.segment(start..start + bytes);
        // The range was handed out only once, and `arena` keeps the memory.
        let ptr = NonNull::new(segment.ptr)?;
        Some(IoBuf { ptr, len: bytes, memory: Memory::Arena { _whole: self.clone() } })
    }

    /// All of it.
    pub fn segment(&self) -> Segment {
        self.whole.segment(0..self.whole.len)
    }
}

/// A piece of memory that a bio reads into or writes from (Linux: `bio_vec`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Segment {
    /// Start of the memory.
    pub ptr: *mut u8,
    /// Length in bytes.
    pub len: usize,
}

// SAFETY: a segment is an address; code that dereferences it argues why the memory is there.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A segment of no bytes.
    pub const EMPTY: Segment = Segment { ptr: std::ptr::null_mut(), len: 0 };
}

/// Copy `bytes` into `segments`, starting `skip` bytes in. Returns how many were copied.
///
/// # Safety
/// Every segment must be valid for writes and not overlap `bytes`.
pub unsafe fn copy_to_segments(segments: &[Segment], skip: usize, mut bytes: &[u8]) -> usize {
    let wanted = bytes.len();
    each_piece(segments, skip, |ptr, len| {
        let n = len.min(bytes.len());
        // SAFETY: the caller vouches for the segment; n is at most its remaining length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), ptr, n) };
        bytes = &bytes[n..];
        !bytes.is_empty()
    });
    wanted - bytes.len()
}

/// Fill `bytes` from `segments`, starting `skip` bytes in. Returns how many were copied.
///
/// # Safety
/// Every segment must be valid for reads and not overlap `bytes`.
pub unsafe fn copy_from_segments(segments: &[Segment], skip: usize, bytes: &mut [u8]) -> usize {
    let mut filled = 0;
    each_piece(segments, skip, |ptr, len| {
        let n = len.min(bytes.len() - filled);
        // SAFETY: the caller vouches for the segment; both ranges have n bytes left.
        unsafe { std::ptr::copy_nonoverlapping(ptr, bytes[filled..].as_mut_ptr(), n) };
        filled += n;
        filled < bytes.len()
    });
    filled
}

/// Zero `len` bytes of `segments`, starting `skip` bytes in.
///
/// # Safety
/// Every segment must be valid for writes.
pub unsafe fn zero_segments(segments: &[Segment], skip: usize, len: usize) {
    let mut left = len;
    each_piece(segments, skip, |ptr, piece| {
        let n = piece.min(left);
        // SAFETY: the caller vouches for the segment.
        unsafe { std::ptr::write_bytes(ptr, 0, n) };
        left -= n;
        left > 0
    });
}

/// Call `f` with each piece of `segments` after `skip` bytes until it returns false.
fn each_piece(segments: &[Segment], mut skip: usize, mut f: impl FnMut(*mut u8, usize) -> bool) {
    for segment in segments {
        if skip >= segment.len {
            skip -= segment.len;
            continue;
        }
        // Wrapping: an address inside the segment, dereferenced only by the caller's argument.
        if !f(segment.ptr.wrapping_add(skip), segment.len - skip) {
            return;
        }
        skip = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Buffers one after the other lie no further apart than what is counted for each.
    #[test]
    fn a_buffer_takes_no_more_than_is_said() {
        for len in [1, 4096, 8192, 20_480, 69_632, IoBuf::MAP_FROM, 1_052_672] {
            let bufs: Vec<_> = (0..64).map(|_| IoBuf::zeroed(len)).collect();
            let mut starts: Vec<_> = bufs.iter().map(|buf| buf.as_ptr().addr()).collect();
            starts.sort_unstable();
            let nearest = starts.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
            assert!(nearest <= IoBuf::memory_of(len), "{nearest} bytes for {len}");
        }
        assert_eq!(IoBuf::memory_of(8192), 12_288);
    }

    #[test]
    fn buffers_are_aligned_and_zeroed() {
        let buf = IoBuf::zeroed(10_000);
        assert_eq!(buf.as_ptr() as usize % IoBuf::ALIGN, 0);
        assert!(buf.iter().all(|b| *b == 0));
        assert!(IoBuf::zeroed(0).is_empty());
    }

    #[test]
    fn an_arena_is_cut_once() {
        let arena = Arena::new(3 * IoBuf::ALIGN).unwrap();
        let mut a = arena.cut(100).unwrap();
        let mut b = arena.cut(2 * IoBuf::ALIGN).unwrap();
        assert!(arena.cut(1).is_none() && arena.cut(usize::MAX).is_none());
        a.fill(1);
        b.fill(2);
        assert!(a.iter().all(|x| *x == 1) && b.iter().all(|x| *x == 2));
        assert_eq!(b.as_ptr() as usize - arena.segment().ptr as usize, IoBuf::ALIGN);
        drop(arena);
        assert!(b.iter().all(|x| *x == 2), "the buffers keep the memory");
    }

    #[test]
    fn copies_cross_segments() {
        let (a, b) = (IoBuf::zeroed(5), IoBuf::zeroed(7));
        let segments = [a.segment(0..5), b.segment(0..7)];
        let data: Vec<u8> = (1..=12).collect();
        let mut back = [0u8; 8];
        // SAFETY: both buffers live and nothing else borrows them.
        unsafe {
            assert_eq!(copy_to_segments(&segments, 0, &data), 12);
            assert_eq!(copy_from_segments(&segments, 3, &mut back), 8);
            zero_segments(&segments, 4, 3);
        }
        assert_eq!(back, [4, 5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(&a[..], [1, 2, 3, 4, 0]);
        assert_eq!(&b[..], [0, 0, 8, 9, 10, 11, 12]);
    }
}
