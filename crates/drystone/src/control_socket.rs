//! The server's end of the control socket: binding it, and answering clients.
//!
//! Invariants:
//! - At most one server has a path, and the socket has mode 0600 from its first moment
//!   ([`unix_socket`]).
//! - Connections have a thread each, at most [`MAX_CONNECTIONS`], that answers one request after
//!   the other. A request that waits holds up nobody but its own client.
//! - While any client is idle, a new one gets in: the client that has been idle for longest gives
//!   way ([`Guest`]). A request that has begun is answered.
//! - These threads never end, but serve one client after the other. A change of a volume may visit
//!   a context, and what a thread submitted to a ring the kernel cancels when it ends.
//! - The path is removed when [`ControlSocket`] is dropped, unless another socket is there by then.

use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use drystone_core::threads;
use drystone_stack::control::{
    self, Control, Line, LineBuffer, ServerInfo, no_thread, too_long, too_many_clients,
};
use drystone_stack::runtime::Runtime;
use rustix::net::{SendFlags, send};

use crate::failure::Failure;
use crate::unix_socket::{self, BoundSocket};

/// Most clients at a time.
const MAX_CONNECTIONS: usize = 64;
/// How long to wait for file descriptors when there are none.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Time a client has to take its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// Time a client may be silent before it has to connect again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// A bound control socket; dropping it removes its path.
pub struct ControlSocket {
    listener: UnixListener,
    /// The path, and the inode that was made there.
    place: BoundSocket,
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.place.remove();
    }
}

impl ControlSocket {
    /// Binds `path`. A stale socket is replaced; a live one and anything else is refused.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let hint = "name another with --control";
        let (listener, place) =
            unix_socket::bind(path, 0o600, hint).map_err(|e| Failure::Refused(e.to_string()))?;
        Ok(Self { listener, place })
    }

    /// The absolute path.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// The path with its inode, for a hurried exit.
    pub fn place(&self) -> BoundSocket {
        self.place.clone()
    }

    /// Starts answering, on threads of its own that end with the process.
    pub fn answer(&self, runtime: Box<dyn Runtime>, server: ServerInfo) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let answer: Answer =
            Arc::new(move |line: &str| Control::new(&*runtime, &server).handle(line));
        let crew = Crew::new(answer)?;
        threads::start("control-accept", move || accept(&listener, crew))?;
        Ok(())
    }
}

/// Turns a request line into a response line, on the thread of the client.
type Answer = Arc<dyn Fn(&str) -> String + Send + Sync>;

