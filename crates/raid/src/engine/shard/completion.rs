//! Ended I/O of members: each block of a run goes back to its stripe, or is sent again.
//!
//! Invariants:
//! * The failure of a run of several blocks does not tell which block failed: each is tried again
//!   alone. A run that was cancelled is sent again with all its blocks. That of a row write is not:
//!   `rows` does the write in another way.
//! * A block is sent again only to a device that may have the block: another device may have got
//!   the same number meanwhile.
//! * The box and the list of a run go back to `runs` once its blocks are taken out; `runs` keeps
//!   some.

use super::Shard;
use super::effects::TurnEffects;
use super::member_io::MemberIo;
use crate::engine::turn::{Fault, Report, TurnInput};
use crate::layout::STRIPE_SECTORS;
use drystone_core::{Bio, Status};

impl Shard {
    /// A run has come back.
    pub(crate) fn run_ended(
        &mut self,
        turn: &TurnInput<'_>,
        mut bio: Box<Bio>,
        out: &mut TurnEffects,
    ) {
        let Some(run) = self.runs.end(&bio) else { return };
        let status = bio.status;
        let is_ok = status.is_ok();
        // The replacement may have become the member meanwhile.
        let as_replacement = turn.conf.is_replacement_at(run.first.role, run.number);
        let member = as_replacement
            .and_then(|is_replacement| turn.conf.member(run.first.role, is_replacement));
        let is_there = member.is_some();
        // The bio did not reach the member, because its context was dropped.
        let is_cancelled = bio.status == Status::Cancelled && is_there;
        let is_to_be_split = !is_ok && is_there && run.stripes.len() > 1;
        if status == Status::Offline && is_there {
            let (number, sector, fault) = (run.number, run.first.sector, Fault::Gone);
            out.reports.push(Report { number, sector, fault });
        }
        if let Some(row) = run.row {
            self.row_bio_ended(turn, row, &mut bio, out);
            return self.runs.keep(bio, run);
        }
        let sectors = (run.first.sector..).step_by(STRIPE_SECTORS as usize);
        for ((id, mut block), sector) in run.stripes.iter().zip(bio.take_bufs()).zip(sectors) {
            let stripe = &mut self.stripes[*id];
            let is_replacement = as_replacement.unwrap_or(run.first.is_replacement);
            let io = MemberIo { stripe: *id, sector, is_replacement, ..run.first };
            // Another device may have the number and the role by now, and may not have the block.
            let has_block = io.is_write || turn.conf.readable(sector).has(io.role);
            if (is_to_be_split || is_cancelled) && has_block {
                // The error does not tell which block failed: each is tried alone.
                match io.is_copy {
                    false => stripe.blocks[io.role.index()] = Some(block),
                    true => stripe.copies.push((io.role, block)),
                }
                out.io.push(MemberIo { is_alone: !is_cancelled, ..io });
                continue;
            }
            let patch = member.filter(|_| !io.is_write).and_then(|m| m.patch(sector));
            patch.into_iter().for_each(|patch| block.copy_from_slice(patch));
            let status = if patch.is_some() { Status::Ok } else { status };
            if is_ok && io.is_write && member.is_some_and(|member| member.is_bad_at(sector)) {
                let (number, fault) = (run.number, Fault::MadeGood);
                out.reports.push(Report { number, sector, fault });
            }
            if stripe.io_ended(&io, run.number, block, status) {
                self.ready.push(*id, stripe);
            }
        }
        self.runs.keep(bio, run);
    }
}
