//! An array as one context uses it.
//!
//! ```text
//! read of members in sync --------------------------> moved to the member, and back if it fails
//! write, or read of what is lost --> items, by shard --> the shard's turn, here or in its holder
//! ```
//!
//! The channel is made of parts, each of which keeps its own state. This file, `route` and `turns`
//! lead a bio from one part to the next.
//!
//! Invariants:
//! * A bio that the array let pass carries its channel in its trail, so it counts as in flight here
//!   until it ends, whatever it was divided into.
//! * The context's `expected_remote` counts the items of `traffic`.
//! * A write passes only under a configuration in which the members are recorded as dirty
//!   (`is_dirty`).

mod flushes;
mod held;
mod membership;
mod peers;
mod route;
mod traffic;
mod turns;
mod work_set;

use super::conf::Conf;
use super::port::Origin;
use super::ppl::{LogEffects, Spares};
use super::region::SHARDS;
use super::shard::TurnEffects;
use super::shared::{Shared, Wanted};
use drystone_core::check::check;
use drystone_core::context::RemappedDone;
use drystone_core::mailbox::Message;
use drystone_core::mistake;
use drystone_core::op::OpGroup;
use drystone_core::{Bio, BioFlags, BioList, Channel, ChannelId, Env, Op, Status};
use flushes::{FailedFlush, Flushed, Flushes, Retry};
use held::HeldBios;
use membership::Membership;
use peers::Peers;
use std::sync::Arc;
use traffic::Traffic;
use work_set::WorkSet;

/// After writes of so many bytes, at the end of a row, the members are called before further writes
/// go on: one that copies at once finds the data in the core's caches.
const WRITTEN_AT_ONCE: u64 = 128 << 10;

/// One context's way into an array. On cache lines of its own.
#[repr(align(128))]
pub struct ArrayChannel {
    /// First, so that the port is closed before anything else goes.
    peers: Peers,
    shared: Arc<Shared>,
    id: ChannelId,
    membership: Membership,
    /// Bios for shards.
    to_shards: WorkSet<[BioList; SHARDS]>,
    /// Bios for partial parity logs, by role.
    to_logs: WorkSet<Vec<BioList>>,
    /// Effects of the turn at a shard that are not handed on yet.
    effects: TurnEffects,
    /// Effects of the turn at a log that are not handed on yet.
    log_effects: LogEffects,
    flushes: Flushes,
    held: HeldBios,
    /// Bios that go on when the members have got what was sent to them.
    later: BioList,
    traffic: Traffic,
}

impl ArrayChannel {
    pub(crate) fn new(shared: Arc<Shared>, env: &mut Env, id: ChannelId, origin: Origin) -> Self {
        let doorbell = Message::to(env.handle(), id, 0);
        let peers = Peers::open(shared.clone(), origin, doorbell, &env.locks);
        let logs = (0..shared.logs()).map(|_| BioList::new()).collect();
        let mut channel = ArrayChannel {
            id,
            peers,
            membership: Membership::new(&shared.conf, &env.locks),
            to_shards: WorkSet::new([const { BioList::new() }; SHARDS]),
            to_logs: WorkSet::new(logs),
            effects: TurnEffects {
                spares: Spares::new(shared.spares.clone()),
                ..TurnEffects::default()
            },
            log_effects: LogEffects::default(),
            flushes: Flushes::new(),
            held: HeldBios::default(),
            later: BioList::new(),
            traffic: Traffic::new(shared.stats.for_channel()),
            shared,
        };
        channel.refresh_membership(env);
        channel
    }

    #[inline]
    fn conf(&self) -> &Conf {
        self.membership.conf()
    }

    #[inline]
    fn refresh(&mut self, env: &mut Env) {
        if !self.membership.is_current(&self.shared.conf) {
            self.refresh_membership(env);
        }
    }

