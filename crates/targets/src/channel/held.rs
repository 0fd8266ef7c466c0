//! Bios that came while the volume was suspended.
//!
//! Invariants:
//! * They are held in the order in which they came.
//! * Each has the time at which it was submitted: the time until the resume counts.

use drystone_core::clock::Ns;
use drystone_core::{BioFlags, BioList, Env, Status};

/// See the module's text.
#[derive(Default)]
pub(super) struct HeldBios(BioList);

impl HeldBios {
    /// Hold `bios` (emptied), which came at `now`. Those that must not wait end.
    #[cold]
    pub(super) fn hold(&mut self, env: &mut Env, bios: &mut BioList, now: Ns) {
        while let Some(mut bio) = bios.pop() {
            if bio.flags.contains(BioFlags::NOWAIT) {
                env.end_with(bio, Status::Again);
                continue;
            }
            bio.stamp(now);
            self.0.push(bio);
        }
    }

    /// Take all of them, in their order.
    pub(super) fn take(&mut self) -> BioList {
        self.0.take()
    }

    /// Their number.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// End all of them.
    pub(super) fn cancel(&mut self, env: &mut Env) {
        while let Some(bio) = self.0.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}
