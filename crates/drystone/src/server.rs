//! Serving a stack: sockets, files, data threads, stopping.
//!
//! Invariants:
//! - Devices are opened before sockets are bound, so that a refused start leaves no socket.
//! - Each data thread has one context and runs one [`Worker`]; the first one accepts.
//! - Files are unmounted first, while the data threads answer: whoever uses them may have something to
//!   write.
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
use drystone_core::sync::LockCounters;
use drystone_core::{Context, ContextSet};
use drystone_exports::fuse::kernel::MountError;
use drystone_exports::nbd::server::{ExportTable, Listener};
use drystone_exports::server::{Inbox, Worker};
use drystone_raid::ShardCounts;
use drystone_stack::live::{LiveStack, Pause, Surroundings};
use drystone_stack::runtime::Runtime;
use drystone_stack::spec::{ExportSpec, Listener as Address};
use drystone_stack::{StackSpec, nbd_uri};

use crate::files::Files;
use crate::io_flusher;
use crate::output;
use crate::runtime::{Leaver, ServerHandle, StopMode};
use crate::unix_socket::{self, Place};

/// A stack that is served.
pub struct Server {
    stack: LiveStack,
    inboxes: Vec<Arc<Inbox>>,
    workers: Vec<JoinHandle<()>>,
    places: Vec<Place>,
    files: Vec<Files>,
    locks: Arc<LockCounters>,
}

impl Server {
    /// Opens the stack's devices, listens, and starts the data threads.
    ///
    /// # Errors
    /// What could not be opened or bound; then nothing is left running and no socket is left.
    pub fn start(spec: &StackSpec) -> anyhow::Result<Self> {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let threads = data_threads(spec.server.threads);
        let mut at = Surroundings::new(threads, clock);
        at.tell = Arc::new(|text| output::complain(&format!("drystone: {text}")));
        at.locks.time_holds(spec.server.lockstat);
        let mut files = spec.exports.iter().filter_map(|export| export.fuse.as_ref()).peekable();
        if files.peek().is_some()
            && let Err(error) = io_flusher::become_one()
            && files.any(|file| file.loop_device)
        {
            warn_of_memory(&error);
        }
        let stack = LiveStack::open(spec, &at)?;
        warn_of_arrays(&stack);
        let pause_of_start: Pause = Box::new(pause);
        stack.await_arrays(&pause_of_start);
        let opened = open_contexts(stack.contexts(), stack.engine(), threads)?;
        let inboxes = opened.iter().map(|cx| Inbox::new(cx.handle().clone())).collect();
        let (locks, workers) = (stack.locks().counters(), Vec::new());
        let mut server =
            Server { stack, inboxes, workers, places: Vec::new(), files: Vec::new(), locks };
        let started = server.listen().and_then(|sockets| server.run(opened, sockets));
        match started.and_then(|()| server.mount()) {
            Ok(()) => Ok(server),
            Err(error) => {
                server.files.drain(..).for_each(|files| files.leaver()());
                let _ = server.end();
                server.stack.remove_made_files();
                Err(error)
            }
        }
    }

