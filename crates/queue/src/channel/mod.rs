//! The request queue as one context uses it: the path of a bio from submission to the driver.
//!
//! Invariants:
//! * Bios go to the driver in the order of submission, unless merging or a flush sequence moves
//!   them. While units wait for a tag, new ones wait behind them.
//! * Every bio is in exactly one place: the plug, the scheduler, the flush machine, a request, or
//!   ended.
//! * A tag that was taken in advance and not used is freed before the call ends.
//!
//! The channel has five parts, whose fields are private to their files. It has no other state:
//!
//! ```text
//!                submit, flush_plug, message, tick
//!   +--------+----------+---------------+------------------+
//! Setup   TagLine      Held      SchedulerClient       InFlight
//! limits, spare tags,  plug,     port, grants, bios    slots, done,
//! driver  waits        list,     to the scheduler      counts, time-outs
//!                      flush     and back
//! ```
//!
//! A part that needs another one gets it as an argument, and returns the next step. The files
//! `inline`, `exclusive`, `waits`, `retry` and `complete` contain steps of the path, but no state.

mod complete;
mod exclusive;
mod held;
pub(crate) mod in_flight;
mod inline;
mod retry;
mod sched_client;
mod setup;
pub(crate) mod tag_line;
mod waits;

use crate::driver::{Driver, DriverQueue, Issue};
use crate::flush::Start;
use crate::request::Kind;
use crate::scheduler::{MqDeadline, Scheduler};
use crate::shared::Shared;
use crate::split::first_part;
use crate::tags::TagBatch;
use drystone_core::clock::Ns;
use drystone_core::context::PLUG_MAX_BIOS;
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::stats::ChannelStats;
use drystone_core::{Bio, BioFlags, BioList, Channel, ChannelId, Env, Status};
use held::Held;
use in_flight::InFlight;
use sched_client::{DOORBELL, Dispatch, Parts, SchedulerClient};
use setup::Setup;
use std::ops::Range;
use std::sync::Arc;
use tag_line::{TAG_WAKE, TagLine};

/// The most runs of the shared scheduler in one call, which also serve bios of other contexts.
const ROUNDS_MAX: u32 = 64;

/// One context's way into a [`crate::RequestQueue`]. On cache lines of its own.
#[repr(align(128))]
pub struct RequestChannel<D: Driver, S: Scheduler = MqDeadline> {
    setup: Setup<D, S>,
    tags: TagLine,
    held: Held,
    sched: SchedulerClient<S>,
    flight: InFlight,
    /// The port is closed: no other channel can find this one any more.
    is_closed: bool,
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    pub(crate) fn new(
        shared: Arc<Shared<D, S>>,
        mut driver: D::Queue,
        stats: Arc<ChannelStats>,
        id: ChannelId,
        env: &mut Env,
    ) -> Self {
        let doorbell = Message::to(env.handle(), id, DOORBELL);
        let (port, map) = shared.open_port(env.context_id(), doorbell, &env.locks);
        let wake = Message::to(env.handle(), id, TAG_WAKE);
        let tags = TagLine::new(&map, env.context_id(), wake);
        driver.use_poll_queue(env, tags.slot().poll);
        RequestChannel {
            setup: Setup::new(shared, driver, id, env),
            held: Held::default(),
            sched: SchedulerClient::new(port, tags.set().depth()),
            flight: InFlight::new(tags.set(), stats),
            is_closed: false,
            tags,
        }
    }

    /// Begin a call with new bios: follow changes of the configuration.
    #[inline]
    fn begin(&mut self, env: &mut Env) {
        if self.setup.refresh(env, &mut self.flight) && self.is_moving() {
            self.follow_queues(env);
        }
    }

    /// Follow a configuration or size that changed since the last call.
    #[inline]
    pub(crate) fn refresh(&mut self, env: &mut Env) {
        self.setup.refresh(env, &mut self.flight);
    }

