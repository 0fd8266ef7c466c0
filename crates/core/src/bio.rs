//! The bio: one I/O as submitted by a user of the block layer (Linux: `struct bio`).
//!
//! Invariants:
//! * A bio is heap allocated and owned: by the caller, then by the layer from submission until
//!   completion, then by the caller again. Nothing else holds it, so nothing can free a buffer
//!   that a driver still uses.
//! * A clone borrows its parent's segments. The parent ends only after its last clone ended
//!   (`remaining` reaches 0), so the borrow never outlives the memory.
//! * `first` is empty while the segments are elsewhere, in `more` or in a parent.
//! * `remaining` is touched only with the submitting context in hand (its owner inside a call,
//!   or a visitor through its gate), so it needs no atomic.
//! * A volume that only remaps a bio makes no part of it, but leaves its number in the bio's trail.
//!   The end of the bio finds it there, so the volume learns of the end, and the submitter gets
//!   the bio back with the sector it had.
//! * Only the outermost volume can retry a bio that failed below it
//!   ([`Bio::begin_remap_with_retry`]): the sector that it knows the bio by is the one that the
//!   submitter gave.

#![allow(unsafe_code, reason = "bios are linked into intrusive lists")]

use crate::buf::{IoBuf, Segment};
use crate::op::{BioFlags, Op, Priority};
use crate::pipe::Pipe;
use crate::status::Status;
use crate::units::{ChannelId, PortId, Sector};
use std::ptr::NonNull;

/// The way of a bio that has ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum End {
    /// It goes to the submitter.
    #[default]
    Submitter,
    /// The same, but if it failed this channel may retry it first, once.
    RetryOnError(ChannelId),
    /// It is a part of the parent, which ends with its last part.
    Chain(NonNull<Bio>),
    /// It is a channel's own, and goes back to it.
    Channel(ChannelId),
}

/// The volumes that remapped a bio without dividing it: the numbers of their channels plus one, 16
/// bits each, the innermost lowest. So four fit; a bio that passes more goes on as a part of
/// itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Trail(u64);

impl Trail {
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline]
    fn is_full(self) -> bool {
        self.0 >> 48 != 0
    }

    #[inline]
    fn is_only(self, channel: ChannelId) -> bool {
        self.0 == u64::from(channel.0 as u16 + 1)
    }

    #[inline]
    fn push(&mut self, channel: ChannelId) {
        self.0 = self.0 << 16 | u64::from(channel.0 as u16 + 1);
    }

    /// Take the innermost volume's channel.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<ChannelId> {
        let channel = (self.0 as u16).checked_sub(1)?;
        self.0 >>= 16;
        Some(ChannelId(channel.into()))
    }
}

