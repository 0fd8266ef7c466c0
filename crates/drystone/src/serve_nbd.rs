//! Serving a stack over NBD: sockets, data threads, stopping.
//!
//! Invariants:
//! - Devices are opened before sockets are bound, so that a refused start leaves no socket.
//! - Each data thread has one context and runs one [`Worker`]; the first one accepts.
//! - Nothing is flushed before every worker has returned, so a flush covers all that clients wrote.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use drystone_core::clock::{Clock, Ns, SystemClock};
use drystone_core::ring::{self, Engine};
use drystone_core::{Bio, BioList, Context, ContextSet};
use drystone_exports::nbd::server::{ExportTable, Listener};
use drystone_exports::server::{Inbox, Worker};
use drystone_stack::live::{LiveDevice, LiveStack, Pause, Surroundings};
use drystone_stack::runtime::Runtime;
use drystone_stack::spec::Listener as Address;
use drystone_stack::{StackSpec, nbd_uri};

use crate::output;
use crate::runtime::{ServerHandle, StopMode};
use crate::unix_socket::{self, Place};

/// A stack that is served.
pub struct NbdServer {
    stack: LiveStack,
    inboxes: Vec<Arc<Inbox>>,
    workers: Vec<JoinHandle<()>>,
    places: Vec<Place>,
}

impl NbdServer {
    /// Opens the stack's devices, listens, and starts the data threads.
    ///
    /// # Errors
    /// What could not be opened or bound; then nothing is left running and no socket is left.
    pub fn start(spec: &StackSpec) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let threads = data_threads(spec.server.threads);
        let at = Surroundings::new(threads, clock);
        at.locks.time_holds(spec.server.lockstat);
        let stack = LiveStack::open(spec, &at)?;
        warn_of_arrays(&stack);
        let opened = open_contexts(stack.contexts(), stack.engine(), threads)?;
        let inboxes = opened.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
        let mut server = NbdServer { stack, inboxes, workers: Vec::new(), places: Vec::new() };
        let started = server.listen().and_then(|sockets| server.run(opened, sockets));
        match started {
            Ok(()) => Ok(server),
            Err(error) => {
                let _ = server.end();
                server.stack.remove_made_files();
                Err(error)
            }
        }
    }

    fn listen(&mut self) -> anyhow::Result<Vec<Listener>> {
        let mut sockets = Vec::new();
        for live in self.stack.listeners() {
            for socket in bind(&live.address, &mut self.places)? {
                sockets.push(Listener { socket, tls: live.tls.clone(), table: live.table });
            }
        }
        Ok(sockets)
    }

    /// Starts the data threads; the first one gets all sockets.
    fn run(&mut self, contexts: Vec<Context>, mut sockets: Vec<Listener>) -> anyhow::Result<()> {
        let mut unregistered = None;
        for (number, mut cx) in contexts.into_iter().enumerate() {
            cx.follow_poll_mode(self.stack.poll_switch().clone());
            let (inbox, peers) = (self.inboxes[number].clone(), self.inboxes.clone());
            let tables = self.stack.tables().clone();
            let listeners = std::mem::take(&mut sockets);
            let mut worker = Worker::new(cx, inbox, peers, tables);
            if let Err(error) = worker.register_memory(REGISTERED_BYTES) {
                unregistered = Some(error);
            }
            let work = move || {
                let _guard = EndsWithIt;
                listeners.into_iter().for_each(|listener| worker.listen(listener));
                worker.run();
            };
            let thread = std::thread::Builder::new().name(format!("data{number}"));
            self.workers.push(thread.spawn(work).context("cannot start a data thread")?);
        }
        if let Some(error) = unregistered {
            output::complain(&format!(
                "drystone: {error}; buffers stay unregistered, which costs direct I/O some speed \
                 (see the limit of locked memory, ulimit -l)"
            ));
        }
        Ok(())
    }

    /// Takes nothing new, lets what is in flight end, closes all connections.
    fn end(&mut self) -> anyhow::Result<()> {
        self.places.drain(..).for_each(|place| place.remove());
        self.stack.stop();
        self.inboxes.iter().for_each(|inbox| inbox.stop());
        let ended = self.workers.drain(..).map(JoinHandle::join);
        let failed = ended.filter(Result::is_err).count();
        match failed {
            0 => Ok(()),
            failed => Err(anyhow!("{failed} data threads ended by a panic")),
        }
    }
}

impl ServerHandle for NbdServer {
    fn announce(&self) -> Vec<String> {
        let mut exports: Vec<_> = self.stack.exports().iter().collect();
        exports.sort_by_key(|export| !export.default);
        let uris =
            exports.iter().flat_map(|export| export.nbd.iter().map(|at| nbd_uri(export, at)));
        uris.collect()
    }

    fn runtime(&self) -> Box<dyn Runtime> {
        let tables = self.stack.tables().clone();
        let clients = move |name: &str| tables.iter().map(|table| clients_of(table, name)).sum();
        Box::new(self.stack.runtime(Box::new(clients), Box::new(pause)))
    }

    fn sockets(&self) -> Vec<Place> {
        self.places.clone()
    }

    fn stop(mut self: Box<Self>, mode: StopMode) -> anyhow::Result<()> {
        let ended = self.end();
        if mode == StopMode::Now {
            return ended;
        }
        let pause: Pause = Box::new(pause);
        let logged = self.stack.end_logs(&pause).map_err(|why| anyhow!(why));
        let flushed = flush(self.stack.contexts(), self.stack.engine(), &self.stack.devices());
        let stopped = self.stack.stop_arrays(&pause).map_err(|why| anyhow!(why));
        ended.and(logged).and(flushed).and(stopped)
    }
}

