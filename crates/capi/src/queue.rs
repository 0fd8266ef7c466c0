//! A context as C programs have it: submits and reaps I/O by plain structures.
//!
//! Invariants:
//! - A bio is in `idle`, in flight, or in `ready`; of those in `ready` the program learns by the
//!   next reap. Once it has one of its completions, the buffer is the program's.
//! - A context is given up only when nothing of it is in flight, because the buffers are the
//!   program's.
//! - Submitting takes all I/Os or none.

#![allow(unsafe_code, reason = "I/O goes to and from memory that a C program owns")]

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};

use drystone_core::buf::Segment;
use drystone_core::clock::Ns;
use drystone_core::context::Handle;
use drystone_core::op::{BioFlags, PriorityClass};
use drystone_core::{Arena, Bio, BioList, ChannelId, Context, Op, Priority, SECTOR_SIZE, Sector};
use drystone_throttle::Member;

use crate::abi::{Completion, FOREVER, Io, OPS};
use crate::failure::{Failure, Result};
use crate::stack::Stack;

/// Most idle bios that a context keeps: as many as it may well have in flight at a time.
const IDLE_MAX: usize = 4096;
/// Most pieces of memory of one I/O (`IOV_MAX`).
const VECTORS_MAX: u32 = 1024;

/// The part of a context that other threads may use.
pub struct Wake {
    handle: Arc<Handle>,
    asked: AtomicBool,
}

impl Wake {
    /// Makes the present wait, or else the next one, return.
    pub fn wake(&self) {
        self.asked.store(true, Release);
        self.handle.wake();
    }
}

/// A context.
pub struct Queue {
    cx: Context,
    stack: Arc<Stack>,
    devices: Vec<Opened>,
    /// The latest first: its memory is in the cache.
    idle: BioList,
    ready: BioList,
    batch: BioList,
    segments: Vec<Segment>,
    member: Option<Member>,
    memory: Vec<Arc<Arena>>,
    wake: Arc<Wake>,
    has_event: bool,
    closing: bool,
    /// Last, so that it counts until all else has gone.
    _counted: Counted,
}

/// A device that the context has opened.
struct Opened {
    channel: ChannelId,
    /// Why it must not be written to, if so.
    harm: Option<String>,
}

impl Queue {
    /// Opens a context of a stack.
    ///
    /// # Errors
    /// When the kernel refuses its ring.
    pub fn open(stack: &Arc<Stack>) -> Result<Queue> {
        let live = &stack.live;
        let counted = Counted::new(stack);
        // Its poll mode stays that of its flags: the stack's is for the threads of a server.
        let cx = live.contexts().open(live.engine())?;
        let wake = Wake { handle: cx.handle().clone(), asked: AtomicBool::new(false) };
        Ok(Queue {
            cx,
            stack: stack.clone(),
            devices: Vec::new(),
            idle: BioList::new(),
            ready: BioList::new(),
            batch: BioList::new(),
            segments: Vec::new(),
            member: None,
            memory: Vec::new(),
            wake: Arc::new(wake),
            has_event: false,
            closing: false,
            _counted: counted,
        })
    }

    /// The part that other threads may use.
    pub fn waker(&self) -> Arc<Wake> {
        self.wake.clone()
    }

    /// Waits for what is in flight, for at most `timeout`; what no driver has ends cancelled.
    ///
    /// # Errors
    /// ETIMEDOUT if drivers still have something; the context takes no more I/O.
    pub fn close(&mut self, timeout: u64) -> Result<()> {
        self.closing = true;
        self.cx.wind_up();
        let deadline = self.deadline(timeout);
        let mut is_late = false;
        loop {
            self.cx.reap(&mut self.ready);
            if self.cx.outstanding() == 0 {
                return Ok(());
            }
            if is_late {
                self.show_ready();
                let left = self.cx.outstanding();
                let message = format!("{left} I/Os of the context have not ended in time");
                return Err(Failure::new(libc::ETIMEDOUT, message));
            }
            // With no time left, too, what is polled is looked for once.
            is_late = deadline.is_some_and(|at| self.cx.now() >= at);
            self.cx.wait(deadline);
        }
    }

    /// The number of a device in this context.
    ///
    /// # Errors
    /// ENOENT if there is none of that name; what keeps it from being opened.
    pub fn device(&mut self, name: &str) -> Result<u32> {
        let live = self.stack.device(name)?;
        let channel = self.cx.open(&live.device)?;
        let known = self.devices.iter().position(|device| device.channel == channel);
        let number = known.unwrap_or_else(|| {
            let user = self.stack.live.part_of(&live);
            let harm = user.map(|user| {
                format!("`{name}` is part of `{user}`, so nobody else must write to it")
            });
            self.devices.push(Opened { channel, harm });
            self.devices.len() - 1
        });
        Ok(number as u32)
    }

    /// I/O that is submitted from now on belongs to a throttle group.
    ///
    /// # Errors
    /// ENOENT if there is no such group.
    pub fn group(&mut self, path: &str) -> Result<()> {
        let member = self.stack.live.groups().join(path);
        let member = member.map_err(|error| Failure::new(libc::ENOENT, error.to_string()))?;
        self.member = Some(member);
        Ok(())
    }

