//! The memory of socket operations and timers that the kernel has.
//!
//! Invariant: what an entry points at stays in its slot until [`Slots::end`], in a box that does
//! not move. Slots that are dropped busy leak it on purpose: the kernel may still use it.

use super::{Buffers, NetOp, RingEvent, Token};
use crate::clock::Ns;
use io_uring::{opcode, squeue, types};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Of several rings that wait for one descriptor a single one is woken, where its driver wakes so.
const POLL_IN_ALONE: u32 = libc::POLLIN as u32 | libc::EPOLLEXCLUSIVE as u32;

const NO_SLOT: u32 = u32::MAX;

/// Memory that the kernel may still refer to for one operation.
enum Slot {
    Free {
        next: u32,
    },
    Net {
        token: Token,
        buffers: Buffers,
        message: Box<Message>,
        accept: bool,
    },
    /// A send with a pipe, which waits for room in the socket.
    Room {
        token: Token,
        fd: RawFd,
        op: NetOp,
        is_cancelled: bool,
    },
    Timer {
        token: Token,
        at: Box<types::Timespec>,
    },
}

/// Header and vectors of a gathered send; kept to save the allocations.
struct Message {
    header: libc::msghdr,
    vectors: Vec<libc::iovec>,
}

// SAFETY: the pointers lead to memory that the same slot owns.
unsafe impl Send for Message {}

impl Default for Message {
    fn default() -> Self {
        // SAFETY: a msghdr of zeroes is a message without anything.
        Message { header: unsafe { std::mem::zeroed() }, vectors: Vec::new() }
    }
}

/// See the module's text.
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: u32,
    #[allow(clippy::vec_box, reason = "the kernel has their addresses while they are in slots")]
    spare_messages: Vec<Box<Message>>,
}

impl Slots {
    pub(super) fn new() -> Self {
        Slots { slots: Vec::new(), free: NO_SLOT, spare_messages: Vec::new() }
    }

    /// The slot and the entry of a socket operation.
    pub(super) fn net(&mut self, fd: RawFd, op: NetOp, token: Token) -> (u32, squeue::Entry) {
        let message = self.spare_messages.pop().unwrap_or_default();
        let accept = matches!(op, NetOp::Accept);
        let index = self.take(Slot::Net { token, buffers: Buffers::None, message, accept });
        let Slot::Net { buffers, message, .. } = &mut self.slots[index as usize] else {
            unreachable!("just made")
        };
        (index, net_entry(fd, op, buffers, message))
    }

    /// The slot and the entry of a wait for room in the socket of a send.
    pub(super) fn room(&mut self, fd: RawFd, op: NetOp, token: Token) -> (u32, squeue::Entry) {
        let entry = opcode::PollAdd::new(types::Fd(fd), libc::POLLOUT as u32).build();
        (self.take(Slot::Room { token, fd, op, is_cancelled: false }), entry)
    }

    /// The send whose wait for room in its socket has ended, if the slot has one, and whether the
    /// send was cancelled meanwhile.
    pub(super) fn take_send(&mut self, index: u32) -> Option<((RawFd, NetOp, Token), bool)> {
        if !matches!(self.slots[index as usize], Slot::Room { .. }) {
            return None;
        }
        match self.release(index) {
            Slot::Room { token, fd, op, is_cancelled } => Some(((fd, op, token), is_cancelled)),
            _ => unreachable!("as seen"),
        }
    }

    /// Notes that the operation in the slot is to end, if it is a send that waits for room: its
    /// wait may have ended already.
    pub(super) fn cancel(&mut self, index: u32) {
        if let Slot::Room { is_cancelled, .. } = &mut self.slots[index as usize] {
            *is_cancelled = true;
        }
    }

    /// True if a send to this socket waits for room.
    pub(super) fn has_send(&self, socket: RawFd) -> bool {
        let is_it = |slot: &Slot| matches!(slot, Slot::Room { fd, .. } if *fd == socket);
        self.slots.iter().any(is_it)
    }

