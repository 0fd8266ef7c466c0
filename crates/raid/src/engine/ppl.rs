//! The partial parity log as contexts write it (`raid5-ppl.c`). Before a stripe's blocks go to the
//! members, its partial parity goes to the log of the member that holds the stripe's parity. The
//! partial parity is the parity of the data blocks that the write does not change.
//!
//! ```text
//! stripes, parity computed --tickets--> queue -> log write -> back to the shards: member writes
//!                                         ^                                           |
//!                                         '------- flushes <- tickets, all done ------'
//! ```
//!
//! Each member has one log, with a turn of its own as shards have. A *ticket* is a stripe's place
//! in the log. The ticket is a bio that goes to the log and back twice; on its first way it carries
//! the partial parity.
//!
//! Invariants:
//! * At most one log write is in flight for a member. The next one begins only after all stripes of
//!   the previous one are done and their blocks are durable on the members. So only the newest
//!   header of a member's log matters.
//! * A header is written at the start of the area, over the previous one, with a higher generation
//!   than any other header in the area. This is right for areas with one header and for rings of
//!   several.
//! * A stripe goes on only after its log is durable, or after the member is on record as failed.
//! * A device is left out of the flushes (Linux: `wb_cache_on`), and its log write begins without
//!   FUA, only while the device itself says that it has no volatile cache
//!   ([`drystone_core::Device::has_volatile_cache`]). If an operator changes that, log writes that
//!   have begun stay as they are, as all other writes do.

use super::conf::{LogArea, Member, PplConf};
use super::turn::{Fault, Report, TurnInput};
use crate::ids::{MemberNumber, Role, StripeId};
use crate::layout::{BLOCK_BYTES, Layout};
use crate::metadata::ppl::{HEADER_BYTES, PplBuilder, StripeWrite};
use crossbeam_queue::ArrayQueue;
use drystone_core::{Bio, BioFlags, BioList, IoBuf, Op, PortId, Sector, Status};
use std::ops::Range;
use std::sync::Arc;

/// A ticket's stripe is done.
const DONE: u64 = 1 << 63;

/// Bytes of a ticket's buffer: room for a header, and the partial parity behind it. So the log
/// write of a single stripe is one piece of memory.
const BUF_BYTES: usize = HEADER_BYTES + BLOCK_BYTES;

/// Spare tickets: tickets of stripes that are done, kept for use again with their memory.
///
/// A channel keeps a few. The others go to `common`, for channels that have none: one channel makes
/// a ticket, and another one may end it.
pub(crate) struct Spares {
    own: Vec<Ticket>,
    common: Arc<CommonSpares>,
}

/// The spare tickets that the channels of an array share.
pub(crate) type CommonSpares = ArrayQueue<Ticket>;

/// Most bios that a channel keeps for its logs.
const BIOS_KEPT: usize = 64;

/// Most tickets that a channel keeps.
const SPARES_OWN: usize = 32;

/// Most tickets that all channels have in common.
const SPARES_COMMON: usize = 512;

impl Spares {
    pub(crate) fn new(common: Arc<CommonSpares>) -> Self {
        Spares { own: Vec::new(), common }
    }

    pub(crate) fn common() -> Arc<CommonSpares> {
        Arc::new(ArrayQueue::new(SPARES_COMMON))
    }

    /// Keep the tickets of `done`, which is emptied; as many as there is room for.
    pub(crate) fn keep(&mut self, done: &mut Vec<Ticket>) {
        for ticket in done.drain(..) {
            match self.own.len() < SPARES_OWN {
                true => self.own.push(ticket),
                false => drop(self.common.push(ticket)),
            }
        }
    }

    fn take(&mut self) -> Ticket {
        let spare = self.own.pop().or_else(|| self.common.pop());
        spare.unwrap_or_else(|| Ticket(Bio::flush()))
    }
}

impl Default for Spares {
    fn default() -> Self {
        Spares::new(Spares::common())
    }
}

/// See the module's text. Shards get flush bios only as tickets. The bio's `bytes` are those of the
/// partial parity in its buffer: the buffer may stay while `bytes` is 0.
pub(crate) struct Ticket(Box<Bio>);

impl Ticket {
    /// The ticket of stripe number `stripe` of a shard, at member sector `sector`, whose data slots
    /// `slots` are written. It has no partial parity yet, and needs none if the write covers all
    /// slots.
    pub(crate) fn new(
        spares: &mut Spares,
        stripe: StripeId,
        sector: u64,
        slots: Range<u32>,
    ) -> Self {
        let Ticket(mut bio) = spares.take();
        bio.stamp(0);
        (bio.sector, bio.bytes) = (Sector(sector), 0);
        bio.user_data =
            u64::from(stripe.0) | u64::from(slots.start) << 40 | u64::from(slots.end) << 48;
        Ticket(bio)
    }

