//! Messages about queues.

use super::super::proto::{Request, VringAddresses};
use super::Session;
use super::action::{Action, QueueIndex};
use super::refusal::Refusal;
use super::served::{Pending, Served};
use std::sync::Arc;

impl<F> Session<F> {
    /// The queue with this number, if it exists.
    fn queue(&self, request: Request, number: u32) -> Result<QueueIndex, Refusal> {
        let queues = self.offer.queues();
        match u16::try_from(number) {
            Ok(index) if index < queues => Ok(QueueIndex::new(index)),
            _ => Err(Refusal::NoSuchQueue { request, number, queues }),
        }
    }

    /// The queue with this number, if it exists and does not run.
    fn stopped_queue(&self, request: Request, number: u32) -> Result<QueueIndex, Refusal> {
        let queue = self.queue(request, number)?;
        if self.is_started(queue) {
            return Err(Refusal::QueueRuns { request, queue });
        }
        Ok(queue)
    }

    pub(super) fn set_size(&mut self, queue: u32, size: u32) -> Result<Served<F>, Refusal> {
        let queue = self.stopped_queue(Request::SetVringNum, queue)?;
        let size_max = self.offer.queue_size_max();
        let known = u16::try_from(size).ok().filter(|size| (1..=size_max).contains(size));
        let known = known.ok_or(Refusal::QueueSize { queue, size, size_max })?;
        self.ring_mut(queue).set_size(known);
        Ok(Served::Done)
    }

    /// Of a queue that runs only the log may change: a migration begins or ends.
    pub(super) fn set_addresses(
        &mut self,
        queue: u32,
        addresses: VringAddresses,
    ) -> Result<Served<F>, Refusal> {
        let request = Request::SetVringAddr;
        let queue = self.queue(request, queue)?;
        if !self.is_started(queue) {
            self.ring_mut(queue).set_addresses(addresses);
            return Ok(Served::Done);
        }
        if !self.ring(queue).has_same_places(&addresses) {
            return Err(Refusal::QueueRuns { request, queue });
        }
        let action = Action::SetRingLog { queue, log: addresses.log };
        Ok(Served::Act(action, Pending::Addresses(queue, addresses)))
    }

    pub(super) fn set_base(&mut self, queue: u32, base: u32) -> Result<Served<F>, Refusal> {
        let queue = self.stopped_queue(Request::SetVringBase, queue)?;
        self.ring_mut(queue).set_base(base);
        Ok(Served::Done)
    }

    pub(super) fn stop_queue(&mut self, queue: u32) -> Result<Served<F>, Refusal> {
        let queue = self.queue(Request::GetVringBase, queue)?;
        if self.is_started(queue) {
            return Ok(Served::Act(Action::StopQueue(queue), Pending::Stopped(queue)));
        }
        Ok(Served::vring_state(queue, self.ring(queue).base()))
    }

    pub(super) fn set_kick(&self, queue: u32, kick: Option<F>) -> Result<Served<F>, Refusal> {
        let queue = self.queue(Request::SetVringKick, queue)?;
        let kick = kick.ok_or(Refusal::NoKick { queue })?;
        if self.is_started(queue) {
            return Ok(Served::Act(Action::SetKick { queue, kick }, Pending::Nothing));
        }
        let start = self.ring(queue).start(queue, kick, self.features, &self.regions)?;
        self.check_room(&start)?;
        Ok(Served::Act(Action::StartQueue(Box::new(start)), Pending::Started(queue)))
    }

    pub(super) fn set_call(&mut self, queue: u32, call: Option<F>) -> Result<Served<F>, Refusal> {
        let queue = self.queue(Request::SetVringCall, queue)?;
        let call = call.map(Arc::new);
        if !self.is_started(queue) {
            self.ring_mut(queue).set_call(call);
            return Ok(Served::Done);
        }
        let action = Action::SetCall { queue, call: call.clone() };
        Ok(Served::Act(action, Pending::Call(queue, call)))
    }

    pub(super) fn set_err(&mut self, queue: u32, err: Option<F>) -> Result<Served<F>, Refusal> {
        let queue = self.queue(Request::SetVringErr, queue)?;
        let err = err.map(Arc::new);
        if !self.is_started(queue) {
            self.ring_mut(queue).set_err(err);
            return Ok(Served::Done);
        }
        let action = Action::SetErr { queue, err: err.clone() };
        Ok(Served::Act(action, Pending::Err(queue, err)))
    }

    pub(super) fn enable_queue(&mut self, queue: u32, value: u32) -> Result<Served<F>, Refusal> {
        let queue = self.queue(Request::SetVringEnable, queue)?;
        if value > 1 {
            return Err(Refusal::EnableValue { queue, value });
        }
        let enabled = value == 1;
        if !self.is_started(queue) {
            self.ring_mut(queue).set_enabled(enabled);
            return Ok(Served::Done);
        }
        let action = Action::EnableQueue { queue, enabled };
        Ok(Served::Act(action, Pending::Enabled(queue, enabled)))
    }
}
