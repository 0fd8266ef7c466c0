//! The NBD server while other threads visit its context, and end: io_uring cancels what a
//! thread has handed to it when that thread ends, and the server does it again.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use drystone_core::clock::SystemClock;
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::{ContextSet, Device, Priority};
use drystone_exports::nbd::server::{self, Export, ExportTable, Listener, ListenerTls, Settings};
use drystone_exports::nbd::{Command, CommandFlags};
use drystone_exports::server::{Clients, Inbox, Membership, Volume, Worker};
use drystone_stack::live::{OpenEnv, open_device};
use drystone_stack::spec::DeviceSpec;
use drystone_testkit::device::HookedDevice;
use drystone_testkit::nbd::{Connection, Negotiation};
use drystone_throttle::Groups;

const SIZE: u64 = 16 << 20;
/// A question about this export holds the server up until it is told to go on.
const HOLD: &str = "hold";
/// During one about this export a thread visits the server's context, and ends.
const VISIT: &str = "visit";
const ROUNDS: u64 = 30;
/// Of a write: what is sent before the server goes on, which a socket's buffer takes, and all.
const FIRST: usize = 64 << 10;
const PAYLOAD: usize = 256 << 10;
/// More than a socket's buffer takes.
const LARGE: u64 = 8 << 20;
/// Bytes that the slow client reads at once, and how often in a round. A Unix socket can be written
/// to again once three quarters of its buffer (208 KiB on Linux) are free.
const PIECE: usize = 16 << 10;
const PIECES: usize = 12;
/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);
const NONE: CommandFlags = CommandFlags::empty();

/// A device whose size, which the server asks for during a handshake while it is outside its
/// context, is told when the test wants ([`HOLD`]), or after a visit ([`VISIT`]).
fn visited(
    inner: Arc<dyn Device>,
    name: &str,
    contexts: Arc<ContextSet>,
    held: Sender<()>,
    go_on: Arc<Mutex<Receiver<()>>>,
) -> HookedDevice {
    let is_held = name == HOLD;
    HookedDevice::new(inner).before_info(move || {
        if is_held {
            held.send(()).unwrap();
            go_on.lock().unwrap().recv().unwrap();
        } else {
            thread::scope(|scope| _ = scope.spawn(|| contexts.kick_all()).join());
        }
    })
}

fn export(name: &str, device: Arc<dyn Device>, groups: &Arc<Groups>) -> Export {
    let volume = Volume {
        name: name.to_owned(),
        device,
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups.clone(), ""),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    };
    let description = String::new();
    Export {
        volume,
        description,
        multi_conn: true,
        zero_copy: true,
        tls_required: false,
        allow: None,
    }
}

