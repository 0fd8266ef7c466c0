//! The back end of the vhost-user protocol for block devices, without I/O: bytes and descriptors
//! in, bytes and actions out.
//!
//! ```text
//!  received bytes, descriptors --> Parser --Frame--> Session --Step::Act--> Action (server)
//!                                                     ^  |                     |
//!                  bytes, a descriptor <--Step::Reply----/  \<-- its outcome --/
//! ```
//!
//! The server owns the socket: it reads what [`Parser::wanted_bytes`] asks for, gives bytes and
//! descriptors to the parser, and a whole message to the session. An [`Action`] is a change outside
//! of the session (memory to map, a queue to start); the session waits for its outcome before it
//! takes the next message. A session belongs to one thread, and shares nothing but the descriptors
//! that queues signal.
//!
//! What the guest sees of a queue is served by three parts, which do no I/O either:
//!
//! ```text
//!   memory of the guest --SplitRing--> Chain --BlkParser--> BlkRequest --> bios (driver)
//!            ^                                                               |
//!            \--- used elements, one index <--SplitRing-- status, length <---/
//! ```
//!
//! The normative source is `docs/interop/vhost-user.rst` of QEMU ("the protocol text" in these
//! pages); rings and the configuration space are those of virtio 1.3.

#![deny(unsafe_code)]

pub mod blk;
pub mod blk_config;
pub mod fuzz;
pub mod fuzz_ring;
pub mod memory;
pub mod proto;
pub mod ring;
pub mod session;

pub use blk::{BlkCommand, BlkParser, BlkReply, BlkRequest, BlkStatus};
pub use blk_config::BlkConfig;
pub use memory::{GuestMemory, HostMemory};
pub use proto::{Features, Frame, GuestAddress, Malformed, Parser, ProtocolFeatures};
pub use proto::{Region, Reply, Request, UserAddress};
pub use ring::{Chain, RingError, RingSetup, SplitRing};
pub use session::{Action, Offer, QueueIndex, QueueStart, Refusal, Session, Step};
