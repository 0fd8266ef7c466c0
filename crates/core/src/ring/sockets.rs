//! One try of a socket operation, which never blocks, and the user at a socket's other end.

use super::helpers::errno;
use super::{Buffers, NetOp, SendPart};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The user id of the process that connected a Unix socket, as it was then and as this process's
/// user namespace has it (unix(7), `SO_PEERCRED`). `None` for other sockets.
pub fn peer_uid(socket: impl AsFd) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let value = std::ptr::from_mut(&mut peer).cast();
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes of `peer`.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, value, &mut length) };
    // A TCP socket has the number that stands for no user.
    (result == 0 && peer.uid != u32::MAX).then_some(peer.uid)
}

/// Try `op` without blocking: its result, or `None` if it has to wait.
pub(super) fn attempt(fd: RawFd, op: &NetOp, vectors: &mut Vec<libc::iovec>) -> Option<i32> {
    loop {
        let result = match op {
            NetOp::Accept => accept(fd),
            NetOp::PollIn => return poll_in(fd),
            NetOp::Recv { buf, range } => {
                let s = buf.segment(range.clone());
                // SAFETY: the operation owns the buffer, and no other code reads it meanwhile.
                unsafe { libc::recv(fd, s.ptr.cast(), s.len, libc::MSG_DONTWAIT) }
            }
            NetOp::Send { parts } => send(fd, parts, vectors),
        };
        if result >= 0 {
            return Some(result as i32);
        }
        match errno() {
            libc::EINTR => {}
            libc::EAGAIN => return None,
            e => return Some(-e),
        }
    }
}

fn accept(fd: RawFd) -> isize {
    let null = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    unsafe { libc::accept4(fd, null, null.cast(), libc::SOCK_CLOEXEC) as isize }
}

/// True if a pipe is among the parts: only [`attempt`] can send them.
#[inline]
pub(super) fn has_pipe(parts: &[SendPart]) -> bool {
    parts.iter().any(|part| part.pipe_len() > 0)
}

/// Send buffers up to the first pipe, and then that pipe.
fn send(fd: RawFd, parts: &[SendPart], vectors: &mut Vec<libc::iovec>) -> isize {
    let Some(at) = parts.iter().position(|part| part.pipe_len() > 0) else {
        return send_buffers(fd, parts, 0, vectors);
    };
    // Nothing else keeps splice(2) from waiting for a socket with room.
    set_nonblocking(fd);
    let before = parts[..=at].iter().map(|part| part.range.len()).sum::<usize>() as isize;
    let sent = match before {
        0 => 0,
        _ => send_buffers(fd, &parts[..=at], libc::MSG_MORE, vectors),
    };
    if sent != before {
        return sent;
    }
    let moved = parts[at].pipe.as_ref().map_or(0, |pipe| pipe.move_to(fd));
    if moved < 0 && before > 0 { before } else { before + moved }
}

fn send_buffers(
    fd: RawFd,
    parts: &[SendPart],
    flags: libc::c_int,
    vectors: &mut Vec<libc::iovec>,
) -> isize {
    vectors.extend(parts.iter().map(|p| {
        let s = p.buf.segment(p.range.clone());
        libc::iovec { iov_base: s.ptr.cast(), iov_len: s.len }
    }));
    // SAFETY: a msghdr of zeroes is a message without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (vectors.as_mut_ptr(), vectors.len() as _);
    let flags = flags | libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header and its vectors live for the call, the operation owns the buffers.
    let sent = unsafe { libc::sendmsg(fd, &header, flags) };
    vectors.clear();
    sent
}

fn poll_in(fd: RawFd) -> Option<i32> {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd that lives for the call, which does not wait.
    match unsafe { libc::poll(&mut poll, 1, 0) } {
        0 => None,
        1 if poll.revents & libc::POLLNVAL != 0 => Some(-libc::EBADF),
        1 => Some(poll.revents.into()),
        _ => Some(-errno()),
    }
}

/// The buffers that an ended operation gives back.
pub(super) fn buffers_of(op: NetOp, result: i32) -> Buffers {
    match op {
        // SAFETY: accept4 made this descriptor for us alone.
        NetOp::Accept if result >= 0 => Buffers::Socket(unsafe { OwnedFd::from_raw_fd(result) }),
        NetOp::Accept | NetOp::PollIn => Buffers::None,
        NetOp::Recv { buf, .. } => Buffers::One(buf),
        NetOp::Send { parts } => Buffers::Parts(parts),
    }
}

/// accept4 has no flag of its own against blocking. A descriptor that is none is left to it.
pub(super) fn set_nonblocking(fd: RawFd) {
    // SAFETY: fcntl with these commands takes no pointers.
    unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        if flags >= 0 && flags & libc::O_NONBLOCK == 0 {
            libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK);
        }
    }
}
