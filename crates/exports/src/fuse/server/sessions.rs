//! The front end of a worker: its sessions.
//!
//! Invariant: a session that may have requests to read has a poll with the ring, or is at a bound and
//! goes on with what completes, or is in `again` or `unarmed`.

use super::askers::ASKERS;
use super::look::LONGEST_LOOK_NS;
use super::seek::{QUERY, query_of};
use super::session::{Life, Session, session_of, user_data_of};
use super::{IN_FLIGHT_MAX, Incoming};
use crate::server::{FUSE, FrontEnd, Tag, Work, errno};
use drystone_core::Bio;
use drystone_core::clock::Ns;
use drystone_core::ring::{Buffers, NetOp, RingEvent};

/// In the value of an event: the poll of a session's ring.
const RING_POLL: u64 = 1 << 43;
const _: () = assert!(ASKERS == RING_POLL | QUERY, "both, which no other event has");

/// The sessions of a worker.
#[derive(Default)]
pub(crate) struct Sessions {
    sessions: Vec<Option<Session>>,
    free: Vec<usize>,
    /// Sessions that something happened to in this round.
    touched: Vec<usize>,
    /// Sessions that have more to read once their bios are on their way.
    again: Vec<usize>,
    /// Sessions that need a poll before a sleep.
    unarmed: Vec<usize>,
    /// Those of them that look before that.
    looking: Vec<usize>,
    aborted: bool,
}

impl Sessions {
    fn go_on(&mut self, work: &mut Work, place: usize) {
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        if session.has_interrupts() {
            session.follow_interrupts();
        }
        session.step(work);
        if session.receive(work) && !self.again.contains(&place) {
            self.again.push(place);
        }
        session.step(work);
        session.look_at_askers(work);
        session.flush_ring();
        if session.has_entries() && session.life == Life::Open && !self.again.contains(&place) {
            self.again.push(place);
        }
        if session.needs_poll() && !self.unarmed.contains(&place) {
            self.unarmed.push(place);
        }
        if session.cancels() {
            cancel_polls(session, work, place);
        }
        if session.withdraws() {
            work.withdraw(user_data_of(place));
        }
        if session.is_over() {
            self.forget(work, place);
        }
    }

    /// Room in the lists, so that none of them grows on the way of an I/O: a session is named by each of
    /// its bios at the most, and once by whatever else happens.
    fn reserve(&mut self) {
        let sessions = self.sessions.len() + 1;
        self.touched.reserve(sessions * (2 * IN_FLIGHT_MAX as usize));
        for list in [&mut self.again, &mut self.unarmed, &mut self.looking, &mut self.free] {
            list.reserve(sessions);
        }
    }

    /// The session sleeps with a poll.
    fn arm(&mut self, work: &mut Work, place: usize) {
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        let value = FUSE.event() | place as u64;
        if session.needs_poll() && !session.readable && !session.polling {
            session.polling = true;
            work.cx.start_net(session.fd(), NetOp::PollIn, value);
        }
        if session.ring_needs_poll()
            && let Some(over) = &mut session.over_ring
        {
            over.polling = true;
            work.cx.start_net(over.ring.fd(), NetOp::PollIn, value | RING_POLL);
        }
    }

    fn forget(&mut self, work: &mut Work, place: usize) {
        let Some(session) = self.sessions[place].take() else { return };
        work.cx.close(session.end());
        self.free.push(place);
    }

    /// A device told which ranges hold data; nothing when a thread to ask it was not to be had.
    fn answered(&mut self, work: &mut Work, value: u64, answer: Buffers) {
        let (place, op) = query_of(value);
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        let extents = if let Buffers::Extents(found) = answer { found } else { Vec::new() };
        session.sought(op, &extents, work);
        self.touched.push(place);
    }

    fn asker_looked_at(&mut self, work: &mut Work, place: usize, result: i32) {
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        session.asker_looked_at(result, work);
        self.touched.push(place);
    }

    fn give_up_all(&mut self) {
        for place in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[place] else { continue };
            session.give_up();
            self.touched.push(place);
        }
    }
}

