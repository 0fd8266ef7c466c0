//! The end of requests: accounting in batches with one clock reading, then tags, then bios.
//!
//! Invariant: runs of requests with the same group and latency bucket are counted together, and
//! everything counted is published to the channel's statistics before the call ends.

use crate::channel::RequestChannel;
use crate::driver::Driver;
use crate::flush::Next;
use crate::request::{Kind, State};
use crate::scheduler::Scheduler;
use crate::tags::TagBatch;
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::failures::Failure;
use drystone_core::mistake;
use drystone_core::op::{OP_GROUPS, OpGroup};
use drystone_core::stats::ChannelStats;
use drystone_core::{Bio, BioFlags, BioList, Env, Op, Status};

/// Counts that are gathered during a call and published at its end.
#[derive(Default)]
pub(crate) struct Completions {
    started: [u32; OP_GROUPS],
    run: Option<Run>,
    /// Requests that ended as they were issued, and are not accounted yet.
    inline: Option<InlineRun>,
    /// The last batch of slots, kept for its allocation.
    scratch: Vec<u32>,
}

/// Requests of one group that took equally long.
struct Run {
    group: OpGroup,
    latency: Ns,
    count: u64,
    bytes: u64,
}

/// Requests of one group that were submitted together and ended at once.
struct InlineRun {
    group: OpGroup,
    start_ns: Ns,
    count: u64,
    bytes: u64,
}

const GROUPS: [OpGroup; OP_GROUPS] =
    [OpGroup::Read, OpGroup::Write, OpGroup::Discard, OpGroup::Flush];

impl Completions {
    #[inline]
    pub(crate) fn count_started(&mut self, group: OpGroup, counted: bool) {
        self.started[group as usize] += u32::from(counted);
    }

    #[inline]
    pub(crate) fn publish_started(&mut self, stats: &ChannelStats) {
        for group in GROUPS {
            let n = std::mem::take(&mut self.started[group as usize]);
            if n != 0 {
                stats.started(group, n.into());
            }
        }
    }

    #[inline]
    fn count_ended(&mut self, stats: &ChannelStats, group: OpGroup, latency: Ns, bytes: u64) {
        match &mut self.run {
            Some(run) if run.group == group && run.latency == latency => {
                run.count += 1;
                run.bytes += bytes;
            }
            _ => {
                self.publish_run(stats);
                self.run = Some(Run { group, latency, count: 1, bytes });
            }
        }
    }

    /// Requests ended inline that are not accounted yet.
    #[inline]
    pub(crate) fn has_inline(&self) -> bool {
        self.inline.is_some()
    }

    /// Account those at the time `now`.
    #[inline]
    fn publish_inline(&mut self, stats: &ChannelStats, now: Ns) {
        if let Some(run) = self.inline.take().filter(|run| run.count > 0) {
            stats.started(run.group, run.count);
            stats.ended(run.group, run.count, run.bytes, now.saturating_sub(run.start_ns));
        }
    }

    #[inline]
    fn publish_run(&mut self, stats: &ChannelStats) {
        if let Some(run) = self.run.take() {
            stats.ended(run.group, run.count, run.bytes, run.latency);
        }
    }
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// End every request in `done`.
    #[inline]
    pub(crate) fn complete_done(&mut self, env: &mut Env) {
        let now = env.time.completion_time();
        self.no_longer_busy();
        self.completions.publish_started(&self.stats);
        let scratch = std::mem::take(&mut self.completions.scratch);
        let mut done = std::mem::replace(&mut self.done, scratch);
        if mistake!("completion_lost") && done.len() > 2 {
            done.pop();
        }
        let mut freed = TagBatch::default();
        for slot in done.drain(..) {
            let tag = self.complete(env, slot, now);
            if freed.base != tag.base && freed.mask != 0 {
                self.free_tags(env, std::mem::take(&mut freed));
            }
            freed = TagBatch { base: tag.base, mask: freed.mask | tag.mask };
        }
        self.completions.publish_run(&self.stats);
        self.publish_ended();
        self.completions.scratch = done;
        self.shared.stats.busy.update(now, true, self.in_flight > 0);
        self.free_tags(env, freed);
    }

    /// The driver has ended the request in `slot` as it was issued: its tag serves the next one. False
    /// if its bios wait to go apart.
    #[inline(always)]
    pub(crate) fn ended_inline(&mut self, env: &mut Env, slot: u32, status: Status) -> bool {
        let rq = self.slots.get(slot);
        (rq.state, rq.timed_out, rq.status) = (State::Idle, false, status);
        if rq.sched_lane != 0 {
            self.ended[usize::from(rq.sched_lane) - 1] += 1;
            rq.sched_lane = 0;
        }
        let (group, start_ns, bytes) = (rq.unit.op.group(), rq.unit.start_ns, rq.unit.bytes);
        self.count_inline(env, group, start_ns, bytes);
        let rq = self.slots.get(slot);
        let plain = status.is_ok() && rq.kind == Kind::Normal;
        let over = match rq.unit.bios.take_only() {
            Some(bio) if plain => {
                env.end_with(bio, Status::Ok);
                true
            }
            only => self.complete_other(env, slot, only),
        };
        self.reuse_tag(env, slot);
        over
    }

    /// Count `unit` among the requests that ended inline.
    #[inline(always)]
    pub(crate) fn account_inline(&mut self, env: &mut Env, unit: &Unit) {
        self.count_inline(env, unit.op.group(), unit.start_ns, unit.bytes);
    }

