//! The one place where atomics come from, so that the model checker runs the shipped code:
//! under `--cfg loom` these are loom's, for the simulator (`--cfg drystone_sim`) they have a point
//! before each operation ([`crate::sim`]), otherwise they are the standard library's.
//!
//! The two barriers are the halves of an asymmetric fence: the side that passes often pays
//! nothing but the compiler's ordering, the side that passes seldom interrupts every core that
//! runs a thread of this process (`membarrier(2)`, private expedited). Where the kernel has no
//! membarrier, and under loom, both are full fences.

#![allow(unsafe_code, reason = "membarrier is a system call without a safe wrapper")]

#[cfg(all(drystone_sim, not(loom)))]
pub use crate::sim::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(loom)]
pub use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
/// Counted references are the standard library's in both: their order is not what is checked,
/// and messages in them pass through interfaces that are not.
pub use std::sync::Arc;
#[cfg(not(any(loom, drystone_sim)))]
pub use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
pub use std::sync::atomic::{Ordering, fence};

/// Which kind of asymmetric fence this process can use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// `membarrier` is registered: the light side is free.
    Asymmetric,
    /// Both sides are full fences.
    Full,
    /// The light side is none, and nobody passes the heavy side: models of what does without both.
    #[cfg(loom)]
    None,
}

impl Barriers {
    /// Register with the kernel, once a process; every later call gives the same answer.
    #[cfg(not(loom))]
    pub fn detect() -> Barriers {
        static KIND: std::sync::OnceLock<Barriers> = std::sync::OnceLock::new();
        // In a simulation all contexts are one thread.
        let wanted = !crate::sim::HAS_POINTS;
        *KIND.get_or_init(|| match wanted && membarrier(REGISTER_PRIVATE_EXPEDITED) {
            true => Barriers::Asymmetric,
            false => Barriers::Full,
        })
    }

    /// Under the model checker both sides are full fences.
    #[cfg(loom)]
    pub fn detect() -> Barriers {
        Barriers::Full
    }

    /// The frequent side: orders earlier stores before later loads against [`Barriers::heavy`].
    #[inline(always)]
    pub fn light(self) {
        if crate::mutated!("gate_light_fence") {
            return;
        }
        match self {
            #[cfg(not(loom))]
            Barriers::Asymmetric => std::sync::atomic::compiler_fence(Ordering::SeqCst),
            #[cfg(loom)]
            Barriers::None => {}
            _ => fence(Ordering::SeqCst),
        }
    }

    /// The rare side.
    pub fn heavy(self) {
        if crate::mutated!("gate_heavy_fence") {
            return;
        }
        #[cfg(not(loom))]
        if self == Barriers::Asymmetric {
            let done = membarrier(PRIVATE_EXPEDITED);
            assert!(done, "membarrier worked when it was registered");
        }
        fence(Ordering::SeqCst);
    }
}

#[cfg(not(loom))]
const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
#[cfg(not(loom))]
const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

#[cfg(not(loom))]
fn membarrier(command: libc::c_int) -> bool {
    // Miri does not have it.
    if cfg!(miri) {
        return false;
    }
    // SAFETY: membarrier takes no pointers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