    /// Dispatch `bios` one by one, each as a request or merged into one. Bios that were just
    /// submitted get their time here, which saves a second pass over them.
    #[inline]
    fn issue_bios(&mut self, env: &mut Env, bios: &mut BioList, submitted: Option<Ns>) {
        let mut last: Option<u32> = None;
        let dispatch = self.dispatch_of(env, bios, submitted);
        self.sched.set_exclusive(dispatch == Dispatch::Exclusive);
        // With other dispatches the bios have their time already.
        let stamp = submitted.filter(|_| dispatch == Dispatch::Bypass);
        // Whether bios may be issued at once. Only the results of `issue` and `build` change this.
        let mut clear = self.may_issue();
        if clear && dispatch == Dispatch::Bypass {
            self.complete_inline(env, bios, stamp);
        }
        while let Some(mut bio) = bios.pop() {
            if let Some(now) = stamp {
                bio.stamp(now);
            }
            let Some(bio) = self.admit(env, bio, bios) else { continue };
            if matches!(dispatch, Dispatch::Scheduled | Dispatch::ExclusiveMerged) {
                self.sched.add(bio);
                continue;
            }
            let Some(bio) = self.merge_into_last(last, bio) else { continue };
            if let Some(slot) = last.take() {
                clear &= self.issue(env, slot) || self.may_issue();
            }
            last = if clear {
                self.build(env, bio, bios.len() as u32 + 1)
            } else {
                self.hold_back(env, bio)
            };
            clear &= last.is_some();
        }
        if let Some(slot) = last {
            self.issue(env, slot);
        }
        self.sched.set_exclusive(false);
        self.requeue(env);
        if dispatch == Dispatch::ExclusiveMerged {
            self.dispatch_merged(env);
        }
        self.submit_scheduled(env, submitted);
    }

    /// Check a bio. Returns an ordinary bio, cut to the size of one request; the rest goes to the
    /// head of `bios`.
    #[inline]
    fn admit(&mut self, env: &mut Env, bio: Box<Bio>, bios: &mut BioList) -> Option<Box<Bio>> {
        if self.setup.is_ordinary(&bio) { Some(bio) } else { self.admit_special(env, bio, bios) }
    }

    #[cold]
    fn admit_special(
        &mut self,
        env: &mut Env,
        mut bio: Box<Bio>,
        bios: &mut BioList,
    ) -> Option<Box<Bio>> {
        if !self.setup.config().polls() {
            bio.flags.remove(BioFlags::POLLED);
        }
        if let Err(status) = self.setup.check(&bio) {
            env.end_with(bio, status);
            return None;
        }
        if bio.is_flush() {
            bio = self.start_flush_sequence(env, bio)?;
        }
        if bio.bytes == 0 {
            env.end_with(bio, Status::Ok);
            return None;
        }
        self.cut(env, bio, bios)
    }

    fn start_flush_sequence(&mut self, env: &mut Env, bio: Box<Bio>) -> Option<Box<Bio>> {
        match self.held.start_flush(bio, self.setup.limits()) {
            Start::End(bio) => env.end_with(bio, Status::Ok),
            Start::Normal(bio) | Start::ThenFlush(bio) => return Some(bio),
            Start::Queued => {}
        }
        None
    }

    /// Cut a bio to the size of one request; the rest goes to the head of `rest`.
    pub(crate) fn cut(
        &mut self,
        env: &mut Env,
        mut bio: Box<Bio>,
        rest: &mut BioList,
    ) -> Option<Box<Bio>> {
        let bytes = first_part(&bio, self.setup.limits());
        if bytes == bio.bytes {
            return Some(bio);
        }
        if bytes == 0 || bio.flags.contains(BioFlags::NOWAIT) {
            env.end_with(bio, if bytes == 0 { Status::Invalid } else { Status::Again });
            return None;
        }
        bio.flags.remove(BioFlags::POLLED);
        let (front, left) = env.split(bio, bytes);
        rest.push_front(left);
        Some(front)
    }

    #[inline]
    fn merge_into_last(&mut self, last: Option<u32>, bio: Box<Bio>) -> Option<Box<Bio>> {
        let Some(slot) = last else { return Some(bio) };
        if self.setup.config().nomerges == 2 {
            return Some(bio);
        }
        self.flight.try_merge(slot, bio, self.setup.limits()).err()
    }

    /// Make a request of `bio` if there is a tag; otherwise hold it back.
    #[inline]
    fn build(&mut self, env: &mut Env, bio: Box<Bio>, want: u32) -> Option<u32> {
        match self.tags.pop() {
            Some(tag) => Some(self.fill(tag, bio)),
            None => self.build_with_new_tags(env, bio, want),
        }
    }

    fn build_with_new_tags(&mut self, env: &mut Env, bio: Box<Bio>, want: u32) -> Option<u32> {
        self.tags.reserve(if self.flight.completes_inline() {
            1
        } else {
            want.min(PLUG_MAX_BIOS as u32)
        });
        match self.tags.pop() {
            Some(tag) => Some(self.fill(tag, bio)),
            None => self.hold_back(env, bio),
        }
    }

    #[inline]
    pub(crate) fn may_issue(&self) -> bool {
        self.held.may_pass()
            && self.sched.may_pass()
            && !self.setup.scheduler().has_work()
            && !self.is_moving()
    }