    /// Memory that lives as long as the context, and whether the kernel knows it; if not, why is
    /// noted.
    ///
    /// # Errors
    /// ENOMEM; EINVAL for none.
    pub fn memory(&mut self, size: usize) -> Result<(*mut u8, bool)> {
        if size == 0 {
            return Err(Failure::invalid("memory of 0 bytes"));
        }
        let arena = Arena::new(size);
        let message = || Failure::new(libc::ENOMEM, format!("no memory for {size} bytes"));
        let arena = arena.ok_or_else(message)?;
        let known = match self.cx.register_memory(arena.clone()) {
            Ok(()) => true,
            Err(error) => {
                crate::failure::note(&error.into());
                false
            }
        };
        let start = arena.segment().ptr;
        self.memory.push(arena);
        Ok((start, known))
    }

    /// Submits all of `ios`, or none.
    ///
    /// # Errors
    /// EINVAL for one that makes no sense; ESHUTDOWN while the context is being closed.
    ///
    /// # Safety
    /// Until an I/O's completion was reaped its memory must stay valid for reads and, for a read,
    /// for writes, from any thread. Arrays of pieces must be readable during the call.
    pub unsafe fn submit(&mut self, ios: &[Io]) -> Result<usize> {
        if self.closing {
            return Err(Failure::new(libc::ESHUTDOWN, "the context is being closed"));
        }
        for (at, io) in ios.iter().enumerate() {
            // SAFETY: the caller's promise on arrays of pieces.
            unsafe { self.check(io) }
                .map_err(|why| Failure::invalid(format!("I/O number {at} of the call: {why}")))?;
        }
        for run in ios.chunk_by(|a, b| a.device == b.device) {
            for io in run {
                // SAFETY: the caller's promise on memory; `check` found the rest in order.
                let bio = unsafe { self.bio(io) };
                self.batch.push(bio);
            }
            self.cx.submit(self.devices[run[0].device as usize].channel, &mut self.batch);
        }
        Ok(ios.len())
    }