    /// Set the partial parity. `fill` writes it to a block of arbitrary content.
    pub(crate) fn set_partial(&mut self, fill: impl FnOnce(&mut [u8])) {
        let mut buf = self.take_memory();
        fill(&mut buf[HEADER_BYTES..]);
        self.0.set_buf(buf, Some(HEADER_BYTES..BUF_BYTES));
    }

    fn take_memory(&mut self) -> IoBuf {
        self.0.take_buf().unwrap_or_else(|| IoBuf::zeroed(BUF_BYTES))
    }

    fn has_partial(&self) -> bool {
        self.0.bytes > 0
    }

    /// Take the memory of the partial parity, if there is any.
    fn take_partial(&mut self) -> Option<IoBuf> {
        if self.has_partial() { self.0.take_buf() } else { None }
    }

    /// Give the ticket memory for its next partial parity.
    fn give_memory(&mut self, memory: &mut Vec<IoBuf>) {
        if self.0.buf().is_none()
            && let Some(buf) = memory.pop()
        {
            self.0.set_buf(buf, None);
            self.0.bytes = 0;
        }
    }

    /// A bio that is brought to a shard is a ticket that has come back.
    pub(crate) fn is(bio: &Bio) -> bool {
        bio.op == Op::Flush
    }

    /// The ticket that was brought as a bio.
    pub(crate) fn of(bio: Box<Bio>) -> Self {
        Ticket(bio)
    }

    /// The ticket as a bio, to be brought.
    pub(crate) fn into_bio(self) -> Box<Bio> {
        self.0
    }

    /// The member sector of its stripe.
    pub(crate) fn sector(&self) -> u64 {
        self.0.sector.0
    }

    /// Set the port of the context that has the stripe.
    pub(crate) fn set_port(&mut self, port: PortId) {
        self.0.port = port;
    }

    /// Set the shard that the ticket must go back to.
    pub(crate) fn set_shard(&mut self, shard: usize) {
        self.0.user_data = self.0.user_data & !(0xFF << 32) | (shard as u64) << 32;
    }

    /// The shard that it must go back to.
    pub(crate) fn shard(&self) -> usize {
        (self.0.user_data >> 32 & 0xFF) as usize
    }

    /// Its stripe, and the number of the device that failed the log write, if one did.
    pub(crate) fn logged(&self) -> (StripeId, Option<MemberNumber>) {
        let failed =
            (!self.0.status.is_ok()).then_some(MemberNumber((self.0.user_data >> 40) as u32));
        (StripeId(self.0.user_data as u32), failed)
    }

    fn set_failed(&mut self, number: MemberNumber) {
        self.0.status = Status::IoError;
        self.0.user_data = self.0.user_data & ((1 << 40) - 1) | u64::from(number.0 & 0xFFFF) << 40;
    }

    /// Mark its stripe as done.
    pub(crate) fn set_done(&mut self) {
        self.0.user_data |= DONE;
    }

    fn is_done(&self) -> bool {
        self.0.user_data & DONE != 0
    }

    fn stripe_write(&self) -> StripeWrite {
        let slot = |shift: u32| (self.0.user_data >> shift & 0xFF) as u32;
        StripeWrite { sector: self.sector(), slots: slot(40)..slot(48) }
    }

    fn partial(&self) -> &[u8] {
        let end = HEADER_BYTES + self.0.bytes as usize;
        self.0.buf().map_or(&[], |buf| &buf[HEADER_BYTES..end])
    }
}

/// The effects of a turn at a log, for the channel to hand on.
#[derive(Default)]
pub(crate) struct LogEffects {
    /// Bios for the member of a role, or for its replacement.
    pub(crate) io: Vec<(Role, bool, Box<Bio>)>,
    /// Tickets that go back to their shards.
    pub(crate) tickets: Vec<Ticket>,
    /// Tickets of stripes that are done.
    pub(crate) done: Vec<Ticket>,
    pub(crate) reports: Vec<Report>,
    /// Ports whose items are in the hands of others.
    pub(crate) remote: Vec<PortId>,
    /// Bios that have ended, for the next I/O, and a list for its buffers.
    bios: BioList,
    bufs: Vec<IoBuf>,
}

impl LogEffects {
    /// A bio without data, for device `number`.
    fn bio(&mut self, number: MemberNumber) -> Box<Bio> {
        let mut bio = self.bios.pop().unwrap_or_else(Bio::flush);
        bio.stamp(0);
        (bio.op, bio.sector, bio.bytes) = (Op::Flush, Sector(0), 0);
        (bio.flags, bio.user_data) = (BioFlags::empty(), number.0.into());
        bio
    }
}

