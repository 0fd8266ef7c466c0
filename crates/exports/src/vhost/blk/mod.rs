//! Requests of a block device (virtio 1.3, section 5.2.6): a chain in, a command out.
//!
//! ```text
//!   readable bytes of the chain                    writable bytes of the chain
//!   | type | reserved | sector | data of a write |  | data of a read | status |
//!     4 B      4 B       8 B                                             1 B
//! ```
//!
//! Where one descriptor ends and the next begins does not matter. A request that makes no sense
//! gets a status; only one that has no byte for a status breaks its ring.

#![deny(unsafe_code)]

mod header;
mod limits;
mod parser;
mod ranges;
mod reply;
mod request;
#[cfg(test)]
mod tests;

pub use limits::BlkLimits;
pub use parser::BlkParser;
pub use reply::{BlkReply, BlkStatus};
pub use request::{BlkCommand, BlkRange, BlkRequest, ID_BYTES};
