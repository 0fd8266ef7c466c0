//! Extended headers and 64-bit requests, on real sockets. The clients of others do not support
//! them here, so the tests use our own client, which is written from the protocol text.

#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;

use drystone_exports::nbd::proto::InfoCode;
use drystone_exports::nbd::{Command, CommandFlags, ErrorCode, ReplyStyle, TransmissionFlags};
use drystone_testkit::nbd::{ClientError, Connection, Negotiation, RawRequest};
use system_tests::server::PATIENCE;
use system_tests::{Server, stack};

const NONE: CommandFlags = CommandFlags::empty();
const GIB: u64 = 1 << 30;
/// The value of `base:allocation` for holes; 0 is data.
const HOLE_AND_ZERO: u32 = 3;

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

type Stream = Box<dyn Duplex>;

/// A server with one device behind the exports `vol` and `twin`, and another behind `other`, on a
/// Unix socket and on TCP.
struct Served {
    server: Server,
    port: u16,
}

impl Served {
    fn new(device: &str) -> Served {
        // A port that was free a moment ago.
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        drop(listener);
        let at = format!("nbd = [\"unix:DIR/nbd.sock\", \"tcp:127.0.0.1:{port}\"]");
        let other = "[device.o]\ntype = \"ram\"\nsize = \"1MiB\"\n";
        let export = |name: &str, device: &str, keys: &str| {
            format!("[export.{name}]\ndevice = {device:?}\n{at}\n{keys}\n")
        };
        let text = [
            &format!("[device.d]\n{device}\n{other}"),
            &export("vol", "d", ""),
            &export("twin", "d", stack::READ_ONLY),
            &export("other", "o", ""),
        ]
        .map(String::as_str)
        .concat();
        let mut server = Server::start(&text);
        ["vol", "twin", "other"].iter().for_each(|name| drop(server.uri(name)));
        Served { server, port }
    }

    fn ram() -> Served {
        Served::new("type = \"ram\"\nsize = \"8GiB\"")
    }

    fn file() -> Served {
        Served::new("type = \"file\"\npath = \"DIR/disk.img\"\nsize = \"8GiB\"")
    }

    fn unix(&self) -> Stream {
        let stream = UnixStream::connect(self.server.path("nbd.sock")).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        Box::new(stream)
    }

    fn tcp(&self) -> Stream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        Box::new(stream)
    }

    /// A connection to an export with extended headers; also the id of `base:allocation`.
    fn extended(&self, stream: Stream, export: &str) -> (Connection<Stream>, u32) {
        let mut negotiation = Negotiation::new(stream).expect("a greeting");
        negotiation.extended_headers().expect("extended headers are offered");
        let contexts = negotiation.set_contexts(export, &["base:allocation"]).expect("contexts");
        assert_eq!(contexts.len(), 1);
        assert_eq!(contexts[0].1, "base:allocation");
        let connection = negotiation.go(export, &[InfoCode::BlockSize]).expect("the export");
        assert_eq!(connection.style(), ReplyStyle::Extended);
        (connection, contexts[0].0)
    }
}

fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8 | 1
    };
    (0..length).map(|_| byte()).collect()
}

fn failure<T: std::fmt::Debug>(result: Result<T, ClientError>) -> ErrorCode {
    let error = result.expect_err("a refusal");
    error.failure().unwrap_or_else(|| panic!("not an error of a command: {error}"))
}

/// Extents of (bytes, status), neighbours with the same status taken together.
fn together(extents: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut sum: Vec<(u64, u32)> = Vec::new();
    for &(length, status) in extents {
        match sum.last_mut() {
            Some(last) if last.1 == status => last.0 += length,
            _ => sum.push((length, status)),
        }
    }
    sum
}

/// The map of a whole range, by repeated requests until it is complete.
fn map(connection: &mut Connection<Stream>, id: u32, from: u64, to: u64) -> Vec<(u64, u32)> {
    let (mut at, mut extents) = (from, Vec::new());
    while at < to {
        let status = connection.block_status(at, to - at, NONE).expect("a status");
        assert_eq!((status.len(), status[0].0), (1, id));
        for &(length, flags) in &status[0].1 {
            // The last extent may go beyond the requested range.
            extents.push((length.min(to - at), flags));
            at += length.min(to - at);
        }
    }
    together(&extents)
}

