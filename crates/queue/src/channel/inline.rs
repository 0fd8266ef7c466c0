//! Inline completion: null and RAM devices complete a bio in the submit call. An ordinary read or
//! write that cannot merge with the next bio needs no request.
//!
//! Invariants:
//! * A bio is checked, counted and ended here exactly as its request would be, while the channel
//!   has a spare tag. The tag stays spare, because nothing is in flight afterwards.
//! * Bios keep their order: all bios behind one that needs a request get requests too.

use super::RequestChannel;
use super::in_flight::InlineRun;
use crate::driver::{Driver, DriverQueue};
use crate::scheduler::Scheduler;
use drystone_core::clock::Ns;
use drystone_core::{Bio, BioList, Env};

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
        while let Some(first) = bios.front() {
            let run = match first.is_submitters() {
                true => self.take_inline::<true>(env, bios, submitted),
                false => self.take_inline::<false>(env, bios, submitted),
            };
            let Some(run) = run else { return };
            self.end_inline_run(env, run);
        }
    }

    /// Complete and take the first of `bios`, up to one with another operation, start or end
    /// ([`Bio::is_submitters`]), since they are counted and end together. A bio stays if it needs
    /// more checks, or may merge with the next one. `None` if none was taken.
    #[inline(always)]
    fn take_inline<const SUBMITTERS: bool>(
        &mut self,
        env: &mut Env,
        bios: &mut BioList,
        submitted: Option<Ns>,
    ) -> Option<Run> {
        let (ordinary, merges) = (self.setup.ordinary(), self.setup.config().nomerges < 2);
        let first = bios.front().filter(|first| ordinary.allows(first.op))?;
        let op = first.op;
        let start_ns = submitted.map_or(first.start_ns, |now| S::CLOCK.start(env, now));
        let (driver, mut bytes, mut is_full) = (self.setup.driver(), 0, false);
        let bios = bios.take_while_next(|bio, next| {
            let joins = bio.op == op
                && bio.is_submitters() == SUBMITTERS
                && (submitted.is_some() || bio.start_ns == start_ns);
            if is_full || !joins || !ordinary.has_range_of(bio) {
                return false;
            }
            if next.is_some_and(|next| adjoins(bio, next)) && merges && !has_pipe(bio, next) {
                return false;
            }
            let Some(status) = driver.do_bio(env, bio) else { return false };
            (bio.start_ns, bio.status) = (start_ns, status);
            bytes += bio.bytes;
            is_full = S::CLOCK.reads_each_end();
            true
        });
        let counts = InlineRun { group: op.group(), start_ns, count: bios.len() as u64, bytes };
        (!bios.is_empty()).then_some(Run { bios, is_submitters: SUBMITTERS, counts })
    }

    /// Count and end bios that completed inline.
    #[inline(always)]
    fn end_inline_run(&mut self, env: &mut Env, mut run: Run) {
        match S::CLOCK.reads_each_end() {
            false => self.count_inline(env, run.counts),
            true => self.count_alone(env, &run.counts),
        }
        if run.is_submitters {
            return env.end_submitters(&mut run.bios);
        }
        while let Some(bio) = run.bios.pop() {
            env.end_bio(bio);
        }
    }
}

/// Bios that completed inline, and that are counted and end together.
struct Run {
    bios: BioList,
    /// [`Bio::is_submitters`] of each.
    is_submitters: bool,
    counts: InlineRun,
}

/// True if one of them came with a pipe, so that they do not merge.
#[cold]
fn has_pipe(bio: &Bio, next: Option<&Bio>) -> bool {
    bio.has_pipe() || next.is_some_and(Bio::has_pipe)
}

#[inline(always)]
fn adjoins(a: &Bio, b: &Bio) -> bool {
    a.end_sector() == b.sector || b.end_sector() == a.sector
}
