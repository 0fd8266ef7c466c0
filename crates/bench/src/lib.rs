//! The engine of measurements: [`Lane`]s, one on each thread, keep I/O in flight in the manner of
//! fio's t/io_uring and count what that takes; a [`Crew`] starts them and leads them through the
//! phases of a run. `drystone bench` and the experiments of `drystone-lab` use it.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use drystone_bench::{Pattern, Shared, Work, phase};
//! use drystone_core::clock::SystemClock;
//! use drystone_core::context::PollMode;
//! use drystone_core::ring::Engine;
//! use drystone_core::sync::LockCounters;
//! use drystone_core::{ContextSet, Device, Priority};
//! use drystone_drivers::null::{Null, NullOptions};
//! use drystone_queue::RequestQueue;
//! use drystone_queue::queue::QueueOptions;
//!
//! let clock = SystemClock::new();
//! let null = Null::new(NullOptions { size_bytes: 1 << 20, ..NullOptions::default() })?;
//! let locks = LockCounters::new(clock.clone());
//! let queue = RequestQueue::new("null", null, &QueueOptions::default(), locks)?;
//! let device: Arc<dyn Device> = Arc::new(queue);
//! let mut context = ContextSet::new(clock).open(Engine::Auto)?;
//! let index = context.open(&device)?;
//! let work = Work {
//!     depth: 4,
//!     batch: 1,
//!     batch_complete: 1,
//!     bs: 4096,
//!     pattern: Pattern::Randread,
//!     mode: PollMode::Interrupt,
//!     cookies: false,
//!     interval_ns: 0,
//!     priority: Priority::default(),
//!     groups: Vec::new(),
//!     blocks: (0, 256),
//!     seed: 1,
//! };
//! let shared = Shared::new(1, || 0);
//! let (_, completed) =
//!     drystone_bench::run(vec![(context, index)], &[work], &shared, &[], |crew| {
//!         crew.enter(phase::MEASURE);
//!         while crew.progress().completed == 0 {
//!             crew.pause(Instant::now() + Duration::from_millis(1))?;
//!         }
//!         Ok(crew.progress().completed)
//!     })?;
//! println!("{completed} I/Os");
//! # Ok::<(), anyhow::Error>(())
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

mod cookies;
mod crew;
mod lane;
pub mod machine;
mod stop;

pub use cookies::Paths;
pub use crew::{Crew, Sum, run};
pub use lane::{Counts, Lane, Progress, Shared, Work, failure, phase};
pub use stop::Stop;

/// The pattern of a measurement's I/Os.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Reads all over the device.
    Randread,
    /// Writes all over the device.
    Randwrite,
}
