//! A channel as a client of the scheduler that all channels of its device share: it hands bios
//! over, runs the scheduler, and takes back units and bios that ended.
//!
//! A caller that gets the scheduler's turn does the work of the others, too (flat combining). So a
//! unit of this channel may be dispatched, and with some drivers completed, in another context.
//!
//! Invariants:
//! * `expected_remote` counts the bios of this channel that the scheduler has, or that it granted
//!   or ended without the channel having seen it. The sum of its context makes the owner
//!   check its mailbox for them.
//! * A bio here is in one place: to the scheduler, requeued, granted, to run, done for another
//!   channel, or refused. All but granted ones are elsewhere when the call ends.
//! * Requeued bios go to the scheduler before others, in their order, and nothing is issued before.
//! * Every unit that was counted as dispatched in a lane is counted as ended in it.

use super::in_flight::{InFlight, InlineRun};
use super::retry::prepare_retry;
use super::setup::Setup;
use super::tag_line::TagLine;
use crate::driver::{Driver, DriverQueue, Issue};
use crate::queues::QueueSlot;
use crate::request::{Request, State};
use crate::scheduler::deadline::{LANES, lane_of};
use crate::scheduler::is_ours_alone;
use crate::scheduler::{Caller, Exclusive, Grant, InsertAt, Outlet, Port, Scheduler, ToRun};
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::failures::Failure;
use drystone_core::mailbox::Message;
use drystone_core::{Bio, BioList, Env, PortId, Status};
use std::sync::Arc;

/// Payload of a port's doorbell, which tells its channel of grants and of changes.
pub(crate) const DOORBELL: u64 = u64::MAX - 1;

/// The dispatch of the bios of a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dispatch {
    /// To the driver, in their order.
    Bypass,
    /// The same, in the order that the shared scheduler gives them. It counts them.
    Exclusive,
    /// As units that the shared scheduler makes of them, without bios of other channels.
    ExclusiveMerged,
    /// By the shared scheduler.
    Scheduled,
}

/// The other parts of the channel that a run of the scheduler needs.
pub(crate) struct Parts<'a, D: Driver, S> {
    pub(crate) setup: &'a mut Setup<D, S>,
    pub(crate) tags: &'a mut TagLine,
    pub(crate) flight: &'a mut InFlight,
}

/// See the module's text.
pub(crate) struct SchedulerClient<S: Scheduler> {
    /// The channel as the scheduler and other channels know it.
    port: Arc<Port>,
    /// Bios whose end other contexts may bring.
    expected_remote: usize,
    /// Bios of this call for the scheduler.
    to_scheduler: BioList,
    /// Bios that the driver was too busy for, to go back to the scheduler.
    requeued: BioList,
    /// The requests that are issued now bypass the scheduler, which counts them.
    is_exclusive: bool,
    /// The last run found nothing to dispatch, and this call has freed nothing since.
    sched_is_idle: bool,
    /// Scheduled requests that ended in this call, by lane.
    ended: [u32; LANES],
    /// Slots whose units were granted in this call.
    granted: Vec<u32>,
    /// Units that complete inline, to run in this call, with their owners' ports.
    to_run: ToRun,
    /// Bios of other channels that ended in this call.
    remote_done: BioList,
    /// Bios that the scheduler refused in this call.
    refused: BioList,
    /// Doorbells to ring when the scheduler has been left.
    doorbells: Vec<Arc<Message>>,
    /// The state that the scheduler keeps with this channel.
    local: S::Local,
}

impl<S: Scheduler> SchedulerClient<S> {
    /// A client with an open port, for a channel with `depth` slots.
    pub(crate) fn new(port: Arc<Port>, depth: u32) -> Self {
        SchedulerClient {
            port,
            expected_remote: 0,
            to_scheduler: BioList::new(),
            requeued: BioList::new(),
            is_exclusive: false,
            sched_is_idle: false,
            ended: [0; LANES],
            granted: Vec::with_capacity(depth as usize),
            to_run: ToRun::default(),
            remote_done: BioList::new(),
            refused: BioList::new(),
            doorbells: Vec::new(),
            local: S::Local::default(),
        }
    }

    /// The channel as others know it.
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// True if no other context refers to the port, which is closed.
    pub(crate) fn is_port_unshared(&self) -> bool {
        is_ours_alone(&self.port)
    }

    /// Number of bios whose end other contexts may bring.
    pub(crate) fn expected_remote(&self) -> usize {
        self.expected_remote
    }

