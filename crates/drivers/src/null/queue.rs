//! The null device as one context uses it.

use super::latency::Generator;
use super::{Completion, Latency, NullOptions, NullShared, TICK_NS};
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::{BioFlags, Env, Op, Status};
use drystone_queue::{DriverQueue, Issue, Request, Slots};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// One context's queue of a null device.
pub struct NullQueue {
    shared: Arc<NullShared>,
    /// Nothing but inline completion of what is not polled: no memory, no limit.
    plain: bool,
    irqmode: Completion,
    polls: bool,
    latency: Latency,
    generator: Generator,
    channel: u32,
    /// Messages of requests that the thread completes, by slot.
    messages: Vec<Arc<Message>>,
    /// Polled requests that wait for a poll.
    polled: Vec<u32>,
}

impl NullQueue {
    pub(super) fn new(
        shared: Arc<NullShared>,
        options: &NullOptions,
        env: &Env,
        channel: u32,
        slots: u32,
    ) -> Self {
        let message = |slot: u32| Message::to(env.handle(), channel, slot.into());
        let threaded = options.irqmode == Completion::Thread;
        NullQueue {
            plain: options.irqmode == Completion::Inline
                && shared.memory.is_none()
                && shared.bandwidth.is_none(),
            shared,
            irqmode: options.irqmode,
            polls: options.poll_queues > 0,
            latency: options.latency.clone(),
            generator: Generator::new(u64::from(env.context_id()) + 1),
            channel,
            messages: if threaded { (0..slots).map(message).collect() } else { Vec::new() },
            polled: Vec::new(),
        }
    }

    #[cold]
    fn queue_modelled(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if let Some(until) = self.over_budget(env, rq.unit.bytes) {
            return Issue::Busy(until);
        }
        if self.polls && rq.unit.flags.contains(BioFlags::POLLED) {
            self.polled.push(rq.slot());
            return Issue::Started;
        }
        rq.status = self.execute(env, rq);
        match self.irqmode {
            Completion::Inline => return Issue::Done(rq.status),
            Completion::Thread => self.complete_by_thread(rq),
            Completion::Timer => self.complete_by_timer(env, rq),
        }
        Issue::Started
    }

    fn complete_by_thread(&mut self, rq: &Request) {
        if let Some(thread) = &self.shared.thread {
            thread.complete(self.messages[rq.slot() as usize].clone());
        }
    }

    fn complete_by_timer(&mut self, env: &mut Env, rq: &Request) {
        let latency = self.latency.at(self.generator.share());
        let at = match &self.shared.head {
            None => env.time.submit_time() + latency,
            // A shared reading may be old, and a head cannot have gone before it was told to.
            Some(head) => head.serve(&rq.unit, env.time.now(), latency),
        };
        env.ring.timer(at, Env::token(self.channel, rq.slot().into()));
    }

    /// What a command does: bad blocks first, then data.
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

    /// Charge `bytes` to the tick's budget. When it is used up: the start of the next tick.
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

    fn finish(slots: &mut Slots, done: &mut Vec<u32>, slot: u32) {
        if slots.in_flight(slot).is_some() {
            done.push(slot);
        }
    }
}

impl DriverQueue for NullQueue {
    #[inline]
    fn queue_rq(&mut self, env: &mut Env, rq: &mut Request) -> Issue {
        if !self.plain || self.polls && rq.unit.flags.contains(BioFlags::POLLED) {
            return self.queue_modelled(env, rq);
        }
        if self.shared.has_badblocks.load(Relaxed) && self.hits_badblock(env, rq) {
            return Issue::Done(Status::IoError);
        }
        Issue::Done(Status::Ok)
    }

    fn ends_at_once(&self) -> bool {
        self.plain
    }

    fn ring_event(
        &mut self,
        _: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        Self::finish(slots, done, event.token.value() as u32);
    }

    fn message(
        &mut self,
        _: &mut Env,
        message: Arc<Message>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        Self::finish(slots, done, message.payload() as u32);
    }

    fn poll(&mut self, env: &mut Env, slots: &mut Slots, done: &mut Vec<u32>) {
        let mut polled = std::mem::take(&mut self.polled);
        for slot in polled.drain(..) {
            let status = self.execute(env, slots.get(slot));
            slots.get(slot).status = status;
            done.push(slot);
        }
        // Kept for its allocation.
        self.polled = polled;
    }

    fn must_poll(&self) -> bool {
        !self.polled.is_empty()
    }

    fn timed_out(&mut self, env: &mut Env, rq: &mut Request) {
        match self.irqmode {
            Completion::Timer => {
                rq.status = Status::Timeout;
                env.ring.cancel(Env::token(self.channel, rq.slot().into()));
            }
            // A polled request that nobody polls for: the device gives it up itself.
            _ if rq.unit.flags.contains(BioFlags::POLLED) => {
                self.polled.retain(|slot| *slot != rq.slot());
                rq.status = Status::Timeout;
                env.ring.timer(1, Env::token(self.channel, rq.slot().into()));
            }
            _ => {}
        }
    }
}
