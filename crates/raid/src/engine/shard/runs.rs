//! Runs: adjacent blocks of one member that travel as one bio.
//!
//! Invariants:
//! * A run has a number from the time its bio is made until the bio has come back. The bio owns the
//!   blocks meanwhile, in the order of the run's stripes.
//! * All blocks of a run have the same member, direction and flags.
//! * The run of a row write has no stripes of its own: `row` names the write, which has them.
//! * A bio that is kept has no buffers, and a list that is kept is empty.

use super::cache::StripeCache;
use super::member_io::MemberIo;
use super::rows::RowId;
use crate::engine::conf::Member;
use crate::engine::turn::TurnInput;
use crate::ids::{MemberNumber, Role, StripeId};
use drystone_core::{Bio, BioFlags, BioList, IoBuf, Op, Sector, Slab};

/// The most blocks of a run: as many as a request has segments by default.
const RUN_BLOCKS_MAX: usize = 128;

/// The most idle boxes that a shard keeps.
const BIOS_KEPT: usize = 256;

/// The blocks that travel in one bio.
pub(super) struct Run {
    pub(super) first: MemberIo,
    /// md's number of the device.
    pub(super) number: MemberNumber,
    pub(super) stripes: Vec<StripeId>,
    /// The row write that the bio is a part of.
    pub(super) row: Option<RowId>,
}

/// See the module's text. The shard keeps memory for bios from turn to turn, because all of its
/// runs come back to it, whichever context brings them.
#[derive(Default)]
pub(super) struct Runs {
    runs: Slab<Run>,
    /// Idle boxes.
    bios: BioList,
    lists: Vec<Vec<StripeId>>,
    bufs: Vec<IoBuf>,
}

impl Runs {
    /// A write to device `number`, or to any device if `None`, is in flight.
    pub(super) fn has_writes_to(&self, number: Option<MemberNumber>) -> bool {
        let is_to = |run: &Run| run.first.is_write && number.is_none_or(|n| n == run.number);
        self.runs.iter().any(|(_, run)| is_to(run))
    }

    /// Make bios of all of `ios`, which is emptied. Hand each bio to `send` with its role, and
    /// whether it is for the replacement of that role. The `user_data` of each bio is the number of
    /// its run.
    pub(super) fn make(
        &mut self,
        turn: &TurnInput<'_>,
        stripes: &mut StripeCache,
        ios: &mut Vec<MemberIo>,
        mut send: impl FnMut(Role, bool, Box<Bio>),
    ) {
        // Copies for replacements are made first, before the bios take the blocks themselves.
        let order = |io: &MemberIo| (!io.is_copy, io.kind(), io.sector);
        ios.sort_unstable_by_key(order);
        let mut left = &ios[..];
        while let Some(first) = left.first() {
            let pairs = left.windows(2).take(RUN_BLOCKS_MAX - 1);
            let len = 1 + pairs.take_while(|pair| pair[1].follows(&pair[0])).count();
            let (run, rest) = left.split_at(len);
            left = rest;
            let member = turn.conf.member(first.role, first.is_replacement);
            let member = member.expect("it was there a moment ago");
            let bio = self.make_run(run, member, stripes);
            send(first.role, first.is_replacement, bio);
        }
        ios.clear();
    }

    fn make_run(
        &mut self,
        ios: &[MemberIo],
        member: &Member,
        stripes: &mut StripeCache,
    ) -> Box<Bio> {
        for io in ios {
            let stripe = &mut stripes[io.stripe];
            self.bufs.push(match io.is_copy {
                true => stripe.copy_of(io.role),
                false => stripe.blocks[io.role.index()].take().expect("it is in the cache"),
            });
        }
        let mut list = self.lists.pop().unwrap_or_default();
        list.extend(ios.iter().map(|io| io.stripe));
        self.bio_of(Run { first: ios[0], number: member.number, stripes: list, row: None }, member)
    }

    /// Make the bio of a member's part of a row write, with the buffers `bufs`, which is emptied.
    pub(super) fn make_of_row(
        &mut self,
        (row, first): (RowId, MemberIo),
        member: &Member,
        bufs: &mut Vec<IoBuf>,
    ) -> Box<Bio> {
        std::mem::swap(&mut self.bufs, bufs);
        let stripes = self.lists.pop().unwrap_or_default();
        self.bio_of(Run { first, number: member.number, stripes, row: Some(row) }, member)
    }

