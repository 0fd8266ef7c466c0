//! The front end of a worker: its sessions.
//!
//! Invariant: a session that may have requests to read has a poll with the ring, or is at a bound and
//! goes on with what completes, or is in `again`.

use super::Incoming;
use super::session::{Life, Session, session_of, user_data_of};
use crate::server::{FUSE, FrontEnd, Work, errno};
use drystone_core::Bio;
use drystone_core::ring::{NetOp, RingEvent};

/// The sessions of a worker.
#[derive(Default)]
pub(crate) struct Sessions {
    sessions: Vec<Option<Session>>,
    free: Vec<usize>,
    /// Sessions that something happened to in this round.
    touched: Vec<usize>,
    /// Sessions that have more to read once their bios are on their way.
    again: Vec<usize>,
    aborted: bool,
}

impl Sessions {
    /// None yet.
    pub(crate) fn new() -> Self {
        Sessions::default()
    }

    fn go_on(&mut self, work: &mut Work, place: usize) {
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        session.step(work);
        if session.receive(work) {
            self.again.push(place);
        }
        session.step(work);
        if session.life == Life::Open && !session.readable && !session.polling {
            session.polling = true;
            work.cx.start_net(session.fd(), NetOp::PollIn, FUSE.event | place as u64);
        }
        if session.withdraws() {
            work.withdraw(user_data_of(place));
        }
        if session.is_over() {
            self.forget(work, place);
        }
    }

    fn forget(&mut self, work: &mut Work, place: usize) {
        let Some(session) = self.sessions[place].take() else { return };
        work.cx.close(session.end());
        self.free.push(place);
    }

    fn give_up_all(&mut self, work: &mut Work) {
        for place in 0..self.sessions.len() {
            let Some(session) = &mut self.sessions[place] else { continue };
            session.give_up();
            if session.polling {
                work.cx.cancel_net(FUSE.event | place as u64);
            }
            self.touched.push(place);
        }
    }
}

impl FrontEnd for Sessions {
    type Arrival = Incoming;

    fn is_empty(&self) -> bool {
        self.sessions.len() == self.free.len()
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
        match self.sessions.get_mut(place) {
            Some(free) => *free = session,
            None => self.sessions.push(session),
        }
        self.touched.push(place);
    }

    fn handle(&mut self, _work: &mut Work, event: RingEvent) {
        let place = (event.token.value() & !FUSE.event) as usize;
        let Some(Some(session)) = self.sessions.get_mut(place) else { return };
        session.polling = false;
        // The kernel cancels what a thread started when that thread ends, and that may have been a
        // visitor's: then it is done again.
        session.readable |= event.result != -errno::ECANCELED;
        self.touched.push(place);
    }

    fn completed(&mut self, bio: Box<Bio>) {
        let place = session_of(&bio);
        if let Some(Some(session)) = self.sessions.get_mut(place) {
            session.completed(bio);
            self.touched.push(place);
        }
    }

    /// Nobody says which session a wake-up is for: those that wait for others look.
    fn collected(&mut self, _work: &mut Work) {
        for (place, session) in self.sessions.iter().enumerate() {
            if session.as_ref().is_some_and(Session::waits_for_passage) {
                self.touched.push(place);
            }
        }
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

    fn abort(&mut self, work: &mut Work) {
        self.aborted = true;
        self.give_up_all(work);
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        for session in self.sessions.drain(..).flatten() {
            drop(session.end());
        }
    }
}
