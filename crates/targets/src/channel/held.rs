//! Bios that came while the volume was suspended.
//!
//! Invariants:
//! * The bios are held in their order of arrival.
//! * Each bio has its submission time, so the time until the resume counts in its latency.

use drystone_core::clock::Ns;
use drystone_core::{BioFlags, BioList, Env, Status};

/// See the module's text.
#[derive(Default)]
pub(super) struct HeldBios(BioList);

impl HeldBios {
    /// Hold `bios`, which came at `now`, and empty the list. Bios that must not wait end.
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

    /// Take all held bios in their order.
    pub(super) fn take(&mut self) -> BioList {
        self.0.take()
    }

    /// The number of held bios.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// End all held bios.
    pub(super) fn cancel(&mut self, env: &mut Env) {
        while let Some(bio) = self.0.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}
