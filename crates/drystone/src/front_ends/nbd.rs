//! NBD: the sockets that its listeners accept on.
//!
//! Invariant: sockets are bound before there are data threads, because the file mode mask is
//! changed for that.

use std::io::{self, ErrorKind};
use std::net::{TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;

use anyhow::Context as _;
use drystone_exports::nbd::server::{self, Listener};
use drystone_stack::live::LiveListener;
use drystone_stack::nbd_uri;
use drystone_stack::spec::Listener as Address;

use super::front_end::{At, FrontEnd};
use crate::ending::Ending;
use crate::unix_socket::{self, BoundSocket};

/// The listeners of a server.
#[derive(Default)]
pub struct Nbd {
    /// Bound, and not yet accepted on.
    listeners: Vec<Listener>,
    /// Where Unix sockets are.
    places: Vec<BoundSocket>,
    uris: Vec<String>,
}

impl FrontEnd for Nbd {
    fn open(&mut self, at: &At<'_>) -> anyhow::Result<()> {
        for live in at.stack.listeners() {
            self.listen(live, at)?;
        }
        let mut exports: Vec<_> = at.stack.exports().iter().collect();
        exports.sort_by_key(|export| !export.default);
        let uris =
            exports.iter().flat_map(|export| export.nbd.iter().map(|place| nbd_uri(export, place)));
        self.uris = uris.collect();
        Ok(())
    }

    /// The first data thread accepts, for all of them.
    fn begin(&mut self, at: &At<'_>) -> anyhow::Result<()> {
        self.listeners.drain(..).for_each(|listener| at.inboxes[0].put(listener, at.locks));
        Ok(())
    }

    fn announce(&self) -> Vec<String> {
        self.uris.clone()
    }

    fn close(&mut self) {
        self.places.drain(..).for_each(|place| place.remove());
    }
}

impl Nbd {
    fn listen(&mut self, live: &LiveListener, at: &At<'_>) -> anyhow::Result<()> {
        for socket in bind(&live.address, &mut self.places, at.ending)? {
            self.listeners.push(Listener {
                socket,
                tls: live.tls.clone(),
                table: at.stack.tables()[live.table].clone(),
                peers: server::peers(at.inboxes),
                descriptors_max: at.descriptors_max,
            });
        }
        Ok(())
    }
}

/// Binds an address: a Unix socket, or every address that a host's name stands for.
fn bind(
    address: &Address,
    places: &mut Vec<BoundSocket>,
    ending: &Ending,
) -> anyhow::Result<Vec<OwnedFd>> {
    match address {
        Address::Unix { path, mode } => ending.making(|| {
            let hint = "name another path in the stack file";
            let (listener, place) = unix_socket::bind(path, *mode, hint)?;
            places.push(place.clone());
            ending.add(Box::new(move || place.remove()));
            Ok(vec![listener.into()])
        }),
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
