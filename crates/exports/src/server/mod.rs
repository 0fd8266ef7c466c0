//! What all servers share: a data thread's [`Worker`], its door, the volumes that are served.
//!
//! A worker owns its thread's context and drives the front ends on it ([`crate::nbd::server`],
//! [`crate::fuse::server`]). A front end is one folder: it brings requests in as bios and answers
//! when they have ended; a [`worker::FrontEnd`] is all that the worker knows of it.

mod buffers;
pub(crate) mod errno;
mod inbox;
mod membership;
mod volume;
mod worker;

pub use inbox::{Arrival, Inbox};
pub use membership::Membership;
pub use volume::{Client, Clients, Volume};
pub use worker::Worker;

pub(crate) use buffers::{DATA_AT, Pool, Reserve};
pub(crate) use worker::{FUSE, FrontEnd, Work};
