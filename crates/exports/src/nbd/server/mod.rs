//! The NBD server: sockets on a context's ring, requests as bios.
//!
//! It is a front end of each data thread's [`crate::server::Worker`]. A connection belongs to one
//! worker for its whole life, so no lock is between connections; the first worker accepts and
//! hands new sockets to the inboxes ([`crate::server::Inbox`]) of all.
//!
//! Bounds, so that no client harms another: connections in all and of one client, reads and writes
//! in flight of each and their bytes, a time for the handshake, a time without any request
//! ([`Settings`]). Connections that have not chosen an export have a bound of their own
//! ([`HANDSHAKES_MAX`]), from which the oldest of the client that has most of them goes: so nobody
//! keeps others out by opening connections. A client that does not read its replies keeps only its
//! own requests waiting: they count until their reply is sent, and nothing more is read from it.
//! Their memory together is bounded by the [`Budget`](crate::server::Budget): of that
//! the clients of one device and throttle group leave a part to others, as each of them does, and
//! an eighth of it is kept for requests of up to 1 MiB of clients that have nothing. A request that
//! finds too little waits in line, and a client that has moved less than 1 MiB in
//! [`Settings::stall_timeout_ns`], although it owes some, is cut off if a client that has nothing
//! waits for the memory that it has. Beside the budget a connection has a minimum of its own (288
//! KiB), buffers to receive into, and those of TLS: 0.6 MiB, 1.5 MiB with TLS.

mod arrival;
mod bios;
mod coalesce;
mod connection;
mod connections;
mod deadlines;
mod event;
mod exports;
mod inbox;
mod incoming;
mod layout;
mod limits;
mod listeners;
mod op;
mod peer;
mod progress;
mod queries;
mod service;
mod settings;
mod stream;
mod unaligned;
mod window;
mod write_locks;

pub use arrival::{Arrival, ConnectionInbox, Listener};
pub use exports::{Export, ExportTable};
pub use inbox::peers;
pub use incoming::{Incoming, ListenerTls};
pub use settings::{HANDSHAKES_MAX, Settings};

pub(crate) use connections::Connections;
