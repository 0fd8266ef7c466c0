//! Schedulers that Drystone does not have: `mq-deadline` as Linux has it ([`Baseline`]) and as
//! "block/mq-deadline: use separate insertion lists" (Bart Van Assche and Jens Axboe, linux-block,
//! 23 January 2024) makes it ([`Patched`]).
//!
//! [`SharedOnly`] is the product's own without its way for bios that need not meet others'.
//!
//! Both use the product's algorithm (`drystone_queue::scheduler::deadline`), stand behind the
//! product's trait and keep its promise that no request is stranded; they differ from the product
//! in the threads that may use the algorithm, and when. A stack gets one of them by type
//! (`drystone_stack::live::open_with`), so the product has no branch for their sake.

mod baseline;
mod counts;
mod host;
mod patched;
mod queue;
mod shared;

pub use baseline::Baseline;
pub use patched::Patched;
pub use shared::{Clocked, SharedOnly};