/// The state of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// So many log writes are in flight: to the member, and to its replacement.
    Writing(usize),
    /// So many flushes are in flight.
    Flushing(usize),
}

/// See the module's text.
pub(crate) struct Log {
    role: Role,
    generation: u64,
    builder: PplBuilder,
    phase: Phase,
    /// Tickets that wait for a log write.
    queue: Vec<Ticket>,
    /// Tickets whose log is being written.
    round: Vec<Ticket>,
    /// Stripes that went on after their log write and are not done.
    left: usize,
    /// Blocks of stripes that are done may still be in caches of members.
    wants_flush: bool,
    /// Devices that failed the log and are still in the configuration.
    failed: Vec<MemberNumber>,
    /// Devices to which a round is being written.
    writing: Vec<MemberNumber>,
    epoch: u64,
    /// The memory of the writes of a round that have ended.
    memory: Vec<IoBuf>,
}

impl Log {
    /// The log of the member with `role`.
    pub(crate) fn new(role: Role, layout: Layout, conf: &PplConf) -> Self {
        Log {
            role,
            generation: conf.generation,
            builder: PplBuilder::new(layout, conf.signature, conf.generation),
            phase: Phase::Idle,
            queue: Vec::new(),
            round: Vec::new(),
            left: 0,
            wants_flush: false,
            failed: Vec::new(),
            writing: Vec::new(),
            epoch: 0,
            memory: Vec::new(),
        }
    }

    /// Take in a ticket that was brought, or I/O that has ended.
    pub(crate) fn accept(&mut self, turn: &TurnInput<'_>, bio: Box<Bio>, out: &mut LogEffects) {
        if bio.is_of_channel() {
            return self.io_ended(turn, bio, out);
        }
        let ticket = Ticket::of(bio);
        if ticket.is_done() {
            self.left -= 1;
            self.wants_flush = true;
            out.done.push(ticket);
        } else {
            self.queue.push(ticket);
        }
    }

    /// Begin the next log write or flush, if the log is free for it.
    pub(crate) fn begin(&mut self, turn: &TurnInput<'_>, out: &mut LogEffects) {
        self.epoch = self.epoch.max(turn.epoch);
        self.failed.retain(|number| is_there(turn, *number));
        let is_free = self.phase == Phase::Idle && self.left == 0 && self.failed.is_empty();
        if is_free && !self.queue.is_empty() {
            self.go_on(turn, out);
        }
        // These tickets may wait for a context whose owner is away.
        out.remote.extend(self.queue.iter().map(|ticket| ticket.0.port));
    }

    fn go_on(&mut self, turn: &TurnInput<'_>, out: &mut LogEffects) {
        let member = turn.conf.member(self.role, false);
        let Some((member, area)) = member.and_then(|m| Some((m, m.log?))) else {
            // No member holds the parity, so no log has to protect it.
            self.round.append(&mut self.queue);
            return self.let_go(out);
        };
        if std::mem::take(&mut self.wants_flush) && self.flush(turn, out) {
            return;
        }
        let replacement = turn.conf.member(self.role, true).and_then(|m| Some((m, m.log?)));
        self.begin_round(turn, (member, area), replacement, out);
    }

    /// Let the stripes of the round go on.
    fn let_go(&mut self, out: &mut LogEffects) {
        self.left += self.round.len();
        out.tickets.append(&mut self.round);
    }

    /// Flush the members with volatile caches. False if there are none.
    fn flush(&mut self, turn: &TurnInput<'_>, out: &mut LogEffects) -> bool {
        let before = out.io.len();
        let roles = (0..turn.conf.layout.disks()).map(Role);
        for (role, is_replacement) in roles.flat_map(|role| [(role, false), (role, true)]) {
            let member = turn.conf.member(role, is_replacement);
            if let Some(member) = member.filter(|member| member.device.has_volatile_cache()) {
                let bio = out.bio(member.number);
                out.io.push((role, is_replacement, bio));
            }
        }
        let flushes = out.io.len() - before;
        if flushes > 0 {
            self.phase = Phase::Flushing(flushes);
        }
        flushes > 0
    }

