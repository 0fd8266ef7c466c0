//! A channel and the scheduler that it shares with others: handing bios over, getting units back.
//!
//! Invariants:
//! * `entrusted` counts the bios of this channel that the scheduler has, or that it granted and
//!   the channel has not seen yet; the context's sum keeps its owner looking for grants.
//! * `hold` of the device keeps everybody from dispatching: until a completion if it is `u64::MAX`,
//!   else until that time. Units that the driver was too busy for go before everything else then.

use crate::channel::RequestChannel;
use crate::channel::retry::prepare_retry;
use crate::driver::{Driver, DriverQueue, Issue};
use crate::request::{Request, State};
use crate::scheduler::deadline::{LANES, lane_of};
use crate::scheduler::{Caller, Outlet, Place, Scheduler};
use crate::unit::Unit;
use drystone_core::clock::Ns;
use drystone_core::failures::Failure;
use drystone_core::{Bio, BioList, Env, Status};

/// Payload of the message by which a channel learns of grants.
pub(crate) const GRANT_WORD: u64 = u64::MAX - 1;

impl<D: Driver, S: Scheduler> RequestChannel<D, S> {
    /// Note `bio` for the scheduler, which gets all of a call together.
    #[inline]
    pub(crate) fn elevate(&mut self, mut bio: Box<Bio>) {
        bio.home = self.port.index();
        self.outbox.push(bio);
    }

    /// Hand over what the call noted; `submitted` is its time, if it is a submission.
    #[inline]
    pub(crate) fn hand_over(&mut self, env: &mut Env, submitted: Option<Ns>) {
        if !self.outbox.is_empty() {
            let mut bios = self.outbox.take();
            let now = submitted.unwrap_or_else(|| env.time.recent());
            self.entrusted += bios.len();
            env.entrusted += bios.len();
            self.run_with(env, &mut bios, Place::Tail, now);
        }
    }

    /// Let the scheduler dispatch, if its turn is free. True if there is more to do.
    pub(crate) fn run_scheduler(&mut self, env: &mut Env) -> bool {
        let now = env.time.recent();
        self.run_with(env, &mut BioList::new(), Place::Tail, now)
    }

    /// Give the scheduler `bios`, which are counted as its own, dispatch if its turn is free, and
    /// issue what was granted. True if there is more to do.
    fn run_with(&mut self, env: &mut Env, bios: &mut BioList, place: Place, now: Ns) -> bool {
        let held = self.setup.shared().busy.update(now);
        let again = self.enter_scheduler(env, bios, place, now, held);
        self.vain = !again;
        let sent = self.run_units(env) | self.issue_granted(env);
        again | self.give_back(env) | sent
    }

    /// One turn. Whoever ended the hold meanwhile may have found the turn taken, and relies on a
    /// look after it.
    fn enter_scheduler(
        &mut self,
        env: &mut Env,
        bios: &mut BioList,
        place: Place,
        now: Ns,
        held: bool,
    ) -> bool {
        let again = self.with_scheduler(env, now, held, |scheduler, local, caller| {
            scheduler.run(local, caller, bios, place)
        });
        while let Some(word) = self.words.pop() {
            env.notify_lazily(word);
        }
        self.end_refused(env);
        again || held && !self.setup.shared().busy.update(now)
    }

    /// End what the scheduler did not take in.
    #[inline]
    fn end_refused(&mut self, env: &mut Env) {
        while let Some(bio) = self.refused.pop() {
            if bio.home == self.port.index() {
                self.expect_less(env, 1);
                env.end_bio(bio);
            } else {
                self.foreign.push(bio);
            }
        }
        self.send_home(env);
    }

