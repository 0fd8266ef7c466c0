//! A simulated disk: it does to its user whatever a disk may do, as a seed decides.
//!
//! ```text
//!   begin(op) --- due time, stall and fate are decided --->  in flight  --- finish(id) ---> result
//!                  |                                             |
//!                  | now and then at once                        | as a rule here
//!                  v                                             v
//!               cached  (what reads see)   <-------------------- effect
//!                  |
//!                  | log of what is not yet durable, in the order of effect
//!                  v
//!               media   (what a power cut leaves, besides luck)
//! ```
//!
//! Promises of an honest disk, and nothing beyond them:
//! * An operation takes effect at one moment between its begin and its finish. A failed write may
//!   have happened, each physical block for itself; it never happens after its finish.
//! * A flush that succeeds makes durable what had *finished* before the flush *began*. An operation
//!   that finished meanwhile may be covered or not. A FUA write is durable when it has finished.
//! * At a power cut each physical block keeps some version between its durable one and its newest,
//!   writes in flight included, whatever its neighbours keep. It is never torn.
//! * A failed flush loses nothing, unless [`Faults::flush_error_drops`] is set.
//!
//! Everything is decided by the seed and by the order of calls: the same calls give the same
//! results. Nothing here is shared; a disk belongs to the one thread of a simulation. Offsets and
//! lengths are bytes and need no alignment; times are simulated nanoseconds.

mod bytes;
mod counts;
mod crash;
mod faults;
mod flight;
mod media;
mod options;
mod perform;
#[cfg(test)]
mod tests;

pub use counts::DiskCounts;
pub(crate) use crash::Luck;
pub use crash::{DiskSnapshot, Images};
pub use faults::Faults;
pub use flight::{Disk, DiskOp, Done, OpId};
pub use options::{DiskOptions, Latency};

/// The operation has to be repeated (`EINTR`): nothing has happened.
pub const EINTR: i64 = 4;
/// The device failed (`EIO`): a write may have happened, each physical block for itself.
pub const EIO: i64 = 5;
/// The operation has to be repeated later (`EAGAIN`): nothing has happened.
pub const EAGAIN: i64 = 11;
/// There is no device (`ENODEV`).
pub const ENODEV: i64 = 19;
/// No space is left (`ENOSPC`): nothing has happened.
pub const ENOSPC: i64 = 28;

/// The unit of allocation in bytes: that of the common file systems.
pub const UNIT: u64 = 4096;

/// Bytes of a sector, the unit of [`Faults::bad_reads`] and [`Faults::bad_writes`].
pub const SECTOR: u64 = 512;
