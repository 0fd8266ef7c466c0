//! The duties of every ring, run on each engine.

use super::*;
use crate::buf::IoBuf;
use crate::clock::{Clock, SystemClock};
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};

const SECOND: Ns = 1_000_000_000;

pub(super) struct Fixture {
    pub(super) ring: Box<dyn Ring>,
    clock: Arc<SystemClock>,
    events: Vec<RingEvent>,
}

impl Fixture {
    pub(super) fn new(engine: Engine) -> Self {
        let clock = SystemClock::new();
        let ring = open(engine, clock.clone()).expect("the engine is to be had here");
        Fixture { ring, clock, events: Vec::new() }
    }

    /// Reap and sleep until the event with `value` comes.
    pub(super) fn event(&mut self, value: u64) -> RingEvent {
        loop {
            self.ring.reap(&mut self.events);
            if let Some(at) = self.events.iter().position(|e| e.token == token(value)) {
                return self.events.remove(at);
            }
            self.ring.wait(None);
        }
    }

    /// The events by now, after the kernel had a chance.
    pub(super) fn none_yet(&mut self) {
        self.ring.wait(Some(self.clock.now() + 2_000_000));
        self.ring.reap(&mut self.events);
        assert!(self.events.is_empty(), "{:?}", self.events);
    }

    fn file(&mut self, file: &std::fs::File, op: FileOp) -> i32 {
        // SAFETY: the callers keep file and memory until this returns, with the event.
        unsafe { self.ring.file(RingFile::Fd(file.as_raw_fd()), op, token(1)) };
        self.event(1).result
    }

    fn recv(&mut self, socket: &UnixStream, len: usize, value: u64) {
        let op = NetOp::Recv { buf: IoBuf::zeroed(len), range: 0..len };
        self.ring.net(socket.as_raw_fd(), op, token(value));
    }
}

thread_local! {
    /// Who starts the operations of a test. A ring may treat those of a front end in another way.
    static OWNER: std::cell::Cell<u16> = const { std::cell::Cell::new(7) };
}

pub(super) fn token(value: u64) -> Token {
    Token::new(OWNER.get(), value)
}

pub(super) fn temp_file() -> std::fs::File {
    let name = std::ffi::CString::new("ring").unwrap();
    // SAFETY: the name lives for the call; the descriptor is ours alone.
    unsafe { std::fs::File::from_raw_fd(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC)) }
}

fn one(event: RingEvent) -> IoBuf {
    match event.buffers {
        Buffers::One(buf) => buf,
        other => panic!("a receive gives one buffer back, not {other:?}"),
    }
}

fn files_are_read_and_written(engine: Engine) {
    let mut f = Fixture::new(engine);
    let file = temp_file();
    let out = IoBuf::from_slice(b"hello, block layer");
    let write = |dsync, offset| FileOp::Write { segment: out.segment(0..18), offset, dsync };
    assert_eq!(f.file(&file, write(false, 0)), 18);
    assert_eq!(f.file(&file, write(true, 4096)), 18);
    assert_eq!(f.file(&file, FileOp::DataSync), 0);
    let back = IoBuf::zeroed(32);
    let read = FileOp::Read { segment: back.segment(0..32), offset: 4096 };
    assert_eq!(f.file(&file, read), 18, "short at the end of the file");
    assert_eq!(&back[..18], b"hello, block layer");
    let registered = f.ring.register(file.as_raw_fd());
    // SAFETY: buffer and file live until the event.
    unsafe { f.ring.file(registered, read, token(2)) };
    assert_eq!(f.event(2).result, 18);
    f.ring.unregister(registered);
    assert_eq!(f.ring.in_flight(), 0);
}

fn registered_memory_is_read_and_written(engine: Engine) {
    let mut f = Fixture::new(engine);
    let file = temp_file();
    let arena = Arena::new(1 << 20).unwrap();
    f.ring.register_memory(arena.clone()).expect("a limit of locked memory above 1 MiB");
    let (mut inside, back) = (arena.cut(8192).unwrap(), arena.cut(8192).unwrap());
    inside.fill(7);
    let segment = inside.segment(512..8192);
    for dsync in [false, true] {
        assert_eq!(f.file(&file, FileOp::Write { segment, offset: 0, dsync }), 7680);
    }
    let read = FileOp::Read { segment: back.segment(0..4096), offset: 100 };
    assert_eq!(f.file(&file, read), 4096);
    assert!(back[..4096].iter().all(|b| *b == 7) && back[4096..].iter().all(|b| *b == 0));
    let outside = IoBuf::zeroed(512);
    let read = FileOp::Read { segment: outside.segment(0..512), offset: 0 };
    assert_eq!(f.file(&file, read), 512, "other memory works as ever");
    assert!(outside.iter().all(|b| *b == 7));
}