    /// Take over the published configuration.
    #[cold]
    fn refresh_membership(&mut self, env: &mut Env) {
        let locks = env.locks.clone();
        let channel_of = |device: &_| env.channel_of(device);
        if self.membership.refresh(&self.shared.conf, &locks, channel_of) {
            env.request_sweep();
        }
        // Stripes and tickets may wait for this change.
        self.to_shards.touch_all();
        self.to_logs.touch_all();
        self.retry_flushes(env);
        if !self.conf().is_suspended {
            self.release(env);
        }
    }

    /// Start the held bios; a bio that may still not go on is held again.
    fn release(&mut self, env: &mut Env) {
        let mut held = self.held.release();
        while let Some(bio) = held.pop() {
            self.start(env, bio);
        }
        self.traffic.publish_started();
    }

    /// Tell the context that suspends the array, or stops writes, once nothing is in flight.
    fn report_quiet(&self, env: &mut Env) {
        let (conf, epoch) = (self.conf(), self.membership.epoch());
        if conf.is_suspended {
            self.peers.own().quiesced.report(epoch, env.remapped_in_flight(self.id));
        }
        if !conf.is_dirty {
            self.peers.own().writes_quiesced.report(epoch, self.traffic.writes() as usize);
        }
    }

    /// Hold bios until the array is resumed.
    #[cold]
    fn hold(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            if let Err(bio) = self.held.hold(bio) {
                env.end_with(bio, Status::Again);
            }
        }
    }

    /// Start the bios of `later`; but after some bytes of writes let the members go on first.
    fn start_some(&mut self, env: &mut Env) {
        let (mut bios, is_sync) = (self.later.take(), self.peers.is_sync());
        if self.conf().is_suspended && !is_sync {
            self.hold(env, &mut bios);
            return self.run_touched(env);
        }
        let moves = !is_sync && !self.conf().is_closed;
        let (mut moved, mut written) = (0, 0_u64);
        loop {
            moved += if moves { self.move_reads(env, &mut bios) } else { 0 };
            let Some(bio) = bios.pop() else { break };
            written = written.saturating_add(if bio.op == Op::Write { bio.bytes } else { 0 });
            let is_row_end = bio.end_sector().0.is_multiple_of(self.conf().layout.row_sectors());
            self.start(env, bio);
            if is_row_end && written >= WRITTEN_AT_ONCE && !is_sync {
                break;
            }
        }
        if moved > 0 {
            self.traffic.start(OpGroup::Read, moved as u64);
            env.count_remapped(self.id, moved);
        }
        self.traffic.publish_started();
        self.run_touched(env);
        if !bios.is_empty() {
            self.later = bios;
            env.call_again(self.id);
        }
    }

    /// Check a bio that was just submitted, and send it on its way.
    fn start(&mut self, env: &mut Env, mut bio: Box<Bio>) {
        bio.flags.remove(BioFlags::POLLED);
        let conf = self.membership.conf();
        if conf.is_closed {
            return env.end_with(bio, Status::IoError);
        }
        if self.peers.is_sync() {
            let bio = env.begin_remap(bio, self.id);
            return self.bring(env, bio);
        }
        if let Err(status) = check(&bio, &conf.limits, conf.size_bytes) {
            return env.end_with(bio, status);
        }
        if bio.op.is_write() {
            if conf.is_broken {
                return env.end_with(bio, Status::IoError);
            }
            if !conf.is_dirty && !mistake!("dirty_too_late") {
                return self.hold_write(env, bio);
            }
            self.traffic.start_write();
            self.peers.own().count_writes(1);
        }
        self.traffic.start(bio.op.group(), 1);
        let bio = env.begin_remap(bio, self.id);
        self.route(env, bio);
    }

    /// Hold a write until the members are recorded as dirty.
    #[cold]
    fn hold_write(&mut self, env: &mut Env, bio: Box<Bio>) {
        match self.held.hold_write(bio) {
            Ok(()) => self.shared.ask(Wanted::WRITES),
            Err(bio) => env.end_with(bio, Status::Again),
        }
    }

    /// Have all members flush, then go on with the bio: a flush ends, a write goes to its shards.
    fn flush(&mut self, env: &mut Env, bio: Box<Bio>) {
        let mut parts = env.divide(bio);
        let bytes = parts.left();
        let mut part = parts.next(env, bytes);
        part.flags.remove(BioFlags::PREFLUSH);
        let members = self.membership.in_use().len();
        if members == 0 {
            env.end_with(part, Status::IoError);
            return env.divided(parts);
        }
        let number = self.flushes.begin(part, members);
        for (channel, member) in self.membership.devices() {
            let mut flush = parts.flush(env);
            flush.user_data = flushes::tag(member.number, number);
            flush.set_end_io(self.id);
            env.send_down(channel, flush);
        }
        env.divided(parts);
    }

    /// A member has answered a flush.
    fn member_flushed(&mut self, env: &mut Env, mut bio: Box<Bio>) {
        let (member, number) = flushes::of_tag(bio.user_data);
        let status = std::mem::replace(&mut bio.status, Status::Ok);
        env.end_bio(bio);
        match self.flushes.answered(number, member, status) {
            None => {}
            Some(Flushed::Done(part)) => match part.op {
                Op::Flush => env.end_bio(part),
                _ => self.bring(env, part),
            },
            Some(Flushed::Failed(flush)) => self.flush_failed(env, flush),
        }
    }

    /// Have the manager record the members that could not flush. Fail the flush instead if the
    /// array needs one of them.
    #[cold]
    fn flush_failed(&mut self, env: &mut Env, flush: FailedFlush) {
        let is_final = self.conf().limits.read_only || env.is_draining();
        if let Some(status) = flush.immediate_status(&self.membership, is_final) {
            return env.end_with(flush.part, status);
        }
        let mut reports = flush.reports();
        self.flushes.await_record(flush);
        self.shared.report(&mut reports);
    }

    /// Go on with the flushes that waited for the manager to record a failure: the configuration
    /// has changed.
    fn retry_flushes(&mut self, env: &mut Env) {
        for flush in self.flushes.take_unrecorded() {
            match flush.retry(&self.membership) {
                Retry::Again => self.flush(env, flush.part),
                Retry::Fail(status) => env.end_with(flush.part, status),
                Retry::Wait => self.flushes.await_record(flush),
            }
        }
    }
}

