//! The options for opening an array.

use super::event::ArrayEvent;
use std::sync::Arc;

/// The use of an array.
#[derive(Clone)]
pub struct ArrayOptions {
    /// Name in the stack.
    pub name: String,
    /// Write nothing, to members neither.
    pub read_only: bool,
    /// Stripes of the cache.
    pub cache_stripes: u32,
    /// Start though members are not there on which the superblocks count (mdadm's `--run`).
    pub run: bool,
    /// Start though something may be lost.
    pub force: bool,
    /// Seconds since 1970.
    pub wall_clock: WallClock,
    /// Hears what people should know of the array.
    pub event_sink: EventSink,
}

/// Tells seconds since 1970.
pub type WallClock = Arc<dyn Fn() -> u64 + Send + Sync>;

/// Hears of an event, from the thread that opens the array and from the manager's, which wait until
/// it returns.
pub type EventSink = Arc<dyn Fn(ArrayEvent) + Send + Sync>;

/// Stripes of the cache where nothing else is asked for: 4 KiB of each member each.
pub const CACHE_STRIPES_DEFAULT: u32 = 1024;
