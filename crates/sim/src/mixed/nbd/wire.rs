//! A client's socket as a stream that blocks its fiber.

use crate::world::{ClientSocket, Gone};
use drystone_core::clock::Ns;
use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};

/// A stream over a simulated socket. It keeps everything that arrives while it sends. Otherwise a
/// server that waits until its replies are read would wait for ever.
#[derive(Debug)]
pub(super) struct Wire {
    socket: Option<ClientSocket>,
    arrived: VecDeque<u8>,
    /// The time when bytes were sent last.
    sent_ns: Ns,
    /// The longest time without a sent byte.
    quiet_ns: Ns,
}

impl Wire {
    pub(super) fn new(socket: ClientSocket) -> Self {
        let sent_ns = socket.world().now();
        Wire { socket: Some(socket), arrived: VecDeque::new(), sent_ns, quiet_ns: 0 }
    }

    fn socket(&self) -> &ClientSocket {
        self.socket.as_ref().expect("there is a socket until the stream ends")
    }

    /// Takes the bytes that have arrived. True if a read would find data or the end now.
    pub(super) fn take_arrived(&mut self) -> bool {
        self.take().is_err() || !self.arrived.is_empty()
    }

    fn take(&mut self) -> std::result::Result<usize, Gone> {
        let socket = self.socket.as_ref().expect("there is a socket until the stream ends");
        socket.receive(&mut self.arrived)
    }

    /// The longest time so far in which nothing was sent.
    pub(super) fn quiet_ns(&self) -> Ns {
        self.quiet_ns.max(self.socket().world().now() - self.sent_ns)
    }

    /// Shuts down the sending side.
    pub(super) fn end(&self) {
        self.socket().end();
    }

    /// Resets the connection: the server's operations fail.
    pub(super) fn reset(mut self) {
        self.socket.take().expect("there is a socket until the stream ends").reset();
    }
}

fn failed(gone: Gone) -> Error {
    match gone {
        Gone::End => Error::new(ErrorKind::BrokenPipe, "the server has closed"),
        Gone::Reset => Error::new(ErrorKind::ConnectionReset, "the connection was reset"),
    }
}

impl Read for Wire {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        while self.arrived.is_empty() {
            match self.take() {
                Ok(0) => self.socket().wait(None),
                Ok(_) => {}
                Err(Gone::End) => return Ok(0),
                Err(gone) => return Err(failed(gone)),
            }
        }
        self.arrived.read(into)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        loop {
            match self.socket().send(bytes).map_err(failed)? {
                0 => {
                    if self.take().unwrap_or(0) == 0 {
                        self.socket().wait(None);
                    }
                }
                n => {
                    self.quiet_ns = self.quiet_ns();
                    self.sent_ns = self.socket().world().now();
                    return Ok(n);
                }
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}
