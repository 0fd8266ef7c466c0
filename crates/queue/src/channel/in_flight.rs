//! The requests of a channel: their slots, those with the driver, those that ended, and their
//! accounting.
//!
//! Invariants:
//! * Each request goes from idle to built, then to the driver, and back to idle. `count` is the
//!   number of requests with the driver that did not complete as they were issued.
//! * A request ends once. Its slot is idle before its tag is free.
//! * Every request that was counted as started is counted as ended. Runs of requests with the same
//!   group and latency are counted together, and everything counted is published to the channel's
//!   statistics before the call ends.
//! * A time-out reports a request once, and frees nothing.

use crate::config::Config;
use crate::flush::has_fua;
use crate::request::{Kind, Request, Slots, State};
use crate::tags::{TagBatch, TagSet};
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::failures::Failure;
use drystone_core::op::{OP_GROUPS, OpGroup};
use drystone_core::stats::ChannelStats;
use drystone_core::{Bio, BioFlags, BioList, Limits, Op, Status};
use std::sync::Arc;

/// The delay until a unit is offered again to a busy driver, if the channel has nothing in flight
/// whose completion would restart it (Linux `BLK_MQ_RESOURCE_DELAY`).
const BUSY_RETRY_NS: Ns = 3_000_000;

/// See the module's text.
pub(crate) struct InFlight {
    slots: Slots,
    /// The number of requests with the driver.
    count: u32,
    /// The driver completed the last request as it was issued, so one tag serves many requests.
    completes_inline: bool,
    /// Requests that ended in this call and are not accounted yet.
    done: Vec<u32>,
    accounts: Accounts,
    /// The time of the next check for time-outs; 0 if there is none.
    timeout_check: Ns,
    stats: Arc<ChannelStats>,
    /// An empty list that keeps its memory.
    scratch: Vec<u32>,
}

/// Counts that are gathered during a call and published at its end.
#[derive(Default)]
struct Accounts {
    started: [u32; OP_GROUPS],
    run: Option<Run>,
    inline: Option<InlineRun>,
}

/// Requests of one group with the same latency.
struct Run {
    group: OpGroup,
    latency: Ns,
    count: u64,
    bytes: u64,
}

/// I/Os of one group that were submitted together and completed inline.
pub(crate) struct InlineRun {
    pub(crate) group: OpGroup,
    pub(crate) start_ns: Ns,
    pub(crate) count: u64,
    pub(crate) bytes: u64,
}

const GROUPS: [OpGroup; OP_GROUPS] =
    [OpGroup::Read, OpGroup::Write, OpGroup::Discard, OpGroup::Flush];

/// The part of an ended request that most callers need.
pub(crate) struct Ended {
    /// The tag of its slot, for the caller to free or reuse.
    pub(crate) tag: TagBatch,
    /// The lane that a shared scheduler counts it for, plus one; 0 if none does.
    pub(crate) sched_lane: u8,
    /// The request's bio, if it has only one.
    pub(crate) only: Option<Box<Bio>>,
    /// The request succeeded, and its bios end with it.
    pub(crate) is_plain: bool,
}

/// The rest of a request that is not plain, or has several bios.
pub(crate) struct Rest {
    /// Its purpose.
    pub(crate) kind: Kind,
    /// The status of the request, in the form in which a failure is reported.
    pub(crate) failure: Failure,
    pub(crate) bios: BioList,
}

impl InFlight {
    /// An idle request for each tag of `set`.
    pub(crate) fn new(set: &TagSet, stats: Arc<ChannelStats>) -> Self {
        InFlight {
            slots: Slots::new(set),
            count: 0,
            completes_inline: false,
            done: Vec::with_capacity(set.depth() as usize),
            accounts: Accounts::default(),
            timeout_check: 0,
            stats,
            scratch: Vec::new(),
        }
    }