/// No channel has an end_io hook on the bio.
const NO_END_IO: u16 = u16::MAX;

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
    /// For the device: the number of the port of the channel that the bio came through, while other
    /// channels have it (Linux: `mq_ctx` of a request).
    pub port: PortId,
    trail: Trail,
    /// The sector that the submitter gave, while there is a trail.
    origin: Sector,
    /// Bytes to skip in the segments (clones start inside their parent's memory).
    skip: usize,
    /// The first segment, the only one of most bios; empty if the segments are elsewhere.
    first: Segment,
    /// The segments when there are more than one, or a clone's view of its parent's.
    view: *const Segment,
    view_len: u32,
    /// Parts (and the bio itself) that have not ended.
    pub(crate) remaining: u32,
    pub(crate) end: End,
    /// The channel that sees the bio when it has ended, before it goes on to its parent.
    end_io: u16,
    more: Vec<Segment>,
    buf: Option<IoBuf>,
    more_bufs: Vec<IoBuf>,
    pipe: Option<Box<Pipe>>,
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
            port: PortId(0),
            trail: Trail::default(),
            origin: Sector(0),
            end_io: NO_END_IO,
            skip: 0,
            first: Segment::EMPTY,
            view: std::ptr::null(),
            view_len: 0,
            remaining: 0,
            end: End::Submitter,
            more: Vec::new(),
            buf: None,
            more_bufs: Vec::new(),
            pipe: None,
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
            many => {
                self.first = Segment::EMPTY;
                self.more.extend_from_slice(many);
            }
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

    /// Let the device put the data of a read, which its submitter is about to submit, into an idle
    /// pipe instead of the bio's memory. Whoever takes the bio back asks [`Bio::take_pipe`] where
    /// the data is.
    pub fn set_pipe(&mut self, pipe: Box<Pipe>) {
        debug_assert!(self.op == Op::Read && pipe.is_idle());
        self.pipe = Some(pipe);
    }

    /// The idle pipe that the driver may fill with all of the bio's data, if the submitter gave
    /// one: only while no volume has remapped the bio ([`crate::pipe`]). For drivers; the data of a
    /// read that fills it is nowhere else.
    #[inline]
    pub fn pipe_to_fill(&mut self) -> Option<&mut Pipe> {
        if self.op != Op::Read || !self.is_submitters() {
            return None;
        }
        self.pipe.as_deref_mut().filter(|pipe| pipe.is_idle())
    }

    /// The pipe that the driver has begun to fill.
    pub fn pipe_mut(&mut self) -> Option<&mut Pipe> {
        self.pipe.as_deref_mut()
    }

    /// True if the bio came with a pipe. Such a bio merges with no other, since a pipe holds the
    /// data of one.
    #[inline]
    pub fn has_pipe(&self) -> bool {
        self.pipe.is_some()
    }

    /// Take the pipe back: if it holds anything, that is the data of the read.
    #[inline]
    pub fn take_pipe(&mut self) -> Option<Box<Pipe>> {
        self.pipe.take()
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

    /// True when the bio has data, which is the beginning of one segment of its own.
    #[inline]
    pub fn is_contiguous(&self) -> bool {
        let is = self.bytes.wrapping_sub(1) < self.first.len as u64;
        debug_assert!(!is || self.view.is_null() && self.more.is_empty(), "first has no data then");
        is
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

    /// Fill the bio's data with zeroes; it must be a read, in flight and in the caller's hands.
    pub fn zero_data(&mut self) {
        debug_assert_eq!(self.op, Op::Read);
        // SAFETY: a read's segments are valid for writes while it is in flight, which is what its
        // maker vouched for, and no other code has the bio.
        self.each_segment(|s| unsafe { s.ptr.write_bytes(0, s.len) });
    }

    /// Copy the bio's data, which must be in the caller's hands, to `to`; as much as fits.
    pub fn copy_data_to(&self, mut to: &mut [u8]) {
        self.each_segment(|s| {
            let len = s.len.min(to.len());
            let (now, rest) = std::mem::take(&mut to).split_at_mut(len);
            // SAFETY: the segments are valid for reads while the bio is in flight, which is what
            // its maker vouched for; a slice of ours does not overlap them.
            unsafe { s.ptr.copy_to_nonoverlapping(now.as_mut_ptr(), now.len()) };
            to = rest;
        });
    }

    /// Fill the data of the bio, a read in the caller's hands, from `from`; as much as there is.
    pub fn fill_data_from(&mut self, mut from: &[u8]) {
        debug_assert_eq!(self.op, Op::Read);
        self.each_segment(|s| {
            let (now, rest) = from.split_at(s.len.min(from.len()));
            // SAFETY: as for `zero_data`; a slice of others does not overlap the segments.
            unsafe { s.ptr.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            from = rest;
        });
    }

    /// Copy the bio's data from byte `at` on, which must be in the caller's hands, to `to`; as much
    /// as there is.
    pub fn copy_data_from(&self, at: u64, mut to: &mut [u8]) {
        let mut skip = at as usize;
        self.each_segment(|s| {
            let skipped = skip.min(s.len);
            skip -= skipped;
            let len = (s.len - skipped).min(to.len());
            let (now, rest) = std::mem::take(&mut to).split_at_mut(len);
            let from = s.ptr.wrapping_add(skipped);
            // SAFETY: as for `copy_data_to`.
            unsafe { from.copy_to_nonoverlapping(now.as_mut_ptr(), now.len()) };
            to = rest;
        });
    }

    /// `bytes` bytes of a write's data from byte `at` on as a buffer, if its submitter said that
    /// they do not change ([`BioFlags::STABLE`]), and they lie in one piece that is aligned like
    /// any buffer.
    ///
    /// # Safety
    /// The buffer must be gone before the bio ends, and no thread may write to it.
    pub unsafe fn lend_data(&self, at: u64, bytes: usize) -> Option<IoBuf> {
        if self.op != Op::Write || !self.flags.contains(BioFlags::STABLE) {
            return None;
        }
        let (mut skip, mut found) = (at as usize, None);
        self.each_segment(|s| {
            let is_here = found.is_none() && skip < s.len;
            if is_here {
                found = Some(Segment { ptr: s.ptr.wrapping_add(skip), len: s.len - skip });
            }
            skip = skip.saturating_sub(s.len);
        });
        let fits = |s: &Segment| s.len >= bytes && (s.ptr as usize).is_multiple_of(IoBuf::ALIGN);
        let segment = found.filter(fits)?;
        // SAFETY: the submitter keeps the memory as it is until the bio ends, and the caller lets
        // go of the buffer before that.
        unsafe { IoBuf::lent(Segment { len: bytes, ..segment }) }
    }

    /// Fill the data of the bio, a read in the caller's hands, with `from` from byte `at` on; as
    /// much as there is room for.
    pub fn fill_data_at(&mut self, at: u64, mut from: &[u8]) {
        debug_assert_eq!(self.op, Op::Read);
        let mut skip = at as usize;
        self.each_segment(|s| {
            let skipped = skip.min(s.len);
            skip -= skipped;
            let (now, rest) = from.split_at((s.len - skipped).min(from.len()));
            let to = s.ptr.wrapping_add(skipped);
            // SAFETY: as for `zero_data`; a slice of others does not overlap the segments.
            unsafe { to.copy_from_nonoverlapping(now.as_ptr(), now.len()) };
            from = rest;
        });
    }

    /// Change byte `at` of what the bio, a read in the caller's hands, has read.
    pub fn set_data_byte(&mut self, at: u64, value: u8) {
        debug_assert!(self.op == Op::Read && at < self.bytes);
        let mut left = Some(at as usize);
        self.each_segment(|s| {
            left = left.and_then(|at| match at.checked_sub(s.len) {
                Some(left) => Some(left),
                None => {
                    // SAFETY: as for `zero_data`; the byte lies inside the segment.
                    unsafe { s.ptr.wrapping_add(at).write(value) };
                    None
                }
            });
        });
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
        // SAFETY: the caller vouches that the parent is alive and no other code uses it. Its status
        // becomes the first error of its parts, whatever it was used for before.
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
        self.take_segments(segments, skip);
        (self.sector, self.bytes, self.op) = (model.sector, model.bytes, model.op);
        (self.flags, self.priority, self.group) = (model.flags, model.priority, model.group);
        (self.start_ns, self.user_data, self.status) =
            (model.start_ns, model.user_data, model.status);
        (self.end, self.remaining) = (End::Chain(parent), 0);
        // SAFETY: the parent is alive and in our hands; only its count is touched, so that the
        // views of its segments stay valid.
        unsafe { (*parent.as_ptr()).remaining += 1 };
    }

    /// Note that a volume, whose channel is `channel`, remaps the bio, which may be moved from now
    /// on. The channel counts it ([`crate::Env::count_remapped`]). False if too many volumes have
    /// remapped it already; see [`crate::Env::begin_remap`].
    #[inline]
    #[must_use]
    pub fn begin_remap(&mut self, channel: ChannelId) -> bool {
        if self.trail.is_empty() {
            self.origin = self.sector;
        } else if self.trail.is_full() {
            return false;
        }
        self.trail.push(channel);
        true
    }

    /// True if so many volumes have remapped the bio that [`Bio::begin_remap`] would say false.
    #[inline]
    pub fn is_trail_full(&self) -> bool {
        self.trail.is_full()
    }

    /// The volumes that remapped the bio.
    #[inline]
    pub(crate) fn trail(&self) -> Trail {
        self.trail
    }

    /// True if the bio, when it has ended, goes to its submitter as it is: no volume remapped it,
    /// and it is no part.
    #[inline(always)]
    pub fn is_submitters(&self) -> bool {
        self.trail.is_empty() && matches!(self.end, End::Submitter)
    }

    /// As [`Bio::begin_remap`], and the channel gets the bio back if it fails further down, to
    /// retry it ([`crate::Channel::returned`]): with its status, and where it was before it was
    /// moved. A bio that the channel then ends goes to the submitter. False if that cannot be
    /// noted, because the bio has passed other volumes, or is not a submitter's own: a part with a
    /// hook does the same for those.
    #[inline]
    #[must_use]
    pub fn begin_remap_with_retry(&mut self, channel: ChannelId) -> bool {
        let may = matches!(self.end, End::Submitter) && self.trail.is_empty();
        if may {
            self.end = End::RetryOnError(channel);
            self.origin = self.sector;
            self.trail.push(channel);
        }
        may
    }

    /// The channel that may retry the bio, which has failed, before its submitter gets it: once.
    /// The bio is then where it was before it was moved. `below` is called for the volumes that it
    /// leaves.
    #[cold]
    pub(crate) fn take_retry(
        &mut self,
        mut below: impl FnMut(ChannelId, &Bio),
    ) -> Option<ChannelId> {
        let End::RetryOnError(channel) = self.end else { return None };
        self.end = End::Submitter;
        while !self.trail.is_only(channel) {
            let inner = self.trail.pop()?;
            below(inner, self);
        }
        self.sector = self.origin;
        Some(channel)
    }

    /// The bio leaves all volumes that remapped it: it is where its submitter wanted it.
    #[inline]
    pub(crate) fn end_remaps(&mut self) {
        self.trail = Trail::default();
        self.sector = self.origin;
    }

    /// Set the end_io hook: channel `channel` gets this part when it has ended
    /// ([`crate::Channel::returned`]).
    pub fn set_end_io(&mut self, channel: ChannelId) {
        debug_assert!(self.is_part());
        self.end_io = channel.0 as u16;
    }

    /// The channel whose end_io hook the ended bio carries, once.
    #[inline]
    pub(crate) fn take_end_io(&mut self) -> Option<ChannelId> {
        let channel = std::mem::replace(&mut self.end_io, NO_END_IO);
        (channel != NO_END_IO).then_some(ChannelId(channel.into()))
    }

    /// True if a volume that remapped the bio, or a channel, must learn of the end of this very
    /// bio.
    pub(crate) fn is_watched(&self) -> bool {
        !self.trail.is_empty() || self.end_io != NO_END_IO
    }

    /// Make `self`, an idle box, the part of `parent` that begins `skip` bytes behind its beginning
    /// and is `bytes` long; the parent gains a part.
    ///
    /// # Safety
    /// As for [`Bio::whole_of`].
    #[inline]
    pub(crate) unsafe fn part_of(&mut self, parent: NonNull<Bio>, skip: u64, bytes: u64) {
        // SAFETY: the caller vouches that the parent is alive and no other code uses it.
        let whole = unsafe { &*parent.as_ptr() };
        debug_assert!(skip + bytes <= whole.bytes && !self.is_watched());
        (self.sector, self.bytes) = (whole.sector.after(skip), bytes);
        (self.start_ns, self.user_data) = (whole.start_ns, whole.user_data);
        (self.op, self.status, self.flags) = (whole.op, Status::Ok, whole.flags);
        (self.priority, self.group) = (whole.priority, whole.group);
        (self.end, self.remaining) = (End::Chain(parent), 0);
        let (segments, start) = whole.segments();
        let at = start + if whole.op.has_data() { skip as usize } else { 0 };
        self.take_segments(segments, at);
        // SAFETY: as above; only its count is touched, so that the views of its segments stay
        // valid.
        unsafe { (*parent.as_ptr()).remaining += 1 };
    }

    /// Have the memory of a part: `segments` without their first `skip` bytes. Memory in one piece
    /// is noted in the part itself, which makes it an ordinary bio, and lets it be cut again: the
    /// segment of a part, unlike its whole's, is gone when that part has ended. A part of memory in
    /// several pieces has a view of its whole's own array.
    #[inline]
    fn take_segments(&mut self, segments: &[Segment], skip: usize) {
        if let [one] = segments {
            let len = one.len.saturating_sub(skip);
            self.first = Segment { ptr: one.ptr.wrapping_add(skip), len };
            (self.view, self.skip) = (std::ptr::null(), 0);
        } else {
            (self.view, self.view_len) = (segments.as_ptr(), segments.len() as u32);
            (self.first, self.skip) = (Segment::EMPTY, skip);
        }
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
        match self.op.has_data() {
            true if self.view.is_null() => {
                self.first.ptr = self.first.ptr.wrapping_add(bytes as usize);
                self.first.len -= bytes as usize;
            }
            true => self.skip += bytes as usize,
            false => {}
        }
    }

    /// Make the bio, which is no part of another, one of channel `channel`'s own: when it ends it
    /// goes back to it ([`crate::Channel::returned`]), in the context that sent it.
    pub fn give_to_channel(&mut self, channel: ChannelId) {
        debug_assert!(!self.is_part());
        self.end = End::Channel(channel);
    }

    /// True for a channel's own.
    pub fn is_of_channel(&self) -> bool {
        matches!(self.end, End::Channel(_))
    }

    /// Point the bio, which a channel owns, at `bufs`, in their order, of which it has the data;
    /// the other way round [`Bio::take_bufs`]. Sets `bytes`.
    pub fn set_bufs(&mut self, bufs: &mut Vec<IoBuf>) {
        self.set_buf_parts(bufs, |_, buf| 0..buf.len());
    }

    /// The same with the part of each buffer that `part` says, by its number.
    ///
    /// # Panics
    /// If a part lies outside its buffer (our own mistake).
    pub fn set_buf_parts(
        &mut self,
        bufs: &mut Vec<IoBuf>,
        part: impl Fn(usize, &IoBuf) -> std::ops::Range<usize>,
    ) {
        (self.buf, self.skip, self.view) = (None, 0, std::ptr::null());
        self.more.clear();
        self.more.extend(bufs.iter().enumerate().map(|(n, buf)| buf.segment(part(n, buf))));
        self.first = Segment::EMPTY;
        self.bytes = self.more.iter().map(|s| s.len as u64).sum();
        if let [only] = self.more[..] {
            self.first = only;
            self.more.clear();
        }
        std::mem::swap(&mut self.more_bufs, bufs);
    }

    /// Take the buffers of a bio that has ended.
    pub fn take_bufs(&mut self) -> std::vec::Drain<'_, IoBuf> {
        self.more.clear();
        self.first = Segment::EMPTY;
        self.more_bufs.drain(..)
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
