//! The NBD server: sockets on a context's ring, requests as bios.
//!
//! It is a front end of each data thread's [`crate::server::Worker`]. A connection belongs to one
//! worker for its whole life, so no lock is between connections; the first worker accepts and
//! hands new sockets to the inboxes ([`crate::server::Inbox`]) of all.
//!
//! Bounds protect the clients from each other. They limit the connections in all and of one client,
//! the reads and writes in flight of each and their bytes, the time for the handshake, and the time
//! without any request ([`Settings`]).
//!
//! Connections that have not chosen an export have a bound of their own ([`HANDSHAKES_MAX`]). At
//! this bound the server closes the oldest such connection of the client that has most of them, so
//! nobody keeps others out by opening connections. A client that does not read its replies delays
//! only its own requests: they count until their reply is sent, and the server reads nothing more
//! from it.
//!
//! The [`Budget`](crate::server::Budget) bounds the memory of all clients together. The clients of
//! one device and throttle group leave a part of it to others, and so does each of them. An eighth
//! of it is kept for requests of up to 1 MiB of clients that hold nothing. A request that finds too
//! little waits in line. A client that has moved less than 1 MiB in [`Settings::stall_timeout_ns`],
//! although it owes some, is disconnected if a client that holds nothing waits for its memory.
//!
//! Beside the budget a connection has a minimum of its own (288 KiB), receive buffers, and those of
//! TLS: 0.6 MiB in all, 1.5 MiB with TLS.

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