    /// True if the scheduler keeps bios of this channel for want of tags.
    pub(crate) fn lacks_tags(&self) -> bool {
        self.expected_remote > 0 && self.port.lacks_tags()
    }

    /// True if bios that come now may go to the driver before all that are here.
    #[inline]
    pub(crate) fn may_pass(&self) -> bool {
        self.to_scheduler.is_empty() && self.requeued.is_empty()
    }

    /// True if a run of the scheduler would find nothing to dispatch, as far as this call knows.
    #[inline]
    pub(crate) fn sched_is_idle(&self) -> bool {
        self.sched_is_idle
    }

    /// Something changed, such as a tag that came free: a run may find something.
    #[inline]
    pub(crate) fn recheck(&mut self) {
        self.sched_is_idle = false;
    }

    /// Note `bio` for the scheduler, which gets all of a call together.
    #[inline]
    pub(crate) fn add(&mut self, mut bio: Box<Bio>) {
        bio.port = self.port.id();
        self.to_scheduler.push(bio);
    }

    /// True if bios were noted for the scheduler.
    #[inline]
    pub(crate) fn has_new(&self) -> bool {
        !self.to_scheduler.is_empty()
    }

    /// Take the noted bios back.
    pub(crate) fn take_new(&mut self) -> BioList {
        self.to_scheduler.take()
    }

    /// Note them again, in their order.
    pub(crate) fn put_new(&mut self, bios: &mut BioList) {
        self.to_scheduler.append(bios);
    }

    /// The dispatch of `bios`, for which there are tags while the scheduler has no work. Bios that
    /// go in order are put in it.
    #[inline]
    pub(crate) fn plan<D: Driver>(
        &mut self,
        setup: &Setup<D, S>,
        bios: &mut BioList,
        now: Ns,
    ) -> Dispatch {
        match setup.scheduler().exclusive(&mut self.local, bios, now, setup.config()) {
            Exclusive::InOrder => Dispatch::Exclusive,
            Exclusive::Merged => Dispatch::ExclusiveMerged,
            Exclusive::No => Dispatch::Scheduled,
        }
    }

    /// True if requests that are issued from now on bypass the scheduler and are counted.
    #[inline]
    pub(crate) fn set_exclusive(&mut self, is_exclusive: bool) {
        self.is_exclusive = is_exclusive;
    }

    /// The driver has `rq`: count it if it bypasses the scheduler.
    #[inline]
    pub(crate) fn count_started(&self, rq: &mut Request) {
        if self.is_exclusive {
            let lane = lane_of(rq.unit.op, rq.unit.priority);
            rq.sched_lane = lane as u8 + 1;
            self.port.count_exclusive(lane);
        }
    }

    /// The driver refused `rq`: if it was counted as dispatched, it counts as ended.
    pub(crate) fn count_refused(&mut self, rq: &mut Request) {
        let lane = std::mem::take(&mut rq.sched_lane);
        if lane != 0 {
            self.port.count_ended(usize::from(lane) - 1, 1);
            self.sched_is_idle = false;
        }
    }

    /// A request ended; `sched_lane` is its lane plus one, or 0 if it was never counted.
    #[inline(always)]
    pub(crate) fn count_ended(&mut self, sched_lane: u8) {
        if sched_lane != 0 {
            self.ended[usize::from(sched_lane) - 1] += 1;
        }
    }

    /// Tell the scheduler of the requests that ended.
    #[inline]
    pub(crate) fn publish_ended(&mut self) {
        if self.ended == [0; LANES] {
            return;
        }
        self.sched_is_idle = false;
        for (lane, n) in std::mem::take(&mut self.ended).into_iter().enumerate() {
            if n > 0 {
                self.port.count_ended(lane, n.into());
            }
        }
    }

    /// Hand over the noted bios and let the scheduler dispatch, if its turn is free. True if there
    /// is more to do once what was granted is issued.
    #[inline]
    pub(crate) fn submit<D: Driver>(
        &mut self,
        mut parts: Parts<'_, D, S>,
        env: &mut Env,
        now: Ns,
    ) -> bool {
        let mut bios = self.to_scheduler.take();
        self.expect(env, bios.len());
        self.dispatch(&mut parts, env, &mut bios, now)
    }