fn vectors_and_allocation(engine: Engine) {
    let mut f = Fixture::new(engine);
    let file = temp_file();
    let (a, b) = (IoBuf::from_slice(b"abc"), IoBuf::from_slice(b"defgh"));
    let iovecs = [&a, &b].map(|x| libc::iovec { iov_base: x.as_ptr().cast(), iov_len: x.len() });
    let (iovecs, count) = (iovecs.as_ptr(), 2);
    for dsync in [false, true] {
        let offset = if dsync { 8 } else { 0 };
        assert_eq!(f.file(&file, FileOp::Writev { iovecs, count, offset, dsync }), 8);
    }
    let mut all = [0; 16];
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(&all, b"abcdefghabcdefgh");
    assert_eq!(f.file(&file, FileOp::Readv { iovecs, count, offset: 3 }), 8);
    assert_eq!((&a[..], &b[..]), (&b"def"[..], &b"ghabc"[..]));
    assert_eq!(f.file(&file, FileOp::Allocate { mode: 0, offset: 0, length: 65536 }), 0);
    assert_eq!(file.metadata().unwrap().len(), 65536);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    assert_eq!(f.file(&file, FileOp::Allocate { mode, offset: 0, length: 4096 }), 0);
    file.read_exact_at(&mut all, 0).unwrap();
    assert_eq!(all, [0; 16]);
}

fn errors_are_results(engine: Engine) {
    let mut f = Fixture::new(engine);
    let buf = IoBuf::zeroed(16);
    let segment = buf.segment(0..16);
    // SAFETY: the buffer lives until the event; the descriptor is none.
    unsafe { f.ring.file(RingFile::Fd(1 << 20), FileOp::Read { segment, offset: 0 }, token(3)) };
    assert_eq!(f.event(3).result, -libc::EBADF);
    f.ring.net(1 << 20, NetOp::Accept, token(4));
    assert_eq!(f.event(4).result, -libc::EBADF);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let write = FileOp::Write { segment, offset: 0, dsync: false };
    assert_eq!(f.file(&full, write), -libc::ENOSPC);
    let file = temp_file();
    f.ring.net(file.as_raw_fd(), NetOp::Send { parts: vec![part(b"x")] }, token(5));
    let refused = f.event(5);
    assert_eq!(refused.result, -libc::ENOTSOCK);
    assert!(matches!(refused.buffers, Buffers::Parts(p) if &p[0].buf[..] == b"x"));
}

pub(super) fn part(bytes: &[u8]) -> SendPart {
    SendPart::new(IoBuf::from_slice(bytes), 0..bytes.len())
}

fn sockets_send_and_receive(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, b) = UnixStream::pair().unwrap();
    f.recv(&a, 8, 1);
    f.none_yet();
    assert_eq!(f.ring.in_flight(), 1);
    f.ring.net(b.as_raw_fd(), NetOp::Send { parts: vec![part(b"abc"), part(b"de")] }, token(2));
    let sent = f.event(2);
    assert_eq!(sent.result, 5);
    assert!(matches!(sent.buffers, Buffers::Parts(p) if p.len() == 2 && &p[1].buf[..] == b"de"));
    let got = f.event(1);
    assert_eq!(got.result, 5, "what is there, not the whole buffer");
    assert_eq!(&one(got)[..5], b"abcde");
    f.ring.net(b.as_raw_fd(), NetOp::Send { parts: vec![part(b"xy")] }, token(3));
    assert_eq!(f.event(3).result, 2);
    f.recv(&a, 1, 4);
    assert_eq!(&one(f.event(4))[..], b"x");
    f.ring.net(a.as_raw_fd(), NetOp::PollIn, token(5));
    assert!(f.event(5).result & i32::from(libc::POLLIN) != 0);
    f.recv(&a, 1, 6);
    assert_eq!(&one(f.event(6))[..], b"y");
    f.recv(&a, 4, 7);
    f.none_yet();
    drop(b);
    assert_eq!(f.event(7).result, 0, "the peer's end");
    f.ring.net(a.as_raw_fd(), NetOp::Send { parts: vec![part(b"z")] }, token(8));
    assert_eq!(f.event(8).result, -libc::EPIPE);
    assert_eq!(f.ring.in_flight(), 0);
}

