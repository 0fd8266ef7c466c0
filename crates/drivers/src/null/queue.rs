//! One context's use of a null device.

use super::latency::{Generator, Latency};
use super::options::{Completion, NullOptions};
use super::poll_queue::{PollQueue, Ticket};
use super::shared::{NullShared, TICK_NS};
use crate::ram::Zeroing;
use crossbeam_utils::CachePadded;
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::{Bio, BioFlags, ChannelId, Env, Op, Status};
use drystone_queue::{DriverQueue, Issue, Request, Slots};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One context's queue of a null device.
pub struct NullQueue {
    shared: Arc<NullShared>,
    /// True if bios that are not polled need only inline completion: no memory, no limits.
    plain: bool,
    irqmode: Completion,
    context: u32,
    /// The poll queue that this context has its polled requests in, if the device polls.
    poll_queue: Option<Arc<CachePadded<PollQueue>>>,
    latency: Latency,
    generator: Generator,
    channel: ChannelId,
    slots: u32,
    /// Messages of requests that another thread completes, by slot.
    messages: Vec<Arc<Message>>,
    /// The polled requests that have not ended, by slot; `polling` is their number.
    polled: Vec<bool>,
    polling: usize,
    /// Messages of other contexts' requests that a poll found; kept for its allocation.
    others: Vec<Arc<Message>>,
    zeroing: Zeroing,
}

impl NullQueue {
    pub(super) fn new(
        shared: Arc<NullShared>,
        options: &NullOptions,
        env: &Env,
        channel: ChannelId,
        slots: u32,
    ) -> Self {
        let context = env.context_id().0;
        if let Some(thread) = &shared.thread {
            thread.goes_by(env.time.clock());
        }
        let mut queue = NullQueue {
            plain: options.irqmode == Completion::Inline
                && shared.memory.is_none()
                && shared.bandwidth.is_none(),
            shared,
            irqmode: options.irqmode,
            context,
            poll_queue: None,
            latency: options.latency(),
            generator: Generator::new(u64::from(context) + 1),
            channel,
            slots,
            messages: Vec::new(),
            polled: Vec::new(),
            polling: 0,
            others: Vec::new(),
            zeroing: Zeroing::new(channel),
        };
        if options.irqmode == Completion::Thread {
            queue.make_messages(env);
        }
        queue
    }

    fn make_messages(&mut self, env: &Env) {
        if self.messages.is_empty() {
            let message = |slot: u32| Message::to(env.handle(), self.channel, slot.into());
            self.messages = (0..self.slots).map(message).collect();
        }
    }

    #[cold]
    fn queue_modelled(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if let Some(until) = self.over_budget(env, rq.unit.bytes) {
            return Issue::Busy(until);
        }
        if self.poll_queue.is_some() && rq.unit.flags.contains(BioFlags::POLLED) {
            return self.queue_polled(env, rq);
        }
        let memory = self.shared.memory.as_ref();
        if let Some(rest) = memory.and_then(|memory| memory.long_zeroing(rq))
            && !self.hits_badblock(env, rq)
        {
            self.zeroing.begin(env, rq, rest);
            return Issue::Started;
        }
        rq.status = self.execute(env, rq);
        match self.irqmode {
            Completion::Inline => return Issue::Done(rq.status),
            _ => self.complete(env, rq),
        }
        Issue::Started
    }

    /// Ends a request that is done, in the device's completion mode.
    fn complete(&mut self, env: &mut Env, rq: &Request) {
        match self.irqmode {
            Completion::Inline => {}
            Completion::Thread => self.complete_by_thread(env, rq),
            Completion::Timer => self.complete_by_timer(env, rq),
        }
    }

    /// Zeroes one more piece.
    #[cold]
    fn zero_more(&mut self, env: &mut Env, slots: &mut Slots, done: &mut Vec<u32>) {
        let shared = self.shared.clone();
        let slot = shared.memory.as_ref().and_then(|memory| self.zeroing.go_on(env, memory));
        let Some(slot) = slot else { return };
        self.zeroing_over(env, slots.get(slot), Status::Ok, done);
    }