    /// Write a header, and the partial parity of as many stripes as fit. A replacement gets both
    /// too, because it may become the member before these stripes are done.
    fn begin_round(
        &mut self,
        turn: &TurnInput<'_>,
        (member, area): (&Member, LogArea),
        replacement: Option<(&Member, LogArea)>,
        out: &mut LogEffects,
    ) {
        self.generation += 1;
        let room = replacement.map_or(area.parity_bytes, |(_, area)| area.parity_bytes);
        let room = room.min(area.parity_bytes) as usize;
        self.choose(room);
        let ports = self.round.iter().map(|ticket| ticket.0.port);
        out.remote.extend(ports.filter(|port| *port != turn.port));
        let mut bufs = std::mem::take(&mut out.bufs);
        self.take_memory(&mut bufs);
        if let Some((member, area)) = replacement {
            let mut copies = bufs.iter().map(|buf| IoBuf::from_slice(buf)).collect();
            self.write((true, member, area.sector), &mut copies, out);
        }
        self.write((false, member, area.sector), &mut bufs, out);
        out.bufs = bufs;
        self.phase = Phase::Writing(1 + usize::from(replacement.is_some()));
    }

    /// Choose the stripes of a round, as many as have room for their partial parity.
    fn choose(&mut self, room: usize) {
        let builder = &mut self.builder;
        builder.restart(self.generation);
        // Adjacent stripes become one entry.
        self.queue.sort_unstable_by_key(Ticket::sector);
        let fits = |ticket: &mut Ticket| {
            let partial = ticket.partial();
            let has_room = builder.parity_bytes() as usize + partial.len() <= room;
            has_room && builder.add(ticket.stripe_write(), partial)
        };
        self.round.extend(self.queue.extract_if(.., fits));
        debug_assert!(!self.round.is_empty(), "there is room for one");
    }

    /// Take the memory of the round's tickets. The header is written to that of the first one that
    /// has a partial parity, or else of any: partial parity follows the header.
    fn take_memory(&mut self, bufs: &mut Vec<IoBuf>) {
        bufs.extend(self.round.iter_mut().filter_map(Ticket::take_partial));
        if bufs.is_empty() {
            bufs.extend(self.round.first_mut().map(Ticket::take_memory));
        }
        self.builder.header().write_to(&mut bufs[0][..HEADER_BYTES]);
    }

    /// Write the round's header and partial parity, which lie in `bufs`, to a member or replacement
    /// whose area begins at `sector`.
    fn write(
        &mut self,
        (is_replacement, member, sector): (bool, &Member, u64),
        bufs: &mut Vec<IoBuf>,
        out: &mut LogEffects,
    ) {
        let mut bio = out.bio(member.number);
        (bio.op, bio.sector, bio.flags) = (Op::Write, Sector(sector), BioFlags::SYNC);
        if member.device.has_volatile_cache() {
            bio.flags.insert(BioFlags::FUA);
        }
        let others = (bufs.len() - 1) * BLOCK_BYTES;
        let first = HEADER_BYTES + self.builder.parity_bytes() as usize - others;
        bio.set_buf_parts(bufs, |n, _| if n == 0 { 0..first } else { HEADER_BYTES..BUF_BYTES });
        self.writing.push(member.number);
        out.io.push((self.role, is_replacement, bio));
    }

    /// A log write to device `number`, or to any device if `None`, is in flight.
    pub(crate) fn writes_to(&self, number: Option<MemberNumber>) -> bool {
        self.writing.iter().any(|to| number.is_none_or(|n| n == *to))
    }

    fn io_ended(&mut self, turn: &TurnInput<'_>, mut bio: Box<Bio>, out: &mut LogEffects) {
        let number = MemberNumber(bio.user_data as u32);
        if bio.status == Status::Cancelled
            && let Some((role, is_replacement)) = role_of_device(turn, number)
        {
            // The bio did not reach the member, because its context was dropped.
            return self.begin_again(turn, (role, is_replacement), bio, out);
        }
        let held = role_of_device(turn, number).filter(|_| !bio.status.is_ok());
        self.memory.extend(bio.take_bufs());
        if out.bios.len() < BIOS_KEPT {
            out.bios.push(bio);
        }
        if held.is_some() {
            self.failed.push(number);
            out.reports.push(Report { number, sector: 0, fault: Fault::Log });
        }
        match self.phase {
            Phase::Flushing(left) if left > 1 => self.phase = Phase::Flushing(left - 1),
            Phase::Flushing(_) => self.phase = Phase::Idle,
            Phase::Writing(left) => {
                self.writing.retain(|to| *to != number);
                if matches!(held, Some((_, false))) {
                    self.round.iter_mut().for_each(|ticket| ticket.set_failed(number));
                }
                if left > 1 {
                    self.phase = Phase::Writing(left - 1);
                    return;
                }
                self.phase = Phase::Idle;
                let memory = &mut self.memory;
                self.round.iter_mut().for_each(|ticket| ticket.give_memory(memory));
                memory.clear();
                self.let_go(out);
            }
            Phase::Idle => debug_assert!(false, "nothing was begun"),
        }
    }

