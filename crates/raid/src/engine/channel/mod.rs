//! An array as one context uses it.
//!
//! ```text
//! read of members in sync --------------------------> moved to the member, and back if it fails
//! write, or read of what is lost --> items, by shard --> the shard's turn, here or whoever has it
//! ```
//!
//! Invariants:
//! * A bio that the array let pass carries its channel in its trail, so it counts as in flight here
//!   until it ends, whatever it was divided into.
//! * `items` counts what this channel brought to shards and has not got back, as does the context's
//!   `entrusted`. `member_io` counts the bios to members that this channel sent, whosever items
//!   they are for.
//! * A write passes only by a configuration that says that the members know of writes (`is_dirty`).
//! * While the array is suspended bios are kept, in the order in which they came.

mod flush;
mod route;
mod turns;

use super::conf::Conf;
use super::port::{Origin, Port, Ports};
use super::ppl::{LogEffects, Spares};
use super::shard::TurnEffects;
use super::shared::{SHARDS, Shared, Wanted};
use super::slab::Slab;
use drystone_core::check::check;
use drystone_core::context::RemappedDone;
use drystone_core::mailbox::Message;
use drystone_core::mistake;
use drystone_core::op::{OP_GROUPS, OpGroup};
use drystone_core::stats::ChannelStats;
use drystone_core::{Bio, BioFlags, BioList, Channel, Env, Status, Subscription};
use flush::{Flushing, Unflushed};
use std::sync::Arc;

const GROUPS: [OpGroup; OP_GROUPS] =
    [OpGroup::Read, OpGroup::Write, OpGroup::Discard, OpGroup::Flush];

/// One context's way into an array. On cache lines of its own.
#[repr(align(128))]
pub struct ArrayChannel {
    shared: Arc<Shared>,
    port: Arc<Port>,
    index: u32,
    conf: Subscription<Conf>,
    ports: Subscription<Ports>,
    /// The context's channels of the members, by role, then of the replacements.
    by_role: Vec<u32>,
    /// Those in `by_role` that there are.
    members: Vec<u32>,
    /// What is to be brought to each shard.
    brought: [BioList; SHARDS],
    /// The shards to which something is to be brought, or that are to be looked at, a bit each.
    touched: u32,
    /// Those of them that may not know this configuration.
    changed: u32,
    /// The same of partial parity logs, by role.
    brought_logs: Vec<BioList>,
    touched_logs: u64,
    changed_logs: u64,
    out: TurnEffects,
    log_out: LogEffects,
    /// Flushes, and writes that wait for one before them.
    flushing: Slab<Flushing>,
    /// The same that wait for what is put on record of members that could not.
    unflushed: Vec<Unflushed>,
    /// Bios that came while the array was suspended.
    kept: BioList,
    /// Writes that wait until the members know of writes.
    kept_writes: BioList,
    items: usize,
    member_io: usize,
    /// Writes that passed and have not ended.
    writes: u64,
    stats: Arc<ChannelStats>,
    /// Bios that passed in this call, by group.
    started: [u64; OP_GROUPS],
}

impl ArrayChannel {
    pub(crate) fn new(shared: Arc<Shared>, env: &mut Env, index: u32, origin: Origin) -> Self {
        // First the port, then the look: whoever publishes between the two finds the port.
        let port = shared.open_port(origin, Message::to(env.handle(), index, 0));
        let conf = Subscription::new(&shared.conf, &env.locks);
        let ports = Subscription::new(&shared.ports, &env.locks);
        let mut channel = ArrayChannel {
            out: TurnEffects {
                spares: Spares::new(shared.spares.clone()),
                ..TurnEffects::default()
            },
            stats: shared.stats.for_channel(),
            shared,
            port,
            index,
            conf,
            ports,
            by_role: Vec::new(),
            members: Vec::new(),
            brought: [const { BioList::new() }; SHARDS],
            touched: 0,
            changed: 0,
            brought_logs: Vec::new(),
            touched_logs: 0,
            changed_logs: 0,
            log_out: LogEffects::default(),
            flushing: Slab::new(),
            unflushed: Vec::new(),
            kept: BioList::new(),
            kept_writes: BioList::new(),
            items: 0,
            member_io: 0,
            writes: 0,
            started: [0; OP_GROUPS],
        };
        channel.brought_logs.resize_with(channel.shared.logs(), BioList::new);
        channel.refresh_conf(env);
        channel
    }

    #[inline]
    fn refresh(&mut self, env: &mut Env) {
        if !self.conf.is_current(&self.shared.conf) {
            self.refresh_conf(env);
        }
    }

    /// Take over what was published.
    #[cold]
    fn refresh_conf(&mut self, env: &mut Env) {
        self.conf.refresh(&self.shared.conf, &env.locks);
        let role_slots = &self.conf.role_slots;
        let members = role_slots.iter().map(|slot| &slot.member);
        let all = members.chain(role_slots.iter().map(|slot| &slot.replacement));
        let number = |member: &Option<super::conf::Member>| match member {
            Some(member) => env.channel_of(&member.device),
            None => u32::MAX,
        };
        self.by_role = all.map(number).collect();
        let there = self.by_role.iter().copied().filter(|number| *number != u32::MAX).collect();
        let before = std::mem::replace(&mut self.members, there);
        if before.iter().any(|number| !self.members.contains(number)) {
            env.request_sweep();
        }
        // What waits in a shard for this very change.
        self.touched = (1 << SHARDS) - 1;
        self.touched_logs = (0..self.shared.logs()).fold(0, |logs, role| logs | 1 << role);
        (self.changed, self.changed_logs) = (self.touched, self.touched_logs);
        self.flush_again(env);
        if !self.conf.is_suspended {
            self.release(env);
        }
    }

