//! The messages of vhost-user: bytes and descriptors in, a message out; a reply into bytes.
//!
//! Everything here is total: any bytes with any descriptors give a message or a reason, nothing
//! panics, and nothing allocates more than a message of [`PAYLOAD_BYTES_MAX`]. Whatever is refused
//! drops its descriptors, and so closes them. Numbers are little-endian, the order of all machines
//! that this runs on: front end and back end are on the same.

#![forbid(unsafe_code)]

mod features;
mod malformed;
mod message;
mod parser;
mod region;
mod reply;
mod request;
mod wire;

pub use features::{Features, ProtocolFeatures};
pub use malformed::Malformed;
pub use message::{ConfigRange, Inflight, LogArea, MappedRegion, Message, VringAddresses};
pub use parser::{Frame, Parser};
pub use region::{GuestAddress, Region, UserAddress};
pub use reply::{InflightReply, Reply, config_change};
pub use request::Request;
pub use wire::{CONFIG_BYTES_MAX, DESCRIPTORS_MAX, HEADER_BYTES, PAYLOAD_BYTES_MAX};