    /// Number of requests with the driver.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// True if a request is with the driver.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.count > 0
    }

    /// True if the driver completed the last request as it was issued.
    #[inline]
    pub(crate) fn completes_inline(&self) -> bool {
        self.completes_inline
    }

    /// The request in `slot`.
    #[inline]
    pub(crate) fn request(&mut self, slot: u32) -> &mut Request {
        self.slots.get(slot)
    }

    /// Build a request from `bio` in the idle `slot`.
    #[inline]
    pub(crate) fn build(&mut self, slot: u32, bio: Box<Bio>, limits: &Limits) {
        let kind = kind_of(bio.op, bio.flags, limits);
        let rq = self.slots.get(slot);
        debug_assert_eq!(rq.state, State::Idle);
        (rq.kind, rq.state, rq.status) = (kind, State::Built, Status::Ok);
        rq.unit.set(bio);
    }

    /// Build a request from `unit` in the idle `slot`.
    pub(crate) fn build_unit(&mut self, slot: u32, unit: Unit, limits: &Limits) {
        let kind = if unit.op == Op::Flush { Kind::Flush } else { kind_of_unit(&unit, limits) };
        let rq = self.slots.get(slot);
        debug_assert_eq!(rq.state, State::Idle);
        (rq.kind, rq.state, rq.status, rq.unit) = (kind, State::Built, Status::Ok, unit);
    }

    /// Make a request of the unit that a shared scheduler put into `slot`.
    #[inline]
    pub(crate) fn build_granted(&mut self, slot: u32, limits: &Limits) -> &mut Request {
        let rq = self.slots.get(slot);
        (rq.kind, rq.state, rq.status) = (kind_of_unit(&rq.unit, limits), State::Built, Status::Ok);
        rq
    }

    /// Merge `bio` into the request in `slot`.
    ///
    /// # Errors
    /// The bio, if it cannot be merged.
    #[inline]
    pub(crate) fn try_merge(
        &mut self,
        slot: u32,
        bio: Box<Bio>,
        limits: &Limits,
    ) -> Result<(), Box<Bio>> {
        let group = bio.op.group();
        self.slots.get(slot).unit.try_merge(bio, limits)?;
        self.count_merged(group);
        Ok(())
    }

    /// Count a bio of `group` that was merged into another unit.
    pub(crate) fn count_merged(&self, group: OpGroup) {
        self.stats.merged(group);
    }

    /// The built request in `slot`, for the driver. The caller must then call one of
    /// [`InFlight::started`], [`InFlight::end_inline`] and [`InFlight::refused`].
    #[inline]
    pub(crate) fn issue(&mut self, slot: u32) -> &mut Request {
        let rq = self.slots.get(slot);
        rq.state = State::InFlight;
        rq
    }

    /// Note that the driver has taken the request in `slot` and will report its completion. `last`
    /// is the clock's last reading, or 0.
    pub(crate) fn started(&mut self, slot: u32, last: Ns, config: &Config) -> &mut Request {
        self.completes_inline = false;
        self.count += 1;
        let rq = self.slots.get(slot);
        rq.counted = config.iostats;
        self.accounts.started[rq.unit.op.group() as usize] += u32::from(rq.counted);
        rq.issue_ns = if last != 0 { last } else { rq.unit.start_ns };
        rq.timed_out = false;
        if self.timeout_check == 0 && config.timeout_ns > 0 {
            self.timeout_check = rq.issue_ns.saturating_add(config.timeout_ns);
        }
        rq
    }

    /// Note that the driver did not take the request in `slot`. The request is idle again and keeps
    /// its unit.
    pub(crate) fn refused(&mut self, slot: u32) -> &mut Request {
        let rq = self.slots.get(slot);
        rq.state = State::Idle;
        rq
    }

    /// The time until which a busy driver is not asked again. The driver named `until`; if that is
    /// 0, this is until one of its requests completes, or a fixed delay if it has none.
    pub(crate) fn busy_end(&self, until: Ns, now: impl FnOnce() -> Ns) -> Ns {
        match until {
            0 if self.is_any() => Ns::MAX,
            0 => now() + BUSY_RETRY_NS,
            at => at,
        }
    }

    /// The slots, and the list to which the driver adds requests that are done.
    #[inline]
    pub(crate) fn for_driver(&mut self) -> (&mut Slots, &mut Vec<u32>) {
        (&mut self.slots, &mut self.done)
    }

    /// Number of requests that are done and not accounted yet.
    #[inline]
    pub(crate) fn done_count(&self) -> usize {
        self.done.len()
    }

    /// Take the requests that are done. The caller calls [`InFlight::end`] for each, then
    /// [`InFlight::all_ended`].
    #[inline]
    pub(crate) fn take_done(&mut self) -> Vec<u32> {
        self.publish_started();
        let scratch = std::mem::take(&mut self.scratch);
        std::mem::replace(&mut self.done, scratch)
    }

    /// End the request in `slot` at `now`.
    #[inline(always)]
    pub(crate) fn end(&mut self, slot: u32, now: Ns) -> Ended {
        self.count -= 1;
        let rq = self.slots.get(slot);
        debug_assert_eq!(rq.state, State::InFlight, "a request ends once");
        rq.state = State::Idle;
        if rq.counted {
            let latency = now.saturating_sub(rq.unit.start_ns);
            self.accounts.count_ended(&self.stats, rq.unit.op.group(), latency, rq.unit.bytes);
        }
        take_ended(rq)
    }

    /// Take the list `done` back, whose requests have all ended.
    #[inline]
    pub(crate) fn all_ended(&mut self, done: Vec<u32>) {
        debug_assert!(done.is_empty());
        self.accounts.publish_run(&self.stats);
        self.scratch = done;
    }

    /// End the request in `slot`, which the driver completed as it was issued. If it cannot join
    /// the present run of such requests, that run is accounted at the time that `now` reads.
    #[inline(always)]
    pub(crate) fn end_inline(
        &mut self,
        slot: u32,
        status: Status,
        iostats: bool,
        now: impl FnOnce() -> Ns,
    ) -> Ended {
        let rq = self.slots.get(slot);
        (rq.state, rq.timed_out, rq.status) = (State::Idle, false, status);
        let (group, start_ns, bytes) = (rq.unit.op.group(), rq.unit.start_ns, rq.unit.bytes);
        let ended = take_ended(rq);
        self.count_inline(InlineRun { group, start_ns, count: 1, bytes }, iostats, now);
        ended
    }

    /// Take the rest of the ended request in `slot`; `only` is its bio if that was taken before.
    pub(crate) fn take_rest(&mut self, slot: u32, only: Option<Box<Bio>>) -> Rest {
        let rq = self.slots.get(slot);
        rq.unit.bios.extend(only);
        let status = match rq.timed_out && !rq.status.is_ok() {
            true => Status::Timeout,
            false => rq.status,
        };
        let kind = std::mem::take(&mut rq.kind);
        let op = if kind == Kind::Flush { Op::Flush } else { rq.unit.op };
        let failure = Failure { op, status, offset: rq.offset(), bytes: rq.unit.bytes };
        Rest { kind, failure, bios: rq.unit.bios.take() }
    }

    /// Count requests, or bios without a request, that completed inline. `now` as above.
    #[inline(always)]
    pub(crate) fn count_inline(
        &mut self,
        more: InlineRun,
        iostats: bool,
        now: impl FnOnce() -> Ns,
    ) {
        self.completes_inline = true;
        let more = InlineRun { count: if iostats { more.count } else { 0 }, ..more };
        match &mut self.accounts.inline {
            Some(run) if run.group == more.group && run.start_ns == more.start_ns => {
                run.count += more.count;
                run.bytes += more.bytes;
            }
            _ => self.accounts.begin_inline(&self.stats, more, now),
        }
    }

    /// The same for an I/O that ended at `now` and is accounted alone.
    pub(crate) fn count_inline_alone(&mut self, one: &InlineRun, iostats: bool, now: Ns) {
        self.completes_inline = true;
        if iostats {
            self.stats.started(one.group, 1);
            self.stats.ended(one.group, 1, one.bytes, now.saturating_sub(one.start_ns));
        }
    }

    /// True if some I/O that completed inline is not accounted yet.
    #[inline]
    pub(crate) fn has_inline(&self) -> bool {
        self.accounts.inline.is_some()
    }

    /// Account the I/O that completed inline, at the time `now`.
    #[inline]
    pub(crate) fn publish_inline(&mut self, now: Ns) {
        self.accounts.publish_inline(&self.stats, now);
    }

    /// Publish the number of requests that were started.
    #[inline]
    pub(crate) fn publish_started(&mut self) {
        for group in GROUPS {
            let n = std::mem::take(&mut self.accounts.started[group as usize]);
            if n != 0 {
                self.stats.started(group, n.into());
            }
        }
    }

    /// Check for time-outs as soon as possible, because the time-out may have become shorter.
    pub(crate) fn check_timeouts_soon(&mut self) {
        self.timeout_check = self.timeout_check.min(1);
    }

    /// The time of the next check for time-outs.
    pub(crate) fn deadline(&self) -> Option<Ns> {
        (self.timeout_check != 0 && self.count > 0).then_some(self.timeout_check)
    }

    /// If a check is due, call `report` for each request that has taken longer than `timeout` and
    /// was not reported yet.
    pub(crate) fn check_timeouts(
        &mut self,
        now: Ns,
        timeout: Ns,
        mut report: impl FnMut(&mut Request),
    ) {
        if self.timeout_check == 0 || self.timeout_check > now {
            return;
        }
        let mut next = Ns::MAX;
        for rq in self.slots.iter_mut().filter(|rq| rq.state == State::InFlight) {
            let due = rq.issue_ns.saturating_add(timeout);
            if due > now {
                next = next.min(due);
            } else if !rq.timed_out {
                rq.timed_out = true;
                report(rq);
            }
        }
        self.timeout_check = if next == Ns::MAX { 0 } else { next };
    }
}

