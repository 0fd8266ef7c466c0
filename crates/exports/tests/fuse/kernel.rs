//! The kernel's side, played by the test: requests and answers over sockets that keep messages
//! apart, one for each session.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use drystone_core::clock::{ManualClock, SystemClock};
use drystone_core::context::PollMode;
use drystone_core::range_lock::RangeLock;
use drystone_core::ring::Engine;
use drystone_core::sync::{LockCounters, LockRegistry};
use drystone_core::{Context, ContextSet, Device, Priority};
use drystone_exports::fuse::server::{Incoming, Kind, Mount, MountOptions};
use drystone_exports::server::{Clients, Inbox, Membership, Volume, Worker};
use drystone_throttle::Groups;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

/// Against hanging.
const PATIENCE: Duration = Duration::from_secs(30);

pub const LOOKUP: u32 = 1;
pub const FORGET: u32 = 2;
pub const GETATTR: u32 = 3;
pub const SETATTR: u32 = 4;
pub const OPEN: u32 = 14;
pub const READ: u32 = 15;
pub const WRITE: u32 = 16;
pub const STATFS: u32 = 17;
pub const RELEASE: u32 = 18;
pub const FSYNC: u32 = 20;
pub const INIT: u32 = 26;
pub const OPENDIR: u32 = 27;
pub const READDIR: u32 = 28;
pub const RELEASEDIR: u32 = 29;
pub const INTERRUPT: u32 = 36;
pub const DESTROY: u32 = 38;
pub const BATCH_FORGET: u32 = 42;
pub const FALLOCATE: u32 = 43;
pub const READDIRPLUS: u32 = 44;
pub const LSEEK: u32 = 46;

/// An answer: the errno (0 for none) and what follows the header.
pub type Answer = Result<Vec<u8>, i32>;

/// A served mount, and the kernel's ends of its sessions.
pub struct Kernel {
    pub mount: Arc<Mount>,
    sockets: Vec<OwnedFd>,
    pub inboxes: Vec<Arc<Inbox>>,
    threads: Vec<JoinHandle<()>>,
    unique: u64,
    /// Answers to requests that were not waited for.
    answers: BTreeMap<u64, Answer>,
}

pub fn options(kind: Kind) -> MountOptions {
    MountOptions {
        kind,
        uid: 7,
        gid: 8,
        permissions: 0o644,
        writeback_cache: false,
        ignore_truncate: false,
        direct_io: false,
        over_ring: false,
        now_s: || 1_700_000_000,
        is_killed: |_| true,
    }
}

pub fn groups() -> Arc<Groups> {
    let clock = ManualClock::new(1);
    Groups::new(clock.clone(), &LockRegistry::new(clock))
}

pub fn volume(name: &str, device: Arc<dyn Device>, groups: &Arc<Groups>) -> Volume {
    Volume {
        name: name.to_owned(),
        device,
        read_only: false,
        priority: Priority::default(),
        membership: Membership::new(groups.clone(), ""),
        clients: Clients::default(),
        write_lock: RangeLock::new(),
    }
}

/// Workers on threads of their own, each with an inbox. The first looks for requests before it
/// sleeps, the next does not, and so on.
pub fn workers(count: usize, engine: Engine) -> (Vec<Arc<Inbox>>, Vec<JoinHandle<()>>) {
    let set = ContextSet::new(SystemClock::new());
    let contexts: Vec<_> = (0..count).map(|_| set.open(engine).unwrap()).collect();
    let inboxes: Vec<_> = contexts.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
    let run = |((number, mut cx), inbox): ((usize, Context), &Arc<Inbox>)| {
        cx.set_poll_mode([PollMode::Adaptive, PollMode::Interrupt][number % 2]);
        let mut worker = Worker::new(cx, inbox.clone());
        std::thread::spawn(move || worker.run())
    };
    let threads = contexts.into_iter().enumerate().zip(&inboxes).map(run).collect();
    (inboxes, threads)
}

pub fn user() -> Arc<LockCounters> {
    LockCounters::new(ManualClock::new(1))
}

impl Kernel {
    /// A mount of `volumes` with a session on each of `threads` threads, not yet initialised.
    pub fn new(
        options: MountOptions,
        volumes: Vec<Volume>,
        threads: usize,
        engine: Engine,
    ) -> Self {
        let mount = Mount::new(options, volumes, threads);
        let (inboxes, workers) = workers(threads, engine);
        let mut sockets = Vec::new();
        for (number, inbox) in inboxes.iter().enumerate() {
            let (ours, theirs) = pair();
            let incoming = Incoming { mount: mount.clone(), number, device: theirs };
            inbox.put(incoming, &user());
            sockets.push(ours);
        }
        let answers = BTreeMap::new();
        Kernel { mount, sockets, inboxes, threads: workers, unique: 0, answers }
    }

    /// A mount of one volume as a file, initialised.
    pub fn file(device: Arc<dyn Device>, threads: usize) -> Self {
        let volumes = vec![volume("vol", device, &groups())];
        let mut kernel = Self::new(options(Kind::File), volumes, threads, Engine::Auto);
        kernel.initialise();
        kernel
    }

    pub fn initialise(&mut self) -> Vec<u8> {
        self.call(INIT, 0, &init(7, 40, u32::MAX, u32::MAX)).unwrap()
    }

    /// Send bytes as they are to session `at`.
    pub fn send_raw(&mut self, at: usize, bytes: &[u8]) {
        let send = || rustix::net::send(&self.sockets[at], bytes, SendFlags::empty());
        rustix::io::retry_on_intr(send).unwrap();
    }