fn a_full_socket_takes_the_rest_later(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, b) = UnixStream::pair().unwrap();
    let data: Vec<u8> =
        (0..4 << 20).map(|i: u32| i.to_le_bytes()[1] ^ i.to_le_bytes()[2]).collect();
    let (mut sent, mut got) = (0, Vec::new());
    let start_send = |f: &mut Fixture, sent: usize| {
        let op = NetOp::Send { parts: vec![part(&data[sent..])] };
        f.ring.net(a.as_raw_fd(), op, token(1));
    };
    start_send(&mut f, 0);
    f.recv(&b, 100_000, 2);
    while got.len() < data.len() {
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
        for event in std::mem::take(&mut f.events) {
            assert!(event.result > 0, "{}", event.result);
            let n = event.result as usize;
            if event.token == token(1) {
                sent += n;
                if sent < data.len() {
                    start_send(&mut f, sent);
                }
            } else {
                got.extend_from_slice(&one(event)[..n]);
                if got.len() < data.len() {
                    f.recv(&b, 100_000, 2);
                }
            }
        }
    }
    assert!(got == data);
}

fn cancelled_operations_give_their_buffers_back(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    f.recv(&a, 5, 1);
    f.recv(&a, 6, 2);
    f.ring.submit();
    f.ring.cancel(token(1));
    let event = f.event(1);
    assert_eq!(event.result, -libc::ECANCELED);
    assert_eq!(one(event).len(), 5);
    b.write_all(b"on").unwrap();
    let event = f.event(2);
    assert_eq!(event.result, 2, "the other one goes on");
    assert_eq!(one(event).len(), 6);
    f.ring.timer(f.clock.now() + 3600 * SECOND, token(3));
    f.ring.cancel(token(3));
    assert_eq!(f.event(3).result, -libc::ECANCELED);
    f.ring.cancel(token(99));
    f.none_yet();
    assert_eq!(f.ring.in_flight(), 0);
}

fn connections_are_accepted_and_closed(engine: Engine) {
    let mut f = Fixture::new(engine);
    let name = format!("ring-test-{engine:?}-{}", std::process::id());
    use std::os::linux::net::SocketAddrExt;
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    f.ring.net(listener.as_raw_fd(), NetOp::Accept, token(1));
    f.none_yet();
    let mut client = UnixStream::connect_addr(&address).unwrap();
    let Buffers::Socket(socket) = f.event(1).buffers else { panic!("no socket") };
    let peer = UnixStream::from(socket);
    let fd = peer.as_raw_fd();
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
    f.recv(&peer, 4, 2);
    f.none_yet();
    client.write_all(b"ping").unwrap();
    assert_eq!(&one(f.event(2))[..], b"ping");
    // SAFETY: into_raw_fd has given the descriptor up.
    f.ring.close(unsafe { OwnedFd::from_raw_fd(peer.into_raw_fd()) });
    f.ring.submit();
    f.recv(&client, 1, 3);
    assert_eq!(f.event(3).result, 0, "closed is what the client sees");
}

/// Sends and receives in turn over one socket, until the ring takes its client for the only one.
fn be_alone(f: &mut Fixture, near: &UnixStream, far: &mut UnixStream) {
    for _ in 0..40 {
        far.write_all(b"x").unwrap();
        f.recv(near, 1, 90);
        f.event(90);
    }
    f.recv(near, 5, 1);
}

/// The events of a reap, and then of another after the ring was told that its owner polls.
fn asleep_and_polled(f: &mut Fixture) -> (usize, usize) {
    f.ring.submit();
    f.ring.reap(&mut f.events);
    let asleep = f.events.len();
    f.ring.set_polling(true);
    f.ring.reap(&mut f.events);
    f.ring.set_polling(false);
    (asleep, f.events.len())
}

