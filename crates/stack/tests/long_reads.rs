//! Long reads of the NBD server, whose data nobody copies where the device has pages.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use drystone_core::clock::SystemClock;
use drystone_core::pipe::Pipe;
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::{ContextSet, Device, Priority};
use drystone_exports::nbd::server::{self, Export, ExportTable, Listener, ListenerTls, Settings};
use drystone_exports::nbd::{Command, CommandFlags, ReplyStyle};
use drystone_exports::server::{Clients, Inbox, Membership, Worker};
use drystone_stack::live::{OpenEnv, open_device, open_table};
use drystone_stack::spec::DeviceSpec;
use drystone_targets::{Volume, VolumeOptions};
use drystone_testkit::nbd::{Connection, Negotiation};

const SIZE: u64 = 4 << 20;
const LONG: u64 = 1 << 20;
/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(60);
const NONE: CommandFlags = CommandFlags::empty();

fn connect(address: &Path, export: &str, style: ReplyStyle) -> Connection<UnixStream> {
    let stream = UnixStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut negotiation = Negotiation::new(stream).unwrap();
    match style {
        ReplyStyle::Simple => {}
        ReplyStyle::Structured => negotiation.structured_replies().unwrap(),
        ReplyStyle::Extended => negotiation.extended_headers().unwrap(),
    }
    negotiation.go(export, &[]).unwrap()
}

fn data(seed: u64) -> Vec<u8> {
    (0..LONG).map(|at| (at.wrapping_mul(seed) >> 7) as u8).collect()
}

/// The ways to keep data, and whether a long read ends in a pipe there.
fn devices(at: &OpenEnv, folder: &Path) -> Vec<(Arc<dyn Device>, bool)> {
    let file = folder.join("d.img").display().to_string();
    let open = |name: &str, text: &str| {
        let spec = DeviceSpec::parse(text, Path::new("")).unwrap();
        open_device(&DeviceSpec { name: name.to_owned(), ..spec }, at).unwrap()
    };
    vec![
        (open("ram", &format!("ram,size={SIZE}")), true),
        (open("file", &format!("file,path={file},size={SIZE},direct=false")), true),
        (halves_of(open("below", &format!("ram,size={SIZE}")), at), false),
    ]
}

/// A volume whose second half lies before its first one: some reads have a part in each.
fn halves_of(device: Arc<dyn Device>, at: &OpenEnv) -> Arc<dyn Device> {
    let half = SIZE / 1024;
    let table = format!("0 {half} linear below {half}\n{half} {half} linear below 0");
    let find = |name: &str| (name == "below").then(|| device.clone());
    let volume = Volume::new("linear", VolumeOptions::default(), at.locks.counters());
    volume.load(open_table(&table, &find, at.clock.now()).unwrap());
    volume.resume().unwrap();
    Arc::new(volume)
}

/// Serves each device with one data thread while `client` runs.
fn served(zero_copy: bool, client: impl Fn(&Path, bool)) {
    let uring = ContextSet::new(SystemClock::new()).open(Engine::Uring).is_ok();
    if !uring {
        println!("SKIPPED: no io_uring");
    }
    for engine in [Engine::Plain, Engine::Uring].into_iter().take(1 + usize::from(uring)) {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let at = OpenEnv::new(1, SystemClock::new());
        for (device, is_piped) in devices(&at, folder.path()) {
            serve(engine, device, &at, zero_copy, |address| client(address, is_piped && zero_copy));
        }
    }
}

fn serve(
    engine: Engine,
    device: Arc<dyn Device>,
    at: &OpenEnv,
    zero_copy: bool,
    client: impl Fn(&Path),
) {
    let cx = ContextSet::new(SystemClock::new()).open(engine).unwrap();
    let volume = drystone_exports::server::Volume {
        name: "v".to_owned(),
        device,
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(at.groups.clone(), ""),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    };
    let export = Export {
        volume,
        description: String::new(),
        multi_conn: true,
        zero_copy,
        tls_required: false,
        allow: None,
    };
    let folder = tempfile::tempdir().unwrap();
    let address = folder.path().join("s");
    let inbox = Inbox::new(cx.handle().clone());
    let listener = Listener {
        socket: UnixListener::bind(&address).unwrap().into(),
        tls: ListenerTls::off(),
        table: Arc::new(ExportTable::new(vec![export], 0, Settings::default())),
        peers: server::peers(std::slice::from_ref(&inbox)),
        descriptors_max: i32::MAX,
    };
    inbox.put(listener, &cx.locks().sibling());
    let mut worker = Worker::new(cx, inbox.clone());
    let server = thread::spawn(move || worker.run());
    client(&address);
    inbox.stop();
    server.join().unwrap();
}