    /// Send a request to session `at`; its number.
    pub fn send(&mut self, at: usize, opcode: u32, node: u64, body: &[u8]) -> u64 {
        self.unique += 2;
        let bytes = request(opcode, self.unique, node, 1000, body);
        self.send_raw(at, &bytes);
        self.unique
    }

    /// The next answer of session `at`: to which request, and what.
    pub fn receive(&mut self, at: usize) -> (u64, Answer) {
        let mut bytes = vec![0; (1 << 20) + 16];
        // io_uring interrupts the thread that opened a ring, too.
        let received = rustix::io::retry_on_intr(|| {
            rustix::net::recv(&self.sockets[at], &mut bytes[..], RecvFlags::empty())
        });
        let (_, length) = received.expect("an answer in time");
        bytes.truncate(length);
        assert!(length >= 16, "{length} bytes");
        let number = |at: usize| i32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(number(0) as usize, length, "the length that it says");
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        match number(4) {
            0 => (unique, Ok(bytes.split_off(16))),
            error => {
                assert!((-511..0).contains(&error) && length == 16, "{error}, {length} bytes");
                (unique, Err(-error))
            }
        }
    }

    /// The answer of session `at` to request `unique`.
    pub fn wait_for(&mut self, at: usize, unique: u64) -> Answer {
        loop {
            if let Some(answer) = self.answers.remove(&unique) {
                return answer;
            }
            let (to, answer) = self.receive(at);
            // Odd numbers are of requests that were sent as they are.
            if to == unique || to % 2 == 0 {
                assert!(self.answers.insert(to, answer).is_none(), "one answer to {to}");
            }
        }
    }

    /// A request to the first session, and its answer.
    pub fn call(&mut self, opcode: u32, node: u64, body: &[u8]) -> Answer {
        self.call_at(0, opcode, node, body)
    }

    pub fn call_at(&mut self, at: usize, opcode: u32, node: u64, body: &[u8]) -> Answer {
        let unique = self.send(at, opcode, node, body);
        self.wait_for(at, unique)
    }

    pub fn read(&mut self, offset: u64, length: u32) -> Answer {
        self.call(READ, 1, &read(0, offset, length))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32, i32> {
        self.call(WRITE, 1, &write(0, offset, data)).map(|body| u32_at(&body, 0))
    }

    /// Session `at` ends.
    pub fn hang_up(&mut self, at: usize) {
        self.sockets[at] = pair().0;
    }

    /// A new session in the place of one that has ended.
    pub fn replace(&mut self, number: usize) {
        let (ours, device) = pair();
        let incoming = Incoming { mount: self.mount.clone(), number, device };
        self.inboxes[number].put(incoming, &user());
        self.sockets[number] = ours;
    }

    /// The mount is gone: sessions end, then the threads.
    pub fn end(mut self) {
        self.shut_down();
    }

    fn shut_down(&mut self) {
        self.sockets.clear();
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a worker panicked");
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.shut_down();
    }
}

/// A kernel's end, and a session's.
pub fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    for socket in [&ours, &theirs] {
        // Only the superuser may have messages of a megabyte; others do with less.
        if sockopt::set_socket_send_buffer_size_force(socket, 16 << 20).is_err() {
            let _ = sockopt::set_socket_send_buffer_size(socket, 16 << 20);
        }
    }
    sockopt::set_socket_timeout(&ours, Timeout::Recv, Some(PATIENCE)).unwrap();
    sockopt::set_socket_timeout(&ours, Timeout::Send, Some(PATIENCE)).unwrap();
    rustix::io::ioctl_fionbio(&theirs, true).unwrap();
    (ours, theirs)
}

/// Bytes of numbers.
macro_rules! bytes {
    ($($value:expr),* $(,)?) => {{
        let mut bytes: Vec<u8> = Vec::new();
        $(bytes.extend_from_slice(&$value.to_ne_bytes());)*
        bytes
    }};
}
pub(crate) use bytes;

pub fn request(opcode: u32, unique: u64, node: u64, uid: u32, body: &[u8]) -> Vec<u8> {
    let length = 40 + body.len() as u32;
    let mut request = bytes![length, opcode, unique, node, uid, 0_u32, 1_u32, 0_u32];
    request.extend_from_slice(body);
    request
}

pub fn init(major: u32, minor: u32, low: u32, high: u32) -> Vec<u8> {
    let mut body = bytes![major, minor, 131_072_u32, low, high];
    body.resize(64, 0);
    body
}

pub fn read(handle: u64, offset: u64, length: u32) -> Vec<u8> {
    bytes![handle, offset, length, 0_u32, 0_u64, 0_u32, 0_u32]
}

pub fn write(handle: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = bytes![handle, offset, data.len() as u32, 0_u32, 0_u64, 0_u32, 0_u32];
    body.extend_from_slice(data);
    body
}

/// A write of a file that was opened with these flags.
pub fn write_with(flags: u32, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = bytes![0_u64, offset, data.len() as u32, 0_u32, 0_u64, flags, 0_u32];
    body.extend_from_slice(data);
    body
}

pub fn fallocate(offset: u64, length: u64, mode: u32) -> Vec<u8> {
    bytes![0_u64, offset, length, mode, 0_u32]
}

pub fn lseek(offset: u64, whence: u32) -> Vec<u8> {
    bytes![0_u64, offset, whence, 0_u32]
}

pub fn setattr(valid: u32, size: u64) -> Vec<u8> {
    let mut body = bytes![valid, 0_u32, 0_u64, size];
    body.resize(88, 0);
    body
}

pub fn u32_at(body: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(body[at..at + 4].try_into().unwrap())
}

pub fn u64_at(body: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(body[at..at + 8].try_into().unwrap())
}