/// The purpose of a request with operation `op` and `flags`.
#[inline]
fn kind_of(op: Op, flags: BioFlags, limits: &Limits) -> Kind {
    match flags.contains(BioFlags::FUA) && !has_fua(op, limits) {
        true => Kind::ThenFlush,
        false => Kind::Normal,
    }
}

#[inline]
fn kind_of_unit(unit: &Unit, limits: &Limits) -> Kind {
    kind_of(unit.op, unit.flags, limits)
}

#[inline(always)]
fn take_ended(rq: &mut Request) -> Ended {
    Ended {
        tag: rq.tag,
        sched_lane: std::mem::take(&mut rq.sched_lane),
        only: rq.unit.bios.take_only(),
        is_plain: rq.status.is_ok() && rq.kind == Kind::Normal,
    }
}

impl Accounts {
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

    #[inline]
    fn publish_run(&mut self, stats: &ChannelStats) {
        if let Some(run) = self.run.take() {
            stats.ended(run.group, run.count, run.bytes, run.latency);
        }
    }

    /// Begin another run. Each batch does this once, so it is kept out of line: then it takes no
    /// registers from the loop over the bios.
    #[inline(never)]
    fn begin_inline(&mut self, stats: &ChannelStats, run: InlineRun, now: impl FnOnce() -> Ns) {
        if self.inline.is_some() {
            self.publish_inline(stats, now());
        }
        self.inline = Some(run);
    }