fn stream(address: &Path) -> UnixStream {
    let stream = UnixStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn connect<S: Read + Write>(stream: S) -> Connection<S> {
    let mut negotiation = Negotiation::new(stream).unwrap();
    negotiation.structured_replies().unwrap();
    negotiation.set_contexts("vol", &["base:allocation"]).unwrap();
    negotiation.go("vol", &[]).unwrap()
}

/// The option that asks about an export, and its data: a name, and no number of what is to be told.
const INFO: u32 = 6;
/// Of a reply: that was all.
const ACK: u32 = 1;

fn question(name: &str) -> Vec<u8> {
    let length = (name.len() as u32).to_be_bytes();
    [&length[..], name.as_bytes(), &[0; 2]].concat()
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    (0..length as u64).map(|at| (at / 512 * 31 + seed) as u8 | 1).collect()
}

#[test]
fn a_visitor_that_ends_breaks_no_connection() {
    let clock = SystemClock::new();
    let contexts = ContextSet::new(clock.clone());
    let cx = match contexts.open(Engine::Uring) {
        Ok(cx) => cx,
        Err(error) => return println!("SKIPPED: no io_uring: {error}"),
    };
    let at = OpenEnv::new(1, clock);
    let spec = DeviceSpec::parse(&format!("ram,size={SIZE}"), Path::new("")).unwrap();
    let inner = open_device(&spec, &at).unwrap();
    let (held, is_held) = channel();
    let (release, go_on) = channel();
    let go_on = Arc::new(Mutex::new(go_on));
    let mut exports = vec![export("vol", inner.clone(), &at.groups)];
    for name in [HOLD, VISIT] {
        let (inner, contexts) = (inner.clone(), contexts.clone());
        let (held, go_on) = (held.clone(), go_on.clone());
        let device = Arc::new(visited(inner, name, contexts, held, go_on));
        exports.push(export(name, device, &at.groups));
    }
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("s");
    let inbox = Inbox::new(cx.handle().clone());
    let settings = Settings { handshake_timeout_ns: 0, ..Settings::default() };
    let listener = Listener {
        socket: UnixListener::bind(&address).unwrap().into(),
        tls: ListenerTls::off(),
        table: Arc::new(ExportTable::new(exports, 0, settings)),
        peers: server::peers(std::slice::from_ref(&inbox)),
        descriptors_max: i32::MAX,
    };
    inbox.put(listener, &cx.locks().sibling());
    let mut worker = Worker::new(cx, inbox.clone());
    let server = thread::spawn(move || worker.run());
    clients(&address, &is_held, &release);
    inbox.stop();
    server.join().unwrap();
}

/// A client's end that reads a piece whenever it is told to, and all that comes once nobody can
/// tell it.
struct Slow {
    stream: UnixStream,
    pieces: Receiver<()>,
}

impl Read for Slow {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        _ = self.pieces.recv();
        let length = buf.len().min(PIECE);
        self.stream.read(&mut buf[..length])
    }
}

impl Write for Slow {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The server looks at its connections in the order in which they came. While it is held up for the
/// last one there comes something for all others, so that one visit, during a request of the last
/// but one, hands over what the server has begun for those before it: a receive, a receive of a
/// write's data, and the rest of a send.
fn clients(address: &Path, is_held: &Receiver<()>, release: &Sender<()>) {
    let [mut small, mut writing] = [(); 2].map(|()| connect(stream(address)));
    let (piece, pieces) = channel();
    (0..100).for_each(|_| piece.send(()).unwrap()); // for the handshake
    let mut reading = connect(Slow { stream: stream(address), pieces });
    let [mut visiting, mut holding] = [(); 2].map(|()| Negotiation::new(stream(address)).unwrap());
    let expected = pattern(LARGE as usize, 7);
    for (at, data) in expected.chunks(1 << 20).enumerate() {
        small.write((at as u64) << 20, data, NONE).unwrap();
    }
    reading.send(Command::Read, NONE, 0, LARGE, &[]).unwrap();
    let received = thread::spawn(move || reading.receive().unwrap());
    for round in 0..ROUNDS {
        holding.send_option(INFO, &question(HOLD)).unwrap();
        is_held.recv_timeout(PATIENCE).unwrap();
        small.send(Command::Read, NONE, round * 512, 512, &[]).unwrap();
        let data = pattern(PAYLOAD, round);
        let place = LARGE + round % 16 * PAYLOAD as u64;
        writing.send(Command::Write, NONE, place, PAYLOAD as u64, &data[..FIRST]).unwrap();
        (0..PIECES).for_each(|_| piece.send(()).unwrap());
        visiting.send_option(INFO, &question(VISIT)).unwrap();
        release.send(()).unwrap();
        for negotiation in [&mut holding, &mut visiting] {
            while negotiation.receive_reply(INFO).unwrap().code != ACK {}
        }
        let read = small.receive().unwrap();
        assert!(read.data == expected[round as usize * 512..][..512], "round {round}");
        writing.stream().write_all(&data[FIRST..]).unwrap();
        assert_eq!(writing.receive().unwrap().error, None, "round {round}");
        assert!(small.read(place, PAYLOAD as u64, NONE).unwrap() == data, "round {round}");
    }
    drop(piece);
    assert!(received.join().unwrap().data == expected);
}
