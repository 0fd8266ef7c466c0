//! Allocation queries of the NBD server: asked of the device by a thread that may block, never by a
//! data thread.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use drystone_core::clock::SystemClock;
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::{ContextSet, Priority};
use drystone_exports::nbd::server::{self, Export, ExportTable, Listener, ListenerTls, Settings};
use drystone_exports::nbd::{Command, CommandFlags};
use drystone_exports::server::{Clients, Inbox, Membership, Volume, Worker};
use drystone_stack::live::{OpenEnv, open_device};
use drystone_stack::spec::DeviceSpec;
use drystone_testkit::device::HookedDevice;
use drystone_testkit::nbd::{Connection, Negotiation};

const SIZE: u64 = 16 << 20;
/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);
const NONE: CommandFlags = CommandFlags::empty();

fn connect(address: &Path, export: &str) -> Connection<UnixStream> {
    let stream = UnixStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut negotiation = Negotiation::new(stream).unwrap();
    negotiation.structured_replies().unwrap();
    negotiation.set_contexts(export, &["base:allocation"]).unwrap();
    negotiation.go(export, &[]).unwrap()
}

/// Serve two devices with one data thread while `clients` run: `slow`, whose file system takes its
/// time to answer and whose clients are in group `g`, and `other`. It is told of each query of
/// `slow`, and lets it be answered.
fn served(
    engine: Engine,
    clients: impl FnOnce(&Path, &Receiver<()>, &Sender<()>),
    after: impl FnOnce(&OpenEnv),
) {
    let clock = SystemClock::new();
    let contexts = ContextSet::new(clock.clone());
    let cx = contexts.open(engine).unwrap();
    let at = OpenEnv::new(1, clock);
    at.groups.create("g").unwrap();
    let open = |name: &str| {
        let spec = DeviceSpec::parse(&format!("ram,size={SIZE}"), Path::new("")).unwrap();
        open_device(&DeviceSpec { name: name.to_owned(), ..spec }, &at).unwrap()
    };
    let (asked, is_asked) = channel();
    let (let_answer, answer) = channel();
    let answer = Mutex::new(answer);
    let slow = HookedDevice::new(open("slow")).before_extents(move || {
        asked.send(()).unwrap();
        answer.lock().unwrap().recv().unwrap();
    });
    let export = |name: &str, device, group: &str| Export {
        volume: Volume {
            name: name.to_owned(),
            device,
            read_only: false,
            priority: Priority::default(),
            membership: Membership::new(at.groups.clone(), group),
            clients: Clients::default(),
            write_lock: RangeLock::new(),
        },
        description: String::new(),
        multi_conn: true,
        zero_copy: true,
        tls_required: false,
        allow: None,
    };
    let exports = vec![export("slow", Arc::new(slow), "g"), export("other", open("other"), "")];
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("s");
    let inbox = Inbox::new(cx.handle().clone());
    let listener = Listener {
        socket: UnixListener::bind(&address).unwrap().into(),
        tls: ListenerTls::off(),
        table: Arc::new(ExportTable::new(exports, 0, Settings::default())),
        peers: server::peers(std::slice::from_ref(&inbox)),
        descriptors_max: i32::MAX,
    };
    inbox.put(listener, &cx.locks().sibling());
    let mut worker = Worker::new(cx, inbox.clone());
    let server = thread::spawn(move || worker.run());
    clients(&address, &is_asked, &let_answer);
    inbox.stop();
    server.join().unwrap();
    after(&at);
}

fn engines() -> Vec<Engine> {
    let uring = ContextSet::new(SystemClock::new()).open(Engine::Uring).is_ok();
    if !uring {
        println!("SKIPPED: no io_uring");
    }
    [Engine::Plain, Engine::Uring][..if uring { 2 } else { 1 }].to_vec()
}

#[test]
fn while_a_file_system_does_not_answer_everything_else_goes_on() {
    for engine in engines() {
        let clients = |address: &Path, is_asked: &Receiver<()>, let_answer: &Sender<()>| {
            let mut asking = connect(address, "slow");
            let mut second = connect(address, "slow");
            let mut other = connect(address, "other");
            asking.write(0, &[7; 4096], NONE).unwrap();
            asking.send(Command::BlockStatus, NONE, 0, SIZE, &[]).unwrap();
            is_asked.recv_timeout(PATIENCE).unwrap();
            // Reads ask for nothing, long ones neither.
            assert!(
                second.read(0, SIZE, NONE).unwrap()[..4097]
                    == [[7; 4096].as_slice(), &[0]].concat()
            );
            let status = other.block_status(0, SIZE, NONE).unwrap();
            assert_eq!(status[0].1, [(SIZE, 3)], "another device answers");
            second.send(Command::BlockStatus, NONE, 0, 8192, &[]).unwrap();
            let held = is_asked.recv_timeout(Duration::from_millis(20));
            assert!(held.is_err(), "one query of a device at a time");
            let_answer.send(()).unwrap();
            let_answer.send(()).unwrap();
            let expected = [(4096, 0), (SIZE - 4096, 3)];
            assert_eq!(asking.receive().unwrap().status[0].1, expected);
            assert_eq!(second.receive().unwrap().status[0].1, [(4096, 0), (4096, 3)]);
        };
        served(engine, clients, |_| {});
    }
}

#[test]
fn a_query_counts_as_an_io_of_its_group() {
    for engine in engines() {
        let clients = |address: &Path, _: &Receiver<()>, let_answer: &Sender<()>| {
            let mut client = connect(address, "slow");
            for at in 0..5 {
                let_answer.send(()).unwrap();
                client.block_status(at * 4096, 4096, NONE).unwrap();
            }
        };
        served(engine, clients, |at| {
            let stats = at.groups.io_stat("g").unwrap();
            let [(_, stat)] = &stats[..] else { panic!("one device: {stats:?}") };
            assert_eq!((stat.rios, stat.rbytes), (5, 0));
        });
    }
}

/// A client that goes while its queries wait leaves nothing behind, and the server can stop.
#[test]
fn a_client_may_go_while_it_waits_for_answers() {
    for engine in engines() {
        let clients = |address: &Path, is_asked: &Receiver<()>, let_answer: &Sender<()>| {
            let mut gone = connect(address, "slow");
            for _ in 0..10 {
                gone.send(Command::BlockStatus, NONE, 0, SIZE, &[]).unwrap();
            }
            is_asked.recv_timeout(PATIENCE).unwrap();
            drop(gone);
            let mut other = connect(address, "other");
            other.read(0, 4096, NONE).unwrap();
            (0..10).for_each(|_| let_answer.send(()).unwrap());
        };
        served(engine, clients, |_| {});
    }
}
