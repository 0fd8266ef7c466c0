//! Tests of one connection that ends while it has buffers in many places.

use super::testing::{export, groups, message, negotiated};
use super::*;
use crate::nbd::handshake::TlsPolicy;
use crate::nbd::proto::Command;
use crate::nbd::server::Settings;
use crate::server::{Clients, Reserve, Work};
use drystone_core::clock::ManualClock;
use drystone_core::ring::Engine;
use drystone_core::{Arena, BioList, ContextSet, Status};
use std::os::unix::net::UnixStream;

const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;

/// A connection in its handshake, its surroundings, and the client's end of it.
struct Alone {
    connection: Connection,
    work: Work,
    table: Arc<ExportTable>,
    reserve: Arc<Reserve>,
    _client: UnixStream,
}

impl Alone {
    fn new() -> Self {
        let cx = ContextSet::new(ManualClock::new(1)).open(Engine::Plain).expect("a context");
        let mut work = Work::new(cx);
        let reserve = Reserve::new(Arena::new(8 << 20), work.locks.clone());
        work.reserve = reserve.clone();
        let table =
            Arc::new(ExportTable::new(vec![export(groups(), "", true)], 0, Settings::default()));
        let (socket, client) = UnixStream::pair().expect("sockets");
        let incoming = Incoming {
            socket: socket.into(),
            tls: ListenerTls { policy: TlsPolicy::Off, config: None },
            table: table.clone(),
            assigned: Clients::default().enter(),
        };
        let connection = Connection::new(incoming, SessionId(0), TableId(0), work.pool(), 1);
        Alone { connection, work, table, reserve, _client: client }
    }

    /// The client has chosen the export.
    fn open(&mut self) {
        let negotiated = negotiated(&self.table);
        let (chosen, client) = ((&negotiated, None), (SessionId(0), &self.connection.peer));
        let listener = (&*self.table, &self.work.locks);
        let pool = &mut self.connection.pool;
        let export = OpenExport::open(chosen, client, pool, &mut self.work.cx, listener, true);
        self.connection.phase = Phase::Transmission(Box::new(export.expect("it opens")));
    }

    fn receive(&mut self, bytes: &[u8]) {
        let Some(Want::Receive(mut buf, _)) = self.connection.next_want() else {
            panic!("it takes requests")
        };
        buf[..bytes.len()].copy_from_slice(bytes);
        self.connection.received(buf, Some(bytes.len() as i32));
    }

    fn advance(&mut self) -> BioList {
        let (mut bios, Work { cx, locks, .. }) = (BioList::new(), &mut self.work);
        self.connection.advance(cx, locks, &self.table, &mut bios);
        bios
    }

    /// Ends the connection. Returns how many buffers the reserve has then.
    fn end(mut self) -> usize {
        assert!(self.connection.next_want().is_none() && self.connection.is_over());
        drop(self.connection.into_socket());
        self.reserve.idle_count()
    }
}

#[test]
fn a_client_that_never_takes_its_greeting_costs_no_buffer() {
    let mut alone = Alone::new();
    assert_eq!(alone.reserve.idle_count(), 0);
    alone.connection.kill();
    assert_eq!(alone.end(), 1);
}

/// Covers a send that fails, data of a write that never comes, and a reply to a client that is
/// gone.
#[test]
fn a_connection_that_ends_gives_back_all_buffers() {
    let mut alone = Alone::new();
    alone.open();
    let Some(Want::Send(greeting)) = alone.connection.next_want() else { panic!("a greeting") };
    let requests =
        [message(Command::Read, 0, 512), message(Command::Write, 0, 20_000), vec![7; 100]];
    alone.receive(&requests.concat());
    let mut bios = alone.advance();
    let Some(Want::ReceivePayload(data, range)) = alone.connection.next_want() else {
        panic!("more data is to come")
    };
    assert_eq!((range.len(), alone.reserve.idle_count()), (19_900, 0));
    alone.connection.received_payload(data, Some(-ECONNRESET));
    assert!(alone.connection.sent(greeting, Some(-EPIPE)).is_none());
    let mut read = bios.pop().expect("the read");
    read.status = Status::Ok;
    alone.connection.completed(read);
    assert!(bios.is_empty() && alone.advance().is_empty());
    assert_eq!(alone.end(), 3, "greeting, reply and data");
}