fn a_receive_is_tried_while_the_owner_polls(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    assert_eq!(asleep_and_polled(&mut f), (0, 0));
    b.write_all(b"one").unwrap();
    assert_eq!(asleep_and_polled(&mut f), (0, 1));
    assert_eq!(f.ring.in_flight(), 0);
    let got = f.event(1);
    assert_eq!((got.result, &one(got)[..3]), (3, &b"one"[..]));
    f.recv(&a, 5, 2);
    f.none_yet();
    b.write_all(b"two").unwrap();
    assert_eq!(f.event(2).result, 3, "a sleep has handed it over");
}

fn receives_of_several_are_the_kernels(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    b.write_all(b"x").unwrap();
    f.recv(&b, 5, 2);
    (&a).write_all(b"y").unwrap();
    assert_eq!(asleep_and_polled(&mut f), (2, 2), "the kernel has both");
    f.recv(&a, 5, 3);
    b.write_all(b"x").unwrap();
    f.events.clear();
    assert_eq!(asleep_and_polled(&mut f), (1, 1), "and those after them");
}

fn a_receive_is_held_for_one_round(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    b.write_all(b"on").unwrap();
    let ended = |f: &mut Fixture| {
        f.ring.end_round();
        f.ring.reap(&mut f.events);
        f.events.len()
    };
    assert_eq!(ended(&mut f), 0);
    assert_eq!(ended(&mut f), 1, "handed to the kernel at the end of the second round");
    f.recv(&a, 5, 2);
    b.write_all(b"on").unwrap();
    f.ring.submit_all();
    f.ring.reap(&mut f.events);
    assert_eq!(f.events.len(), 2, "or when that is asked for");
}

fn a_held_receive_ends_with_its_socket(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    f.ring.close(a.into());
    let event = f.event(1);
    assert_eq!((event.result, one(event).len()), (-libc::ECANCELED, 5));
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    f.ring.cancel(token(1));
    assert_eq!(f.event(1).result, -libc::ECANCELED);
    assert_eq!(f.ring.in_flight(), 0);
}

/// A reply is sent without the kernel's ring: its event is there before any submit.
fn the_only_clients_sends_are_done_at_once(engine: Engine) {
    let mut f = Fixture::new(engine);
    let (a, mut b) = UnixStream::pair().unwrap();
    be_alone(&mut f, &a, &mut b);
    f.ring.net(a.as_raw_fd(), NetOp::Send { parts: vec![part(b"abc"), part(b"de")] }, token(2));
    let mut got = [0; 5];
    std::io::Read::read_exact(&mut b, &mut got).unwrap();
    assert_eq!(&got, b"abcde");
    assert_eq!(f.event(2).result, 5);
    let op = NetOp::Send { parts: vec![part(&vec![7; 4 << 20])] };
    f.ring.net(a.as_raw_fd(), op, token(3));
    assert!((1..4 << 20).contains(&f.event(3).result), "as much as the socket takes");
    f.ring.net(a.as_raw_fd(), NetOp::Send { parts: vec![part(b"z")] }, token(4));
    f.none_yet();
    drop(b);
    assert_eq!(f.event(4).result, -libc::EPIPE, "the kernel's ring had what had to wait");
    assert!(f.event(1).result <= 0, "the receive has seen the end, too");
}

fn close_waits_for_file_operations(engine: Engine) {
    let mut f = Fixture::new(engine);
    let file = temp_file();
    let watcher = file.try_clone().unwrap();
    let buf = IoBuf::from_slice(&[5; 4096]);
    for i in 0..100 {
        let op = FileOp::Write { segment: buf.segment(0..4096), offset: i * 4096, dsync: false };
        // SAFETY: the buffer lives until all events came; `close` keeps the descriptor.
        unsafe { f.ring.file(RingFile::Fd(file.as_raw_fd()), op, token(i)) };
    }
    f.ring.close(file.into());
    (0..100).for_each(|i| assert_eq!(f.event(i).result, 4096));
    assert_eq!(watcher.metadata().unwrap().len(), 409_600);
}

