//! The front end of a worker: its sessions.
//!
//! Invariant: a session that may have requests to read is in `again` or `unarmed`, or has a poll in
//! the ring, or is at a bound and goes on when an operation completes.

use super::busy_poll::BUSY_POLL_NS_MAX;
use super::event::Event;
use super::session::Session;
use super::{IN_FLIGHT_MAX, Incoming};
use crate::server::{FUSE, FrontEnd, OpId, SessionId, Work, errno};
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent};
use drystone_core::{Bio, Slab};

/// The sessions of a worker.
#[derive(Default)]
pub(crate) struct Sessions {
    sessions: Slab<Session>,
    /// Sessions that had an event in this round.
    touched: Vec<u32>,
    /// Sessions that have more to read once their bios are submitted.
    again: Vec<u32>,
    /// Sessions that need a poll before a sleep.
    unarmed: Vec<u32>,
    /// Sessions of `unarmed` that poll busily first.
    polling: Vec<u32>,
    aborted: bool,
}

impl Sessions {
    fn go_on(&mut self, work: &mut Work, place: u32) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        if session.has_interrupts() {
            session.follow_interrupts();
        }
        session.step(work);
        if session.receive(work) && !self.again.contains(&place) {
            self.again.push(place);
        }
        session.step(work);
        session.check_askers(work);
        session.flush_ring();
        if session.has_entries() && !self.again.contains(&place) {
            self.again.push(place);
        }
        if session.needs_poll() && !self.unarmed.contains(&place) {
            self.unarmed.push(place);
        }
        for poll in session.take_polls_to_cancel() {
            work.cx.cancel_net(poll.value(SessionId(place)));
        }
        if session.take_withdrawal() {
            work.withdraw(SessionId(place).user_data(FUSE));
        }
        if session.is_over() {
            self.forget(work, place);
        }
    }

    /// Reserves room in the lists, so that none of them grows on the data path: a session is in a
    /// list at most once for each of its bios and once for each other event.
    fn reserve(&mut self) {
        let sessions = self.sessions.numbers_end() as usize + 1;
        self.touched.reserve(sessions * (2 * IN_FLIGHT_MAX as usize));
        for list in [&mut self.again, &mut self.unarmed, &mut self.polling] {
            list.reserve(sessions);
        }
    }

    /// Begins the polls of a session before a sleep.
    fn arm(&mut self, work: &mut Work, place: u32) {
        let Some(session) = self.sessions.get_mut(place) else { return };
        session.begin_polls(|poll, fd| {
            work.cx.start_net(fd, NetOp::PollIn, poll.value(SessionId(place)))
        });
    }

    fn forget(&mut self, work: &mut Work, place: u32) {
        let Some(session) = self.sessions.remove(place) else { return };
        work.cx.close(session.end());
    }

    fn give_up_all(&mut self) {
        for place in 0..self.sessions.numbers_end() {
            let Some(session) = self.sessions.get_mut(place) else { continue };
            session.give_up();
            self.touched.push(place);
        }
    }
}

/// Handles the end of a session's operation on the ring.
fn end_event(session: &mut Session, work: &mut Work, event: Event, ended: RingEvent) {
    match event {
        // The kernel cancels the operations of a thread that ends, and a visitor may have started
        // this one: begin the poll again.
        Event::Poll | Event::RingPoll => session.end_poll(event, ended.result != -errno::ECANCELED),
        Event::Extents(op) => end_query(session, work, op, ended.buffers),
        Event::Asker => session.end_asker_check(ended.result, work),
    }
}

/// Hands the device's answer to an operation: no extents if there was no thread to ask it.
fn end_query(session: &mut Session, work: &mut Work, op: OpId, answer: Buffers) {
    let extents = if let Buffers::Extents(found) = answer { found } else { Vec::new() };
    session.end_query(op, &extents, work);
}

impl FrontEnd for Sessions {
    type Arrival = Incoming;

    fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    fn deadline(&self) -> Option<Ns> {
        self.sessions.iter().filter_map(|(_, session)| session.asker_deadline()).min()
    }

    fn begin_round(&mut self, _work: &mut Work) {}

    fn admit(&mut self, work: &mut Work, arrival: Incoming) {
        if self.aborted {
            return;
        }
        let place = self.sessions.next_number();
        let mount = arrival.mount.clone();
        let Some(session) = Session::new(arrival, SessionId(place), work) else {
            return mount.fail("memory is too short for a session".to_owned());
        };
        self.reserve();
        self.sessions.insert(session);
        self.touched.push(place);
    }

    fn handle(&mut self, work: &mut Work, ended: RingEvent) {
        let (SessionId(place), event) = Event::of(ended.token.value());
        let Some(session) = self.sessions.get_mut(place) else { return };
        end_event(session, work, event, ended);
        self.touched.push(place);
    }

    fn completed(&mut self, bio: Box<Bio>) {
        let SessionId(place) = SessionId::of(&bio);
        if let Some(session) = self.sessions.get_mut(place) {
            session.completed(bio);
            self.touched.push(place);
        }
    }

    /// A wake-up does not say which session it is for. So this checks each session that has news of
    /// others, waits for its mount, has unseen interrupts, or has an asker to check.
    fn collected(&mut self, work: &mut Work) {
        for (place, session) in self.sessions.iter() {
            let is_time = |at: Ns| at <= work.cx.set().clock().now();
            let looks = |it: &Session| {
                it.has_news_of_others()
                    || it.has_interrupts()
                    || it.asker_deadline().is_some_and(is_time)
            };
            if looks(session) {
                self.touched.push(place);
            }
        }
    }

    fn begin_busy_poll(&mut self) -> Option<Ns> {
        let wants =
            |place: &u32| self.sessions.get_mut(*place).is_some_and(Session::begin_busy_poll);
        self.polling.clear();
        self.polling.extend(self.unarmed.iter().copied().filter(wants));
        (!self.polling.is_empty()).then_some(BUSY_POLL_NS_MAX)
    }

    fn busy_poll(&mut self, work: &mut Work) -> bool {
        for place in &self.polling {
            let Some(session) = self.sessions.get_mut(*place) else { continue };
            if session.busy_poll(work) {
                self.touched.push(*place);
            }
        }
        !self.touched.is_empty()
    }

    fn end_busy_poll(&mut self) {
        for place in self.polling.drain(..) {
            if let Some(session) = self.sessions.get_mut(place) {
                session.fail_busy_poll();
            }
        }
    }

    fn begin_wait(&mut self, work: &mut Work) {
        let mut unarmed = std::mem::take(&mut self.unarmed);
        unarmed.drain(..).for_each(|place| self.arm(work, place));
        self.unarmed = unarmed;
    }

    fn has_work(&self) -> bool {
        !self.touched.is_empty()
    }

    fn advance(&mut self, work: &mut Work) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort_unstable();
        touched.dedup();
        for place in touched.drain(..) {
            self.go_on(work, place);
        }
        self.touched = touched;
        self.touched.append(&mut self.again);
    }

    /// An unmount needs answers, so sessions go on until the kernel says that the mount is gone.
    fn begin_stop(&mut self, _work: &mut Work) {}

    fn abort(&mut self, _work: &mut Work) {
        self.aborted = true;
        self.give_up_all();
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for place in 0..self.sessions.numbers_end() {
            self.sessions.remove(place).into_iter().for_each(|session| drop(session.end()));
        }
    }
}
