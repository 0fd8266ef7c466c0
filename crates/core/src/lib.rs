//! The words every part of Drystone shares: bios and their buffers, devices and their
//! channels, the per-thread [`Context`] that drives them, and the clock, ring, wake-ups and
//! locks that everything else gets as parameters.
//!
//! Nothing here blocks except [`Context::wait`], and nothing is ambient: time comes from a
//! [`clock::Clock`], sleeping and kernel I/O from a [`ring::Ring`].
//!
//! Terms that are not Linux': `docs/glossary.md`.
//!
//! * **Threads**: a [`Device`] is shared by all; a [`Context`] may be moved, but is used by one
//!   thread at a time, which may stay away after any call. A [`Bio`] completes in the context that
//!   submitted it.
//! * **Units**: bytes and nanoseconds, unless a name says sectors (512 bytes, [`Sector`]).
//! * **Errors**: set-up and control give an [`Error`], a kind and one sentence; an I/O has a
//!   [`Status`], which stands for an errno.
//! * **Lifetimes**: a bio owns its [`IoBuf`] and gives it back with its completion. Memory that a
//!   bio only points at ([`Bio::from_raw_segments`]) must stay until then, also when the context is
//!   dropped; [`Context::wind_up`] ends what can be ended.
#![warn(unsafe_op_in_unsafe_fn)]
#![cfg_attr(test, allow(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod attribute;
pub mod bio;
pub mod blocking;
pub mod buf;
pub mod check;
pub mod clock;
pub mod context;
pub mod device;
pub mod error;
pub mod extent;
pub mod failures;
pub mod gate;
pub mod heap;
pub mod histogram;
pub mod holders;
pub mod limits;
pub mod list;
pub mod mailbox;
pub mod op;
pub mod port;
pub mod primitive;
pub mod published;
pub mod quiesced;
pub mod range_lock;
pub mod ring;
pub mod shared_list;
pub mod signals;
pub mod sim;
pub mod slab;
pub mod stats;
pub mod status;
pub mod sync;
pub mod threads;
pub mod turn;
pub mod units;

pub use bio::Bio;
pub use buf::{Arena, IoBuf};
pub use context::{Context, ContextSet, DevIndex, Env};
pub use device::{Channel, Device, DeviceInfo};
pub use error::{Error, Result};
pub use extent::Extent;
pub use heap::trim_heap;
pub use holders::{Holder, Holders};
pub use limits::Limits;
pub use list::BioList;
pub use op::{BioFlags, Op, Priority, PriorityClass};
pub use port::{Port, Ports};
pub use published::{Published, Subscription};
pub use shared_list::SharedBioList;
pub use slab::Slab;
pub use status::Status;
pub use units::{ContextId, SECTOR_SHIFT, SECTOR_SIZE, Sector};