    /// Let the scheduler dispatch, if its turn is free. True as for [`SchedulerClient::submit`].
    pub(crate) fn run<D: Driver>(
        &mut self,
        mut parts: Parts<'_, D, S>,
        env: &mut Env,
        now: Ns,
    ) -> bool {
        self.dispatch(&mut parts, env, &mut BioList::new(), now)
    }

    fn dispatch<D: Driver>(
        &mut self,
        parts: &mut Parts<'_, D, S>,
        env: &mut Env,
        bios: &mut BioList,
        now: Ns,
    ) -> bool {
        let busy = parts.setup.shared().busy.update(now);
        let again = self.enter(parts, env, (bios, InsertAt::Tail), now, busy);
        self.sched_is_idle = !again;
        again
    }

    /// Give the scheduler back the requeued bios, in their order, without asking for more. True if
    /// there were some and the driver may be asked again already.
    #[inline]
    pub(crate) fn requeue<D: Driver>(&mut self, mut parts: Parts<'_, D, S>, env: &mut Env) -> bool {
        if self.requeued.is_empty() {
            return false;
        }
        let (mut bios, now) = (self.requeued.take(), env.time.recent());
        let again = self.enter(&mut parts, env, (&mut bios, InsertAt::Head), now, true);
        self.sched_is_idle &= !again;
        again
    }

    /// Dispatch the counted `bios`, for which there are tags, without the scheduler's turn.
    pub(crate) fn run_exclusive<D: Driver>(
        &mut self,
        mut parts: Parts<'_, D, S>,
        env: &mut Env,
        bios: &mut BioList,
    ) {
        self.expect(env, bios.len());
        let now = env.time.recent();
        self.with_scheduler(&mut parts, env, now, false, |scheduler, local, caller| {
            scheduler.run_exclusive(local, caller, bios);
        });
    }

    /// One turn. A context that ends the busy time meanwhile may find the turn taken, and relies on
    /// the check after it.
    fn enter<D: Driver>(
        &mut self,
        parts: &mut Parts<'_, D, S>,
        env: &mut Env,
        (bios, place): (&mut BioList, InsertAt),
        now: Ns,
        busy: bool,
    ) -> bool {
        let again = self.with_scheduler(parts, env, now, busy, |scheduler, local, caller| {
            scheduler.run(local, caller, bios, place)
        });
        self.left_scheduler(parts, env);
        again || busy && !parts.setup.shared().busy.update(now)
    }

    /// The scheduler has been left: ring the doorbells, and end refused bios.
    #[inline]
    fn left_scheduler<D: Driver>(&mut self, parts: &mut Parts<'_, D, S>, env: &mut Env) {
        while let Some(doorbell) = self.doorbells.pop() {
            env.notify_lazily(doorbell);
        }
        while let Some(bio) = self.refused.pop() {
            if bio.port == self.port.id() {
                self.expect_less(env, 1);
                env.end_bio(bio);
            } else {
                self.remote_done.push(bio);
            }
        }
        self.send_remote_done(parts.setup, parts.flight, env);
    }