    /// Send the I/O of `bio`, whose device has the role, once more.
    fn begin_again(
        &mut self,
        turn: &TurnInput<'_>,
        (role, is_replacement): (Role, bool),
        mut bio: Box<Bio>,
        out: &mut LogEffects,
    ) {
        let Some(member) = turn.conf.member(role, is_replacement) else { return };
        if bio.op == Op::Flush {
            let again = out.bio(member.number);
            return out.io.push((role, is_replacement, again));
        }
        self.writing.retain(|to| *to != member.number);
        let sector = member.log.map_or(bio.sector.0, |area| area.sector);
        let mut bufs = bio.take_bufs().collect();
        self.write((is_replacement, member, sector), &mut bufs, out);
    }
}

/// The device is a member.
fn is_there(turn: &TurnInput<'_>, number: MemberNumber) -> bool {
    role_of_device(turn, number).is_some()
}

/// The role of a device that is a member, and whether it is a replacement.
fn role_of_device(turn: &TurnInput<'_>, number: MemberNumber) -> Option<(Role, bool)> {
    let roles = (0..turn.conf.layout.disks()).map(Role);
    let mut role_slots = roles.flat_map(|role| [(role, false), (role, true)]);
    role_slots.find(|(role, is_replacement)| {
        let member = turn.conf.member(*role, *is_replacement);
        member.is_some_and(|member| member.number == number)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::shard::tests::{conf, with_turn};
    use super::*;

    /// The configuration of an array with logs.
    fn logged() -> super::super::conf::Conf {
        let mut conf = conf(4);
        conf.ppl = Some(PplConf { signature: 7, generation: 1 });
        for slot in &mut conf.role_slots {
            let member = slot.member.as_mut().expect("a member");
            member.log = Some(LogArea { sector: 16, parity_bytes: 128 << 10 });
        }
        conf
    }

    fn contents(bio: &Bio) -> Vec<u8> {
        let mut contents = vec![0; bio.bytes as usize];
        bio.copy_data_to(&mut contents);
        contents
    }

    /// Writes of a log whose context was dropped are begun again as they were, also if the device
    /// has taken the flag away already.
    #[test]
    fn a_log_write_that_did_not_happen_is_begun_again() {
        let conf = logged();
        let mut spares = Spares::default();
        // The first is a full stripe.
        for partials in [&[1, 2][..], &[0, 1, 2], &[0], &[3]] {
            with_turn(&conf, |turn| {
                let ppl = conf.ppl.expect("logs");
                let (mut log, mut out) =
                    (Log::new(Role(3), conf.layout, &ppl), LogEffects::default());
                for (number, partial) in (0..).zip(partials) {
                    let slots = if *partial == 0 { 0..3 } else { 0..1 };
                    // Rows whose parity has the same role.
                    let sector = u64::from(number) * 4 * 8;
                    let mut ticket = Ticket::new(&mut spares, StripeId(number), sector, slots);
                    if *partial > 0 {
                        ticket.set_partial(|block| block.fill(*partial));
                    }
                    log.accept(turn, ticket.into_bio(), &mut out);
                }
                log.begin(turn, &mut out);
                let (_, _, mut bio) = out.io.pop().expect("a log write");
                let written = contents(&bio);
                let of = |partial: &u8| if *partial > 0 { BLOCK_BYTES } else { 0 };
                assert_eq!(written.len(), HEADER_BYTES + partials.iter().map(of).sum::<usize>());
                let parity: Vec<u8> = partials.iter().copied().filter(|p| *p > 0).collect();
                assert!(written[HEADER_BYTES..].chunks(BLOCK_BYTES).map(|b| b[0]).eq(parity));
                (bio.status, bio.sector) = (Status::Cancelled, Sector(20));
                bio.flags.remove(BioFlags::FUA);
                bio.give_to_channel(drystone_core::ChannelId(0));
                log.accept(turn, bio, &mut out);
                let (role, is_replacement, mut again) = out.io.pop().expect("the same");
                assert_eq!((role, is_replacement, again.op), (Role(3), false, Op::Write));
                assert_eq!((again.sector, contents(&again)), (Sector(16), written));
                assert!(again.flags.contains(BioFlags::FUA) && log.writes_to(None));
                again.give_to_channel(drystone_core::ChannelId(0));
                log.accept(turn, again, &mut out);
                assert_eq!((out.tickets.len(), log.writes_to(None)), (partials.len(), false));
                spares.keep(&mut out.tickets);
            });
        }
    }
}