fn timers_come_in_order_and_not_early(engine: Engine) {
    let mut f = Fixture::new(engine);
    let now = f.clock.now();
    let (soon, later) = (now + 1_000_000, now + 3_000_000);
    f.ring.timer(now + 3600 * SECOND, token(9));
    f.ring.timer(later, token(2));
    f.ring.timer(soon, token(1));
    f.ring.timer(now.saturating_sub(SECOND), token(0));
    let mut order = Vec::new();
    while order.len() < 3 {
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
        let now = f.clock.now();
        for event in f.events.drain(..) {
            assert_eq!(event.result, 0);
            let due = [0, soon, later][event.token.value() as usize];
            assert!(now >= due, "timer {} came early", event.token.value());
            order.push(event.token.value());
        }
    }
    assert_eq!(order, [0, 1, 2]);
    assert_eq!(f.ring.in_flight(), 1);
}

fn a_deadline_ends_a_wait(engine: Engine) {
    let mut f = Fixture::new(engine);
    let deadline = f.clock.now() + 1_500_000;
    while f.clock.now() < deadline {
        f.ring.wait(Some(deadline));
    }
    f.ring.wait(Some(0));
    f.ring.reap(&mut f.events);
    assert!(f.events.is_empty());
}

fn wakes_are_seen_before_and_during_a_wait(engine: Engine) {
    let mut f = Fixture::new(engine);
    for _ in 0..3 {
        f.ring.waker().wake();
        f.ring.waker().wake();
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
    }
    f.none_yet();
    let waker = f.ring.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(5));
        waker.wake();
    });
    f.ring.wait(None);
    thread.join().unwrap();
    f.ring.reap(&mut f.events);
    assert!(f.events.is_empty());
}

/// How often the calling thread has gone to sleep.
fn sleeps() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/status").expect("this thread");
    let line = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).expect("a count")
}

fn a_wake_wakes_nobody_but_who_waits(engine: Engine) {
    let mut f = Fixture::new(engine);
    let waker = f.ring.waker();
    let before = sleeps();
    let waits = std::thread::spawn(move || {
        for _ in 0..200 {
            waker.wake();
            f.ring.wait(None);
            f.ring.reap(&mut f.events);
        }
    });
    waits.join().expect("it waited");
    let woken = sleeps() - before;
    assert!(woken < 50, "the thread that opened the ring was woken {woken} times");
}

fn more_operations_than_any_queue_holds(engine: Engine) {
    let mut f = Fixture::new(engine);
    let file = temp_file();
    let numbers: Vec<u8> = (0..2000u32).flat_map(u32::to_le_bytes).collect();
    file.write_all_at(&numbers, 0).unwrap();
    let buf = IoBuf::zeroed(8000);
    for i in 0..2000 {
        let segment = buf.segment(4 * i..4 * i + 4);
        let op = FileOp::Read { segment, offset: 4 * (1999 - i) as u64 };
        // SAFETY: buffer and file live until all events came.
        unsafe { f.ring.file(RingFile::Fd(file.as_raw_fd()), op, token(i as u64)) };
    }
    assert_eq!(f.ring.in_flight(), 2000);
    let mut seen = vec![false; 2000];
    while f.ring.in_flight() > 0 {
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
        for event in f.events.drain(..) {
            assert_eq!(event.result, 4);
            assert!(!std::mem::replace(&mut seen[event.token.value() as usize], true));
        }
    }
    assert!(seen.iter().all(|s| *s));
    let expected: Vec<u8> = (0..2000u32).rev().flat_map(u32::to_le_bytes).collect();
    assert!(buf[..] == expected[..]);
}

/// Not once only: the kernel ends some polls with their first event.
fn a_watcher_sees_every_news_of_another_ring(engine: Engine) {
    for other in [Engine::Uring, Engine::Plain] {
        let (mut b, mut a) = (Fixture::new(engine), Fixture::new(other));
        let news = Token::new(Token::CONTEXT, 1);
        let descriptors = a.ring.descriptors();
        b.ring.watch(descriptors, news);
        b.none_yet();
        let (near, mut far) = UnixStream::pair().unwrap();
        let file = temp_file();
        let buf = IoBuf::zeroed(512);
        for round in 0..4 {
            a.recv(&near, 1, 1);
            a.ring.submit();
            far.write_all(b"!").unwrap();
            expect_news(&mut b, news);
            assert_eq!(a.event(1).result, 1);
            let op = FileOp::Write { segment: buf.segment(0..512), offset: 0, dsync: false };
            // SAFETY: buffer and file live until the event.
            unsafe { a.ring.file(RingFile::Fd(file.as_raw_fd()), op, token(2)) };
            a.ring.submit();
            expect_news(&mut b, news);
            assert_eq!(a.event(2).result, 512);
            a.ring.timer(a.clock.now() + 100_000, token(3));
            a.ring.submit();
            expect_news(&mut b, news);
            assert_eq!(a.event(3).result, 0);
            a.ring.waker().wake();
            expect_news(&mut b, news);
            a.ring.reap(&mut a.events);
            assert!(a.events.is_empty(), "round {round}");
        }
        // Both ways round at once: neither engine may mind the circle.
        a.ring.watch(b.ring.descriptors(), news);
        b.ring.waker().wake();
        expect_news(&mut a, news);
        quiet(&mut b);
        b.ring.unwatch(descriptors, news);
        quiet(&mut b);
        a.ring.waker().wake();
        b.none_yet();
        assert_eq!(b.ring.in_flight() + a.ring.in_flight(), 0);
    }
}