/// Every command once, with 64-bit lengths where they are allowed.
fn commands(served: &Served, stream: Stream) {
    let (mut c, id) = served.extended(stream, "vol");
    let flags = c.description().flags;
    assert_eq!(c.description().size_bytes, 8 * GIB);
    for flag in [
        TransmissionFlags::SEND_FLUSH,
        TransmissionFlags::SEND_FUA,
        TransmissionFlags::SEND_TRIM,
        TransmissionFlags::SEND_WRITE_ZEROES,
        TransmissionFlags::SEND_DF,
        TransmissionFlags::CAN_MULTI_CONN,
        TransmissionFlags::BLOCK_STATUS_PAYLOAD,
    ] {
        assert!(flags.contains(flag), "{flag:?} is missing in {flags:?}");
    }
    let whole = 8 * GIB;
    let data = pattern(1 << 20, 1);
    let places = [0, GIB, 4 * GIB - (1 << 19), 7 * GIB];
    for at in places {
        c.write(at, &data, NONE).unwrap();
    }
    c.write(5 * GIB, &data[..4096], CommandFlags::FUA).unwrap();
    c.command(Command::Flush, 0, 0, NONE).unwrap();
    for at in places {
        assert!(c.read(at, 1 << 20, NONE).unwrap() == data, "at {at}");
    }
    // One status for more than 4 GiB: a hole longer than 32 bits can say must be possible.
    c.command(Command::Trim, 0, whole, NONE).unwrap();
    let status = c.block_status(0, whole, CommandFlags::REQ_ONE).unwrap();
    assert_eq!(status, [(id, vec![(whole, HOLE_AND_ZERO)])]);
    assert!(c.read(GIB, 4096, NONE).unwrap().iter().all(|byte| *byte == 0));

    c.write(6 * GIB, &data, NONE).unwrap();
    assert_eq!(
        map(&mut c, id, 0, whole),
        [(6 * GIB, HOLE_AND_ZERO), (1 << 20, 0), (2 * GIB - (1 << 20), HOLE_AND_ZERO)]
    );
    c.command(Command::WriteZeroes, GIB, 5 * GIB + (1 << 19), NONE).unwrap();
    let half = 1 << 19;
    assert!(c.read(6 * GIB, half, NONE).unwrap().iter().all(|byte| *byte == 0));
    assert!(c.read(6 * GIB + half, half, NONE).unwrap() == data[half as usize..]);
    let zeroed = map(&mut c, id, 0, whole);
    assert_eq!(zeroed.iter().map(|extent| extent.0).sum::<u64>(), whole);
    assert_eq!(map(&mut c, id, 6 * GIB + half, 6 * GIB + 2 * half), [(half, 0)]);
    c.command(Command::Trim, GIB, 6 * GIB, NONE).unwrap();
    assert_eq!(map(&mut c, id, 0, whole), [(whole, HOLE_AND_ZERO)]);
    if flags.contains(TransmissionFlags::SEND_CACHE) {
        c.command(Command::Cache, 0, whole, NONE).unwrap();
    }
    c.disconnect().unwrap();
}

#[test]
fn every_command_on_ram() {
    let served = Served::ram();
    commands(&served, served.unix());
    commands(&served, served.tcp());
}

#[test]
fn every_command_on_a_sparse_file() {
    let served = Served::file();
    commands(&served, served.tcp());
    commands(&served, served.unix());
}

#[test]
fn a_payload_names_the_contexts_of_a_status() {
    let served = Served::ram();
    let (mut c, id) = served.extended(served.unix(), "vol");
    c.write(0, &[7; 4096], NONE).unwrap();
    let all = c.block_status(0, 8 * GIB, NONE).unwrap();
    assert_eq!(c.block_status_of(0, 8 * GIB, &[id]).unwrap(), all);
    assert_eq!(failure(c.block_status_of(0, GIB, &[id + 1])), ErrorCode::Einval);
    assert_eq!(failure(c.block_status_of(0, GIB, &[id, id])), ErrorCode::Einval);
    assert_eq!(failure(c.block_status_of(8 * GIB, 512, &[id])), ErrorCode::Einval);
    assert_eq!(c.block_status(0, 8 * GIB, NONE).unwrap(), all, "the connection goes on");
}

