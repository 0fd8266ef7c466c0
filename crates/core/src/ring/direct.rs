//! The sends and receives of a front end's only client, past io_uring.
//!
//! A send is tried at once. A receive is held back, and tried again and again while its owner
//! polls. To a thread that polls, a receive in the kernel is no help: the kernel has the thread
//! itself carry out the receive, and interrupts it for that. A poll of the memory of the ring would
//! cost such an interrupt for each message.
//!
//! A send of a pipe is tried at once, too, whoever's it is: io_uring would hand it to a thread.
//!
//! For several clients io_uring is better: one system call sends all replies of a round, and no
//! client is woken before the last of them. So nothing else is tried here before [`ALONE_MIN`]
//! operations in a row were of one socket.
//!
//! Invariants:
//! * An operation is in one place: held here, ended here, or handed to the kernel.
//! * Only operations of the front end, whose events go to the owner alone: whoever visits or
//!   watches a ring learns nothing of what is here, but for the end of a send that waited for room.
//! * A receive is held for one end of a round ([`Direct::take_old`]), and for one sleep of 200 us
//!   beside a write that ends in a moment ([`Direct::keeps`]). It is not held beyond another sleep
//!   or the first operation of another socket: a client that keeps its thread busy holds up nobody.

use super::sockets::{attempt, buffers_of};
use super::{NetOp, RingEvent, Token};
use std::os::fd::RawFd;

/// So many operations in a row of one socket show that its client is alone.
const ALONE_MIN: u32 = 16;

/// A receive that the kernel does not know of.
struct Held {
    fd: RawFd,
    op: NetOp,
    token: Token,
    /// A round has ended since it was started.
    is_old: bool,
}

/// The operations that the kernel's ring does not have.
pub(super) struct Direct {
    held: Option<Held>,
    ended: Vec<RingEvent>,
    /// The owner polls.
    is_polled: bool,
    /// It has polled since it last slept.
    was_polled: bool,
    /// The socket of the last operation.
    last: RawFd,
    /// Operations in a row of that socket before it, at most [`ALONE_MIN`].
    in_a_row: u32,
    /// Memory for the vectors of a send.
    vectors: Vec<libc::iovec>,
}

impl Direct {
    pub(super) fn new() -> Self {
        Direct {
            held: None,
            ended: Vec::new(),
            is_polled: false,
            was_polled: false,
            last: -1,
            in_a_row: 0,
            vectors: Vec::new(),
        }
    }

    /// Takes an operation in, or gives it back for the kernel.
    pub(super) fn start(&mut self, fd: RawFd, op: NetOp, token: Token) -> Option<NetOp> {
        if token.owner() != Token::FRONT_END || !self.count_in_a_row(fd, &op) {
            return Some(op);
        }
        match op {
            NetOp::Send { .. } => self.try_now(fd, op, token),
            NetOp::Recv { .. } if self.held.is_none() => {
                self.held = Some(Held { fd, op, token, is_old: false });
                None
            }
            _ => Some(op),
        }
    }

    /// Notes an operation. True if there were only such of one socket for a while. A front end that
    /// waits for a descriptor (FUSE's) learns of one request at a time, and is not counted.
    fn count_in_a_row(&mut self, fd: RawFd, op: &NetOp) -> bool {
        let is_same = fd == self.last && !matches!(op, NetOp::PollIn);
        self.in_a_row = if is_same { (self.in_a_row + 1).min(ALONE_MIN) } else { 0 };
        self.last = fd;
        self.is_alone()
    }

    /// True if the front end has only one client, as far as operations tell.
    pub(super) fn is_alone(&self) -> bool {
        self.in_a_row == ALONE_MIN
    }

    /// Tries a send at once, or gives it back.
    pub(super) fn try_now(&mut self, fd: RawFd, op: NetOp, token: Token) -> Option<NetOp> {
        let Some(result) = attempt(fd, &op, &mut self.vectors) else { return Some(op) };
        self.end(op, token, result);
        None
    }

    /// Notes the end of an operation, for the next reap.
    pub(super) fn end(&mut self, op: NetOp, token: Token, result: i32) {
        self.ended.push(RingEvent { token, result, buffers: buffers_of(op, result) });
    }

    /// True while the owner polls.
    pub(super) fn is_polled(&self) -> bool {
        self.is_polled
    }

    /// The owner begins to poll, or ends it.
    pub(super) fn set_polling(&mut self, polls: bool) {
        self.is_polled = polls;
        self.was_polled = true;
    }

    /// Moves the events to `out`. While the owner polls, tries the held receive before.
    pub(super) fn reap(&mut self, out: &mut Vec<RingEvent>) {
        if self.is_polled
            && let Some(held) = self.held.take()
        {
            match attempt(held.fd, &held.op, &mut self.vectors) {
                Some(result) => self.end(held.op, held.token, result),
                None => self.held = Some(held),
            }
        }
        out.append(&mut self.ended);
    }

    /// Takes out the held receive for the kernel if it is not of this socket.
    pub(super) fn take_other(&mut self, fd: RawFd) -> Option<(RawFd, NetOp, Token)> {
        self.held.take_if(|held| held.fd != fd).map(|held| (held.fd, held.op, held.token))
    }

    /// True if there is a receive that may wait for one short sleep, since its owner will poll.
    pub(super) fn keeps(&mut self) -> bool {
        std::mem::take(&mut self.was_polled) && self.held.is_some()
    }

    /// Takes out the held receive for the kernel: the owner sleeps.
    pub(super) fn take_held(&mut self) -> Option<(RawFd, NetOp, Token)> {
        self.was_polled = false;
        self.held.take().map(|held| (held.fd, held.op, held.token))
    }

    /// The same at the end of a round in which the owner neither slept nor polled, if it was held
    /// at the end of the round before.
    pub(super) fn take_old(&mut self) -> Option<(RawFd, NetOp, Token)> {
        let held = self.held.as_mut()?;
        if std::mem::replace(&mut held.is_old, true) { self.take_held() } else { None }
    }

    /// Ends the held receive as cancelled if it has this socket or token. True if there was one.
    pub(super) fn cancel(&mut self, is_it: impl Fn(RawFd, Token) -> bool) -> bool {
        let Some(held) = self.held.take_if(|held| is_it(held.fd, held.token)) else { return false };
        self.end(held.op, held.token, -libc::ECANCELED);
        true
    }

    /// True if there are events for [`Direct::reap`].
    pub(super) fn has_ended(&self) -> bool {
        !self.ended.is_empty()
    }

    /// The operations that have had no event.
    pub(super) fn in_flight(&self) -> usize {
        usize::from(self.held.is_some()) + self.ended.len()
    }
}