/// Else two that watch each other would tell each other for ever that they were told.
fn what_a_watch_brings_is_no_news_to_watchers(engine: Engine) {
    let (mut a, mut b) = (Fixture::new(engine), Fixture::new(engine));
    let news = Token::new(Token::CONTEXT, 1);
    a.ring.watch(b.ring.descriptors(), news);
    b.ring.watch(a.ring.descriptors(), news);
    (0..3).for_each(|_| [&mut a, &mut b].into_iter().for_each(quiet));
    for _ in 0..4 {
        a.ring.waker().wake();
        expect_news(&mut b, news);
        a.none_yet();
        b.none_yet();
    }
}

fn expect_news(f: &mut Fixture, news: Token) {
    while f.events.iter().all(|e| e.token != news) {
        f.ring.wait(None);
        f.ring.reap(&mut f.events);
    }
    f.events.clear();
}

/// Take what may still be on its way.
fn quiet(f: &mut Fixture) {
    f.ring.wait(Some(f.clock.now() + 2_000_000));
    f.ring.reap(&mut f.events);
    f.events.clear();
}

fn a_ring_may_be_dropped_with_everything_in_flight(engine: Engine) {
    let (near, _far) = UnixStream::pair().unwrap();
    // Leaked: the memory of operations without an event must stay.
    let (file, buf) = (Box::leak(Box::new(temp_file())), Box::leak(Box::new(IoBuf::zeroed(4096))));
    for _ in 0..20 {
        let mut f = Fixture::new(engine);
        f.recv(&near, 10, 1);
        f.ring.timer(f.clock.now() + 3600 * SECOND, token(2));
        for i in 0..40 {
            let op = FileOp::Write { segment: buf.segment(0..4096), offset: 0, dsync: true };
            // SAFETY: file and buffer are never freed.
            unsafe { f.ring.file(RingFile::Fd(file.as_raw_fd()), op, token(100 + i)) };
        }
        f.ring.submit();
    }
    let mut f = Fixture::new(engine);
    assert_eq!(f.file(file, FileOp::DataSync), 0, "the next ring is not disturbed");
}