/// Ask the polls of a session to end.
fn cancel_polls(session: &Session, work: &mut Work, place: usize) {
    let value = FUSE.event() | place as u64;
    if session.polling {
        work.cx.cancel_net(value);
    }
    if session.over_ring.as_ref().is_some_and(|over| over.polling) {
        work.cx.cancel_net(value | RING_POLL);
    }
}

impl FrontEnd for Sessions {
    type Arrival = Incoming;

    fn is_empty(&self) -> bool {
        self.sessions.len() == self.free.len()
    }

    fn deadline(&self) -> Option<Ns> {
        self.sessions.iter().flatten().filter_map(Session::asker_deadline).min()
    }

    fn begin_round(&mut self, _work: &mut Work) {}

    fn admit(&mut self, work: &mut Work, arrival: Incoming) {
        if self.aborted {
            return;
        }
        let place = self.free.pop().unwrap_or(self.sessions.len());
        let mount = arrival.mount.clone();
        let session = Session::new(arrival, place, work);
        if session.is_none() {
            mount.fail("memory is too short for a session".to_owned());
            self.free.push(place);
        }
        self.reserve();
        match self.sessions.get_mut(place) {
            Some(free) => *free = session,
            None => self.sessions.push(session),
        }
        self.touched.push(place);
    }

    fn handle(&mut self, work: &mut Work, event: RingEvent) {
        let value = Tag::rest_of_event(event.token.value());
        if value & ASKERS == ASKERS {
            return self.asker_looked_at(work, (value & !ASKERS) as usize, event.result);
        }
        if value & QUERY != 0 {
            return self.answered(work, value, event.buffers);
        }
        let place = (value & !RING_POLL) as usize;
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        // The kernel cancels what a thread started when that thread ends, and that may have been a
        // visitor's: then it is done again.
        let readable = event.result != -errno::ECANCELED;
        match &mut session.over_ring {
            Some(over) if value & RING_POLL != 0 => {
                over.polling = false;
                over.ring.clear();
                // What rang since is cleared with it, and does not ring again: it is looked at, whatever
                // became of the poll.
                over.readable = true;
            }
            _ => {
                session.polling = false;
                session.readable |= readable;
            }
        }
        self.touched.push(place);
    }

    fn completed(&mut self, bio: Box<Bio>) {
        let place = session_of(&bio);
        if let Some(Some(session)) = self.sessions.get_mut(place) {
            session.completed(bio);
            self.touched.push(place);
        }
    }

    /// Nobody says which session a wake-up is for: those with news of others, or that wait for their mount, or
    /// have not seen all interrupts, look. So do those with an asker that is to be looked at.
    fn collected(&mut self, work: &mut Work) {
        for (place, session) in self.sessions.iter().enumerate() {
            let is_time = |at: Ns| at <= work.cx.set().clock().now();
            let looks = |it: &Session| {
                it.has_news_of_others()
                    || it.has_interrupts()
                    || it.asker_deadline().is_some_and(is_time)
            };
            if session.as_ref().is_some_and(looks) {
                self.touched.push(place);
            }
        }
    }

    fn begin_busy_poll(&mut self) -> Option<Ns> {
        let wants = |place: &usize| {
            let session = self.sessions.get_mut(*place).and_then(Option::as_mut);
            session.is_some_and(|session| session.needs_poll() && session.look.begin())
        };
        self.looking.clear();
        self.looking.extend(self.unarmed.iter().copied().filter(wants));
        (!self.looking.is_empty()).then_some(LONGEST_LOOK_NS)
    }

    fn busy_poll(&mut self, work: &mut Work) -> bool {
        for place in &self.looking {
            let Some(Some(session)) = self.sessions.get_mut(*place) else { continue };
            if session.look(work) {
                self.touched.push(*place);
            }
        }
        !self.touched.is_empty()
    }

    fn end_busy_poll(&mut self) {
        for place in self.looking.drain(..) {
            if let Some(Some(session)) = self.sessions.get_mut(place) {
                session.look.vain();
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

    /// Whoever unmounts needs answers, so sessions go on until the kernel says that the mount is gone.
    fn begin_stop(&mut self, _work: &mut Work) {}

    fn abort(&mut self, _work: &mut Work) {
        self.aborted = true;
        self.give_up_all();
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for session in self.sessions.drain(..).flatten() {
            drop(session.end());
        }
    }
}
