//! A session of a client: its number, its address, and the promises of the server.

use super::super::run::Run;
use super::super::started::Started;
use super::plan::{ClientMix, ListenerPlan, NbdPlan};
use fastrand::Rng;
use std::rc::Rc;

/// The results of clients' calls.
pub(super) type Result<T> = drystone_testkit::nbd::Result<T>;

/// See the module's text.
pub(super) struct Session {
    pub(super) run: Rc<Run>,
    pub(super) start: Rc<Started>,
    pub(super) rng: Rng,
    /// The client's number.
    pub(super) number: u64,
    /// The address at which it connects.
    pub(super) listener: usize,
    /// True if it negotiated a metadata context for block status.
    pub(super) has_context: bool,
    /// Bytes of the device's blocks when the session began: the server uses these for the whole
    /// session.
    pub(super) block_bytes: u32,
}

impl Session {
    pub(super) fn new(run: Rc<Run>, start: Rc<Started>, number: u64, seed: u64) -> Self {
        let rng = Rng::with_seed(seed);
        Session { run, start, rng, number, listener: 0, has_context: false, block_bytes: 0 }
    }

    pub(super) fn plan(&self) -> &NbdPlan {
        self.run.plan.nbd.as_ref().expect("a plan of what is served")
    }

    pub(super) fn mix(&self) -> &ClientMix {
        &self.plan().mix
    }

    pub(super) fn at(&self) -> &ListenerPlan {
        &self.plan().listeners[self.listener]
    }

    pub(super) fn chance(&mut self, percent: u32) -> bool {
        percent > 0 && self.rng.u32(0..100) < percent
    }

    pub(super) fn count(&self, what: &str) {
        self.run.world.note(|| format!("client {}: {what}", self.number));
        self.run.counts.borrow_mut().add(&format!("nbd: {what}"), 1);
    }

    /// Reports a fault that does not belong to a single I/O.
    pub(super) fn fail(&self, sentence: &str) {
        self.run.world.fail(format!("client {}: {sentence}", self.number));
    }
}
