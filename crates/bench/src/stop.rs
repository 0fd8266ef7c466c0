//! The wish to end a measurement early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The request to end a measurement with the figures it has. Clones are the same; any thread may
/// use them.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks to end after the run that is under way.
    pub fn ask(&self) {
        self.0.store(true, Relaxed);
    }

    /// True if the end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// The flag that a signal handler sets.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_sees_what_was_asked() {
        let stop = Stop::default();
        let clone = stop.clone();
        assert!(!clone.is_asked());
        stop.flag().store(true, Relaxed);
        assert!(clone.is_asked());
    }
}
