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
//!
//! # A device, and a read of it
//!
//! ```
//! use drystone_core::device::{Channel, Device, DeviceInfo};
//! use drystone_core::{Bio, BioList, ChannelId, ContextSet, Env, Extent, IoBuf, Limits, Op};
//! use drystone_core::{Result, Sector, Status, clock, histogram, mailbox, op, ring, stats};
//! use std::sync::Arc;
//!
//! /// Reads as zeroes and forgets what is written.
//! struct Zeroes;
//! struct ZeroesChannel;
//!
//! impl Channel for ZeroesChannel {
//!     fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
//!         while let Some(mut bio) = bios.pop() {
//!             if bio.op == Op::Read {
//!                 bio.zero_data();
//!             }
//!             env.end_with(bio, Status::Ok);
//!         }
//!     }
//!     fn members(&self) -> &[ChannelId] {
//!         &[]
//!     }
//!     fn message(&mut self, _: &mut Env, _: Arc<mailbox::Message>) {}
//!     fn in_flight(&self) -> usize {
//!         0
//!     }
//!     fn cancel_pending(&mut self, _: &mut Env) {}
//! }
//!
//! impl Device for Zeroes {
//!     fn info(&self) -> DeviceInfo {
//!         let limits = Limits::default();
//!         DeviceInfo { name: "z".into(), kind: "zeroes", size_bytes: 1 << 20, limits }
//!     }
//!     fn open_channel(&self, _: &mut Env, _id: ChannelId) -> Result<Box<dyn Channel>> {
//!         Ok(Box::new(ZeroesChannel))
//!     }
//!     fn extents(&self, offset: u64, length: u64, _max: usize) -> Result<Vec<Extent>> {
//!         Ok(vec![Extent::hole(offset, length)])
//!     }
//!     fn stats(&self) -> stats::DiskStats {
//!         stats::DiskStats::default()
//!     }
//!     fn latencies(&self, _: op::OpGroup) -> histogram::Snapshot {
//!         histogram::Snapshot::default()
//!     }
//!     fn attribute(&self, _name: &str) -> Option<String> {
//!         None
//!     }
//!     fn set_attribute(&self, _name: &str, _value: &str) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let device: Arc<dyn Device> = Arc::new(Zeroes);
//! let mut context = ContextSet::new(clock::SystemClock::new()).open(ring::Engine::Auto)?;
//! let channel = context.open(&device)?;
//!
//! let (mut bios, mut done) = (BioList::new(), BioList::new());
//! bios.push(Bio::read(Sector(8), IoBuf::from_slice(&[7; 4096])));
//! context.submit(channel, &mut bios);
//! while context.reap(&mut done) == 0 {
//!     context.wait(None);
//! }
//! let bio = done.pop().expect("one was reaped");
//! assert!(bio.status.is_ok());
//! assert_eq!(bio.buf().map(|buf| buf[0]), Some(0));
//! # Ok(())
//! # }
//! ```
#![warn(unsafe_op_in_unsafe_fn)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

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
pub mod pipe;
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
pub use context::{Context, ContextSet, Env};
pub use device::{Channel, Device, DeviceInfo};
pub use error::{Error, Result};
pub use extent::Extent;
pub use heap::trim_heap;
pub use holders::{Holder, Holders};
pub use limits::Limits;
pub use list::BioList;
pub use op::{BioFlags, Op, Priority, PriorityClass};
pub use pipe::Pipe;
pub use port::{Port, Ports};
pub use published::{Published, Subscription};
pub use shared_list::SharedBioList;
pub use slab::Slab;
pub use status::Status;
pub use units::{ChannelId, ContextId, PortId, SECTOR_SHIFT, SECTOR_SIZE, Sector};