    /// What the stripe caches of its arrays have counted, all together.
    pub fn array_counts(&self) -> ShardCounts {
        let mut sum = ShardCounts::default();
        for live in self.stack.devices() {
            live.array.iter().for_each(|array| sum += array.counts());
        }
        sum
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

    /// Makes devices appear as files.
    fn mount(&mut self) -> anyhow::Result<()> {
        for live in self.stack.mounts() {
            let has_loop = live.exports.iter().any(has_loop_device);
            let mut files = match Files::mount(live, &self.inboxes, &self.locks) {
                // Of the machine, not of this stack: others can still be served.
                Err(error) if lacks_fuse(&error) && !self.stack.listeners().is_empty() => {
                    output::complain(&format!("drystone: no files: {error}; other exports go on"));
                    return Ok(());
                }
                files => files?,
            };
            let made = files.wait_until_served().and_then(|()| match has_loop {
                true => files.make_loop_devices(),
                false => Ok(()),
            });
            self.files.push(files);
            made?;
        }
        Ok(())
    }

    /// Takes files away once nobody uses them; those that cannot be unmounted at once.
    fn unmount(&mut self) -> anyhow::Result<()> {
        // All of them first, so that none waits for another's client. Whoever refuses is told of below.
        self.files.iter_mut().for_each(|files| _ = files.detach_loops());
        let mut failed = Ok(());
        for mut files in self.files.drain(..) {
            if let Err(error) = files.unmount() {
                files.leaver()();
                failed = failed.and(Err(error));
            }
        }
        failed
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

impl ServerHandle for Server {
    fn announce(&self) -> Vec<String> {
        let mut exports: Vec<_> = self.stack.exports().iter().collect();
        exports.sort_by_key(|export| !export.default);
        let uris =
            exports.iter().flat_map(|export| export.nbd.iter().map(|at| nbd_uri(export, at)));
        let files = self.files.iter().flat_map(Files::announce);
        let files = files.flat_map(|(file, device)| std::iter::once(file).chain(device));
        uris.chain(files.map(|path| path.display().to_string())).collect()
    }

    fn runtime(&self) -> Box<dyn Runtime> {
        let tables = self.stack.tables().clone();
        let files: Vec<_> = self.files.iter().map(Files::clients).collect();
        let clients = move |name: &str| {
            let of_nbd: u64 = tables.iter().map(|table| clients_of(table, name)).sum();
            of_nbd + files.iter().map(|of_file| of_file(name)).sum::<u64>()
        };
        Box::new(self.stack.runtime(Box::new(clients), Box::new(pause)))
    }

    fn leavers(&self) -> Vec<Leaver> {
        let sockets = self.places.iter().cloned();
        let sockets = sockets.map(|place| Box::new(move || place.remove()) as Leaver);
        sockets.chain(self.files.iter().map(|files| Box::new(files.leaver()) as Leaver)).collect()
    }

    fn stop(mut self: Box<Self>, mode: StopMode) -> anyhow::Result<()> {
        for text in self.stack.without_room() {
            output::complain(&format!("drystone: {text}; to stop once more gives them up"));
        }
        self.places.drain(..).for_each(|place| place.remove());
        let unmounted = self.unmount();
        let ended = self.end();
        if mode == StopMode::Now {
            return ended;
        }
        let pause: Pause = Box::new(pause);
        let finished = self.stack.finish(&pause).map_err(|why| anyhow!(why));
        unmounted.and(ended).and(finished)
    }
}

/// The machine has no FUSE, or not for us.
fn lacks_fuse(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(MountError::NoDevice | MountError::NoAccess))
}

fn has_loop_device(export: &ExportSpec) -> bool {
    export.fuse.as_ref().is_some_and(|fuse| fuse.loop_device)
}

/// Says that file systems on its loop devices are written back by a process that may wait for that.
fn warn_of_memory(error: &std::io::Error) {
    output::complain(&format!(
        "drystone: this process cannot be an IO flusher, which takes CAP_SYS_RESOURCE ({error}): when memory is short \
         it may wait for pages that only it can write back"
    ));
}

/// Says which members arrays started without, and what may be wrong of those that were forced to start.
fn warn_of_arrays(stack: &LiveStack) {
    for live in stack.devices() {
        let Some(array) = &live.array else { continue };
        for why in array.left_out() {
            output::complain(&format!("drystone: array `{}`: left out: {why}", live.name));
        }
        for notice in array.notices() {
            output::complain(&format!("drystone: array `{}`: {notice}", live.name));
        }
        if let Some(suspects) = array.suspects() {
            // Its ranges stand on lines of their own.
            output::draw(&format!("drystone: array `{}`: {suspects}", live.name));
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
