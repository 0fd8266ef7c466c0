//! The bio: one I/O as submitted by a user of the block layer (Linux: `struct bio`).
//!
//! Invariants:
//! * A bio is heap allocated and owned: by the caller, then by the layer from submission until
//!   completion, then by the caller again. Nothing else holds it, so nothing can free a buffer
//!   that a driver still uses.
//! * A clone borrows its parent's segments. The parent ends only after its last clone ended
//!   (`remaining` reaches 0), so the borrow never outlives the memory.
//! * `remaining` is touched only with the submitting context in hand (its owner inside a call,
//!   or a visitor through its gate), so it needs no atomic.

use crate::buf::{IoBuf, Segment};
use crate::op::{BioFlags, Op, Priority};
use crate::status::Status;
use crate::units::Sector;
use std::ptr::NonNull;

/// What happens when a bio ends.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum End {
    /// It goes to the submitter.
    #[default]
    Submitter,
    /// It is a part of the parent, which ends with its last part.
    Chain(NonNull<Bio>),
}

/// One I/O: operation, place, memory, flags, and how it ended.
#[repr(C)]
pub struct Bio {
    /// Link of the list that owns the bio; null when alone.
    pub(crate) next: *mut Bio,
    /// First byte on the device, as a sector.
    pub sector: Sector,
    /// Length in bytes.
    pub bytes: u64,
    /// When the bio was submitted, ns of the context's clock; set by the context.
    pub start_ns: u64,
    /// Anything the submitter wants back with the completion.
    pub user_data: u64,
    /// The operation.
    pub op: Op,
    /// How it ended; meaningful after completion.
    pub status: Status,
    /// Modifiers.
    pub flags: BioFlags,
    /// Class and level.
    pub priority: Priority,
    /// The throttle group; 0 is the root.
    pub group: u32,
    /// For the device: which of its channels the bio came through, while others have it.
    pub home: u32,
    /// Bytes to skip in the segments (clones start inside their parent's memory).
    skip: usize,
    /// The first segment, the only one of most bios.
    first: Segment,
    /// The segments when there are more than one, or a clone's view of its parent's.
    view: *const Segment,
    view_len: u32,
    /// Parts (and the bio itself) that have not ended.
    pub(crate) remaining: u32,
    pub(crate) end: End,
    more: Vec<Segment>,
    buf: Option<IoBuf>,
    more_bufs: Vec<IoBuf>,
}

// SAFETY: a bio owns its buffer or is built from memory that its maker vouched for as usable by
// whichever thread runs the device (`from_raw_segments`); its links are used only by its owner.
unsafe impl Send for Bio {}

impl Bio {
    fn empty(op: Op, sector: Sector, bytes: u64) -> Box<Self> {
        Box::new(Bio {
            next: std::ptr::null_mut(),
            sector,
            bytes,
            start_ns: 0,
            user_data: 0,
            op,
            status: Status::Ok,
            flags: BioFlags::empty(),
            priority: Priority::default(),
            group: 0,
            home: 0,
            skip: 0,
            first: Segment::EMPTY,
            view: std::ptr::null(),
            view_len: 0,
            remaining: 0,
            end: End::Submitter,
            more: Vec::new(),
            buf: None,
            more_bufs: Vec::new(),
        })
    }

    /// A bio of an operation without data (flush, discard, write zeroes) over `bytes` bytes.
    pub fn without_data(op: Op, sector: Sector, bytes: u64) -> Box<Self> {
        debug_assert!(!op.has_data());
        Self::empty(op, sector, bytes)
    }

    /// A flush.
    pub fn flush() -> Box<Self> {
        Self::without_data(Op::Flush, Sector(0), 0)
    }

    /// A read that fills the whole of `buf`.
    pub fn read(sector: Sector, buf: IoBuf) -> Box<Self> {
        let mut bio = Self::empty(Op::Read, sector, 0);
        bio.set_buf(buf, None);
        bio
    }

    /// A write of the whole of `buf`.
    pub fn write(sector: Sector, buf: IoBuf) -> Box<Self> {
        let mut bio = Self::empty(Op::Write, sector, 0);
        bio.set_buf(buf, None);
        bio
    }