    /// Call the scheduler with this channel as its caller.
    #[inline(always)]
    fn with_scheduler<D: Driver, T>(
        &mut self,
        parts: &mut Parts<'_, D, S>,
        env: &mut Env,
        now: Ns,
        busy: bool,
        call: impl FnOnce(&S, &mut S::Local, &mut Caller<'_>) -> T,
    ) -> T {
        let moving = !parts.tags.is_current(&parts.setup.config().map);
        let completes_inline = parts.setup.completes_inline();
        let epoch = parts.setup.epoch();
        let (scheduler, config, cell) = parts.setup.for_scheduler();
        let mut caller = Caller {
            out: Outlet {
                port: &self.port,
                tags: parts.tags,
                flight: parts.flight,
                completes_inline,
                to_run: &mut self.to_run,
                granted: &mut self.granted,
                aside: None,
            },
            locks: &env.locks,
            now,
            device_busy: busy,
            config,
            cell,
            moving,
            missing: None,
            moving_peer: None,
            doorbells: &mut self.doorbells,
            refused: &mut self.refused,
        };
        let result = call(scheduler, &mut self.local, &mut caller);
        // The scheduler takes over a configuration that changed since the call began.
        if parts.setup.epoch() != epoch {
            parts.setup.follow_change(env, parts.flight);
        }
        result
    }

    /// Run the units that complete inline, of all channels. True if there were some.
    #[inline]
    pub(crate) fn run_units<D: Driver>(
        &mut self,
        setup: &mut Setup<D, S>,
        flight: &mut InFlight,
        env: &mut Env,
    ) -> bool {
        if self.to_run.is_empty() {
            return false;
        }
        let mut to_run = std::mem::take(&mut self.to_run);
        for (owner, rq) in to_run.drain() {
            self.run_request(setup, flight, env, *owner, rq);
        }
        self.to_run = to_run;
        self.send_remote_done(setup, flight, env);
        true
    }

    /// Run one of them. The tag that the caller holds serves all of them, one after the other.
    #[inline]
    fn run_request<D: Driver>(
        &mut self,
        setup: &mut Setup<D, S>,
        flight: &mut InFlight,
        env: &mut Env,
        owner: PortId,
        rq: &mut Request,
    ) {
        if !self.requeued.is_empty() {
            return self.requeue_unit(&mut rq.unit);
        }
        rq.state = State::InFlight;
        match setup.driver().queue_rq(env, rq) {
            Issue::Done(status) => {
                let unit = &rq.unit;
                self.ended[lane_of(unit.op, unit.priority)] += 1;
                let (group, start_ns, bytes) = (unit.op.group(), unit.start_ns, unit.bytes);
                let run = InlineRun { group, start_ns, count: 1, bytes };
                let iostats = setup.config().iostats;
                flight.count_inline(run, iostats, || env.time.completion_time());
                self.end_unit(setup, env, owner, rq, status);
            }
            Issue::Busy(until) => {
                setup.shared().busy.set(flight.busy_end(until, || env.time.now()));
                self.requeue_unit(&mut rq.unit);
            }
            Issue::Started => unreachable!("the driver ends at once what it takes"),
        }
    }

    /// End the bios of port `owner` in `rq`, unless they are retried.
    #[inline]
    fn end_unit<D: Driver>(
        &mut self,
        setup: &Setup<D, S>,
        env: &mut Env,
        owner: PortId,
        rq: &mut Request,
        status: Status,
    ) {
        if !status.is_ok() {
            if prepare_retry(&mut rq.unit.bios, status) {
                // The scheduler has them still, for their owner.
                return self.requeued.append(&mut rq.unit.bios);
            }
            let (op, offset, bytes) = (rq.unit.op, rq.offset(), rq.unit.bytes);
            setup.note(&Failure { op, status, offset, bytes });
        }
        let own = owner == self.port.id();
        if own {
            self.expect_less(env, rq.unit.bios.len());
        }
        while let Some(mut bio) = rq.unit.bios.pop() {
            bio.status = status;
            match own {
                true => env.end_bio(bio),
                false => self.remote_done.push(bio),
            }
        }
    }

    /// Requeue a dispatched unit, whose bios the scheduler has still.
    #[cold]
    fn requeue_unit(&mut self, unit: &mut Unit) {
        self.port.count_ended(lane_of(unit.op, unit.priority), 1);
        self.requeued.append(&mut unit.bios);
    }

    /// Hand bios that ended to their owners.
    #[inline]
    fn send_remote_done<D: Driver>(
        &mut self,
        setup: &mut Setup<D, S>,
        flight: &mut InFlight,
        env: &mut Env,
    ) {
        while let Some(first) = self.remote_done.pop() {
            let owner = first.port;
            let mut bios = BioList::new();
            bios.push(first);
            while self.remote_done.front().is_some_and(|bio| bio.port == owner) {
                bios.extend(self.remote_done.pop());
            }
            setup.refresh(env, flight);
            let port = setup.config().ports.get(owner).expect("a channel with bios here is open");
            port.done.add(&mut bios);
            env.notify_lazily(port.doorbell().clone());
        }
    }

    /// The scheduler has `bios` more bios of this channel.
    #[inline]
    fn expect(&mut self, env: &mut Env, bios: usize) {
        self.expected_remote += bios;
        env.expected_remote += bios;
    }

    /// `bios` bios are no longer with the scheduler.
    #[inline]
    fn expect_less(&mut self, env: &mut Env, bios: usize) {
        self.expected_remote -= bios;
        env.expected_remote -= bios;
        if self.expected_remote == 0 {
            self.port.clear_lack_of_tags();
        }
    }

    /// Take the slots that were granted, for [`SchedulerClient::begin_grant`].
    #[inline]
    pub(crate) fn take_granted(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.granted)
    }

    /// Return their list, which is empty, for its allocation.
    #[inline]
    pub(crate) fn return_granted(&mut self, granted: Vec<u32>) {
        debug_assert!(granted.is_empty() && self.granted.is_empty());
        self.granted = granted;
    }