    #[inline]
    fn fill(&mut self, slot: u32, bio: Box<Bio>) -> u32 {
        self.flight.build(slot, bio, self.setup.limits());
        slot
    }

    /// Hold `bio` back, because there is no tag. If there is a shared scheduler, it holds the bio.
    #[cold]
    fn hold_back(&mut self, env: &mut Env, bio: Box<Bio>) -> Option<u32> {
        if self.setup.has_scheduler() {
            self.sched.add(bio);
            return None;
        }
        if bio.flags.contains(BioFlags::NOWAIT) {
            env.end_with(bio, Status::Again);
            return None;
        }
        let group = bio.op.group();
        if self.setup.config().nomerges > 0 {
            self.held.push(bio);
        } else if self.held.merge_or_push(bio, self.setup.limits()) {
            self.flight.count_merged(group);
        }
        None
    }

    /// Queue `bio` behind the bios that wait already.
    fn enqueue(&mut self, bio: Box<Bio>) {
        match self.setup.has_scheduler() {
            true => self.sched.add(bio),
            false => self.held.push(bio),
        }
    }

    /// Issue a built request to the driver. True if the driver completed it, and all its bios
    /// ended.
    #[inline(always)]
    pub(crate) fn issue(&mut self, env: &mut Env, slot: u32) -> bool {
        let rq = self.flight.issue(slot);
        match self.setup.driver().queue_rq(env, rq) {
            Issue::Done(status) => return self.ended_inline(env, slot, status),
            Issue::Started => self.started(env, slot),
            Issue::Busy(until) => self.take_back(env, slot, until),
        }
        false
    }

    /// Note that the driver has taken a request and will report its completion.
    fn started(&mut self, env: &mut Env, slot: u32) {
        let rq = self.flight.started(slot, env.time.last(), self.setup.config());
        if rq.unit.flags.contains(BioFlags::POLLED) {
            env.polls(self.setup.channel());
        }
        self.sched.count_started(rq);
    }

    /// Requeue the unit of a request for which the driver was busy: it goes to the head of the
    /// scheduler or of the held units.
    #[cold]
    fn take_back(&mut self, env: &mut Env, slot: u32, until: Ns) {
        let until = self.flight.busy_end(until, || env.time.now());
        if self.setup.has_scheduler() && self.flight.request(slot).kind != Kind::Flush {
            self.setup.shared().busy.set(until);
            return self.refuse(env, slot);
        }
        let rq = self.flight.refused(slot);
        self.sched.count_refused(rq);
        let unit = std::mem::take(&mut rq.unit);
        self.free_tag(env, slot);
        self.held.requeue(unit, until);
    }

    /// Free tags. The scheduler may dispatch with them.
    #[inline]
    fn free_tags(&mut self, env: &mut Env, batch: TagBatch) {
        self.sched.recheck();
        self.tags.free(env, batch);
    }

    fn free_tag(&mut self, env: &mut Env, tag: u32) {
        self.sched.recheck();
        self.tags.free_tag(env, tag);
    }

    /// Free spare tags. True if there were some.
    #[inline]
    fn free_spare(&mut self, env: &mut Env) -> bool {
        let any = self.tags.free_spare(env);
        if any {
            self.sched.recheck();
        }
        any
    }

    /// The client of the scheduler, and the other parts that it needs.
    #[inline(always)]
    fn split(&mut self) -> (&mut SchedulerClient<S>, Parts<'_, D, S>) {
        let parts =
            Parts { setup: &mut self.setup, tags: &mut self.tags, flight: &mut self.flight };
        (&mut self.sched, parts)
    }

    /// Hand over the bios that this call noted for the scheduler. `submitted` is the time of the
    /// call if it is a submission.
    #[inline]
    fn submit_scheduled(&mut self, env: &mut Env, submitted: Option<Ns>) {
        if self.sched.has_new() {
            let now = submitted.unwrap_or_else(|| env.time.recent());
            let (sched, parts) = self.split();
            sched.submit(parts, env, now);
            self.issue_scheduled(env);
            self.requeue(env);
        }
    }

    /// Let the scheduler dispatch, if its turn is free. True if there is more to do.
    fn run_scheduler(&mut self, env: &mut Env) -> bool {
        let now = env.time.recent();
        let (sched, parts) = self.split();
        let again = sched.run(parts, env, now);
        let sent = self.issue_scheduled(env);
        again | self.requeue(env) | sent
    }

    /// Issue the units that the scheduler dispatched. True if there were some.
    #[inline]
    fn issue_scheduled(&mut self, env: &mut Env) -> bool {
        self.sched.run_units(&mut self.setup, &mut self.flight, env) | self.issue_granted(env)
    }