impl Channel for ArrayChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.refresh(env);
        let now = env.time.submit_time();
        self.shared.stats.busy.update(now, false, env.remapped_in_flight(self.id) > 0);
        bios.stamp(now);
        self.later.append(bios);
        self.start_some(env);
    }

    fn remapped_done(&mut self, env: &mut Env, done: &[RemappedDone]) {
        let now = env.time.completion_time();
        if self.peers.is_sync() {
            return;
        }
        done.iter().for_each(|ended| self.traffic.end(ended, now));
        self.shared.stats.busy.update(now, true, env.remapped_in_flight(self.id) > 0);
        self.report_quiet(env);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            match bio.is_of_channel() {
                true => self.member_io_ended(bio),
                false if bio.is_part() => self.hooked_ended(env, bio),
                false => self.retry_on_error(env, bio),
            }
        }
        match self.later.is_empty() {
            true => self.run_touched(env),
            false => self.start_some(env),
        }
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.refresh(env);
        self.take_done(env);
        self.touch_published();
        self.run_touched(env);
        self.report_quiet(env);
    }

    fn members(&self) -> &[ChannelId] {
        self.membership.in_use()
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.later.len() + self.flushes.len() + self.traffic.in_flight()
    }

    /// Items may wait for I/O that another context began, and that context's owner may be away.
    fn waits_on_peer(&self) -> bool {
        self.traffic.has_items() && self.peers.own().expects_remote()
    }

    fn push_shared_work(&mut self, _env: &mut Env) -> bool {
        self.waits_on_peer()
    }

    fn try_retire(&mut self) -> bool {
        self.conf().is_closed && self.peers.close()
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        let mut held = self.held.cancel();
        held.append(&mut self.later);
        while let Some(bio) = held.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        for flush in self.flushes.take_unrecorded() {
            env.end_with(flush.part, Status::Cancelled);
        }
    }
}
