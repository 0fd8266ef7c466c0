//! Blocks that go to the same member side by side, as one bio (a *run*).
//!
//! Invariant: a run is known by number from when its bio is made until that has come back; the bio
//! has the blocks meanwhile, in the order of the run's stripes.

use super::member_io::{MemberIo, Run};
use super::{Shard, TurnEffects};
use crate::engine::conf::Member;
use crate::engine::stripe::Stripe;
use crate::engine::turn::{Fault, Report, TurnInput};
use crate::ids::{MemberNumber, Role};
use crate::layout::STRIPE_SECTORS;
use drystone_core::{Bio, BioFlags, IoBuf, Op, Sector, Status};

/// Most blocks of a run: as many as a request has segments by default.
const RUN_BLOCKS_MAX: usize = 128;

impl Stripe {
    /// A copy for a role's replacement. The block itself may be on its way to the member if the
    /// copy has been sent before.
    fn copy_of(&mut self, role: Role) -> IoBuf {
        match self.copies.iter().position(|(of, _)| *of == role) {
            Some(at) => self.copies.swap_remove(at).1,
            None => IoBuf::from_slice(self.block(role)),
        }
    }
}

impl Shard {
    /// Something is being written to device `number`, or to any.
    pub(crate) fn writes_to(&self, number: Option<MemberNumber>) -> bool {
        let is_to = |run: &Run| run.first.is_write && number.is_none_or(|n| n == run.number);
        self.runs.iter().any(|(_, run)| is_to(run))
    }

    /// Make bios of all that is to be read and written, and hand each to `send` with the role that
    /// it is for, and whether it is for that role's replacement. Their `user_data` is the number of
    /// their run.
    pub(crate) fn make_runs(
        &mut self,
        turn: &TurnInput<'_>,
        out: &mut TurnEffects,
        mut send: impl FnMut(Role, bool, Box<Bio>),
    ) {
        // Copies for replacements before what they are copies of.
        let order = |io: &MemberIo| (!io.is_copy, io.kind(), io.sector);
        out.io.sort_unstable_by_key(order);
        let mut left = &out.io[..];
        while let Some(first) = left.first() {
            let pairs = left.windows(2).take(RUN_BLOCKS_MAX - 1);
            let len = 1 + pairs.take_while(|pair| pair[1].follows(&pair[0])).count();
            let (run, rest) = left.split_at(len);
            left = rest;
            let member = turn.conf.member(first.role, first.is_replacement);
            let member = member.expect("it was there a moment ago");
            let bio = self.make_run(run, member);
            send(first.role, first.is_replacement, bio);
        }
        out.io.clear();
    }

    fn make_run(&mut self, ios: &[MemberIo], member: &Member) -> Box<Bio> {
        let mut bufs = std::mem::take(&mut self.makings.bufs);
        for io in ios {
            let stripe = &mut self.stripes[io.stripe.index()];
            bufs.push(match io.is_copy {
                true => stripe.copy_of(io.role),
                false => stripe.blocks[io.role.index()].take().expect("it is in the cache"),
            });
        }
        let mut bio = self.makings.bio();
        bio.set_bufs(&mut bufs);
        self.makings.bufs = bufs;
        let mut stripes = self.makings.stripes.pop().unwrap_or_default();
        stripes.extend(ios.iter().map(|io| io.stripe));
        let first = ios[0];
        bio.op = if first.is_write { Op::Write } else { Op::Read };
        bio.sector = Sector(member.data_offset + first.sector);
        bio.flags = first.flags;
        // The member's queue does not put them together again.
        bio.flags.set(BioFlags::NOMERGE, first.is_alone);
        bio.user_data = self.runs.insert(Run { first, number: member.number, stripes }).into();
        bio
    }

    /// A run has come back.
    pub(crate) fn run_ended(
        &mut self,
        turn: &TurnInput<'_>,
        mut bio: Box<Bio>,
        out: &mut TurnEffects,
    ) {
        let Some(run) = self.runs.remove(bio.user_data as u32) else {
            debug_assert!(false, "a run ends once");
            return;
        };
        let status = bio.status;
        let is_ok = status.is_ok();
        // A replacement may have become the member meanwhile.
        let as_replacement = turn.conf.is_replacement_at(run.first.role, run.number);
        let member = as_replacement
            .and_then(|is_replacement| turn.conf.member(run.first.role, is_replacement));
        let is_there = member.is_some();
        // It never came to the member: its context was dropped.
        let is_cancelled = bio.status == Status::Cancelled && is_there;
        let is_to_be_split = !is_ok && is_there && run.stripes.len() > 1;
        if status == Status::Offline && is_there {
            let (number, sector, fault) = (run.number, run.first.sector, Fault::Gone);
            out.reports.push(Report { number, sector, fault });
        }
        let sectors = (run.first.sector..).step_by(STRIPE_SECTORS as usize);
        for ((id, mut block), sector) in run.stripes.iter().zip(bio.take_bufs()).zip(sectors) {
            let is_replacement = as_replacement.unwrap_or(run.first.is_replacement);
            let io = MemberIo { stripe: *id, sector, is_replacement, ..run.first };
            // The device that has the number and the role by now may not have the block.
            let has_block = io.is_write || turn.conf.readable(sector).has(io.role);
            if (is_to_be_split || is_cancelled) && has_block {
                // Which of the blocks it was is not known: each is tried by itself.
                let stripe = &mut self.stripes[id.index()];
                match io.is_copy {
                    false => stripe.blocks[io.role.index()] = Some(block),
                    true => stripe.copies.push((io.role, block)),
                }
                out.io.push(MemberIo { is_alone: !is_cancelled, ..io });
            } else {
                let patch = member.filter(|_| !io.is_write).and_then(|m| m.patch(sector));
                patch.into_iter().for_each(|patch| block.copy_from_slice(patch));
                let status = if patch.is_some() { Status::Ok } else { status };
                if is_ok && io.is_write && member.is_some_and(|member| member.is_bad_at(sector)) {
                    let (number, fault) = (run.number, Fault::MadeGood);
                    out.reports.push(Report { number, sector, fault });
                }
                self.io_ended(*id, &io, run.number, block, status);
            }
        }
        self.makings.keep(bio, run);
    }
}
