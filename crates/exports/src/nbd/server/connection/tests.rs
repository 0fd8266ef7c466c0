//! A connection by itself that ends with buffers everywhere.

use super::*;
use crate::nbd::handshake::{Negotiated, TlsPolicy};
use crate::nbd::proto::{Command, REQUEST_MAGIC, TransmissionFlags};
use crate::nbd::reply::ReplyStyle;
use crate::nbd::server::{Export, Settings};
use crate::server::{Clients, Membership, Reserve, Volume, Work};
use drystone_core::clock::ManualClock;
use drystone_core::mailbox::Message;
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::sync::LockRegistry;
use drystone_core::{
    Arena, BioList, Channel, ContextSet, Device, DeviceInfo, Env, Limits, Priority, Result, Status,
};
use drystone_throttle::Groups;
use std::os::unix::net::UnixStream;

const ECONNRESET: i32 = 104;
const EPIPE: i32 = 32;

/// A device whose bios the test ends.
struct Fake;

impl Device for Fake {
    drystone_testkit::no_statistics!();
    drystone_testkit::no_attributes!();

    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "fake".into(), kind: "test", size_bytes: 1 << 20, limits }
    }

    fn open_channel(&self, _env: &mut Env, _index: u32) -> Result<Box<dyn Channel>> {
        Ok(Box::new(Fake))
    }

    fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent::data(offset, length)])
    }
}

impl Channel for Fake {
    fn submit(&mut self, _env: &mut Env, _bios: &mut BioList) {
        unreachable!("the test submits nothing");
    }

    fn message(&mut self, _env: &mut Env, _message: Arc<Message>) {}

    fn members(&self) -> &[u32] {
        &[]
    }

    fn in_flight(&self) -> usize {
        0
    }

    fn cancel_pending(&mut self, _env: &mut Env) {}
}

fn export() -> Export {
    let clock = ManualClock::new(1);
    let groups = Groups::new(clock.clone(), &LockRegistry::new(clock));
    let volume = Volume {
        name: "vol".to_owned(),
        device: Arc::new(Fake),
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups, ""),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    };
    let (description, allow) = (String::new(), None);
    Export { volume, description, multi_conn: true, tls_required: false, allow }
}

/// A connection in its handshake, what it works with, and the client's end of it.
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
        let table = Arc::new(ExportTable::new(vec![export()], 0, Settings::default()));
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
        let export = self.table.exports()[0].info(self.table.settings());
        let flags = TransmissionFlags::HAS_FLAGS;
        let (style, contexts) = (ReplyStyle::Simple, Vec::new());
        let negotiated = Negotiated { export, flags, style, contexts, no_zeroes: true, tls: false };
        let (chosen, client) = ((&negotiated, None), (SessionId(0), &self.connection.peer));
        let listener = (&*self.table, &self.work.locks);
        let pool = &mut self.connection.pool;
        let export = OpenExport::open(chosen, client, pool, &mut self.work.cx, listener);
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

fn message(command: Command, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&(command as u32).to_be_bytes());
    bytes.extend_from_slice(&[0; 16]);
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

#[test]
fn a_client_that_never_takes_its_greeting_costs_no_buffer() {
    let mut alone = Alone::new();
    assert_eq!(alone.reserve.idle_count(), 0);
    alone.connection.kill();
    assert_eq!(alone.end(), 1);
}

/// A send that fails, data of a write that never comes, and a reply to a client that is gone.
#[test]
fn a_connection_that_ends_gives_back_all_buffers() {
    let mut alone = Alone::new();
    alone.open();
    let Some(Want::Send(greeting)) = alone.connection.next_want() else { panic!("a greeting") };
    let requests = [message(Command::Read, 512), message(Command::Write, 20_000), vec![7; 100]];
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