    /// Whether an I/O can be told to a device; what a device makes of it is for the device.
    ///
    /// # Safety
    /// Its array of pieces must be readable.
    #[inline]
    unsafe fn check(&self, io: &Io) -> std::result::Result<(), String> {
        let Some(op) = op(io.op) else { return Err(format!("there is no operation {}", io.op)) };
        let Some(device) = self.devices.get(io.device as usize) else {
            return Err(format!("there is no device {} in this context", io.device));
        };
        if let Some(harm) = &device.harm
            && op.is_write()
        {
            return Err(harm.clone());
        }
        if io.length == 0 && op != Op::Flush {
            return Err("its length is 0".into());
        }
        let sectors = (io.offset | io.length).is_multiple_of(SECTOR_SIZE);
        if op != Op::Flush && !sectors {
            return Err(format!(
                "{} bytes at {} are not a whole number of sectors of {SECTOR_SIZE} bytes",
                io.length, io.offset
            ));
        }
        if BioFlags::from_bits(io.flags).is_none() {
            return Err(format!("there are no flags {:#x}", io.flags & !BioFlags::all().bits()));
        }
        if io.priority_class > 3 || io.priority_level > 7 || io.reserved != 0 {
            return Err(
                "priority_class is above 3, priority_level above 7, or reserved not 0".into()
            );
        }
        if !op.has_data() {
            return Ok(());
        }
        if io.buffer.is_null() {
            return Err("its buffer is NULL".into());
        }
        if io.vectors > 0 {
            // SAFETY: as this function's.
            return unsafe { check_vectors(io) };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`Queue::submit`], and `check` must have accepted the I/O.
    #[inline]
    unsafe fn bio(&mut self, io: &Io) -> Box<Bio> {
        let mut bio = self.idle.pop().unwrap_or_else(Bio::flush);
        bio.op = op(io.op).unwrap_or(Op::Flush);
        bio.sector = Sector::from_bytes(if bio.op == Op::Flush { 0 } else { io.offset });
        bio.user_data = io.tag;
        bio.flags = BioFlags::from_bits_retain(io.flags);
        bio.priority = Priority { class: class(io.priority_class), level: io.priority_level };
        bio.group = self.member.as_ref().map_or(0, |member| member.id().as_u32());
        match (bio.op.has_data(), io.vectors) {
            (true, 0) => {
                let whole = Segment { ptr: io.buffer.cast(), len: io.length as usize };
                // SAFETY: the caller's promise.
                unsafe { bio.set_raw_segments(&[whole]) };
            }
            (true, _) => {
                self.segments.clear();
                // SAFETY: `check` has read the array in this call.
                let pieces = unsafe { vectors(io) };
                self.segments.extend(
                    pieces.iter().map(|v| Segment { ptr: v.iov_base.cast(), len: v.iov_len }),
                );
                // SAFETY: the caller's promise.
                unsafe { bio.set_raw_segments(&self.segments) };
            }
            (false, _) => {
                // SAFETY: there is no memory.
                unsafe { bio.set_raw_segments(&[]) };
                bio.bytes = if bio.op == Op::Flush { 0 } else { io.length };
            }
        }
        bio
    }

    /// Reaps without waiting.
    pub fn reap(&mut self, out: &mut [MaybeUninit<Completion>]) -> usize {
        self.cx.reap(&mut self.ready);
        self.take(out)
    }

    /// Looks for polled I/O and reaps.
    pub fn poll(&mut self, out: &mut [MaybeUninit<Completion>]) -> usize {
        self.cx.poll(&mut self.ready);
        self.take(out)
    }

    /// Reaps when there are `least`, all that is in flight, `timeout` has passed or somebody asked.
    pub fn wait(
        &mut self,
        out: &mut [MaybeUninit<Completion>],
        least: usize,
        timeout: u64,
    ) -> usize {
        let least = least.min(out.len());
        self.cx.reap(&mut self.ready);
        let deadline = match self.ready.len() < least {
            true => self.deadline(timeout),
            false => None,
        };
        while self.ready.len() < least && self.cx.outstanding() > 0 {
            if self.wake.asked.swap(false, Acquire) {
                break;
            }
            // With no time left, too, what is polled is looked for once.
            let is_late = deadline.is_some_and(|at| self.cx.now() >= at);
            self.cx.wait(deadline);
            self.cx.reap(&mut self.ready);
            if is_late {
                break;
            }
        }
        self.take(out)
    }

    #[inline]
    fn take(&mut self, out: &mut [MaybeUninit<Completion>]) -> usize {
        let mut taken = 0;
        for place in out {
            let Some(bio) = self.ready.pop() else { break };
            place.write(Completion {
                tag: bio.user_data,
                result: if bio.status.is_ok() { 0 } else { -bio.status.errno() },
                reserved: 0,
            });
            if self.idle.len() < IDLE_MAX {
                self.idle.push_front(bio);
            }
            taken += 1;
        }
        self.show_ready();
        taken
    }

    /// The descriptor shows bios that were reaped from the context and not yet by the program.
    #[inline]
    fn show_ready(&self) {
        if self.has_event && !self.ready.is_empty() {
            self.wake.handle.wake();
        }
    }

    /// I/Os submitted and not reaped.
    pub fn outstanding(&mut self) -> usize {
        self.cx.outstanding() + self.ready.len()
    }

    /// The descriptor for event loops.
    ///
    /// # Errors
    /// When the kernel has none left.
    pub fn event(&mut self) -> Result<i32> {
        let fd = self.cx.event_descriptor()?;
        self.has_event = true;
        self.show_ready();
        Ok(fd)
    }

    /// Forgets what made the descriptor readable.
    pub fn clear(&mut self) {
        self.cx.clear_event();
    }

    /// In how many nanoseconds something is due; -1 if nothing is.
    pub fn timeout(&mut self) -> i64 {
        if !self.ready.is_empty() {
            return 0;
        }
        match self.cx.next_deadline() {
            None => -1,
            Some(0) => 0,
            Some(at) => at.saturating_sub(self.cx.now()).min(i64::MAX as u64) as i64,
        }
    }

    fn deadline(&mut self, timeout: u64) -> Option<Ns> {
        (timeout != FOREVER).then(|| self.cx.now().saturating_add(timeout))
    }
}

/// Counts a context with its stack until it is gone.
struct Counted(Arc<Stack>);

impl Counted {
    fn new(stack: &Arc<Stack>) -> Self {
        stack.contexts.fetch_add(1, AcqRel);
        Counted(stack.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.contexts.fetch_sub(1, AcqRel);
    }
}

#[inline]
fn op(number: u16) -> Option<Op> {
    OPS.iter().map(|(_, op)| *op).find(|op| *op as u16 == number)
}

#[inline]
fn class(number: u8) -> PriorityClass {
    match number {
        1 => PriorityClass::RealTime,
        2 => PriorityClass::BestEffort,
        3 => PriorityClass::Idle,
        _ => PriorityClass::None,
    }
}

/// # Safety
/// The I/O's array of pieces must be readable.
unsafe fn vectors(io: &Io) -> &[libc::iovec] {
    // SAFETY: the caller's promise; `check` has found it neither NULL nor out of line.
    unsafe { std::slice::from_raw_parts(io.buffer.cast(), io.vectors as usize) }
}

/// # Safety
/// The I/O's array of pieces must be readable.
unsafe fn check_vectors(io: &Io) -> std::result::Result<(), String> {
    if io.vectors > VECTORS_MAX {
        return Err(format!("{} vectors, at most {VECTORS_MAX} are permitted", io.vectors));
    }
    if !io.buffer.cast::<libc::iovec>().is_aligned() {
        return Err("its array of struct iovec is out of line".into());
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { vectors(io) };
    if pieces.iter().any(|piece| piece.iov_base.is_null()) {
        return Err("one of its vectors is NULL".into());
    }
    let sum = pieces.iter().try_fold(0u64, |sum, piece| sum.checked_add(piece.iov_len as u64));
    match sum == Some(io.length) {
        true => Ok(()),
        false => Err(format!("its vectors do not add up to {} bytes", io.length)),
    }
}