#[test]
fn wrong_requests_are_refused_and_the_connection_goes_on() {
    let served = Served::ram();
    for stream in [served.unix(), served.tcp()] {
        let (mut c, _) = served.extended(stream, "vol");
        let end = 8 * GIB;
        assert_eq!(failure(c.read(end, 512, NONE)), ErrorCode::Einval);
        assert_eq!(failure(c.read(end - 512, 1024, NONE)), ErrorCode::Einval);
        assert_eq!(failure(c.write(end - 512, &[1; 1024], NONE)), ErrorCode::Enospc);
        let zeroes = Command::WriteZeroes;
        assert_eq!(failure(c.command(zeroes, 512, end, NONE)), ErrorCode::Enospc);
        assert_eq!(failure(c.command(Command::Trim, 512, end, NONE)), ErrorCode::Einval);
        // The sum of offset and length does not fit 64 bits.
        for length in [u64::MAX, u64::MAX - 511, 1 << 63] {
            assert_eq!(failure(c.command(Command::Trim, 512, length, NONE)), ErrorCode::Einval);
            assert_eq!(failure(c.block_status(1 << 63, length, NONE)), ErrorCode::Einval);
        }
        // More than a read may carry, though the device has it.
        assert_eq!(failure(c.read(0, 5 * GIB, NONE)), ErrorCode::Einval);
        assert_eq!(failure(c.read(0, 5 * GIB, CommandFlags::DF)), ErrorCode::Eoverflow);
        // A write without the payload flag carries nothing; one with data must say so.
        let raw = RawRequest { flags: 0, command: 1, cookie: 900, offset: 0, length: 512 };
        c.send_raw(Command::Write, &raw, &[]).unwrap();
        assert_eq!(c.receive().unwrap().error.expect("an error").0, ErrorCode::Einval.wire());
        // A trim with a payload: refused, the payload skipped.
        let raw = RawRequest { flags: 1 << 5, command: 4, cookie: 901, offset: 0, length: 1000 };
        c.send_raw(Command::Trim, &raw, &[0xEE; 1000]).unwrap();
        assert_eq!(c.receive().unwrap().error.expect("an error").0, ErrorCode::Einval.wire());
        c.write(end - 512, &[9; 512], NONE).unwrap();
        assert_eq!(c.read(end - 512, 512, NONE).unwrap(), [9; 512]);
    }
}

#[test]
fn a_compact_request_after_extended_headers_ends_the_connection() {
    let served = Served::ram();
    let (mut c, _) = served.extended(served.unix(), "vol");
    let raw = RawRequest { flags: 0, command: 0, cookie: 1, offset: 0, length: 512 };
    // Filled up to the length of an extended header, so that nothing is missing but the magic.
    let bytes = [raw.encode(ReplyStyle::Structured), vec![0; 4]].concat();
    c.stream().write_all(&bytes).unwrap();
    let mut rest = Vec::new();
    // A reset is as good an end as the end of the stream.
    let _ = c.stream().read_to_end(&mut rest);
    assert!(rest.is_empty(), "{rest:?}");
    let (mut next, _) = served.extended(served.unix(), "vol");
    assert_eq!(next.read(0, 512, NONE).unwrap(), [0; 512]);
}