fn accept(listener: &UnixListener, mut crew: Crew) {
    let mut guests: Vec<Weak<Guest>> = Vec::new();
    let turns = Arc::new(AtomicU64::new(0));
    loop {
        let stream = listener.accept();
        crew.idle.extend(crew.finished.try_iter());
        guests.retain(|guest| guest.strong_count() > 0);
        let Ok((stream, _)) = stream else {
            // Out of file descriptors, most likely: let some close.
            thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        let refused = crew.grow().err();
        if crew.idle.is_empty() && make_room(&guests) {
            // The thread of the client that gave way reads the end of its stream, if none is done
            // before.
            crew.idle.extend(crew.finished.recv());
        }
        match crew.idle.pop() {
            // Threads do not end, so it takes the client.
            Some(client) => {
                let guest = Arc::new(Guest::new(stream, turns.clone()));
                guests.push(Arc::downgrade(&guest));
                let _ = client.send(guest);
            }
            None => match refused {
                Some(error) => refuse(&stream, &no_thread(&error)),
                None => refuse(&stream, &too_many_clients(MAX_CONNECTIONS)),
            },
        }
    }
}

/// The threads that serve clients. One is there from the start, so that an operator is answered
/// where the process may start no more; others start as clients come, and none ends.
struct Crew {
    answer: Answer,
    /// Threads without a client.
    idle: Vec<Client>,
    started: usize,
    /// Where threads give themselves back.
    done: Sender<Client>,
    finished: Receiver<Client>,
}

impl Crew {
    fn new(answer: Answer) -> io::Result<Self> {
        let (done, finished) = channel();
        let mut crew = Self { answer, idle: Vec::new(), started: 0, done, finished };
        crew.grow()?;
        Ok(crew)
    }

    /// Starts a thread if none is idle and there may be more.
    fn grow(&mut self) -> io::Result<()> {
        if self.idle.is_empty() && self.started < MAX_CONNECTIONS {
            self.idle.push(start(self.answer.clone(), self.done.clone())?);
            self.started += 1;
        }
        Ok(())
    }
}

/// A thread that has no client.
type Client = Sender<Arc<Guest>>;

/// Starts a thread that serves clients, and after each gives itself to `done`.
fn start(answer: Answer, done: Sender<Client>) -> io::Result<Client> {
    let (own, clients) = channel::<Arc<Guest>>();
    let again = own.clone();
    let work = move || {
        for guest in clients {
            let _ = talk(&guest, &*answer, IDLE_TIMEOUT);
            // Its end is seen now, though the thread that accepts may look at it a moment longer.
            let _ = guest.stream.shutdown(Shutdown::Both);
            drop(guest);
            let _ = done.send(again.clone());
        }
    };
    threads::start("control-client", work)?;
    Ok(own)
}

/// Says why a client is turned away, without waiting for it to listen.
fn refuse(stream: &UnixStream, line: &str) {
    let line = line.to_owned() + "\n";
    let _ = send(stream, line.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Lets the client go that has been idle for longest. Whether there was one.
fn make_room(guests: &[Weak<Guest>]) -> bool {
    let mut guests: Vec<Arc<Guest>> = guests.iter().filter_map(Weak::upgrade).collect();
    // Each is read once: they change meanwhile, and a sort may panic where the order does.
    guests.sort_by_cached_key(|guest| guest.state.load(SeqCst));
    guests.iter().any(|guest| guest.give_way())
}

/// A connected client. Its thread answers it; the thread that accepts may let it go while it is
/// idle.
struct Guest {
    stream: UnixStream,
    /// [`GONE`], [`BUSY`], or the turn in which it became idle.
    state: AtomicU64,
    /// The number of times that any client became idle.
    turns: Arc<AtomicU64>,
}

/// A request is being answered.
const BUSY: u64 = u64::MAX;
/// It gave way to another: nothing that it asks is done.
const GONE: u64 = u64::MAX - 1;

impl Guest {
    fn new(stream: UnixStream, turns: Arc<AtomicU64>) -> Self {
        let guest = Self { stream, state: AtomicU64::new(BUSY), turns };
        guest.rest();
        guest
    }

    /// Its request is answered, and it is idle from now on.
    fn rest(&self) {
        self.state.store(self.turns.fetch_add(1, SeqCst), SeqCst);
    }

    /// It has asked something; false if it had to give way before.
    fn begin(&self) -> bool {
        self.change(BUSY)
    }

    /// Lets it go if it is idle, and says so.
    fn give_way(&self) -> bool {
        let gave_way = self.change(GONE);
        if gave_way {
            refuse(&self.stream, &control::gave_way());
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        gave_way
    }

    /// From idle to `next`; false if it is not idle.
    fn change(&self, next: u64) -> bool {
        let idle = |now| (now < GONE).then_some(next);
        self.state.fetch_update(SeqCst, SeqCst, idle).is_ok()
    }
}

/// Answers a client until it goes, gives way, or is silent for longer than `idle`.
fn talk(guest: &Guest, answer: &dyn Fn(&str) -> String, idle: Duration) -> io::Result<()> {
    let mut stream = &guest.stream;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_read_timeout(Some(idle))?;
    let mut lines = LineBuffer::default();
    let mut bytes = [0; 4096];
    loop {
        let count = match stream.read(&mut bytes) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            other => other?,
        };
        let asked = lines.push(&bytes[..count]);
        if asked.is_empty() {
            continue;
        }
        if !guest.begin() {
            return Ok(());
        }
        for line in asked {
            let mut answer = match line {
                Line::TooLong => too_long(),
                Line::Whole(line) => answer(&line),
            };
            answer.push('\n');
            stream.write_all(answer.as_bytes())?;
        }
        guest.rest();
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn guest(stream: UnixStream) -> Guest {
        Guest::new(stream, Arc::new(AtomicU64::new(0)))
    }

    #[test]
    fn a_silent_client_is_let_go() {
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(b"ping\nhalf a line").unwrap();
        let talked = talk(&guest(server), &str::to_owned, Duration::from_millis(1));
        assert_eq!(talked.unwrap_err().kind(), ErrorKind::WouldBlock);
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "ping\n", "what it had asked was answered");
    }

    /// A server that answers with what it is asked; `wait` is answered when the gate is open.
    struct Server {
        _folder: tempfile::TempDir,
        path: std::path::PathBuf,
    }

    impl Server {
        fn start(answer: Answer) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("c.sock");
            let listener = UnixListener::bind(&path).unwrap();
            let crew = Crew::new(answer).unwrap();
            thread::spawn(move || accept(&listener, crew));
            Self { _folder: folder, path }
        }

        fn connect(&self) -> BufReader<UnixStream> {
            let stream = UnixStream::connect(&self.path).unwrap();
            // Generous: the test fails instead of hanging.
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            BufReader::new(stream)
        }
    }

    fn ask(client: &mut BufReader<UnixStream>, line: &str) -> String {
        // A server that let it go says why, whether it takes the request or not.
        let _ = client.get_mut().write_all(format!("{line}\n").as_bytes());
        next_line(client)
    }

    fn next_line(client: &mut BufReader<UnixStream>) -> String {
        let mut answer = String::new();
        client.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// The place of a client that was told something. Not the first.
    fn the_one_that_hears(clients: &mut [BufReader<UnixStream>]) -> usize {
        let mut has_heard = |at: &usize| {
            let client = &mut clients[*at];
            client.get_ref().set_nonblocking(true).unwrap();
            let heard = client.fill_buf().is_ok();
            client.get_ref().set_nonblocking(false).unwrap();
            heard
        };
        let end = std::time::Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(at) = (1..MAX_CONNECTIONS).find(&mut has_heard) {
                return at;
            }
            assert!(std::time::Instant::now() < end, "nobody gave way");
            thread::yield_now();
        }
    }

    #[test]
    fn idle_clients_give_way_to_new_ones() {
        let server = Server::start(Arc::new(str::to_owned));
        let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| server.connect()).collect();
        for client in &mut clients {
            assert_eq!(ask(client, "a"), "a");
        }
        // The first is used again, so another has been idle for longest: most likely the second,
        // but a thread may be slow to see that its client is idle.
        assert_eq!(ask(&mut clients[0], "b"), "b");
        let mut operator = server.connect();
        assert_eq!(ask(&mut operator, "c"), "c");
        let at = the_one_that_hears(&mut clients);
        let mut gone = clients.remove(at);
        let told = next_line(&mut gone);
        assert!(told.contains("\"busy\"") && told.contains("was idle"), "{told}");
        assert_eq!(next_line(&mut gone), "", "it is disconnected");
        for client in &mut clients {
            assert_eq!(ask(client, "d"), "d");
        }
    }

    #[test]
    fn clients_that_wait_for_an_answer_do_not_give_way() {
        let (waiting, open) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (begun, gate) = (waiting.clone(), open.clone());
        let server = Server::start(Arc::new(move |line: &str| {
            begun.fetch_add(u64::from(line == "wait"), SeqCst);
            while line == "wait" && !gate.load(SeqCst) {
                thread::sleep(ACCEPT_PAUSE);
            }
            line.to_owned()
        }));
        let mut clients: Vec<_> = (0..MAX_CONNECTIONS).map(|_| server.connect()).collect();
        for client in &mut clients {
            client.get_mut().write_all(b"wait\n").unwrap();
        }
        while waiting.load(SeqCst) < MAX_CONNECTIONS as u64 {
            thread::yield_now();
        }
        let told = ask(&mut server.connect(), "b");
        assert!(told.contains("64 clients wait for an answer"), "{told}");
        open.store(true, SeqCst);
        assert!(clients.iter_mut().all(|client| next_line(client) == "wait"));
    }
}