    fn zeroing_over(
        &mut self,
        env: &mut Env,
        rq: &mut Request,
        status: Status,
        done: &mut Vec<u32>,
    ) {
        rq.status = status;
        let slot = rq.slot();
        match self.irqmode {
            Completion::Inline => done.push(slot),
            _ => self.complete(env, rq),
        }
    }

    /// Put a request into a poll queue. Its data moves now, and a poll completes it.
    fn queue_polled(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        let latency = match self.irqmode {
            Completion::Inline => 0,
            Completion::Thread | Completion::Timer => self.latency.at(self.generator.share()),
        };
        let ticket = Ticket {
            at: Self::due(env, latency),
            context: self.context,
            slot: rq.slot(),
            word: self.messages[rq.slot() as usize].clone(),
        };
        if !self.poll_queue.as_ref().is_some_and(|queue| queue.push(ticket)) {
            return Issue::Busy(0);
        }
        rq.status = self.execute(env, rq);
        self.polled[rq.slot() as usize] = true;
        self.polling += 1;
        Issue::Started
    }

    /// The time when a request that begins now and takes `latency` is done. Reads the clock,
    /// because the time that bios share may be older than a fast device's latency.
    fn due(env: &mut Env, latency: Ns) -> Ns {
        if latency == 0 { 0 } else { env.time.now() + latency }
    }

    /// Note that a polled request has ended.
    fn polled_ended(&mut self, slot: u32) {
        if std::mem::replace(&mut self.polled[slot as usize], false) {
            self.polling -= 1;
        }
    }

    fn complete_by_thread(&mut self, env: &mut Env, rq: &Request) {
        let Some(thread) = &self.shared.thread else { return };
        let word = self.messages[rq.slot() as usize].clone();
        match self.latency.at(self.generator.share()) {
            0 => thread.complete(word),
            latency => thread.complete_at(Self::due(env, latency), word),
        }
    }

    fn complete_by_timer(&mut self, env: &mut Env, rq: &Request) {
        let latency = self.latency.at(self.generator.share());
        let at = match &self.shared.head {
            None => Self::due(env, latency),
            // A head cannot move before its request comes, so this reads the clock.
            Some(head) => head.serve(&rq.unit, env.time.now(), latency),
        };
        env.ring.timer(at, Env::token(self.channel, rq.slot().into()));
    }

    /// Executes a command: bad blocks first, then data.
    fn execute(&self, env: &Env, rq: &Request) -> Status {
        if self.hits_badblock(env, rq) {
            return Status::IoError;
        }
        match &self.shared.memory {
            Some(memory) => memory.execute(rq),
            None => Status::Ok,
        }
    }

    #[inline]
    fn hits_badblock(&self, env: &Env, rq: &Request) -> bool {
        if !self.shared.has_badblocks.load(Relaxed) || rq.unit.op == Op::Flush {
            return false;
        }
        let (first, end) = (rq.unit.sector.0, rq.unit.end_sector().0);
        let bad = self.shared.badblocks.lock(&env.locks);
        bad.iter().any(|(from, to)| first <= *to && *from < end)
    }

    /// Charge `bytes` to the tick's budget. Returns the start of the next tick if the budget is
    /// used up.
    fn over_budget(&self, env: &mut Env, bytes: u64) -> Option<u64> {
        let limit = self.shared.bandwidth.as_ref()?;
        let tick = env.time.now() / TICK_NS;
        let last = limit.tick.load(Relaxed);
        if last < tick && limit.tick.compare_exchange(last, tick, Relaxed, Relaxed).is_ok() {
            limit.used.store(0, Relaxed);
        }
        let charge = |used: u64| (used < limit.bytes_per_tick).then_some(used + bytes);
        match limit.used.try_update(Relaxed, Relaxed, charge) {
            Ok(_) => None,
            Err(_) => Some((tick + 1) * TICK_NS),
        }
    }