    #[inline]
    fn issue_granted(&mut self, env: &mut Env) -> bool {
        let mut granted = self.sched.take_granted();
        let sent = !granted.is_empty();
        for slot in granted.drain(..) {
            let rq = self.flight.build_granted(slot, self.setup.limits());
            match self.sched.begin_grant(env, rq) {
                true => _ = self.issue(env, slot),
                false => self.refuse(env, slot),
            }
        }
        self.sched.return_granted(granted);
        sent
    }

    /// Give the unit in `slot` back to the scheduler, because the driver was busy.
    fn refuse(&mut self, env: &mut Env, slot: u32) {
        self.sched.refuse(env, self.flight.refused(slot));
        self.free_tag(env, slot);
    }

    /// Give units back to the scheduler for which the driver was too busy. True if the scheduler
    /// may be asked again.
    #[inline]
    fn requeue(&mut self, env: &mut Env) -> bool {
        let (sched, parts) = self.split();
        sched.requeue(parts, env)
    }

    /// Finish a call after everything that was possible was issued. In a loop, account the requests
    /// that are done and send the units that wait, until neither is left; then free the spare tags.
    #[inline]
    pub(crate) fn settle(&mut self, env: &mut Env) {
        self.setup.driver().commit(env);
        let mut rounds = 0;
        loop {
            if self.flight.has_inline() {
                self.finish_inline(env);
            }
            if self.flight.done_count() > 0 {
                let (slots, done) = self.flight.for_driver();
                self.setup.driver().ending(env, slots, done);
                self.complete_done(env);
            }
            if self.is_moving() {
                self.follow_queues(env);
            }
            self.submit_scheduled(env, None);
            self.requeue(env);
            let mut more = false;
            if self.may_run_scheduler(rounds) {
                rounds += 1;
                more = self.run_scheduler(env);
            }
            if self.held.has_work() {
                more |= self.dispatch(env);
            }
            let idle = self.flight.done_count() == 0 && !more && !self.flight.has_inline();
            // A context that found no tag while these tags were spare relies on a check after their
            // return.
            if idle && !(self.free_spare(env) && self.may_run_scheduler(rounds)) {
                break;
            }
            self.setup.driver().commit(env);
        }
        self.flight.publish_started();
        self.sched.recheck();
        if rounds == ROUNDS_MAX {
            self.sched.pass_on(&self.setup, env);
        }
        if self.held.has_work() && !self.held.is_busy() && !self.is_moving() {
            self.wait_for_tag(env);
        }
    }

    /// True if the shared scheduler has work and this call may still run it.
    #[inline]
    fn may_run_scheduler(&self, rounds: u32) -> bool {
        self.setup.scheduler().has_work() && !self.sched.sched_is_idle() && rounds < ROUNDS_MAX
    }

    /// Send units that wait, as far as there are tags. True if a unit was sent.
    #[cold]
    fn dispatch(&mut self, env: &mut Env) -> bool {
        if env.is_draining() {
            // The context was dropped. If the driver were busy, or there were no tag, its owner
            // would not try again.
            self.cancel_pending(env);
            return false;
        }
        S::CLOCK.before_issue(env);
        let mut sent = false;
        let may = !self.is_moving();
        while may && !self.held.is_busy() && self.held.has_work() {
            self.tags.reserve(PLUG_MAX_BIOS as u32);
            let Some(slot) = self.tags.pop() else { break };
            let Some(unit) = self.held.next_unit(|| env.time.submit_time()) else {
                self.free_tag(env, slot);
                break;
            };
            self.flight.build_unit(slot, unit, self.setup.limits());
            self.issue(env, slot);
            sent = true;
        }
        sent
    }
}