    /// Count a request, or a bio that did without one, among those that ended inline.
    #[inline(always)]
    pub(crate) fn count_inline(&mut self, env: &mut Env, group: OpGroup, start_ns: Ns, bytes: u64) {
        self.ends_inline = true;
        let count = u64::from(self.config.iostats);
        match &mut self.completions.inline {
            Some(run) if run.group == group && run.start_ns == start_ns => {
                run.count += count;
                run.bytes += bytes;
            }
            other => {
                if other.is_some() {
                    let now = env.time.completion_time();
                    self.completions.publish_inline(&self.stats, now);
                }
                self.completions.inline = Some(InlineRun { group, start_ns, count, bytes });
            }
        }
    }

    /// Account a bio by itself, with a reading of its own.
    pub(crate) fn count_alone(&mut self, env: &mut Env, group: OpGroup, start_ns: Ns, bytes: u64) {
        let now = env.time.now();
        if self.config.iostats {
            self.stats.started(group, 1);
            self.stats.ended(group, 1, bytes, now.saturating_sub(start_ns));
        }
        self.ends_inline = true;
        self.no_longer_busy();
        self.shared.stats.busy.update(now, true, self.in_flight > 0);
    }

    #[inline]
    pub(crate) fn reuse_tag(&mut self, env: &mut Env, slot: u32) {
        let tag = self.slots.get(slot).tag;
        if !self.tags.reuse(tag) {
            self.free_tags(env, tag);
        }
    }

    /// Account what ended inline in this call.
    #[inline]
    pub(crate) fn finish_inline(&mut self, env: &mut Env) {
        let now = S::CLOCK.completion_time(env);
        self.no_longer_busy();
        self.completions.publish_inline(&self.stats, now);
        self.publish_ended();
        self.shared.stats.busy.update(now, true, self.in_flight > 0);
    }

    /// End one request; its tag is free for the caller to give back.
    #[inline(always)]
    fn complete(&mut self, env: &mut Env, slot: u32, now: Ns) -> TagBatch {
        self.in_flight -= 1;
        let rq = self.slots.get(slot);
        debug_assert_eq!(rq.state, State::InFlight, "a request ends once");
        rq.state = State::Idle;
        let tag = rq.tag;
        if rq.counted {
            let latency = now.saturating_sub(rq.unit.start_ns);
            let group = rq.unit.op.group();
            self.completions.count_ended(&self.stats, group, latency, rq.unit.bytes);
        }
        if rq.sched_lane != 0 {
            self.ended[usize::from(rq.sched_lane) - 1] += 1;
            rq.sched_lane = 0;
        }
        let plain = rq.status.is_ok() && rq.kind == Kind::Normal;
        match rq.unit.bios.take_only() {
            Some(bio) if plain => env.end_with(bio, Status::Ok),
            only => _ = self.complete_other(env, slot, only),
        }
        tag
    }

    /// A request that failed, has several bios, or concerns the flush machine. False if its bios wait
    /// to go apart.
    #[cold]
    fn complete_other(&mut self, env: &mut Env, slot: u32, only: Option<Box<Bio>>) -> bool {
        let rq = self.slots.get(slot);
        rq.unit.bios.extend(only);
        let status = match rq.timed_out && !rq.status.is_ok() {
            true => Status::Timeout,
            false => rq.status,
        };
        let (offset, bytes) = (rq.offset(), rq.unit.bytes);
        let op = if rq.kind == Kind::Flush { Op::Flush } else { rq.unit.op };
        let failure = Failure { op, status, offset, bytes };
        if rq.kind != Kind::Normal {
            self.note(&failure);
            self.complete_special(env, slot, status);
            return true;
        }
        let mut bios = rq.unit.bios.take();
        if !status.is_ok() && self.try_apart(env, &mut bios, status) {
            return false;
        }
        self.note(&failure);
        while let Some(bio) = bios.pop() {
            env.end_with(bio, status);
        }
        true
    }

    /// What failed is told later ([`Device::failures`](drystone_core::Device::failures)).
    pub(crate) fn note(&self, failure: &Failure) {
        if failure.status.is_failure() {
            self.shared.stats.failures.note(failure);
        }
    }

    #[cold]
    fn complete_special(&mut self, env: &mut Env, slot: u32, status: Status) {
        let rq = self.slots.get(slot);
        let (kind, mut bios) = (rq.kind, rq.unit.bios.take());
        rq.kind = Kind::Normal;
        if kind == Kind::Flush {
            return self.flush_ended(env, status);
        }
        while let Some(bio) = bios.pop() {
            match status {
                Status::Ok => self.flush.data_done(bio),
                _ => env.end_with(bio, status),
            }
        }
    }

    fn flush_ended(&mut self, env: &mut Env, status: Status) {
        let mut data = BioList::new();
        self.flush.flush_ended(status, |next| match next {
            Next::End(bio, status) => env.end_with(bio, status),
            Next::Data(bio) => data.push(bio),
        });
        while let Some(mut bio) = data.pop() {
            bio.flags.insert(BioFlags::NOMERGE);
            if let Some(bio) = self.cut(env, bio, &mut data) {
                match self.is_elevated() {
                    true => self.elevate(bio),
                    false => self.sched.insert(Unit::new(bio), false),
                }
            }
        }
    }
}
