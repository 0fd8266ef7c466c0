//! A connection's socket, and the state of its life cycle.
//!
//! ```text
//!   open ---- drain, stop_reading ----> draining ---- kill ----> dead
//!     \------------------------ kill --------------------------/
//! ```
//!
//! Invariants:
//! * The state only moves forward.
//! * Once it is draining nothing more is read; once it is dead nothing more is sent either.
//! * The bios of a dead connection are withdrawn once.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::Shutdown;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The connection finishes its requests in flight, sends their replies, and closes.
    Draining,
    /// The socket is of no use: the connection closes as soon as nothing refers to it.
    Dead,
}

/// The life of a connection.
pub(super) struct Life {
    /// It may be a TCP socket: the type only gives a method to shut a socket down.
    socket: UnixStream,
    state: State,
    /// True once the bios that waited for a limit when the client went are withdrawn.
    is_withdrawn: bool,
}

impl Life {
    /// The life of a connection that was accepted.
    pub(super) fn new(socket: OwnedFd) -> Self {
        Life { socket: socket.into(), state: State::Open, is_withdrawn: false }
    }

    pub(super) fn fd(&self) -> i32 {
        self.socket.as_raw_fd()
    }

    /// The socket, to be closed.
    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket.into()
    }

    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.state == State::Open
    }

    #[inline]
    pub(super) fn is_draining(&self) -> bool {
        self.state == State::Draining
    }

    #[inline]
    pub(super) fn is_dead(&self) -> bool {
        self.state == State::Dead
    }

    /// Reads no more. A receive that is under way goes on.
    pub(super) fn stop_reading(&mut self) {
        if self.is_open() {
            self.state = State::Draining;
        }
    }

    /// Reads no more, and wakes a receive that waits for the client, which may never send again.
    pub(super) fn drain(&mut self) {
        if self.is_open() {
            self.state = State::Draining;
            let _ = self.socket.shutdown(Shutdown::Read);
        }
    }

    /// Reads and sends no more: the socket failed, or the client broke the protocol beyond repair.
    pub(super) fn kill(&mut self) {
        self.state = State::Dead;
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Notes that the client sends no more. Its requests are still carried out, and its replies are
    /// sent if it still reads. A Unix socket shows whether it does; with other sockets the first
    /// reply shows it.
    pub(super) fn end_input(&mut self) {
        self.stop_reading();
        let mut socket = [PollFd::new(&self.socket, PollFlags::empty())];
        let told = poll(&mut socket, Some(&Timespec::default()));
        if told.is_ok() && socket[0].revents().contains(PollFlags::HUP) {
            self.kill();
        }
    }

    /// True once, if the client is gone and `has_bios`: the bios must be withdrawn.
    pub(super) fn begin_withdrawal(&mut self, has_bios: bool) -> bool {
        let withdraws = self.is_dead() && has_bios && !self.is_withdrawn;
        self.is_withdrawn |= withdraws;
        withdraws
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn life() -> (Life, UnixStream) {
        let (server, client) = UnixStream::pair().expect("sockets");
        (Life::new(server.into()), client)
    }

    #[test]
    fn a_draining_connection_reads_no_more_and_still_sends() {
        let (mut life, mut client) = life();
        life.drain();
        assert!(life.is_draining() && client.write(b"request").is_err());
        life.socket.write_all(b"r").expect("a reply goes out");
        assert_eq!(client.read(&mut [0; 8]).expect("a reply comes"), 1);
        life.stop_reading();
        assert!(life.is_draining());
    }

    #[test]
    fn a_dead_connection_sends_no_more_and_stays_dead() {
        let (mut life, mut client) = life();
        life.kill();
        life.drain();
        life.stop_reading();
        assert!(life.is_dead() && !life.is_open() && !life.is_draining());
        assert_eq!(client.read(&mut [0; 8]).expect("the end"), 0);
    }

    #[test]
    fn a_client_that_only_ended_its_requests_gets_its_replies() {
        let (mut life, client) = life();
        client.shutdown(Shutdown::Write).expect("half is closed");
        life.end_input();
        assert!(life.is_draining(), "the client still reads");
        drop(client);
        life.end_input();
        assert!(life.is_dead(), "nobody reads");
    }

    #[test]
    fn bios_are_withdrawn_once_and_only_of_the_dead() {
        let (mut life, _client) = life();
        assert!(!life.begin_withdrawal(true));
        life.kill();
        assert!(!life.begin_withdrawal(false));
        assert!(life.begin_withdrawal(true) && !life.begin_withdrawal(true));
    }
}