    #[inline]
    fn publish_inline(&mut self, stats: &ChannelStats, now: Ns) {
        if let Some(run) = self.inline.take().filter(|run| run.count > 0) {
            stats.started(run.group, run.count);
            stats.ended(run.group, run.count, run.bytes, now.saturating_sub(run.start_ns));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::tags::TagSet;
    use drystone_core::clock::ManualClock;
    use drystone_core::stats::DeviceStats;
    use drystone_core::sync::LockCounters;
    use drystone_core::{IoBuf, Sector};

    fn flight() -> (InFlight, DeviceStats) {
        let stats = DeviceStats::new(LockCounters::new(ManualClock::new(1)));
        (InFlight::new(&TagSet::new(4), stats.for_channel()), stats)
    }

    fn read(start_ns: Ns) -> Box<Bio> {
        let mut bio = Bio::read(Sector(0), IoBuf::zeroed(512));
        bio.stamp(start_ns);
        bio
    }

    fn config(timeout_ns: Ns) -> Config {
        Config { timeout_ns, ..Config::for_test() }
    }

    fn start(flight: &mut InFlight, slot: u32, start_ns: Ns, config: &Config) {
        flight.build(slot, read(start_ns), &Limits::default());
        flight.issue(slot);
        flight.started(slot, 0, config);
    }

    #[test]
    fn all_that_start_are_published_and_end_once() {
        let (mut flight, stats) = flight();
        (0..3).for_each(|slot| start(&mut flight, slot, 10, &config(0)));
        assert_eq!((flight.count(), stats.sum().in_flight()), (3, (0, 0)), "not published yet");
        flight.for_driver().1.extend([2, 0]);
        let mut done = flight.take_done();
        assert_eq!(stats.sum().in_flight(), (3, 0));
        for slot in done.drain(..) {
            let ended = flight.end(slot, 30);
            assert!(ended.is_plain && ended.only.is_some() && ended.sched_lane == 0);
        }
        let completed = || stats.sum().group(OpGroup::Read).completed;
        assert_eq!(completed(), 0, "one run of two, published together");
        flight.all_ended(done);
        assert_eq!((completed(), flight.count(), flight.done_count()), (2, 1, 0));
        assert_eq!(stats.sum().in_flight(), (1, 0));
    }

    #[test]
    fn what_ends_inline_is_one_run_for_each_time_of_submission() {
        let (mut flight, stats) = flight();
        let completed = || stats.sum().group(OpGroup::Read).completed;
        for (start_ns, published) in [(10, 0), (10, 0), (11, 2)] {
            flight.build(1, read(start_ns), &Limits::default());
            flight.issue(1);
            let ended = flight.end_inline(1, Status::Ok, true, || 20);
            assert!(ended.is_plain && ended.only.is_some());
            assert_eq!((completed(), flight.count()), (published, 0));
        }
        flight.publish_inline(20);
        assert!(completed() == 3 && !flight.has_inline() && flight.completes_inline());
        assert_eq!(stats.sum().in_flight(), (0, 0));
    }

    #[test]
    fn a_time_out_is_reported_once_and_shows_only_in_a_failure() {
        let (mut flight, _stats) = flight();
        let config = config(100);
        start(&mut flight, 0, 10, &config);
        start(&mut flight, 1, 50, &config);
        let reports = |flight: &mut InFlight, now| {
            let mut slots = Vec::new();
            flight.check_timeouts(now, 100, |rq| slots.push(rq.slot));
            slots
        };
        assert_eq!((flight.deadline(), reports(&mut flight, 109)), (Some(110), vec![]));
        assert_eq!((reports(&mut flight, 110), flight.deadline()), (vec![0], Some(150)));
        assert_eq!(reports(&mut flight, 149), []);
        assert_eq!((reports(&mut flight, 150), flight.deadline()), (vec![1], None));
        for (slot, status, shown) in
            [(0, Status::IoError, Status::Timeout), (1, Status::Ok, Status::Ok)]
        {
            flight.request(slot).status = status;
            let ended = flight.end(slot, 200);
            assert_eq!(ended.is_plain, status.is_ok());
            let rest = flight.take_rest(slot, ended.only);
            assert_eq!((rest.failure.status, rest.bios.len()), (shown, 1));
        }
    }

    #[test]
    fn a_flush_follows_where_the_device_lacks_fua() {
        let (mut flight, _stats) = flight();
        let mut kind = |flags, fua| {
            let mut bio = Bio::write(Sector(0), IoBuf::zeroed(512));
            bio.flags = flags;
            let limits = Limits { write_cache: true, fua, ..Limits::default() };
            flight.build_unit(3, Unit::new(bio), &limits);
            flight.refused(3).unit.bios.take();
            flight.request(3).kind
        };
        assert_eq!(kind(BioFlags::FUA, false), Kind::ThenFlush);
        assert_eq!(kind(BioFlags::FUA, true), Kind::Normal);
        assert_eq!(kind(BioFlags::empty(), false), Kind::Normal);
        flight.build_unit(3, Unit { op: Op::Flush, ..Unit::default() }, &Limits::default());
        assert_eq!(flight.request(3).kind, Kind::Flush);
    }
}