#[test]
fn many_requests_in_a_pipeline_are_all_answered() {
    const COUNT: u64 = 200;
    for served in [Served::ram(), Served::file()] {
        for stream in [served.unix(), served.tcp()] {
            let (mut c, _) = served.extended(stream, "vol");
            // Places all over the device, so that offsets need more than 32 bits.
            let place = |n: u64| n * 40 * (1 << 20);
            let block = |n: u64| pattern(4096, n + 1);
            let mut cookies: Vec<u64> = (0..COUNT)
                .map(|n| c.send(Command::Write, NONE, place(n), 4096, &block(n)).unwrap())
                .collect();
            while !cookies.is_empty() {
                let reply = c.receive().unwrap();
                assert_eq!(reply.error, None);
                cookies.retain(|cookie| *cookie != reply.cookie);
            }
            let cookies: Vec<u64> = (0..COUNT)
                .map(|n| c.send(Command::Read, NONE, place(n), 4096, &[]).unwrap())
                .collect();
            for _ in 0..COUNT {
                let reply = c.receive().unwrap();
                let n = cookies.iter().position(|cookie| *cookie == reply.cookie).expect("ours");
                assert!(reply.data == block(n as u64), "request {n}");
            }
        }
    }
}

#[test]
fn exports_are_told_apart() {
    let served = Served::ram();
    let mut listing = Negotiation::new(served.unix()).unwrap();
    let mut names: Vec<String> = listing.list().unwrap().into_iter().map(|e| e.0).collect();
    names.sort();
    assert_eq!(names, ["other", "twin", "vol"]);
    listing.abort().unwrap();
    let (mut vol, _) = served.extended(served.unix(), "vol");
    let (mut twin, _) = served.extended(served.tcp(), "twin");
    let (mut other, _) = served.extended(served.unix(), "other");
    assert_eq!(other.description().size_bytes, 1 << 20);
    assert!(twin.description().flags.contains(TransmissionFlags::READ_ONLY));
    vol.write(0, &[1; 4096], NONE).unwrap();
    other.write(0, &[2; 4096], NONE).unwrap();
    assert_eq!(twin.read(0, 4096, NONE).unwrap(), [1; 4096]);
    assert_eq!(other.read(0, 4096, NONE).unwrap(), [2; 4096]);
    assert_eq!(failure(twin.write(0, &[3; 512], NONE)), ErrorCode::Eperm);
    let zeroes = twin.command(Command::WriteZeroes, 0, 5 * GIB, NONE);
    assert_eq!(failure(zeroes), ErrorCode::Eperm);
    assert_eq!(failure(other.read(1 << 20, 512, NONE)), ErrorCode::Einval);
}

/// Written on one connection, flushed on another, read on a third, on both kinds of sockets.
#[test]
fn a_flush_covers_what_other_connections_have_written() {
    let served = Served::file();
    let (mut writer, _) = served.extended(served.unix(), "vol");
    let (mut flusher, _) = served.extended(served.tcp(), "vol");
    let (mut reader, _) = served.extended(served.unix(), "twin");
    for round in 0..20 {
        let data = pattern(64 << 10, round);
        let at = round * 300 * (1 << 20);
        writer.write(at, &data, NONE).unwrap();
        flusher.command(Command::Flush, 0, 0, NONE).unwrap();
        assert!(reader.read(at, 64 << 10, NONE).unwrap() == data);
        let mut image = std::fs::File::open(served.server.path("disk.img")).unwrap();
        std::io::Seek::seek(&mut image, std::io::SeekFrom::Start(at)).unwrap();
        let mut stored = vec![0; 64 << 10];
        image.read_exact(&mut stored).unwrap();
        assert!(stored == data, "round {round}");
    }
}

#[test]
fn reads_of_holes_come_as_one_piece_of_data() {
    for served in [Served::ram(), Served::file()] {
        let (mut c, _) = served.extended(served.unix(), "vol");
        let (island, data) = (64 << 10, pattern(64 << 10, 3));
        let at = 5 * GIB;
        c.write(at + 4 * island, &data, NONE).unwrap();
        c.command(Command::Flush, 0, 0, NONE).unwrap();
        let length = 16 * island;
        let mut wanted = vec![0; length as usize];
        wanted[4 * island as usize..][..data.len()].copy_from_slice(&data);
        for flags in [NONE, CommandFlags::DF] {
            let reply = c.call(Command::Read, flags, at, length, &[]).unwrap();
            assert!(reply.data == wanted);
            assert_eq!(reply.content, [(at, length, false)]);
        }
    }
}
