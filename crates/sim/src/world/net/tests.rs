//! Tests of sockets between a client and a ring, without the rest of a server.

use super::NetOptions;
use crate::world::{ClientSocket, Gone, World};
use drystone_core::buf::IoBuf;
use drystone_core::ring::{Buffers, NetOp, Ring, RingEvent, SendPart, Token};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

const LONG: u64 = 1_000_000_000;

struct Both {
    world: World,
    ring: Box<dyn Ring>,
    server: OwnedFd,
    client: ClientSocket,
    listener: OwnedFd,
}

/// A connection over a network with these options.
fn both(options: NetOptions) -> Both {
    let world = World::new(false);
    world.set_net(options, 7);
    let mut ring = world.ring();
    let (id, listener) = world.listen();
    ring.net(listener.as_raw_fd(), NetOp::Accept, Token(1));
    ring.submit();
    let client = world.connect(id).expect("somebody listens");
    let Some(Buffers::Socket(server)) = one(&mut *ring).map(|event| event.buffers) else {
        panic!("the connection is accepted");
    };
    Both { world, ring, server, client, listener }
}

fn one(ring: &mut dyn Ring) -> Option<RingEvent> {
    let mut events = Vec::new();
    ring.submit();
    ring.reap(&mut events);
    assert!(events.len() <= 1);
    events.pop()
}

impl Both {
    fn later(&self) {
        self.world.pass(LONG);
        self.world.round(&[], &mut Vec::new());
    }

    /// The result of a receive, if it ends, and the bytes that came.
    fn receive(&mut self) -> Option<(i32, Vec<u8>)> {
        let buf = IoBuf::zeroed(4096);
        self.ring.net(self.server.as_raw_fd(), NetOp::Recv { buf, range: 0..4096 }, Token(2));
        let event = one(&mut *self.ring)?;
        let Buffers::One(buf) = event.buffers else { panic!("the buffer comes back") };
        Some((event.result, buf[..event.result.max(0) as usize].to_vec()))
    }

    fn send(&mut self, bytes: usize) -> Option<i32> {
        let mut buf = IoBuf::zeroed(bytes);
        buf.fill(5);
        let parts = vec![SendPart::new(buf, 0..bytes)];
        self.ring.net(self.server.as_raw_fd(), NetOp::Send { parts }, Token(3));
        one(&mut *self.ring).map(|event| event.result)
    }
}

#[test]
fn bytes_arrive_in_order_and_in_pieces() {
    let mut both = both(NetOptions { piece: 7, ..NetOptions::default() });
    let data: Vec<u8> = (0..200).collect();
    let mut sent = 0;
    while sent < data.len() {
        sent += both.client.send(&data[sent..]).unwrap();
    }
    assert!(both.receive().is_none(), "nothing arrives at once");
    both.later();
    let mut got = Vec::new();
    let first = one(&mut *both.ring).expect("the receive ends");
    let Buffers::One(buf) = first.buffers else { panic!("the buffer comes back") };
    got.extend_from_slice(&buf[..first.result as usize]);
    while got.len() < data.len() {
        let (n, bytes) = both.receive().expect("there is more");
        assert!((1..=7).contains(&n));
        got.extend(bytes);
    }
    assert_eq!(got, data);
    assert!(both.world.net_counts().partial > 0);
}

#[test]
fn a_full_way_keeps_the_sender_waiting() {
    let mut both = both(NetOptions { capacity: 100, ..NetOptions::default() });
    let mut sent = 0;
    while let Some(n) = both.send(64) {
        sent += n;
    }
    assert_eq!(sent, 100);
    both.later();
    let mut got = VecDeque::new();
    assert_eq!(both.client.receive(&mut got), Ok(100));
    assert!(one(&mut *both.ring).is_some_and(|event| event.result > 0), "there is room again");
}

#[test]
fn what_was_sent_before_the_end_arrives_before_it() {
    let mut both = both(NetOptions::default());
    assert!(both.client.send(b"last").unwrap() > 0);
    both.client.end();
    both.later();
    let mut got = Vec::new();
    loop {
        let (n, bytes) = both.receive().expect("bytes, or the end");
        got.extend(bytes);
        if n == 0 {
            break;
        }
    }
    assert!(!got.is_empty() && b"last".starts_with(&got[..]), "then the end");
    assert!(both.send(10).is_some_and(|n| n > 0), "the other way is open");
}

#[test]
fn a_reset_ends_everything_with_errors() {
    let mut both = both(NetOptions::default());
    assert!(both.receive().is_none());
    let Both { world, mut ring, server, client, .. } = both;
    client.reset();
    world.pass(LONG);
    world.round(&[], &mut Vec::new());
    assert_eq!(one(&mut *ring).map(|event| event.result), Some(-libc::ECONNRESET));
    let parts = vec![SendPart::new(IoBuf::zeroed(9), 0..9)];
    ring.net(server.as_raw_fd(), NetOp::Send { parts }, Token(3));
    assert_eq!(one(&mut *ring).map(|event| event.result), Some(-libc::EPIPE));
}

#[test]
fn what_the_server_does_to_its_descriptor_is_seen() {
    let mut both = both(NetOptions::default());
    assert!(both.receive().is_none());
    assert_eq!(both.world.sockets_alive(), 2);
    let socket = std::os::unix::net::UnixStream::from(both.server);
    socket.shutdown(std::net::Shutdown::Read).unwrap();
    both.world.look_at_sockets();
    assert_eq!(one(&mut *both.ring).map(|event| event.result), Some(0), "the receive ends");
    assert!(both.client.send(b"x").is_ok(), "the client does not know");
    drop(socket);
    both.world.look_at_sockets();
    assert_eq!(both.world.sockets_alive(), 1);
    both.world.pass(LONG);
    both.world.round(&[], &mut Vec::new());
    let ended = both.client.receive(&mut VecDeque::new());
    assert!(matches!(ended, Err(Gone::End | Gone::Reset)));
    drop(both.listener);
    assert_eq!(both.world.sockets_alive(), 0);
}

#[test]
fn a_cancelled_receive_gives_its_buffer_back() {
    let mut both = both(NetOptions::default());
    assert!(both.receive().is_none());
    both.ring.cancel(Token(2));
    let event = one(&mut *both.ring).unwrap();
    assert_eq!(event.result, -libc::ECANCELED);
    assert!(matches!(event.buffers, Buffers::One(_)));
    assert_eq!(both.ring.in_flight(), 0);
}
