//! The one step of a waiting spin. The caller counts the whole wait with
//! [`super::LockCounters`].

/// The tries of a wait before it offers its core to others. They take longer than a visit that
/// is not interrupted.
#[cfg(not(any(loom, drystone_sim)))]
const TRIES: u32 = 100;

/// Wait a moment; `tries` counts the moments of one wait.
#[cfg(not(any(loom, drystone_sim)))]
pub(crate) fn pause(tries: &mut u32) {
    *tries += 1;
    if *tries < TRIES { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Fruitless polls after which the core is offered to others once.
#[cfg(not(any(loom, drystone_sim)))]
const POLLS: u32 = 64;

/// Wait between two polls for news that are expected soon; `tries` counts them.
#[cfg(not(any(loom, drystone_sim)))]
pub fn between_polls(tries: &mut u32) {
    *tries += 1;
    if tries.is_multiple_of(POLLS) { std::thread::yield_now() } else { std::hint::spin_loop() }
}

/// Under the model checker: let another thread go on.
#[cfg(loom)]
pub(crate) fn pause(_: &mut u32) {
    loom::thread::yield_now();
}

/// The same.
#[cfg(loom)]
pub fn between_polls(_: &mut u32) {
    loom::thread::yield_now();
}

/// In the simulator: let another context go on.
#[cfg(all(drystone_sim, not(loom)))]
pub(crate) fn pause(tries: &mut u32) {
    *tries += 1;
    crate::sim::spin();
}

/// The same.
#[cfg(all(drystone_sim, not(loom)))]
pub fn between_polls(_: &mut u32) {
    crate::sim::spin();
}
