//! The hold of a simulator on the code: the points *inside* a call at which another context
//! may go on.
//!
//! In a product build all of this is nothing: [`step`] and `spin` are empty, [`broken`] is `false`
//! for the compiler already. A build with `--cfg drystone_sim` has a point before every operation
//! on an atomic of [`crate::primitive`] and around every lock of [`crate::sync`]: so at every
//! publication, every lock that is tried, every read of a list that others fill, every wake-up
//! and every read of a published table or group. Others see the effects of the code between two
//! points at once or not at all; the order in which the processor shows stores to others is the
//! model checker's concern, not this one's.
//!
//! Invariants:
//! * A thread that has no `Hook` passes all points without a stop.
//! * A hook returns to the same call on the same thread; meanwhile others may have run there, on
//!   stacks of their own. So nothing that is held across a point may be taken by waiting for the
//!   thread: locks wait by `spin`.

#[cfg(drystone_sim)]
pub(crate) mod atomic;
#[cfg(drystone_sim)]
mod points;

#[cfg(drystone_sim)]
pub use points::{Hook, Point, broken, set_broken, set_hook, spin, step, stop_after};

/// True in builds that have the points.
pub const HAS_POINTS: bool = cfg!(drystone_sim);

/// True if the model checker's builds must make a mistake (the environment variable
/// `DRYSTONE_MUTATE` names it). `false` in a product build.
#[macro_export]
macro_rules! mutated {
    ($name:tt) => {
        $crate::sim::mutated($name)
    };
}

/// True if a mistake must be made: as [`mutated!`], and by simulations by that name ([`broken`]).
/// `false` in a product build.
#[macro_export]
macro_rules! mistake {
    ($name:tt) => {
        $crate::mutated!($name) || $crate::sim::broken($name)
    };
}

/// The question of [`mutated!`].
#[cfg(not(loom))]
#[inline(always)]
pub const fn mutated(_name: &str) -> bool {
    false
}

/// The question of [`mutated!`].
#[cfg(loom)]
pub fn mutated(name: &str) -> bool {
    static WANTED: std::sync::OnceLock<String> = std::sync::OnceLock::new();
    let wanted = WANTED.get_or_init(|| std::env::var("DRYSTONE_MUTATE").unwrap_or_default());
    wanted == name
}

/// A point at which another context may go on. Nothing in this build.
#[cfg(not(drystone_sim))]
#[inline(always)]
pub fn step() {}

/// True if the mistake of that name must be made, for the proof that the simulator finds it. Never
/// in this build.
#[cfg(not(drystone_sim))]
#[inline(always)]
pub const fn broken(_name: &str) -> bool {
    false
}
