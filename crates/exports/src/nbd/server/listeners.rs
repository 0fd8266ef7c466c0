//! The listeners of a worker: they accept connections, and spread them over all workers.
//!
//! Invariants:
//! * A listener has one accept or one pause with the ring, until the server stops.
//! * A connection goes to the worker that has the fewest.

use super::arrival::Listener;
use super::event::Event;
use super::incoming::Incoming;
use crate::server::{Work, errno};
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

/// The pause of accepts when the process has run out of descriptors or memory.
const ACCEPT_PAUSE_NS: Ns = 100_000_000;

struct Listening {
    listener: Listener,
    /// True while the ring has an accept or a pause.
    is_busy: bool,
}

/// The listeners of a worker.
#[derive(Default)]
pub(super) struct Listeners {
    listeners: Vec<Listening>,
    is_stopped: bool,
}

impl Listeners {
    /// True while the ring has an operation of a listener.
    pub(super) fn is_busy(&self) -> bool {
        self.listeners.iter().any(|it| it.is_busy)
    }

    /// Accepts connections on `listener` from now on.
    pub(super) fn add(&mut self, work: &mut Work, listener: Listener) {
        self.listeners.push(Listening { listener, is_busy: false });
        self.accept(work, self.listeners.len() as u32 - 1);
    }

    /// Accepts no more.
    pub(super) fn stop(&mut self, work: &mut Work) {
        self.is_stopped = true;
        for number in 0..self.listeners.len() as u32 {
            work.cx.cancel_net(Event::Accept.value(number));
            work.cx.cancel_net(Event::AcceptAgain.value(number));
        }
    }

    fn accept(&mut self, work: &mut Work, number: u32) {
        if !self.is_stopped {
            let of = &mut self.listeners[number as usize];
            let socket = of.listener.socket.as_raw_fd();
            work.cx.start_net(socket, NetOp::Accept, Event::Accept.value(number));
            of.is_busy = true;
        }
    }

    /// Goes on with a listener whose pause is over.
    pub(super) fn end_pause(&mut self, work: &mut Work, number: u32) {
        self.listeners[number as usize].is_busy = false;
        self.accept(work, number);
    }

    /// Takes the end of an accept: hands the connection out, and accepts the next.
    pub(super) fn end_accept(&mut self, work: &mut Work, number: u32, ended: RingEvent) {
        self.listeners[number as usize].is_busy = false;
        let exhausted = [errno::EMFILE, errno::ENFILE, errno::ENOMEM, errno::ENOBUFS];
        match ended.buffers {
            Buffers::Socket(socket) => {
                hand_out(&self.listeners[number as usize].listener, work, socket)
            }
            _ if exhausted.contains(&-ended.result) && !self.is_stopped => {
                let at = work.cx.now() + ACCEPT_PAUSE_NS;
                work.cx.start_timer(at, Event::AcceptAgain.value(number));
                self.listeners[number as usize].is_busy = true;
                return;
            }
            _ => {}
        }
        self.accept(work, number);
    }
}

/// Gives a new connection to the worker that has the fewest.
fn hand_out(listener: &Listener, work: &mut Work, socket: OwnedFd) {
    let Listener { tls, table, peers, descriptors_max, .. } = listener;
    if socket.as_raw_fd() >= *descriptors_max {
        return;
    }
    let Some(peer) = peers.iter().min_by_key(|peer| peer.connections()) else { return };
    prepare(&socket, table.settings().peer_timeout_ns);
    let (tls, table, assigned) = (tls.clone(), table.clone(), peer.enter());
    peer.put_connection(Incoming { socket, tls, table, assigned }, &work.locks);
}

/// Probes that a silent client does not answer before it is given up (tcp(7), `TCP_KEEPCNT`).
const PROBES: u32 = 4;

/// The send buffer of a Unix socket, of which the kernel reserves twice as much. By default it has
/// 208 KiB: a client takes that while the server sleeps, and a reply of 1 MiB needs five sends. TCP
/// finds its own size.
const SEND_BYTES: usize = 256 << 10;

/// Configure a new socket: replies must not be delayed (`TCP_NODELAY`), and a client that vanished
/// silently must be detected in `peer_timeout` ns. `TCP_USER_TIMEOUT` covers one that owes an
/// acknowledgement or does not take what is sent. An idle one is probed after half that time: its
/// kernel answers, so a live client stays. This is for TCP only; a Unix socket refuses, which is
/// harmless. It gets a larger send buffer instead.
fn prepare(socket: &OwnedFd, peer_timeout: Ns) {
    use rustix::net::{AddressFamily, sockopt::*};
    let timeout = Duration::from_nanos(peer_timeout);
    let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    // The kernel counts these in seconds, and refuses 0 and values above its MAX_TCP_KEEPIDLE.
    let seconds = |time: Duration| Duration::from_secs(time.as_secs().clamp(1, 32_767));
    let _ = set_tcp_nodelay(socket, true);
    let _ = set_tcp_user_timeout(socket, ms);
    let _ = set_tcp_keepidle(socket, seconds(timeout / 2));
    let _ = set_tcp_keepintvl(socket, seconds(timeout / 2 / PROBES));
    let _ = set_tcp_keepcnt(socket, PROBES);
    let _ = set_socket_keepalive(socket, true);
    let is_small = socket_send_buffer_size(socket).is_ok_and(|bytes| bytes < 2 * SEND_BYTES);
    if is_small && socket_domain(socket) == Ok(AddressFamily::UNIX) {
        let _ = set_socket_send_buffer_size(socket, SEND_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_tcp_client_that_vanishes_is_given_up_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = OwnedFd::from(listener.accept().unwrap().0);
        prepare(&socket, 300_000_000_000);
        assert_eq!(tcp_user_timeout(&socket).unwrap(), 300_000);
        let (idle, interval) = (tcp_keepidle(&socket).unwrap(), tcp_keepintvl(&socket).unwrap());
        let silent = idle + interval * tcp_keepcnt(&socket).unwrap();
        assert_eq!((silent.as_secs(), socket_keepalive(&socket)), (298, Ok(true)));
        prepare(&socket, 1_000_000_000);
        assert_eq!(tcp_keepidle(&socket).unwrap().as_secs(), 1, "what the kernel takes at least");
        prepare(&socket, 86_400_000_000_000);
        assert_eq!(tcp_keepidle(&socket).unwrap().as_secs(), 32_767, "what it takes at most");
    }

    #[test]
    fn a_unix_socket_gets_a_larger_send_buffer_but_no_smaller_one() {
        let (socket, _client) = UnixStream::pair().unwrap();
        let socket = OwnedFd::from(socket);
        prepare(&socket, 300_000_000_000);
        let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
        let limit: usize = limit.trim().parse().unwrap();
        let default = std::fs::read_to_string("/proc/sys/net/core/wmem_default").unwrap();
        let least = (2 * SEND_BYTES.min(limit)).max(default.trim().parse().unwrap());
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), least);
        set_socket_send_buffer_size(&socket, limit).unwrap();
        let large = socket_send_buffer_size(&socket).unwrap();
        prepare(&socket, 300_000_000_000);
        assert_eq!(socket_send_buffer_size(&socket).unwrap(), large.max(least));
    }
}
