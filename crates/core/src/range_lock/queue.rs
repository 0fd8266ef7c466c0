//! The requests of users that hold a range alone or wait for one, in the order in which they came.
//!
//! Invariant: `blockers` of a request is the number of those before it that it conflicts with:
//! those that overlap with it, if either is exclusive. Requests leave the queue only through
//! [`Queue::remove_at`].

use super::slots::{Cursor, Slots};
use crate::primitive::Arc;
use std::ops::Range;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    /// It may go, and its user was told.
    Granted,
    /// Its user knows.
    Held,
}

struct Request {
    user: usize,
    slot: usize,
    range: Range<u64>,
    exclusive: bool,
    blockers: usize,
    /// The position of an exclusive request in its scan of the slots.
    looked: Cursor,
    state: State,
}

impl Request {
    fn conflicts(&self, exclusive: bool, range: &Range<u64>) -> bool {
        let overlaps = self.range.start < range.end && range.start < self.range.end;
        overlaps && (self.exclusive || exclusive)
    }

    fn is_of(&self, user: usize, slot: usize) -> bool {
        self.user == user && self.slot == slot
    }
}

/// See the file's page.
#[derive(Default)]
pub(super) struct Queue {
    users: Vec<Option<Arc<Slots>>>,
    requests: Vec<Request>,
}

impl Queue {
    /// A number for a user with these slots.
    pub(super) fn join(&mut self, slots: Arc<Slots>) -> usize {
        let wanted: usize = self.users.iter().flatten().map(|user| user.len()).sum();
        let wanted = wanted + slots.len();
        // So that nothing is allocated while slots suffice.
        self.requests.reserve(wanted.saturating_sub(self.requests.len()));
        match self.users.iter().position(Option::is_none) {
            Some(free) => {
                self.users[free] = Some(slots);
                free
            }
            None => {
                self.users.push(Some(slots));
                self.users.len() - 1
            }
        }
    }

    /// The user is over: nothing of it is in the queue any more.
    pub(super) fn leave(&mut self, user: usize) {
        while let Some(at) = self.requests.iter().position(|request| request.user == user) {
            self.remove_at(at);
        }
        self.users[user] = None;
        self.grant();
    }

    /// How many are exclusive.
    pub(super) fn exclusives(&self) -> u32 {
        self.requests.iter().filter(|request| request.exclusive).count() as u32
    }

    /// True if a user wants a range for itself that overlaps with this.
    pub(super) fn excludes(&self, range: &Range<u64>) -> bool {
        self.requests.iter().any(|request| request.conflicts(false, range))
    }

    pub(super) fn wait_shared(&mut self, user: usize, slot: usize, range: Range<u64>) {
        self.push(user, slot, range, false);
    }

    /// True if it holds the range at once.
    pub(super) fn begin_exclusive(&mut self, user: usize, slot: usize, range: Range<u64>) -> bool {
        self.push(user, slot, range, true);
        let Queue { users, requests } = self;
        let Some(request) = requests.last_mut() else { return false };
        let goes = may_go(request, users);
        if goes {
            request.state = State::Held;
        }
        goes
    }

    fn push(&mut self, user: usize, slot: usize, range: Range<u64>, exclusive: bool) {
        let before = self.requests.iter();
        let blockers = before.filter(|request| request.conflicts(exclusive, &range)).count();
        let (looked, state) = (Cursor::default(), State::Waiting);
        self.requests.push(Request { user, slot, range, exclusive, blockers, looked, state });
    }

    /// Remove the request of the user for that slot. False if there is none.
    pub(super) fn remove(&mut self, user: usize, slot: usize) -> bool {
        let at = self.requests.iter().position(|request| request.is_of(user, slot));
        let Some(at) = at else { return false };
        self.remove_at(at);
        self.grant();
        true
    }

    fn remove_at(&mut self, at: usize) {
        let gone = self.requests.remove(at);
        for later in &mut self.requests[at..] {
            later.blockers -= usize::from(later.conflicts(gone.exclusive, &gone.range));
        }
    }

    /// Tell those that may go now.
    pub(super) fn grant(&mut self) {
        let Queue { users, requests } = self;
        for request in requests.iter_mut().filter(|request| request.state == State::Waiting) {
            if may_go(request, users) {
                request.state = State::Granted;
                users[request.user].iter().for_each(|user| user.tell());
            }
        }
    }

    /// Append the slots of those of `user` that may go to `slots`: it knows of them then.
    pub(super) fn take_granted(&mut self, user: usize, slots: &mut Vec<usize>) {
        let granted = |request: &&mut Request| request.state == State::Granted;
        let own = self.requests.iter_mut().filter(|request| request.user == user);
        for request in own.filter(granted) {
            request.state = State::Held;
            slots.push(request.slot);
        }
    }

    /// The range of what the user has in the queue for that slot, if it is shared.
    pub(super) fn shared_range(&self, user: usize, slot: usize) -> Option<Range<u64>> {
        let request = self.requests.iter().find(|request| request.is_of(user, slot))?;
        (!request.exclusive).then(|| request.range.clone())
    }
}

/// True if nothing is in the way of a request that waits.
fn may_go(request: &mut Request, users: &[Option<Arc<Slots>>]) -> bool {
    let Request { blockers, exclusive, looked, range, .. } = request;
    *blockers == 0 && (!*exclusive || looked.reaches_end(users, range))
}
