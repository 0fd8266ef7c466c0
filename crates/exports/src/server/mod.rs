//! Shared parts of all servers: a data thread's [`Worker`], its inbox, the volumes that are served.
//!
//! A worker owns its thread's context and drives the front ends on it ([`crate::nbd::server`],
//! [`crate::fuse::server`]). A front end is one folder: it brings requests in as bios and answers
//! when they have ended. It implements `front_end::FrontEnd` and has a tag and a line in the table
//! of `front_ends`. No other file here knows it.

mod access;
mod blocks;
mod budget;
pub(crate) mod errno;
mod flow;
mod front_end;
mod front_ends;
mod inbox;
mod ledger;
mod membership;
mod op_table;
mod pool;
mod reserve;
mod tag;
mod volume;
mod worker;
mod zeroes;

pub use access::{Access, AllowList, Network};
pub use budget::Budget;
pub use front_ends::Arrival;
pub use inbox::Inbox;
pub use membership::Membership;
pub use volume::{Client, Clients, Geometry, Shape, Volume};
pub use worker::Worker;

pub(crate) use blocks::Blocks;
pub(crate) use flow::Flow;
pub(crate) use front_end::{FrontEnd, Work};
pub(crate) use op_table::{OpId, OpTable, SessionId};
pub(crate) use pool::Pool;
pub(crate) use reserve::{DATA_AT, Reserve};
pub(crate) use tag::{FUSE, NBD, Tag};
pub(crate) use volume::find;
pub(crate) use zeroes::ZeroWrites;