/// Says which members arrays started without, and what may be wrong of those that were forced to start.
fn warn_of_arrays(stack: &LiveStack) {
    for live in stack.devices() {
        let Some(array) = &live.array else { continue };
        for why in array.left_out() {
            output::complain(&format!("drystone: array `{}`: left out: {why}", live.name));
        }
        if let Some(suspects) = array.suspects() {
            output::complain(&format!("drystone: array `{}`: {suspects}", live.name));
        }
    }
}

/// Connections of an export at the addresses of one table.
fn clients_of(table: &ExportTable, name: &str) -> u64 {
    let exports = table.exports().iter().enumerate();
    exports.filter(|(_, e)| e.volume.name == name).map(|(at, _)| u64::from(table.clients(at))).sum()
}

/// Lets the calling thread rest.
fn pause(ns: Ns) {
    std::thread::sleep(Duration::from_nanos(ns));
}

/// As many as asked for; 0 is as many as cores.
fn data_threads(wanted: u32) -> u32 {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
        wanted => wanted,
    }
}

/// Held by a data thread: a panic there ends the program at once. A server that lives on without
/// one of its threads would leave clients hanging that a restart serves.
struct EndsWithIt;

impl Drop for EndsWithIt {
    fn drop(&mut self) {
        if std::thread::panicking() {
            output::complain("drystone: a data thread failed; ending");
            std::process::abort();
        }
    }
}

/// Bytes of each data thread's buffers that its ring knows beforehand: a thousand requests of
/// 4 KiB. A usual limit of locked memory (8 MiB) covers this for one thread.
const REGISTERED_BYTES: usize = 8 << 20;

/// Opens a context for each data thread, and says so when they have to do without io_uring.
fn open_contexts(
    set: &Arc<ContextSet>,
    engine: Engine,
    count: u32,
) -> anyhow::Result<Vec<Context>> {
    let opened: drystone_core::Result<Vec<Context>> =
        (0..count).map(|_| set.open(engine)).collect();
    let mut contexts = opened?;
    if let (Engine::Auto, Some("plain")) = (engine, contexts.first_mut().map(Context::engine)) {
        let reason = ring::open(Engine::Uring, set.clock().clone()).err();
        let reason = reason.map_or("not for every thread".to_owned(), |error| error.message);
        output::complain(&format!(
            "drystone: io_uring is not available ({reason}); epoll and helper threads do its work"
        ));
    }
    Ok(contexts)
}

/// Binds an address: a Unix socket, or every address that a host's name stands for.
fn bind(address: &Address, places: &mut Vec<Place>) -> anyhow::Result<Vec<OwnedFd>> {
    match address {
        Address::Unix { path, mode } => {
            let hint = "name another path in the stack file";
            let (listener, place) = unix_socket::bind(path, *mode, hint)?;
            places.push(place);
            Ok(vec![listener.into()])
        }
        Address::Tcp { host, port } => {
            bind_tcp(host, *port).with_context(|| format!("cannot listen at {address}"))
        }
    }
}

fn bind_tcp(host: &str, port: u16) -> io::Result<Vec<OwnedFd>> {
    let mut sockets = Vec::new();
    let mut absent = None;
    for address in (host, port).to_socket_addrs()? {
        // The standard library sets SO_REUSEADDR.
        match TcpListener::bind(address) {
            Ok(listener) => {
                // Accepted sockets inherit it: a reply is one send and must not wait for another.
                rustix::net::sockopt::set_tcp_nodelay(&listener, true)?;
                sockets.push(listener.into());
            }
            // A name may stand for an address of a protocol that this machine does not have.
            Err(error) if is_absent(&error) => absent = Some(error),
            Err(error) => return Err(error),
        }
    }
    match absent {
        Some(error) if sockets.is_empty() => Err(error),
        _ => Ok(sockets),
    }
}

fn is_absent(error: &io::Error) -> bool {
    let no_family = rustix::io::Errno::AFNOSUPPORT.raw_os_error();
    error.kind() == ErrorKind::AddrNotAvailable || error.raw_os_error() == Some(no_family)
}

/// Makes durable what clients wrote. What volumes were given is in the devices below them.
fn flush(set: &Arc<ContextSet>, engine: Engine, devices: &[Arc<LiveDevice>]) -> anyhow::Result<()> {
    let mut cx = set.open(engine)?;
    let mut failed = Vec::new();
    let leaves = devices.iter().filter(|live| live.volume.is_none());
    let written = leaves.filter(|live| !live.device.info().limits.read_only);
    for (number, live) in written.clone().enumerate() {
        let mut flush = Bio::flush();
        flush.user_data = number as u64;
        let mut bios = BioList::new();
        bios.push(flush);
        match cx.open(&live.device) {
            Ok(device) => cx.submit(device, &mut bios),
            Err(error) => failed.push(format!("device `{}`: {error}", live.name)),
        }
    }
    let mut done = BioList::new();
    while cx.outstanding() > 0 {
        cx.reap(&mut done);
        if cx.outstanding() > 0 {
            cx.wait(None);
        }
    }
    let names: Vec<&str> = written.map(|live| live.name.as_str()).collect();
    for bio in done.iter().filter(|bio| !bio.status.is_ok()) {
        let name = names[bio.user_data as usize];
        failed.push(format!("device `{name}`: flush failed: {}", bio.status));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(anyhow!("{}; what was written may be lost", failed.join("; "))),
    }
}
