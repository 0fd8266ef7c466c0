//! The request queue of a leaf device: plug, merging, splitting, tags, schedulers, the flush
//! machine, time-outs and statistics, between bios above and a driver below.
//!
//! The order is that of Linux's blk-mq. A bio is checked, split to the device's limits, and merged
//! with bios in the plug or scheduler; then it gets a tag, becomes a request and goes to the
//! driver. A [`channel::RequestChannel`] does this for one context. Contexts share a tag set for
//! each hardware queue, and a configuration of which each keeps a copy.
//!
//! # Example
//!
//! The driver of a device of zeroes, behind a request queue:
//!
//! ```
//! use drystone_core::clock::SystemClock;
//! use drystone_core::ring::{Engine, RingEvent};
//! use drystone_core::sync::LockCounters;
//! use drystone_core::{Bio, BioList, ChannelId, ContextSet, Device, Env, Extent, IoBuf, Limits};
//! use drystone_core::{Result, Sector, Status};
//! use drystone_queue::queue::QueueOptions;
//! use drystone_queue::{Driver, DriverQueue, HwQueues, Issue, Request, RequestQueue, Slots};
//! use std::sync::Arc;
//!
//! struct Zeroes;
//!
//! impl Driver for Zeroes {
//!     type Queue = ZeroesQueue;
//!
//!     fn kind(&self) -> &'static str {
//!         "zeroes"
//!     }
//!     fn size_bytes(&self) -> u64 {
//!         1 << 20
//!     }
//!     fn limits(&self) -> Limits {
//!         Limits::default()
//!     }
//!     fn hw_queues(&self) -> HwQueues {
//!         HwQueues { default: 1, poll: 0, depth: 64 }
//!     }
//!     fn open_queue(&self, _: &mut Env, _: ChannelId, _: u32) -> Result<ZeroesQueue> {
//!         Ok(ZeroesQueue)
//!     }
//!     fn extents(&self, offset: u64, length: u64, _: usize) -> Result<Vec<Extent>> {
//!         Ok(vec![Extent::data(offset, length)])
//!     }
//! }
//!
//! struct ZeroesQueue;
//!
//! impl DriverQueue for ZeroesQueue {
//!     /// Done in the call; the buffers are zeroed already.
//!     fn queue_rq(&mut self, _: &mut Env, _: &mut Request) -> Issue {
//!         Issue::Done(Status::Ok)
//!     }
//!     fn ring_event(&mut self, _: &mut Env, _: RingEvent, _: &mut Slots, _: &mut Vec<u32>) {}
//! }
//!
//! # fn main() -> Result<()> {
//! let clock = SystemClock::new();
//! let locks = LockCounters::new(clock.clone());
//! let queue = RequestQueue::new("d0", Zeroes, &QueueOptions::default(), locks)?;
//! let device: Arc<dyn Device> = Arc::new(queue);
//!
//! let mut context = ContextSet::new(clock).open(Engine::Auto)?;
//! let channel = context.open(&device)?;
//! let mut bios = BioList::new();
//! bios.push(Bio::read(Sector(0), IoBuf::zeroed(4096)));
//! bios.push(Bio::read(Sector(8), IoBuf::zeroed(4096))); // Merges with the one before.
//! context.submit(channel, &mut bios);
//! assert_eq!(context.reap(&mut bios), 2);
//! assert!(bios.iter().all(|bio| bio.status == Status::Ok));
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod channel;
mod clock_use;
pub mod config;
pub mod driver;
mod flush;
pub mod queue;
mod queues;
pub mod request;
pub mod scheduler;
mod shared;
pub mod split;
pub mod tags;
#[cfg(all(test, not(loom)))]
mod tests;
pub mod unit;

pub use clock_use::ClockUse;
pub use driver::{Driver, DriverQueue, HwQueues, INLINE_BYTES_MAX, Issue};
pub use queue::RequestQueue;
pub use queues::QUEUES_MAX;
pub use request::{Request, Slots};
