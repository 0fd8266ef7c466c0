//! The server side of the NBD protocol, without I/O: bytes in, bytes and requests out.
//!
//! ```text
//!  received bytes --> Handshake --Event::StartTls-------> TlsSession (the driver puts it between)
//!                        |    \---Event::Transmission---> Negotiated
//!                        v                                    |
//!                  bytes to send                              v
//!                                  received bytes --> Transmission --Item::Request--> Request
//!                                                          \--------Item::Refused--> Refusal
//!                                          bytes to send <-- ReplyStyle's encoders <----/
//! ```
//!
//! The driver owns every buffer and every byte that crosses a socket. The state machines keep only
//! the state that they need after a message that arrived in pieces. A connection belongs to one
//! thread at a time; connections share nothing here.
//!
//! The normative source is `doc/proto.md` of the NetworkBlockDevice project, with its
//! extended-headers extension; "the protocol text" in these pages means that document.

#![forbid(unsafe_code)]

mod close;
pub mod export;
pub mod extents;
pub mod fuzz;
pub mod handshake;
pub mod proto;
pub mod reply;
pub mod request;
pub mod server;
pub mod tls;
pub mod transmission;
mod wire;

pub use export::{BlockSizes, ExportDirectory, ExportError, ExportInfo, Lookup, MetaContext};
pub use extents::{Extent, StatusQuery};
pub use handshake::{CloseReason, Event, Handshake, Negotiated, SelectedContext, Step, TlsPolicy};
pub use proto::{Command, CommandFlags, ErrorCode, TransmissionFlags};
pub use reply::{ReplyStyle, ReplyTag};
pub use request::{ContextSet, Refusal, Request};
pub use tls::{TlsConfig, TlsError, TlsSession};
pub use transmission::{Item, Parsed, Transmission};