    /// Call the scheduler with this channel as its caller.
    #[inline(always)]
    pub(crate) fn with_scheduler<T>(
        &mut self,
        env: &mut Env,
        now: Ns,
        held: bool,
        call: impl FnOnce(&S, &mut S::Local, &mut Caller<'_>) -> T,
    ) -> T {
        let moving = self.is_moving();
        let at_once = self.setup.completes_inline();
        let (scheduler, config, cell) = self.setup.for_scheduler();
        let mut caller = Caller {
            out: Outlet {
                port: &self.port,
                tags: &mut self.tags,
                flight: &mut self.flight,
                at_once,
                to_run: &mut self.to_run,
                granted: &mut self.granted,
                aside: None,
            },
            locks: &env.locks,
            now,
            held,
            config,
            cell,
            moving,
            missing: None,
            between: None,
            words: &mut self.words,
            refused: &mut self.refused,
        };
        call(scheduler, &mut self.local, &mut caller)
    }

    /// The context was dropped: what the scheduler has of it ends. If somebody else is at work
    /// there, it ends when it is granted.
    #[cold]
    pub(crate) fn cancel_entrusted(&mut self, env: &mut Env) {
        if self.entrusted == 0 {
            return;
        }
        // It may take in what others have brought, whose time begins now.
        let (home, now) = (self.port.index(), env.time.recent());
        let (mut bios, again) = self.with_scheduler(env, now, true, |scheduler, local, caller| {
            scheduler.expel(local, caller, home)
        });
        if again {
            self.wake_all(env);
        }
        self.expect_less(env, bios.len());
        while let Some(bio) = bios.pop() {
            env.end_with(bio, Status::Cancelled);
        }
        while let Some(word) = self.words.pop() {
            env.notify_lazily(word);
        }
        self.end_refused(env);
    }

    /// Run the units that end at once, whoever submitted them.
    #[inline]
    pub(crate) fn run_units(&mut self, env: &mut Env) -> bool {
        if self.to_run.is_empty() {
            return false;
        }
        let mut to_run = std::mem::take(&mut self.to_run);
        for (home, rq) in to_run.drain() {
            self.run_request(env, *home, rq);
        }
        self.to_run = to_run;
        self.send_home(env);
        true
    }

    /// Run one of them; the tag that the caller holds serves them all, one after the other.
    #[inline]
    fn run_request(&mut self, env: &mut Env, home: u32, rq: &mut Request) {
        if !self.returned.is_empty() {
            return self.return_bios(&mut rq.unit);
        }
        rq.state = State::InFlight;
        match self.setup.driver().queue_rq(env, rq) {
            Issue::Done(status) => self.ended_at_once(env, home, rq, status),
            Issue::Busy(until) => {
                self.setup.shared().busy.set(self.busy_end(env, until));
                self.return_bios(&mut rq.unit);
            }
            Issue::Started => unreachable!("the driver ends at once what it takes"),
        }
    }

    #[inline]
    fn ended_at_once(&mut self, env: &mut Env, home: u32, rq: &mut Request, status: Status) {
        self.ended[lane_of(rq.unit.op, rq.unit.priority)] += 1;
        self.count_inline(env, rq.unit.op.group(), rq.unit.start_ns, rq.unit.bytes);
        if !status.is_ok() {
            if prepare_retry(&mut rq.unit.bios, status) {
                // They are the scheduler's still, whoever's they are.
                return self.returned.append(&mut rq.unit.bios);
            }
            let (op, offset, bytes) = (rq.unit.op, rq.offset(), rq.unit.bytes);
            self.setup.note(&Failure { op, status, offset, bytes });
        }
        let own = home == self.port.index();
        if own {
            self.expect_less(env, rq.unit.bios.len());
        }
        while let Some(bio) = rq.unit.bios.pop() {
            match own {
                true => env.end_with(bio, status),
                false => self.foreign.push(with_status(bio, status)),
            }
        }
    }

    /// Bios of a dispatched unit that go back to the scheduler, whose they still are.
    #[cold]
    fn return_bios(&mut self, unit: &mut Unit) {
        self.port.count_ended(lane_of(unit.op, unit.priority), 1);
        self.returned.append(&mut unit.bios);
    }

    /// Hand bios that ended to the channels they came through.
    #[inline]
    fn send_home(&mut self, env: &mut Env) {
        while let Some(first) = self.foreign.pop() {
            let home = first.home;
            let mut bios = BioList::new();
            bios.push(first);
            while self.foreign.front().is_some_and(|bio| bio.home == home) {
                bios.extend(self.foreign.pop());
            }
            self.refresh(env);
            let port =
                self.setup.config().ports.get(home).expect("a channel with bios here is open");
            port.done.add(&mut bios);
            env.notify_lazily(port.doorbell().clone());
        }
    }

    /// `bios` bios are no longer with the scheduler.
    #[inline]
    fn expect_less(&mut self, env: &mut Env, bios: usize) {
        self.entrusted -= bios;
        env.entrusted -= bios;
        if self.entrusted == 0 {
            self.port.fed();
        }
    }

    /// Bios of this channel that another one has run.
    fn take_done(&mut self, env: &mut Env) {
        let mut done = self.port.done.take();
        self.expect_less(env, done.len());
        while let Some(bio) = done.pop() {
            env.end_bio(bio);
        }
    }

    /// Issue the units that this call was granted.
    #[inline]
    pub(crate) fn issue_granted(&mut self, env: &mut Env) -> bool {
        let mut granted = std::mem::take(&mut self.granted);
        let sent = !granted.is_empty();
        for slot in granted.drain(..) {
            self.issue_grant(env, slot);
        }
        self.granted = granted;
        sent
    }

    /// Issue the unit that was put into `slot`, unless the driver is busy by now.
    #[inline]
    fn issue_grant(&mut self, env: &mut Env, slot: u32) {
        let limits = self.setup.limits();
        let rq = self.flight.build_granted(slot, limits);
        let bios = rq.unit.bios.len();
        rq.sched_lane = lane_of(rq.unit.op, rq.unit.priority) as u8 + 1;
        self.expect_less(env, bios);
        if self.returned.is_empty() {
            self.issue(env, slot);
        } else {
            self.return_unit(env, slot);
        }
    }

    /// The driver was busy for the unit in `slot`: it goes back, before everything else.
    pub(crate) fn return_unit(&mut self, env: &mut Env, slot: u32) {
        self.not_in_flight(slot);
        let mut bios = self.flight.refused(slot).unit.bios.take();
        self.entrusted += bios.len();
        env.entrusted += bios.len();
        while let Some(mut bio) = bios.pop() {
            bio.home = self.port.index();
            self.returned.push(bio);
        }
        self.free_tag(env, slot);
    }

    /// The driver did not take the unit in `slot`: whoever dispatched it hears that it ended.
    pub(crate) fn not_in_flight(&mut self, slot: u32) {
        let lane = std::mem::take(&mut self.flight.request(slot).sched_lane);
        if lane != 0 {
            self.port.count_ended(usize::from(lane) - 1, 1);
            self.vain = false;
        }
    }

    /// Hand back what the driver was too busy for, in its order, without asking for more. True if
    /// it may be asked again already.
    #[inline]
    pub(crate) fn give_back(&mut self, env: &mut Env) -> bool {
        if self.returned.is_empty() {
            return false;
        }
        let (mut bios, now) = (self.returned.take(), env.time.recent());
        let again = self.enter_scheduler(env, &mut bios, Place::Head, now, true);
        self.vain &= !again;
        again
    }

    /// Units came through the port.
    #[cold]
    pub(crate) fn take_grants(&mut self, env: &mut Env) {
        // Word of a change comes the same way.
        self.refresh(env);
        self.take_done(env);
        while let Some(grant) = self.port.take_grant() {
            if grant.hctx == self.tags.slot().hctx {
                self.flight.request(grant.tag).unit = grant.unit;
                self.granted.push(grant.tag);
            } else {
                self.bounce(env, grant);
            }
        }
        if env.is_draining() {
            return self.cancel_granted(env);
        }
        S::CLOCK.before_issue(env);
        self.issue_granted(env);
        self.give_back(env);
    }

    /// Nobody waits for these any more.
    fn cancel_granted(&mut self, env: &mut Env) {
        for slot in std::mem::take(&mut self.granted) {
            let mut unit = std::mem::take(&mut self.flight.request(slot).unit);
            self.cancel_unit(env, &mut unit);
            self.free_tag(env, slot);
        }
    }

    /// When the hold ends, for a channel with bios that wait for it.
    pub(crate) fn hold_deadline(&self) -> Option<Ns> {
        if self.entrusted > 0 { self.setup.shared().busy.deadline() } else { None }
    }

    /// Scheduled requests ended.
    #[inline]
    pub(crate) fn publish_ended(&mut self) {
        if self.ended == [0; LANES] {
            return;
        }
        self.vain = false;
        for (lane, n) in std::mem::take(&mut self.ended).into_iter().enumerate() {
            if n > 0 {
                self.port.count_ended(lane, n.into());
            }
        }
    }

    /// Whoever has something with the scheduler is to look.
    #[cold]
    fn wake_all(&mut self, env: &mut Env) {
        self.refresh(env);
        self.setup
            .config()
            .ports
            .iter()
            .for_each(|port| env.notify_lazily(port.doorbell().clone()));
    }

    /// This call has done its share for others: whoever brought bios last goes on.
    #[cold]
    pub(crate) fn pass_on(&mut self, env: &mut Env) {
        let last = self.setup.scheduler().last_publisher();
        if last != self.port.index()
            && let Some(port) = self.setup.config().ports.get(last)
        {
            env.notify_lazily(port.doorbell().clone());
        }
    }

    /// Tags taken in advance go back. False if there were none.
    #[inline]
    pub(crate) fn free_spare(&mut self, env: &mut Env) -> bool {
        let any = self.tags.has_spare();
        if any {
            self.vain = false;
            if self.tags.free_spare() {
                self.wake_waiters(env);
            }
        }
        any
    }
}

fn with_status(mut bio: Box<Bio>, status: Status) -> Box<Bio> {
    bio.status = status;
    bio
}