    /// A bio over memory that the caller owns.
    ///
    /// # Safety
    /// Until the bio has come back from [`crate::Context::reap`] (or was never submitted), each
    /// segment must stay valid for reads and, for [`Op::Read`], for writes, from any thread; also
    /// when the context is dropped meanwhile: then for the rest of the program.
    pub unsafe fn from_raw_segments(op: Op, sector: Sector, segments: &[Segment]) -> Box<Self> {
        let mut bio = Self::empty(op, sector, 0);
        // SAFETY: the caller's promise is the same.
        unsafe { bio.set_raw_segments(segments) };
        bio
    }

    /// A read into, or write of, several buffers that the bio owns, in order.
    ///
    /// # Panics
    /// If a range lies outside its buffer, or the operation has no data.
    pub fn vectored(
        op: Op,
        sector: Sector,
        parts: impl IntoIterator<Item = (IoBuf, std::ops::Range<usize>)>,
    ) -> Box<Self> {
        assert!(op.has_data());
        let mut bio = Self::empty(op, sector, 0);
        for (buf, range) in parts {
            bio.more.push(buf.segment(range));
            bio.more_bufs.push(buf);
        }
        bio.bytes = bio.more.iter().map(|s| s.len as u64).sum();
        bio
    }

    /// The buffers of a vectored bio, in order.
    pub fn bufs(&self) -> &[IoBuf] {
        &self.more_bufs
    }

    /// Point an idle bio at other memory, keeping its allocation.
    ///
    /// # Safety
    /// As for [`Bio::from_raw_segments`].
    pub unsafe fn set_raw_segments(&mut self, segments: &[Segment]) {
        self.buf = None;
        self.more_bufs.clear();
        self.skip = 0;
        self.view = std::ptr::null();
        self.bytes = segments.iter().map(|s| s.len as u64).sum();
        self.more.clear();
        match segments {
            [] => self.first = Segment::EMPTY,
            [one] => self.first = *one,
            many => self.more.extend_from_slice(many),
        }
    }

    /// Give the bio `buf` to own; its data is the part `range`, or all of it. Sets `bytes`.
    ///
    /// # Panics
    /// If `range` lies outside the buffer.
    pub fn set_buf(&mut self, buf: IoBuf, range: Option<std::ops::Range<usize>>) {
        self.first = buf.segment(range.unwrap_or(0..buf.len()));
        self.bytes = self.first.len as u64;
        self.skip = 0;
        self.view = std::ptr::null();
        self.more.clear();
        self.more_bufs.clear();
        self.buf = Some(buf);
    }

    /// The buffer the bio owns.
    pub fn buf(&self) -> Option<&IoBuf> {
        self.buf.as_ref()
    }

    /// Make it a bio that was just submitted: its time, and no outcome yet. For devices.
    #[inline]
    pub fn stamp(&mut self, now: u64) {
        self.start_ns = now;
        self.status = Status::Ok;
    }

    /// Take the buffer out of an idle bio, which then has no data.
    pub fn take_buf(&mut self) -> Option<IoBuf> {
        self.first = Segment::EMPTY;
        self.bytes = 0;
        self.buf.take()
    }

    /// The segments and how many bytes to skip at their start. They may hold more than `bytes`.
    #[inline]
    pub fn segments(&self) -> (&[Segment], usize) {
        let segments = if !self.view.is_null() {
            // SAFETY: a clone's view is its parent's segment array, alive while the clone is.
            unsafe { std::slice::from_raw_parts(self.view, self.view_len as usize) }
        } else if self.more.is_empty() {
            std::slice::from_ref(&self.first)
        } else {
            &self.more
        };
        (segments, self.skip)
    }