    /// The bio of a run, with the buffers `bufs`.
    fn bio_of(&mut self, run: Run, member: &Member) -> Box<Bio> {
        let mut bio = self.bios.pop().unwrap_or_else(Bio::flush);
        bio.set_bufs(&mut self.bufs);
        let first = run.first;
        bio.op = if first.is_write { Op::Write } else { Op::Read };
        bio.sector = Sector(member.data_offset + first.sector);
        bio.flags = first.flags;
        // The member's queue must not merge these blocks again.
        bio.flags.set(BioFlags::NOMERGE, first.is_alone);
        bio.user_data = self.runs.insert(run).into();
        bio
    }

    /// Forget the run of a bio that has come back, and return it.
    pub(super) fn end(&mut self, bio: &Bio) -> Option<Run> {
        let run = self.runs.remove(bio.user_data as u32);
        debug_assert!(run.is_some(), "a run ends once");
        run
    }

    /// Keep the memory that a run was made of; its blocks have been taken out of `bio`.
    pub(super) fn keep(&mut self, bio: Box<Bio>, mut run: Run) {
        if self.bios.len() < BIOS_KEPT {
            self.bios.push(bio);
            run.stripes.clear();
            self.lists.push(run.stripes);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{conf, with_turn};
    use super::*;

    fn io(stripe: u32, role: u32, is_write: bool) -> MemberIo {
        let sector = u64::from(stripe) * 8;
        MemberIo { role: Role(role), sector, is_write, ..MemberIo::read(StripeId(stripe)) }
    }

    fn cache(turn: &TurnInput<'_>, stripes: usize) -> StripeCache {
        let mut cache = StripeCache::new();
        cache.resize(turn, stripes);
        cache
    }

    #[test]
    fn neighbours_of_a_member_are_one_bio() {
        with_turn(&conf(3), |turn| {
            let (mut runs, mut stripes) = (Runs::default(), cache(turn, 8));
            let alone = MemberIo { is_alone: true, ..io(3, 0, false) };
            let mut ios =
                vec![io(1, 0, false), io(0, 0, false), io(5, 0, false), io(2, 1, true), alone];
            let mut sent = Vec::new();
            runs.make(turn, &mut stripes, &mut ios, |role, is_replacement, bio| {
                assert!(!is_replacement);
                sent.push((role.0, bio.op, bio.sector.0, bio.bytes));
                assert_eq!(bio.flags.contains(BioFlags::NOMERGE), bio.sector.0 == 16 + 24);
            });
            let expected = [
                (0, Op::Read, 16, 8192),
                (0, Op::Read, 16 + 24, 4096),
                (0, Op::Read, 16 + 40, 4096),
                (1, Op::Write, 16 + 16, 4096),
            ];
            assert_eq!((sent, ios.len()), (expected.to_vec(), 0));
            assert!(stripes[StripeId(0)].blocks[0].is_none(), "the bio has it");
        });
    }

    #[test]
    fn a_run_is_as_long_as_a_request_at_the_most() {
        with_turn(&conf(3), |turn| {
            let (mut runs, mut stripes) = (Runs::default(), cache(turn, 130));
            let mut ios = (0..130).map(|n| io(n, 0, true)).collect();
            let mut blocks = Vec::new();
            runs.make(turn, &mut stripes, &mut ios, |_, _, bio| blocks.push(bio.bytes / 4096));
            assert_eq!(blocks, [128, 2]);
        });
    }

    #[test]
    fn writes_to_a_device_are_known_until_they_end() {
        with_turn(&conf(3), |turn| {
            let (mut runs, mut stripes) = (Runs::default(), cache(turn, 2));
            let mut flight = Vec::new();
            let mut ios = vec![io(0, 0, false), io(0, 1, true)];
            runs.make(turn, &mut stripes, &mut ios, |_, _, bio| flight.push(bio));
            let to = |runs: &Runs, n| runs.has_writes_to(Some(MemberNumber(n)));
            assert_eq!([to(&runs, 0), to(&runs, 1), runs.has_writes_to(None)], [false, true, true]);
            let mut write = flight.pop().unwrap();
            let run = runs.end(&write).unwrap();
            assert_eq!((run.number, &run.stripes[..]), (MemberNumber(1), &[StripeId(0)][..]));
            assert!(!runs.has_writes_to(None));
            assert_eq!(write.take_bufs().count(), 1);
            let memory = &raw const *write;
            runs.keep(write, run);
            ios.push(io(1, 1, true));
            runs.make(turn, &mut stripes, &mut ios, |_, _, bio| {
                assert_eq!((&raw const *bio, bio.bytes), (memory, 4096), "the box is used again");
            });
        });
    }
}