impl<D: Driver, S: Scheduler> Channel for RequestChannel<D, S> {
    #[inline]
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.begin(env);
        let now = S::CLOCK.submit_time(env);
        self.setup.shared().stats.busy.update(now, false, self.flight.is_any());
        if env.plugged {
            bios.stamp(now);
            return self.plug_bios(env, bios);
        }
        self.issue_bios(env, bios, Some(now));
        self.settle(env);
    }

    #[inline(always)]
    fn max_io_bytes(&self) -> u64 {
        let limits = self.setup.limits();
        if limits.chunk_bytes == 0 { limits.max_bytes.into() } else { 0 }
    }

    fn first_part(&self, bio: &Bio) -> u64 {
        first_part(bio, self.setup.limits())
    }

    #[inline]
    fn follow_limits(&mut self, env: &mut Env) {
        self.refresh(env);
    }

    fn flush_plug(&mut self, env: &mut Env) {
        if !self.held.is_plugged() {
            return;
        }
        self.begin(env);
        S::CLOCK.before_issue(env);
        let mut bios = self.held.unplug();
        self.issue_bios(env, &mut bios, None);
        self.settle(env);
    }

    fn ring_event(&mut self, env: &mut Env, event: RingEvent) {
        let (slots, done) = self.flight.for_driver();
        self.setup.driver().ring_event(env, event, slots, done);
    }

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn message(&mut self, env: &mut Env, message: Arc<Message>) {
        if message.payload() == TAG_WAKE {
            match self.tags.is_own_wake(&message) {
                true => self.tag_turn(env),
                false => self.tags.pass_stale_turn(env, &message),
            }
        } else if message.payload() == DOORBELL {
            self.take_grants(env);
            self.refresh(env);
            if self.setup.config().is_retired {
                env.request_sweep();
            }
        } else {
            let (slots, done) = self.flight.for_driver();
            self.setup.driver().message(env, message, slots, done);
        }
    }

    fn delivered(&mut self, env: &mut Env) {
        self.settle(env);
    }

    fn poll(&mut self, env: &mut Env) -> usize {
        let (slots, done) = self.flight.for_driver();
        self.setup.driver().poll(env, slots, done);
        let found = self.flight.done_count();
        if found > 0 {
            self.settle(env);
        }
        found
    }

    fn must_poll(&self) -> bool {
        self.setup.must_poll()
    }

    fn deadline(&self) -> Option<Ns> {
        let busy = self.held.deadline();
        let device = match self.sched.expected_remote() {
            0 => None,
            _ => self.setup.shared().busy.deadline(),
        };
        busy.into_iter().chain(self.flight.deadline()).chain(device).min()
    }

    fn tick(&mut self, env: &mut Env, now: Ns) {
        self.held.tick(now);
        let timeout = self.setup.config().timeout_ns;
        let driver = self.setup.driver();
        self.flight.check_timeouts(now, timeout, |rq| driver.timed_out(env, rq));
        self.settle(env);
    }

    fn in_flight(&self) -> usize {
        self.flight.count() as usize + self.tags.waits() + self.sched.expected_remote()
    }

    fn try_retire(&mut self) -> bool {
        if !self.setup.config().is_retired || !self.held.is_empty() {
            return false;
        }
        if !self.is_closed {
            self.setup.shared().close_port(self.sched.port());
            self.is_closed = true;
        }
        // This channel's copy of the configuration refers to its port too.
        self.setup.refresh_to_close();
        self.sched.is_port_unshared() && self.tags.is_wake_unshared()
    }

    fn close(&mut self, env: &mut Env) {
        self.setup.driver().close(env);
    }

    fn waits_on_peer(&self) -> bool {
        let kept = self.sched.lacks_tags();
        self.tags.is_waiting() || kept && !self.frees_for_itself()
    }

    fn push_shared_work(&mut self, env: &mut Env) -> bool {
        if self.sched.expected_remote() > 0 {
            self.settle(env);
        }
        self.tags.is_waiting()
            || self.sched.expected_remote() > 0
                && (self.setup.scheduler().is_busy() || self.waits_on_peer())
    }

    fn withdraw(&mut self, env: &mut Env, range: &Range<u64>) {
        let (slots, done) = self.flight.for_driver();
        self.setup.driver().withdraw(env, range, slots, done);
        if self.flight.done_count() > 0 {
            self.settle(env);
        }
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        let mut bios = self.held.take_all();
        while let Some(bio) = bios.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        let (sched, parts) = self.split();
        sched.cancel(parts, env);
    }
}

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    fn plug_bios(&mut self, env: &mut Env, bios: &mut BioList) {
        if self.held.plug(bios) {
            self.flush_plug(env);
        }
    }

    /// Take the units that came through the port.
    fn take_grants(&mut self, env: &mut Env) {
        let (sched, parts) = self.split();
        sched.take_grants(parts, env);
        if !env.is_draining() {
            S::CLOCK.before_issue(env);
            self.issue_granted(env);
            self.requeue(env);
        }
    }

    /// Note that a busy driver may take units again.
    #[inline]
    pub(crate) fn no_longer_busy(&mut self) {
        self.held.completed();
        self.setup.shared().busy.completed();
    }
}

impl<D: Driver, S: Scheduler> Drop for RequestChannel<D, S> {
    fn drop(&mut self) {
        debug_assert!(
            !self.flight.is_any() && self.sched.expected_remote() == 0 || std::thread::panicking()
        );
        if !self.is_closed {
            self.setup.shared().close_port(self.sched.port());
        }
    }
}