    /// True when the bio's data is the beginning of one segment of its own.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        self.view.is_null() && self.more.is_empty() && self.bytes <= self.first.len as u64
    }

    /// The only segment, cut to this bio, when there is just one.
    #[inline]
    pub fn single_segment(&self) -> Option<Segment> {
        let (segments, skip) = self.segments();
        match segments {
            [one] if skip == 0 && one.len as u64 == self.bytes => Some(*one),
            _ => self.find_single(segments, skip),
        }
    }

    #[cold]
    fn find_single(&self, segments: &[Segment], mut skip: usize) -> Option<Segment> {
        for s in segments {
            if skip < s.len {
                let fits = (s.len - skip) as u64 >= self.bytes;
                let ptr = s.ptr.wrapping_add(skip);
                return fits.then_some(Segment { ptr, len: self.bytes as usize });
            }
            skip -= s.len;
        }
        None
    }

    /// Number of segments that this bio's bytes touch; 0 without data.
    #[inline]
    pub fn segment_count(&self) -> usize {
        if !self.op.has_data() {
            return 0;
        }
        if self.view.is_null() && self.more.is_empty() {
            return 1;
        }
        let mut n = 0;
        self.each_segment(|_| n += 1);
        n
    }

    /// Call `f` with each segment, cut to this bio's part of it.
    #[inline]
    pub fn each_segment(&self, mut f: impl FnMut(Segment)) {
        let (segments, mut skip) = self.segments();
        let mut left = self.bytes as usize;
        for s in segments {
            if left == 0 {
                return;
            }
            if skip >= s.len {
                skip -= s.len;
                continue;
            }
            let len = (s.len - skip).min(left);
            f(Segment { ptr: s.ptr.wrapping_add(skip), len });
            left -= len;
            skip = 0;
        }
    }

    /// Bytes that the segments hold, to be compared with `bytes` on entry.
    pub fn data_len(&self) -> u64 {
        let (segments, skip) = self.segments();
        segments.iter().map(|s| s.len as u64).sum::<u64>().saturating_sub(skip as u64)
    }

    /// First sector behind this bio.
    #[inline]
    pub fn end_sector(&self) -> Sector {
        self.sector.after(self.bytes)
    }

    /// True when the bio has to pass the flush machine.
    #[inline]
    pub fn is_flush(&self) -> bool {
        self.op == Op::Flush || self.flags.intersects(BioFlags::FUA | BioFlags::PREFLUSH)
    }

    /// Make `self`, an idle box, a part that covers the whole of `parent`, which gains a part.
    ///
    /// # Safety
    /// `parent` must be in flight, in this context's hands, and not end before its parts.
    pub(crate) unsafe fn whole_of(&mut self, parent: NonNull<Bio>) {
        // SAFETY: the caller vouches that the parent is alive and nobody else uses it. Its status
        // is to be the first error of its parts, whatever it was used for before.
        unsafe {
            (*parent.as_ptr()).status = Status::Ok;
            self.like(&*parent.as_ptr(), parent);
        }
    }

    /// Make `self`, an idle box, a copy of `part`, which is a part of `parent`, which gains one.
    /// The place is the part's own: a target may have moved it to another device.
    ///
    /// # Safety
    /// As for [`Bio::whole_of`].
    pub(crate) unsafe fn sibling_of(&mut self, part: &Bio, parent: NonNull<Bio>) {
        debug_assert!(part.is_part());
        // SAFETY: the caller's promise is the same.
        unsafe { self.like(part, parent) };
    }

    /// # Safety
    /// As for [`Bio::whole_of`], and `model` is the parent or a part of it.
    unsafe fn like(&mut self, model: &Bio, parent: NonNull<Bio>) {
        let (segments, skip) = model.segments();
        (self.view, self.view_len, self.skip) = (segments.as_ptr(), segments.len() as u32, skip);
        (self.sector, self.bytes, self.op) = (model.sector, model.bytes, model.op);
        (self.flags, self.priority, self.group) = (model.flags, model.priority, model.group);
        (self.start_ns, self.user_data, self.status) =
            (model.start_ns, model.user_data, model.status);
        (self.end, self.remaining) = (End::Chain(parent), 0);
        // SAFETY: the parent is alive and in our hands; only its count is touched, so that the
        // views of its segments stay valid.
        unsafe { (*parent.as_ptr()).remaining += 1 };
    }

    /// Cut a part down to its first `bytes` bytes.
    pub(crate) fn truncate(&mut self, bytes: u64) {
        debug_assert!(self.is_part() && bytes > 0 && bytes < self.bytes);
        self.bytes = bytes;
    }

    /// Move the start of a part forward by `bytes`.
    pub(crate) fn advance(&mut self, bytes: u64) {
        debug_assert!(self.is_part() && bytes < self.bytes);
        debug_assert!(bytes.is_multiple_of(crate::units::SECTOR_SIZE));
        self.sector = self.sector.after(bytes);
        self.bytes -= bytes;
        if self.op.has_data() {
            self.skip += bytes as usize;
        }
    }

    /// True for a part of another bio, whose box belongs to the context's pool.
    pub fn is_part(&self) -> bool {
        matches!(self.end, End::Chain(_))
    }
}

impl std::fmt::Debug for Bio {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bio")
            .field("op", &self.op)
            .field("sector", &self.sector.0)
            .field("bytes", &self.bytes)
            .field("flags", &self.flags)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
