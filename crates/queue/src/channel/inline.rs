//! Inline completion: null and RAM devices complete a bio in the submit call. An ordinary read or
//! write that cannot merge with the next bio needs no request.
//!
//! Invariants:
//! * A bio is checked, counted and ended here exactly as its request would be, while the channel
//!   has a spare tag. The tag stays spare, because nothing is in flight afterwards.
//! * Bios keep their order: all bios behind one that needs a request get requests too.

use super::RequestChannel;
use crate::driver::{Driver, DriverQueue};
use crate::scheduler::Scheduler;
use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, Env, Status};

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Complete the first of `bios`, up to one for which the driver wants a request. Bios that were
    /// just `submitted` have no time yet.
    #[inline]
    pub(crate) fn complete_inline(
        &mut self,
        env: &mut Env,
        bios: &mut BioList,
        submitted: Option<Ns>,
    ) {
        if !self.setup.completes_inline() || !self.try_reserve(1) {
            return;
        }
        while let Some(mut bio) = bios.pop() {
            if let Some(now) = submitted {
                bio.stamp(S::CLOCK.start(env, now));
            }
            match self.inline_status(env, &bio, bios.front()) {
                Some(status) => {
                    match S::CLOCK.reads_each_end() {
                        false => self.count_inline(env, bio.op.group(), bio.start_ns, bio.bytes),
                        true => self.count_alone(env, bio.op.group(), bio.start_ns, bio.bytes),
                    }
                    env.end_with(bio, status);
                }
                None => return bios.push_front(bio),
            }
        }
    }

    /// Complete `bio` and return its status. `None` if it needs more checks, or may merge with the
    /// next bio.
    #[inline(always)]
    fn inline_status(&mut self, env: &mut Env, bio: &Bio, next: Option<&Bio>) -> Option<Status> {
        let merges =
            next.is_some_and(|next| adjoins(bio, next) && self.setup.config().nomerges < 2);
        if self.setup.is_ordinary(bio) && !merges {
            self.setup.driver().do_bio(env, bio)
        } else {
            None
        }
    }
}

#[inline(always)]
fn adjoins(a: &Bio, b: &Bio) -> bool {
    a.end_sector() == b.sector || b.end_sector() == a.sector
}
