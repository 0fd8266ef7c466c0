//! The outcome of a run of one seed.

use crate::counts::Counts;
use crate::schedule::Stuck;
use drystone_core::clock::Ns;

/// A line of a trace: time, fiber, what happened.
pub type Line = (Ns, String, String);

/// The outcome of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Stuck>,
    /// The I/O that failed, if the simulation knows it.
    pub culprit: Option<u64>,
    /// Counts of what happened.
    pub counts: Counts,
    /// A hash of all events: identical runs have the same digest.
    pub digest: u64,
    /// I/Os begun.
    pub ios: u64,
    /// Contexts at a time.
    pub contexts: u64,
    /// Simulated time.
    pub simulated_ns: Ns,
    /// Time, fiber and event, if a trace was wanted.
    pub trace: Vec<Line>,
    /// The stack file.
    pub stack: String,
}
