//! The options for opening an array.

use super::event::ArrayEvent;
use std::sync::Arc;

/// How an array is used.
#[derive(Clone)]
pub struct ArrayOptions {
    /// Name in the stack.
    pub name: String,
    /// Write nothing, not even to members.
    pub read_only: bool,
    /// Stripes of the cache.
    pub cache_stripes: u32,
    /// Start although members are missing that the superblocks count on (mdadm's `--run`).
    pub run: bool,
    /// Start although data may be lost.
    pub force: bool,
    /// Seconds since 1970.
    pub wall_clock: WallClock,
    /// Receives the events that an operator should know of.
    pub event_sink: EventSink,
}

/// A function that returns the seconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Receives an event. The thread that opens the array or the manager's thread calls it, and waits
/// until it returns.
pub type EventSink = Arc<dyn Fn(ArrayEvent) + Send + Sync>;

/// The default number of stripes in the cache; each has 4 KiB of each member.
pub const CACHE_STRIPES_DEFAULT: u32 = 1024;
