//! A descriptor that the server owns, and its state as seen from the other end of its pair.
//!
//! Invariant: no byte goes over the pair, so the kernel always answers the same way at once.

use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// A descriptor of the server's, watched from the other end of its pair.
pub(super) struct Witness {
    /// `None` once the server can change nothing more.
    pub(super) end: Option<UnixStream>,
    pub(super) fd: RawFd,
    /// The name of the descriptor's file, by which the world sees whether it is open.
    name: Option<PathBuf>,
}

impl Witness {
    pub(super) fn new() -> (Self, OwnedFd) {
        let (end, server) = UnixStream::pair().expect("descriptors for a simulated socket");
        let fd = server.as_raw_fd();
        (Witness { end: Some(end), fd, name: name_of(fd) }, server.into())
    }

    /// True if the server sends no more.
    pub(super) fn sends_no_more(&self) -> bool {
        let ended = |end| matches!(recv(end, &mut [0; 1], RecvFlags::DONTWAIT), Ok((_, 0)));
        self.end.as_ref().is_some_and(ended)
    }

    /// True if the server receives no more.
    pub(super) fn receives_no_more(&self) -> bool {
        let ended = |end| send(end, &[], SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_err();
        self.end.as_ref().is_some_and(ended)
    }

    /// True if the descriptor is still open.
    pub(super) fn is_open(&self) -> bool {
        self.name.is_some() && name_of(self.fd) == self.name
    }
}

fn name_of(fd: RawFd) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()
}