    /// The slot and the entry of a timer.
    pub(super) fn timer(&mut self, at: Ns, token: Token) -> (u32, squeue::Entry) {
        let spec = types::Timespec::new().sec(at / 1_000_000_000).nsec((at % 1_000_000_000) as u32);
        let index = self.take(Slot::Timer { token, at: Box::new(spec) });
        // The address that the kernel gets is taken where the box stays until it is done: a box
        // that moves ends the right to addresses that were taken before.
        let Slot::Timer { at, .. } = &self.slots[index as usize] else { unreachable!("just made") };
        let entry = opcode::Timeout::new(&raw const **at).flags(types::TimeoutFlags::ABS).build();
        (index, entry)
    }

    /// The kernel has ended what is in the slot.
    pub(super) fn end(&mut self, index: u32, result: i32) -> RingEvent {
        match self.release(index) {
            Slot::Net { token, message, accept: true, .. } if result >= 0 => {
                self.spare_messages.push(message);
                // SAFETY: the kernel made this descriptor for us alone.
                let socket = unsafe { OwnedFd::from_raw_fd(result) };
                RingEvent { token, result: 0, buffers: Buffers::Socket(socket) }
            }
            Slot::Net { token, buffers, mut message, .. } => {
                message.vectors.clear();
                self.spare_messages.push(message);
                RingEvent { token, result, buffers }
            }
            Slot::Timer { token, at } => {
                drop(at);
                let result = if result == -libc::ETIME { 0 } else { result };
                RingEvent { token, result, buffers: Buffers::None }
            }
            Slot::Room { .. } | Slot::Free { .. } => unreachable!("an entry for a slot comes once"),
        }
    }

    /// The slot of the operation with this token.
    pub(super) fn find(&self, token: Token) -> Option<u32> {
        let is_it = |slot: &Slot| match slot {
            Slot::Net { token: t, .. } | Slot::Room { token: t, .. } => *t == token,
            Slot::Timer { token: t, .. } => *t == token,
            Slot::Free { .. } => false,
        };
        self.slots.iter().position(is_it).map(|index| index as u32)
    }

    fn take(&mut self, slot: Slot) -> u32 {
        if self.free == NO_SLOT {
            self.slots.push(slot);
            return self.slots.len() as u32 - 1;
        }
        let index = self.free;
        let Slot::Free { next } = self.slots[index as usize] else { unreachable!("free list") };
        self.free = next;
        self.slots[index as usize] = slot;
        index
    }

    fn release(&mut self, index: u32) -> Slot {
        let slot =
            std::mem::replace(&mut self.slots[index as usize], Slot::Free { next: self.free });
        self.free = index;
        slot
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        let busy = |s: &Slot| matches!(s, Slot::Net { .. } | Slot::Timer { .. });
        self.slots.extract_if(.., |s| busy(s)).for_each(std::mem::forget);
    }
}

/// The entry of a socket operation whose memory is in a slot.
fn net_entry(fd: RawFd, op: NetOp, buffers: &mut Buffers, message: &mut Message) -> squeue::Entry {
    let fd = types::Fd(fd);
    match op {
        NetOp::Accept => opcode::Accept::new(fd, std::ptr::null_mut(), std::ptr::null_mut())
            .flags(libc::SOCK_CLOEXEC)
            .build(),
        NetOp::PollIn => opcode::PollAdd::new(fd, POLL_IN_ALONE).build(),
        NetOp::Recv { buf, range } => {
            let segment = buf.segment(range);
            *buffers = Buffers::One(buf);
            opcode::Recv::new(fd, segment.ptr, segment.len as u32).build()
        }
        NetOp::Send { parts } if parts.len() == 1 => {
            let segment = parts[0].buf.segment(parts[0].range.clone());
            *buffers = Buffers::Parts(parts);
            opcode::Send::new(fd, segment.ptr, segment.len as u32).flags(libc::MSG_NOSIGNAL).build()
        }
        NetOp::Send { parts } => {
            message.vectors.extend(parts.iter().map(|p| {
                let s = p.buf.segment(p.range.clone());
                libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len }
            }));
            message.header.msg_iov = message.vectors.as_mut_ptr();
            message.header.msg_iovlen = message.vectors.len();
            *buffers = Buffers::Parts(parts);
            opcode::SendMsg::new(fd, &message.header).flags(libc::MSG_NOSIGNAL as u32).build()
        }
    }
}
