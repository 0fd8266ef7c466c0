//! Requests of control calls, from the time the manager takes them until it reports their outcome.
//!
//! Invariants:
//! * A request that has begun is in one of these lists until its outcome is reported, exactly once.
//! * An outcome is reported only when the effects of the command can be seen.

use crate::array::control::{Command, Request};
use crate::array::device::ManagerQueue;
use crate::array::status::ArrayStatus;
use drystone_core::clock::Ns;
use drystone_core::sync::LockCounters;
use drystone_core::{Error, Result};
use std::sync::Arc;

/// See the module's text.
#[derive(Default)]
pub(super) struct Requests {
    queue: Option<Arc<ManagerQueue>>,
    /// Requests that were executed or refused; the outcome must be reported.
    executed: Vec<(Arc<Request>, Result<()>)>,
    /// Removals that wait for I/O to end, each with its deadline.
    removals: Vec<(Arc<Request>, Ns)>,
    /// Stops that wait for I/O to end, with their deadline.
    stops: Option<(Vec<Arc<Request>>, Ns)>,
    /// Stops that have succeeded.
    stopped: Vec<Arc<Request>>,
}

impl Requests {
    pub(super) fn set_queue(&mut self, queue: Arc<ManagerQueue>) {
        self.queue = Some(queue);
    }

    /// Take the requests since the previous call. None of them has begun.
    pub(super) fn take_new(&self) -> Vec<Arc<Request>> {
        self.queue.as_ref().map_or(Vec::new(), |queue| queue.take_requests())
    }

    /// Change the status that others see.
    pub(super) fn change_status(&self, change: impl FnOnce(&mut ArrayStatus)) {
        if let Some(queue) = &self.queue {
            queue.change_status(change);
        }
    }

    /// Keep the outcome of a request.
    pub(super) fn add_executed(&mut self, request: Arc<Request>, outcome: Result<()>) {
        self.executed.push((request, outcome));
    }

    /// Report outcomes, except of executed requests for which `still_runs` is true.
    pub(super) fn tell_outcomes(
        &mut self,
        still_runs: impl Fn(&Command) -> bool,
        locks: &LockCounters,
    ) {
        self.executed.retain_mut(|(request, outcome)| {
            let waits = outcome.is_ok() && still_runs(request.command());
            if !waits {
                request.end(std::mem::replace(outcome, Ok(())), locks);
            }
            waits
        });
    }

    /// Keep a removal that waits, until `deadline` at the latest.
    pub(super) fn add_removal(&mut self, request: Arc<Request>, deadline: Ns) {
        self.removals.push((request, deadline));
    }

    /// Take the removals that wait; those that go on waiting are added again.
    pub(super) fn take_removals(&mut self) -> Vec<(Arc<Request>, Ns)> {
        std::mem::take(&mut self.removals)
    }

    pub(super) fn has_removals(&self) -> bool {
        !self.removals.is_empty()
    }

    /// Keep a request to stop. The first one sets the deadline.
    pub(super) fn add_stop(&mut self, request: Arc<Request>, deadline: Ns) {
        self.stops.get_or_insert((Vec::new(), deadline)).0.push(request);
    }

    /// The deadline of the wait of a stop, if one is asked for.
    pub(super) fn stop_deadline(&self) -> Option<Ns> {
        self.stops.as_ref().map(|(_, deadline)| *deadline)
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stops.is_some()
    }

    /// Refuse all requests to stop.
    pub(super) fn refuse_stops(&mut self, why: impl Fn() -> Error) {
        let (requests, _) = self.stops.take().unwrap_or_default();
        self.executed.extend(requests.into_iter().map(|request| (request, Err(why()))));
    }

    /// Note that the array has stopped; [`Requests::end`] reports that at the very end.
    pub(super) fn accept_stops(&mut self) {
        self.stopped = self.stops.take().unwrap_or_default().0;
    }

    /// Report all outcomes, because the manager ends.
    pub(super) fn end(self, locks: &LockCounters) {
        self.stopped.iter().for_each(|request| request.end(Ok(()), locks));
        if let Some(queue) = self.queue {
            queue.close();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use drystone_core::clock::ManualClock;

    fn outcome(request: &Request, locks: &LockCounters) -> Option<bool> {
        request.outcome(locks).map(|outcome| outcome.is_ok())
    }

    #[test]
    fn outcomes_are_told_when_what_follows_can_be_seen() {
        let locks = LockCounters::new(ManualClock::new(1));
        let mut requests = Requests::default();
        let (idle, refused) = (Request::new(Command::Idle), Request::new(Command::Idle));
        requests.add_executed(idle.clone(), Ok(()));
        requests.add_executed(refused.clone(), Err(Error::invalid("no")));
        requests.tell_outcomes(|_| true, &locks);
        assert_eq!((outcome(&idle, &locks), outcome(&refused, &locks)), (None, Some(false)));
        requests.tell_outcomes(|_| false, &locks);
        assert_eq!(outcome(&idle, &locks), Some(true));
    }

    #[test]
    fn all_who_ask_for_a_stop_get_one_answer() {
        let locks = LockCounters::new(ManualClock::new(1));
        let mut requests = Requests::default();
        let (first, second) = (Request::new(Command::Stop), Request::new(Command::Stop));
        assert!(!requests.is_stopping());
        requests.add_stop(first.clone(), 5);
        requests.add_stop(second.clone(), 9);
        assert_eq!(requests.stop_deadline(), Some(5));
        requests.refuse_stops(|| Error::invalid("it is in use"));
        requests.tell_outcomes(|_| false, &locks);
        assert_eq!((outcome(&first, &locks), outcome(&second, &locks)), (Some(false), Some(false)));

        requests.add_stop(first.clone(), 7);
        requests.accept_stops();
        requests.tell_outcomes(|_| false, &locks);
        assert_eq!((outcome(&first, &locks), requests.is_stopping()), (None, false));
        requests.end(&locks);
        assert_eq!(outcome(&first, &locks), Some(true));
    }

    #[test]
    fn removals_wait_until_they_are_taken() {
        let mut requests = Requests::default();
        requests.add_removal(Request::new(Command::Remove("a".to_owned())), 3);
        assert!(requests.has_removals());
        assert_eq!(requests.take_removals().len(), 1);
        assert!(!requests.has_removals());
    }
}