macro_rules! on_both_engines {
    ($($test:ident),* $(,)?) => {
        mod io_uring { $(#[test] fn $test() { super::$test(super::Engine::Uring) })* }
        mod plain { $(#[test] fn $test() { super::$test(super::Engine::Plain) })* }
    };
}

/// Operations of a front end, on io_uring.
macro_rules! of_a_front_end {
    ($($test:ident),* $(,)?) => {
        mod front_end {
            $(#[test] fn $test() {
                super::OWNER.set(super::Token::FRONT_END);
                super::$test(super::Engine::Uring)
            })*
        }
    };
}

of_a_front_end!(
    a_receive_is_tried_while_the_owner_polls,
    receives_of_several_are_the_kernels,
    the_only_clients_sends_are_done_at_once,
    a_receive_is_held_for_one_round,
    a_held_receive_ends_with_its_socket,
);

on_both_engines!(
    files_are_read_and_written,
    registered_memory_is_read_and_written,
    vectors_and_allocation,
    errors_are_results,
    sockets_send_and_receive,
    a_full_socket_takes_the_rest_later,
    cancelled_operations_give_their_buffers_back,
    connections_are_accepted_and_closed,
    close_waits_for_file_operations,
    timers_come_in_order_and_not_early,
    a_deadline_ends_a_wait,
    wakes_are_seen_before_and_during_a_wait,
    a_wake_wakes_nobody_but_who_waits,
    more_operations_than_any_queue_holds,
    a_watcher_sees_every_news_of_another_ring,
    what_a_watch_brings_is_no_news_to_watchers,
    a_ring_may_be_dropped_with_everything_in_flight,
);

/// As a container's default seccomp profile does, on this thread alone.
fn forbid_io_uring() {
    let jump = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let (load, equal, ret) = (0x20, 0x15, 0x06);
    let mut filter = [
        jump(load, 0, 0, 0),
        jump(equal, libc::SYS_io_uring_setup as u32, 0, 1),
        jump(ret, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        jump(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: the program lives for the call, which copies it.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn the_plain_engine_takes_over_where_io_uring_is_forbidden() {
    let thread = std::thread::spawn(|| {
        forbid_io_uring();
        let clock = SystemClock::new();
        let refused = open(Engine::Uring, clock.clone()).err().expect("io_uring is forbidden");
        assert!(refused.to_string().contains("not permitted"), "{refused}");
        assert_eq!(open(Engine::Auto, clock).unwrap().engine(), "plain");
        files_are_read_and_written(Engine::Auto);
        sockets_send_and_receive(Engine::Auto);
    });
    thread.join().unwrap();
}

#[test]
fn timers_of_the_plain_engine_follow_a_clock_that_is_moved_by_hand() {
    // A time that the kernel's clock does not reach.
    let clock = crate::clock::ManualClock::new(1 << 60);
    let mut ring = open(Engine::Plain, clock.clone()).expect("a ring");
    let (mut values, mut events) = (Vec::new(), Vec::new());
    [5, 2, 2].iter().zip(1..).for_each(|(ns, n)| ring.timer((1 << 60) + ns, token(n)));
    for _ in 0..6 {
        ring.reap(&mut events);
        values.push(events.drain(..).map(|e| e.token.value()).collect::<Vec<_>>());
        clock.advance(1);
    }
    assert_eq!(values, [vec![], vec![], vec![2, 3], vec![], vec![], vec![1]]);
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn the_plain_engine_counts_its_locks_for_the_context() {
    let mut f = Fixture::new(Engine::Plain);
    let user = LockCounters::new(f.clock.clone());
    f.ring.count_locks_for(&user);
    assert_eq!(f.file(&temp_file(), FileOp::DataSync), 0);
    let counts = user.get(crate::sync::LockClass::PlainRing);
    assert_eq!(counts.acquisitions, 2, "one to hand the job on, one to take its outcome");
}

/// The child has none of its parent's helper threads: its own rings have others.
#[test]
fn a_child_of_fork_has_helpers_of_its_own() {
    let mut f = Fixture::new(Engine::Plain);
    assert_eq!(f.file(&temp_file(), FileOp::DataSync), 0);
    // SAFETY: the child works with a ring of its own and ends at once, without anything of its
    // parent's.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: whatever hangs is killed; nothing else here has an alarm.
        unsafe { libc::alarm(60) };
        let own = || Fixture::new(Engine::Plain).file(&temp_file(), FileOp::DataSync) == 0;
        let is_done = std::panic::catch_unwind(own).unwrap_or(false);
        // SAFETY: ends the child without running anything of its parent's.
        unsafe { libc::_exit(i32::from(!is_done)) };
    }
    let mut status = -1;
    // SAFETY: the status lives for the call.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child's operation ended");
    assert_eq!(f.file(&temp_file(), FileOp::DataSync), 0);
}

#[test]
fn the_user_at_the_other_end_of_a_unix_socket_is_known() {
    use std::os::unix::fs::MetadataExt;
    let own = std::fs::metadata("/proc/self").unwrap().uid();
    let folder = std::env::temp_dir().join(format!("drystone-peer-{}", std::process::id()));
    let listener = UnixListener::bind(&folder).unwrap();
    let _client = UnixStream::connect(&folder).unwrap();
    let (accepted, _) = listener.accept().unwrap();
    std::fs::remove_file(&folder).unwrap();
    assert_eq!(peer_uid(&accepted), Some(own));
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let _client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(peer_uid(listener.accept().unwrap().0), None, "TCP knows no users");
    assert_eq!(peer_uid(temp_file()), None);
}