    /// Let go on what was kept, as far as it may now.
    fn release(&mut self, env: &mut Env) {
        let mut kept = self.kept_writes.take();
        kept.append(&mut self.kept);
        while let Some(bio) = kept.pop() {
            self.start(env, bio);
        }
        self.publish_started();
    }

    /// Tell whoever suspends the array, or stops writes, once nothing is in flight.
    fn report(&self, env: &mut Env) {
        if self.conf.is_suspended {
            self.port.quiesced.report(self.conf.epoch(), env.remapped_in_flight(self.index));
        }
        if !self.conf.is_dirty {
            self.port.writes_quiesced.report(self.conf.epoch(), self.writes as usize);
        }
    }

    /// Keep bios until the array is resumed.
    #[cold]
    fn keep(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            match bio.flags.contains(BioFlags::NOWAIT) {
                true => env.end_with(bio, Status::Again),
                false => self.kept.push(bio),
            }
        }
    }

    /// Check a bio that was just submitted, and send it on its way.
    fn start(&mut self, env: &mut Env, mut bio: Box<Bio>) {
        bio.flags.remove(BioFlags::POLLED);
        if self.conf.is_closed {
            return env.end_with(bio, Status::IoError);
        }
        if self.port.origin == Origin::Sync {
            let bio = env.begin_remap(bio, self.index);
            return self.bring(env, bio);
        }
        if let Err(status) = check(&bio, &self.conf.limits, self.conf.size_bytes) {
            return env.end_with(bio, status);
        }
        if bio.op.is_write() {
            if self.conf.is_broken {
                return env.end_with(bio, Status::IoError);
            }
            if !self.conf.is_dirty && !mistake!("dirty_too_late") {
                return self.keep_write(env, bio);
            }
            self.writes += 1;
            self.port.count_writes(1);
        }
        self.started[bio.op.group() as usize] += 1;
        let bio = env.begin_remap(bio, self.index);
        self.route(env, bio);
    }

    /// Keep a write until the members know that they may not fit one another.
    #[cold]
    fn keep_write(&mut self, env: &mut Env, bio: Box<Bio>) {
        if bio.flags.contains(BioFlags::NOWAIT) {
            return env.end_with(bio, Status::Again);
        }
        self.kept_writes.push(bio);
        self.shared.ask(Wanted::WRITES);
    }

    fn publish_started(&mut self) {
        for group in GROUPS {
            let n = std::mem::take(&mut self.started[group as usize]);
            if n != 0 {
                self.stats.started(group, n);
            }
        }
    }
}

impl Channel for ArrayChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.refresh(env);
        let now = env.time.submit_time();
        self.shared.stats.busy.update(now, false, env.remapped_in_flight(self.index) > 0);
        bios.stamp(now);
        if self.conf.is_suspended && self.port.origin == Origin::Io {
            return self.keep(env, bios);
        }
        let moves = self.port.origin == Origin::Io && !self.conf.is_closed;
        let mut moved = 0;
        loop {
            moved += if moves { self.move_reads(env, bios) } else { 0 };
            let Some(bio) = bios.pop() else { break };
            self.start(env, bio);
        }
        if moved > 0 {
            self.started[OpGroup::Read as usize] += moved as u64;
            env.count_remapped(self.index, moved);
        }
        self.publish_started();
        self.run_touched(env);
    }

    fn remapped_done(&mut self, env: &mut Env, done: &[RemappedDone]) {
        let now = env.time.completion_time();
        if self.port.origin == Origin::Sync {
            return;
        }
        for run in done {
            if run.group == OpGroup::Write {
                self.writes -= run.count;
            }
            let latency = now.saturating_sub(run.start_ns);
            self.stats.ended(run.group, run.count, run.bytes, latency);
        }
        self.shared.stats.busy.update(now, true, env.remapped_in_flight(self.index) > 0);
        self.report(env);
    }

    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            match bio.is_of_channel() {
                true => self.member_io_ended(bio),
                false if bio.is_part() => self.hooked_ended(env, bio),
                false => self.rescue(env, bio),
            }
        }
        self.run_touched(env);
    }

    fn message(&mut self, env: &mut Env, _message: Arc<Message>) {
        self.refresh(env);
        self.take_done(env);
        self.touch_published();
        self.run_touched(env);
        self.report(env);
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn in_flight(&self) -> usize {
        let kept = self.kept.len() + self.kept_writes.len() + self.unflushed.len();
        kept + self.items + self.member_io + self.flushing.len()
    }

    /// Items may wait for I/O that another context began, whose owner is away.
    fn waits_on_peer(&self) -> bool {
        self.items > 0 && self.port.is_foreign()
    }

    fn push_shared_work(&mut self, _env: &mut Env) -> bool {
        self.waits_on_peer()
    }

    fn is_over(&mut self) -> bool {
        self.conf.is_closed && Arc::strong_count(&self.port) == 1
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        let mut kept = self.kept.take();
        kept.append(&mut self.kept_writes);
        while let Some(bio) = kept.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        for Unflushed { part, .. } in std::mem::take(&mut self.unflushed) {
            env.end_with(part, Status::Cancelled);
        }
    }
}

impl Drop for ArrayChannel {
    fn drop(&mut self) {
        self.shared.close_port(&self.port);
    }
}