    /// Gives up a polled request that no thread polls for, unless a poll has just found it.
    fn give_up_polled(&mut self, env: &mut Env, rq: &mut Request) {
        let Some(queue) = &self.poll_queue else { return };
        if queue.withdraw(&env.locks, self.context, rq.slot()) {
            self.polled_ended(rq.slot());
            rq.status = Status::Timeout;
            env.ring.timer(1, Env::token(self.channel, rq.slot().into()));
        }
    }

    fn finish(slots: &mut Slots, done: &mut Vec<u32>, slot: u32) {
        if slots.in_flight(slot).is_some() {
            done.push(slot);
        }
    }
}

impl DriverQueue for NullQueue {
    #[inline]
    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if !self.plain || self.poll_queue.is_some() && rq.unit.flags.contains(BioFlags::POLLED) {
            return self.queue_modelled(env, rq);
        }
        if self.shared.has_badblocks.load(Relaxed) && self.hits_badblock(env, rq) {
            return Issue::Done(Status::IoError);
        }
        Issue::Done(Status::Ok)
    }

    fn use_poll_queue(&mut self, env: &mut Env, queue: Option<u32>) {
        debug_assert_eq!(self.polling, 0, "a polled request is in the queue that is left");
        self.poll_queue = queue.map(|number| self.shared.poll_queue(number).clone());
        if queue.is_some() {
            self.make_messages(env);
            self.polled.resize(self.slots as usize, false);
        }
    }

    fn completes_inline(&self) -> bool {
        self.plain
    }

    #[inline]
    fn do_bio(&mut self, _: &mut Env, _: &mut Bio) -> Option<Status> {
        debug_assert!(self.plain, "it completes inline");
        (!self.shared.has_badblocks.load(Relaxed)).then_some(Status::Ok)
    }

    fn ring_event(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        if self.zeroing.has_set(event.token.value()) {
            return self.zero_more(env, slots, done);
        }
        Self::finish(slots, done, event.token.value() as u32);
    }

    #[cold]
    fn withdraw(
        &mut self,
        env: &mut Env,
        range: &Range<u64>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        let mut gone = Vec::new();
        self.zeroing.withdraw(range, slots, &mut gone);
        for slot in gone {
            self.zeroing_over(env, slots.get(slot), Status::Cancelled, done);
        }
    }

    fn message(
        &mut self,
        _: &mut Env,
        message: Arc<Message>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        let slot = message.payload() as u32;
        if !self.polled.is_empty() {
            self.polled_ended(slot);
        }
        Self::finish(slots, done, slot);
    }

    fn poll(&mut self, env: &mut Env, slots: &mut Slots, done: &mut Vec<u32>) {
        let Some(queue) = &self.poll_queue else { return };
        let context = self.context;
        let (locks, first) = (env.locks.clone(), done.len());
        let (others, inline) = (&mut self.others, self.irqmode == Completion::Inline);
        queue.poll(
            &locks,
            // Without a latency every request is due, so the clock is not read.
            || if inline { Ns::MAX } else { env.time.now() },
            |ticket| match ticket.context == context {
                true => Self::finish(slots, done, ticket.slot),
                false => others.push(ticket.word),
            },
        );
        others.drain(..).for_each(Message::send);
        for slot in done.iter().skip(first) {
            self.polled_ended(*slot);
        }
    }

    fn must_poll(&self) -> bool {
        self.polling > 0
    }

    fn timed_out(&mut self, env: &mut Env, rq: &mut Request) {
        if self.polled.get(rq.slot() as usize) == Some(&true) {
            return self.give_up_polled(env, rq);
        }
        if self.irqmode == Completion::Timer {
            rq.status = Status::Timeout;
            env.ring.cancel(Env::token(self.channel, rq.slot().into()));
        }
    }
}