    /// Make a request of the unit that was granted to `slot`. False if it must go back, because the
    /// driver was busy for one before: [`SchedulerClient::refuse`] follows.
    #[inline]
    pub(crate) fn begin_grant(&mut self, env: &mut Env, rq: &mut Request) -> bool {
        rq.sched_lane = lane_of(rq.unit.op, rq.unit.priority) as u8 + 1;
        self.expect_less(env, rq.unit.bios.len());
        self.requeued.is_empty()
    }

    /// The driver was busy for `rq`, which was built: its bios go back to the scheduler.
    pub(crate) fn refuse(&mut self, env: &mut Env, rq: &mut Request) {
        self.count_refused(rq);
        let mut bios = rq.unit.bios.take();
        self.expect(env, bios.len());
        while let Some(mut bio) = bios.pop() {
            bio.port = self.port.id();
            self.requeued.push(bio);
        }
    }

    /// Take what came through the port: bios that another channel has run, and granted units. A
    /// context that is draining cancels those.
    #[cold]
    pub(crate) fn take_grants<D: Driver>(&mut self, parts: Parts<'_, D, S>, env: &mut Env) {
        // Word of a change comes the same way.
        parts.setup.refresh(env, parts.flight);
        let mut done = self.port.done.take();
        self.expect_less(env, done.len());
        while let Some(bio) = done.pop() {
            env.end_bio(bio);
        }
        while let Some(grant) = self.port.take_grant() {
            if grant.hctx == parts.tags.slot().hctx {
                parts.flight.request(grant.tag).unit = grant.unit;
                self.granted.push(grant.tag);
            } else {
                self.bounce(parts.setup, env, grant);
            }
        }
        if env.is_draining() {
            for slot in std::mem::take(&mut self.granted) {
                let mut unit = std::mem::take(&mut parts.flight.request(slot).unit);
                self.cancel_unit(env, &mut unit);
                self.sched_is_idle = false;
                parts.tags.free_tag(env, slot);
            }
        }
    }

    /// The channel leaves its hardware queue: no more tags are taken for it.
    pub(crate) fn leave_hctx(&self) {
        self.port.current_hctx.leave();
    }

    /// The channel uses another hardware queue from now on: units granted with a tag of the old one
    /// go back. At most one comes after this, because a dispatcher looks at `current_hctx` for
    /// each.
    pub(crate) fn bounce_all<D: Driver>(&mut self, setup: &Setup<D, S>, env: &mut Env) {
        debug_assert!(self.granted.is_empty() && self.to_run.is_empty());
        while let Some(grant) = self.port.take_grant() {
            self.bounce(setup, env, grant);
        }
    }

    /// The channel is at the hardware queue of `slot`.
    pub(crate) fn arrive_at(&mut self, slot: &QueueSlot) {
        self.sched_is_idle = false;
        self.port.current_hctx.arrive(slot.hctx, slot.hint);
    }

    /// A unit was granted with a tag of a hardware queue that this channel has left.
    #[cold]
    fn bounce<D: Driver>(&mut self, setup: &Setup<D, S>, env: &mut Env, mut grant: Grant) {
        if env.is_draining() {
            self.cancel_unit(env, &mut grant.unit);
        } else {
            self.requeue_unit(&mut grant.unit);
        }
        self.sched_is_idle = false;
        let set = setup.config().map.set(grant.hctx);
        if set.free(set.batch_of(grant.tag)) {
            let locks = env.locks.clone();
            set.wake(&locks, |message| env.notify_lazily(message));
        }
    }

    /// End the bios of a dispatched unit, because the context is draining.
    fn cancel_unit(&mut self, env: &mut Env, unit: &mut Unit) {
        let mut bios = unit.bios.take();
        self.port.count_ended(lane_of(unit.op, unit.priority), 1);
        // The port's `lacks_tags` stays: nothing of a draining context asks for it.
        self.expected_remote -= bios.len();
        env.expected_remote -= bios.len();
        while let Some(bio) = bios.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }

    /// The context is draining: end the bios of it that the scheduler has. If another context has
    /// the turn, they end when they are granted.
    #[cold]
    pub(crate) fn cancel<D: Driver>(&mut self, mut parts: Parts<'_, D, S>, env: &mut Env) {
        if self.expected_remote == 0 {
            return;
        }
        // It may take in bios that others have published, whose time begins now.
        let (owner, now) = (self.port.id(), env.time.recent());
        let (mut bios, again) =
            self.with_scheduler(&mut parts, env, now, true, |scheduler, local, caller| {
                scheduler.expel(local, caller, owner)
            });
        if again {
            parts.setup.refresh(env, parts.flight);
            let ports = parts.setup.config().ports.iter();
            ports.for_each(|port| env.notify_lazily(port.doorbell().clone()));
        }
        self.expect_less(env, bios.len());
        while let Some(bio) = bios.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        self.left_scheduler(&mut parts, env);
    }

    /// Bounded combining: this call ran the scheduler often enough, and the last publisher goes on.
    #[cold]
    pub(crate) fn pass_on<D: Driver>(&self, setup: &Setup<D, S>, env: &mut Env) {
        let last = setup.scheduler().last_publisher();
        if last != self.port.id()
            && let Some(port) = setup.config().ports.get(last)
        {
            env.notify_lazily(port.doorbell().clone());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::queues::HctxId;
    use crate::scheduler::{CurrentHctx, MqDeadline, PortState, Ports};
    use drystone_core::{ChannelId, IoBuf, Op, Priority, Sector};

    fn client() -> SchedulerClient<MqDeadline> {
        let mut ports = Ports::default();
        ports.open(
            Message::new(ChannelId(0), DOORBELL),
            PortState::new(CurrentHctx::new(HctxId(0), 0), 4),
        );
        let port = ports.open(
            Message::new(ChannelId(1), DOORBELL),
            PortState::new(CurrentHctx::new(HctxId(0), 0), 4),
        );
        SchedulerClient::new(port, 4)
    }

    fn read() -> Box<Bio> {
        Bio::read(Sector(0), IoBuf::zeroed(512))
    }

    fn request() -> Request {
        Request { unit: Unit::new(read()), ..Request::default() }
    }

    fn lane() -> usize {
        lane_of(Op::Read, Priority::default())
    }

    #[test]
    fn only_exclusive_requests_are_counted_as_they_start() {
        let mut client = client();
        let mut rq = request();
        client.count_started(&mut rq);
        assert_eq!((rq.sched_lane, client.port().exclusive(lane())), (0, 0));
        client.set_exclusive(true);
        client.count_started(&mut rq);
        assert_eq!((usize::from(rq.sched_lane), client.port().exclusive(lane())), (lane() + 1, 1));
        client.sched_is_idle = true;
        client.count_refused(&mut rq);
        assert_eq!((client.port().ended(lane()), client.sched_is_idle()), (1, false));
        client.count_refused(&mut rq);
        assert_eq!(client.port().ended(lane()), 1, "it counts as ended once");
    }

    #[test]
    fn ends_are_published_together_and_have_the_scheduler_run() {
        let mut client = client();
        client.sched_is_idle = true;
        client.count_ended(0);
        client.publish_ended();
        assert!(client.sched_is_idle(), "none of them was the scheduler's");
        (0..3).for_each(|_| client.count_ended(lane() as u8 + 1));
        assert_eq!(client.port().ended(lane()), 0);
        client.publish_ended();
        assert_eq!((client.port().ended(lane()), client.sched_is_idle()), (3, false));
        client.publish_ended();
        assert_eq!(client.port().ended(lane()), 3);
    }

    #[test]
    fn bios_that_wait_for_the_scheduler_bar_the_way_to_the_driver() {
        let mut client = client();
        assert!(client.may_pass() && !client.has_new());
        client.add(read());
        assert!(!client.may_pass() && client.has_new());
        let mut bios = client.take_new();
        assert_eq!(bios.front().map(|bio| bio.port), Some(client.port().id()));
        assert!(client.may_pass());
        client.put_new(&mut bios);
        assert_eq!((client.take_new().len(), bios.len()), (1, 0));
        client.requeue_unit(&mut request().unit);
        assert!(!client.may_pass() && client.port().ended(lane()) == 1);
        client.requeued.take();
    }

    #[test]
    fn the_port_shows_where_the_channel_is() {
        let mut client = client();
        client.leave_hctx();
        assert!(client.port().current_hctx.get().is_none());
        client.sched_is_idle = true;
        client.arrive_at(&QueueSlot { hctx: HctxId(3), hint: 2, poll: None });
        assert_eq!(client.port().current_hctx.get(), Some((HctxId(3), 2)));
        assert!(!client.sched_is_idle(), "units may have been kept meanwhile");
    }
}
