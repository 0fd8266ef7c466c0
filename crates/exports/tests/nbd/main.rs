//! The NBD server protocol against the client written from the protocol text, in memory.

mod handshake;
mod properties;
mod support;
mod tls;
mod transmission;
