//! Leaf devices: where requests end.
//!
//! | driver   | what it is                                                     |
//! |----------|----------------------------------------------------------------|
//! | [`null`] | no data, a latency model; Linux's null_blk                     |
//! | [`ram`]  | sparse memory                                                  |
//! | [`mod@file`] | a file or block device, on the context's ring                  |
//!
//! # Example
//!
//! A device in memory, behind a request queue:
//!
//! ```
//! use drystone_core::clock::SystemClock;
//! use drystone_core::ring::Engine;
//! use drystone_core::sync::LockCounters;
//! use drystone_core::{Bio, BioList, ContextSet, Device, IoBuf, Result, Sector, Status};
//! use drystone_drivers::ram::Ram;
//! use drystone_queue::RequestQueue;
//! use drystone_queue::queue::QueueOptions;
//! use std::sync::Arc;
//!
//! # fn main() -> Result<()> {
//! let clock = SystemClock::new();
//! let locks = LockCounters::new(clock.clone());
//! let can_discard = true;
//! let ram = Ram::new(1 << 20, can_discard)?;
//! let queue = RequestQueue::new("ram0", ram, &QueueOptions::default(), locks)?;
//! let device: Arc<dyn Device> = Arc::new(queue);
//!
//! let mut context = ContextSet::new(clock).open(Engine::Auto)?;
//! let channel = context.open(&device)?;
//! for bio in [
//!     Bio::write(Sector(8), IoBuf::from_slice(&[7; 512])),
//!     Bio::read(Sector(8), IoBuf::zeroed(512)),
//! ] {
//!     let mut bios = BioList::new();
//!     bios.push(bio);
//!     context.submit(channel, &mut bios);
//!     while context.reap(&mut bios) == 0 {
//!         context.wait(None);
//!     }
//!     let bio = bios.pop().expect("it has ended");
//!     assert_eq!(bio.status, Status::Ok);
//!     assert_eq!(bio.buf().expect("its buffer")[..], [7; 512]);
//! }
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests have clocks, locks and threads of their own"
    )
)]

pub mod file;
pub mod null;
pub mod ram;
#[cfg(all(test, not(loom)))]
mod testing;