/// Reads of every kind, many in flight, while the client takes its time.
fn reads_what_was_written(address: &Path, style: ReplyStyle) {
    let mut client = connect(address, "v", style);
    let parts: Vec<_> = (0..4).map(|part| data(3 + 2 * part)).collect();
    for (part, at) in parts.iter().zip(0..) {
        client.write(at * LONG, part, NONE).unwrap();
    }
    let all = parts.concat();
    let kinds = [(0, LONG), (4096, 128 << 10), (LONG, 512), (512, LONG), (8192, 3 << 20)];
    let mut asked = Vec::new();
    for (offset, length) in kinds.iter().cycle().take(20) {
        let cookie = client.send(Command::Read, NONE, *offset, *length, &[]).unwrap();
        asked.push((cookie, *offset as usize, *length as usize));
    }
    thread::sleep(Duration::from_millis(20));
    for _ in 0..asked.len() {
        let reply = client.receive().unwrap();
        let (_, offset, length) =
            asked.iter().find(|(cookie, ..)| *cookie == reply.cookie).unwrap();
        assert!(reply.data == all[*offset..offset + length], "{offset} {length}");
    }
    assert!(client.read(SIZE - 512, LONG, NONE).is_err());
    client.disconnect().unwrap();
}

fn ask_for_long_ones(client: &mut Connection<UnixStream>) {
    for _ in 0..9 {
        client.send(Command::Read, NONE, 0, LONG, &[]).unwrap();
    }
}

#[test]
fn long_reads_give_what_was_written() {
    for zero_copy in [true, false] {
        served(zero_copy, |address, is_piped| {
            let before = Pipe::fills();
            for style in [ReplyStyle::Simple, ReplyStyle::Structured, ReplyStyle::Extended] {
                reads_what_was_written(address, style);
            }
            // One that goes with replies in flight, and one that takes none.
            let mut gone = connect(address, "v", ReplyStyle::Structured);
            ask_for_long_ones(&mut gone);
            drop(gone);
            let mut idle = connect(address, "v", ReplyStyle::Structured);
            ask_for_long_ones(&mut idle);
            reads_what_was_written(address, ReplyStyle::Structured);
            assert!((Pipe::fills() > before) == is_piped);
            // Only the client that takes nothing has pipes then.
            let (until, least) = (Instant::now() + PATIENCE, usize::from(is_piped));
            while !(least..=4 * least).contains(&Pipe::count()) {
                assert!(Instant::now() < until, "{} pipes", Pipe::count());
                thread::sleep(Duration::from_millis(10));
            }
        });
    }
}

/// A reply that was copied does not change any more, however late the client takes it.
#[test]
fn without_zero_copy_a_late_client_sees_no_later_write() {
    served(false, |address, _| {
        let mut late = connect(address, "v", ReplyStyle::Structured);
        let mut writer = connect(address, "v", ReplyStyle::Structured);
        let (old, new) = (data(5), data(11));
        late.write(0, &old, NONE).unwrap();
        late.send(Command::Read, NONE, 0, LONG, &[]).unwrap();
        // The first bytes of the reply show that the read has ended.
        let mut first = [0; 1];
        wait_for_bytes(late.stream(), &mut first);
        writer.write(0, &new, NONE).unwrap();
        assert!(late.receive().unwrap().data == old);
        assert!(late.read(0, LONG, NONE).unwrap() == new);
    });
}

/// Waits until the peer has sent something, and leaves it there.
fn wait_for_bytes(stream: &UnixStream, first: &mut [u8]) {
    let flags = rustix::net::RecvFlags::PEEK;
    rustix::net::recv(stream, first, flags).unwrap();
}
