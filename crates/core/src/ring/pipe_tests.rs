//! Sends of pipes, on each engine.

use super::tests::{Fixture, part, token};
use super::*;
use crate::buf::IoBuf;
use crate::pipe::Pipe;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

const LONG: usize = 1 << 20;

/// A header, and a pipe of 1 MiB after it.
fn long_part(header: &[u8], data: &IoBuf) -> SendPart {
    let mut pipe = Pipe::open().expect("a pipe");
    assert!(pipe.fill_from(data.segment(0..data.len())).is_ok());
    SendPart { pipe: Some(pipe), ..part(header) }
}

fn data(seed: u32) -> IoBuf {
    let bytes: Vec<u8> = (0..LONG as u32).map(|i| (i.wrapping_mul(seed) >> 9) as u8).collect();
    IoBuf::from_slice(&bytes)
}

/// Starts a send of `parts`, and of what is left of them, until all is sent.
fn send_all(f: &mut Fixture, socket: &UnixStream, mut parts: Vec<SendPart>) -> usize {
    let mut sends = 0;
    while !parts.is_empty() {
        f.ring.net(socket.as_raw_fd(), NetOp::Send { parts }, token(1));
        let event = f.event(1);
        assert!(event.result > 0, "{}", event.result);
        let Buffers::Parts(back) = event.buffers else { panic!("the parts come back") };
        (parts, sends) = (back, sends + 1);
        let mut n = event.result as usize;
        for part in &mut parts {
            let now = n.min(part.len());
            part.sent(now);
            n -= now;
        }
        assert_eq!(n, 0, "no more than there was");
        parts.retain(|part| !part.is_empty());
    }
    assert_eq!(f.ring.in_flight(), 0);
    sends
}

/// Gives the socket a send buffer of 128 KiB, whatever the system's default is.
fn take_little(socket: &UnixStream) {
    let bytes: libc::c_int = 64 << 10;
    let (value, length) = (std::ptr::from_ref(&bytes).cast(), size_of::<libc::c_int>() as u32);
    let fd = socket.as_raw_fd();
    // SAFETY: the kernel reads the value during the call.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, value, length) };
    assert_eq!(set, 0);
}

fn pipes_are_sent_in_their_place(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (near, mut far) = UnixStream::pair().unwrap();
    take_little(&near);
    let (one, two) = (data(7), data(11));
    let wanted = [b"first", &one[..], b"second", b"third", &two[..], b"last"].concat();
    let parts =
        vec![long_part(b"first", &one), part(b"second"), long_part(b"third", &two), part(b"last")];
    // It takes less than the socket has room for at a time, so sends wait for room.
    let length = wanted.len();
    let reader = std::thread::spawn(move || {
        let (mut got, mut piece) = (Vec::new(), vec![0; 10_000]);
        while got.len() < length {
            let n = far.read(&mut piece).unwrap();
            assert!(n > 0, "all of it is to come");
            got.extend_from_slice(&piece[..n]);
        }
        got
    });
    assert!(send_all(&mut f, &near, parts) > 8, "a socket does not take 2 MiB at once");
    assert!(reader.join().unwrap() == wanted);
}

fn a_socket_that_sends_pipes_still_receives(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (near, mut far) = UnixStream::pair().unwrap();
    let memory = data(3);
    let parts = vec![long_part(b"head", &memory)];
    f.ring.net(near.as_raw_fd(), NetOp::Send { parts }, token(1));
    f.ring.net(near.as_raw_fd(), NetOp::Recv { buf: IoBuf::zeroed(8), range: 0..8 }, token(2));
    let sent = f.event(1).result as usize;
    f.none_yet();
    let mut got = vec![0; sent];
    far.read_exact(&mut got).unwrap();
    std::io::Write::write_all(&mut far, b"more").unwrap();
    assert_eq!(f.event(2).result, 4, "a receive waits though the socket does not block");
}

fn a_send_that_waits_for_room_can_be_cancelled(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (near, far) = UnixStream::pair().unwrap();
    take_little(&near);
    let memory = data(5);
    let mut parts = vec![long_part(b"head", &memory)];
    // Fill the socket.
    loop {
        f.ring.net(near.as_raw_fd(), NetOp::Send { parts }, token(1));
        f.ring.wait(Some(0));
        f.ring.submit();
        f.ring.cancel(token(1));
        let event = f.event(1);
        let Buffers::Parts(back) = event.buffers else { panic!("the parts come back") };
        parts = back;
        if event.result < 0 {
            assert_eq!(event.result, -libc::ECANCELED);
            break;
        }
        parts[0].sent(event.result as usize);
    }
    assert!(parts[0].pipe_len() > 0 && f.ring.in_flight() == 0);
    // The peer's end ends a send that waits.
    f.ring.net(near.as_raw_fd(), NetOp::Send { parts }, token(1));
    f.none_yet();
    drop(far);
    assert_eq!(f.event(1).result, -libc::EPIPE);
}

macro_rules! on_both_engines {
    ($($test:ident),*) => {
        mod io_uring { $(#[test] fn $test() { super::$test(super::Engine::Uring) })* }
        mod plain { $(#[test] fn $test() { super::$test(super::Engine::Plain) })* }
    };
}

on_both_engines!(
    pipes_are_sent_in_their_place,
    a_socket_that_sends_pipes_still_receives,
    a_send_that_waits_for_room_can_be_cancelled
);
