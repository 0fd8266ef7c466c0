//! Who holds a range alone, and who waits for one, in the order in which they came.
//!
//! Invariant: `blockers` of a request is the number of those before it that it conflicts with:
//! those that overlap with it, if either is exclusive. Requests leave the queue only through
//! [`Queue::remove_at`].

use super::places::{Cursor, Places};
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
    place: usize,
    range: Range<u64>,
    exclusive: bool,
    blockers: usize,
    /// How far one that is exclusive has looked through the places.
    looked: Cursor,
    state: State,
}

impl Request {
    fn conflicts(&self, exclusive: bool, range: &Range<u64>) -> bool {
        let overlaps = self.range.start < range.end && range.start < self.range.end;
        overlaps && (self.exclusive || exclusive)
    }

    fn is_of(&self, user: usize, place: usize) -> bool {
        self.user == user && self.place == place
    }
}

/// See the file's page.
#[derive(Default)]
pub(super) struct Queue {
    users: Vec<Option<Arc<Places>>>,
    requests: Vec<Request>,
}

impl Queue {
    /// A number for a user with these places.
    pub(super) fn join(&mut self, places: Arc<Places>) -> usize {
        let wanted: usize = self.users.iter().flatten().map(|user| user.len()).sum();
        let wanted = wanted + places.len();
        // So that nothing is allocated while places suffice.
        self.requests.reserve(wanted.saturating_sub(self.requests.len()));
        match self.users.iter().position(Option::is_none) {
            Some(free) => {
                self.users[free] = Some(places);
                free
            }
            None => {
                self.users.push(Some(places));
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

    /// Whether somebody wants a range for itself that overlaps with this.
    pub(super) fn excludes(&self, range: &Range<u64>) -> bool {
        self.requests.iter().any(|request| request.conflicts(false, range))
    }

    pub(super) fn wait_shared(&mut self, user: usize, place: usize, range: Range<u64>) {
        self.push(user, place, range, false);
    }

    /// True if it holds the range at once.
    pub(super) fn begin_exclusive(&mut self, user: usize, place: usize, range: Range<u64>) -> bool {
        self.push(user, place, range, true);
        let Queue { users, requests } = self;
        let Some(request) = requests.last_mut() else { return false };
        let goes = may_go(request, users);
        if goes {
            request.state = State::Held;
        }
        goes
    }

    fn push(&mut self, user: usize, place: usize, range: Range<u64>, exclusive: bool) {
        let before = self.requests.iter();
        let blockers = before.filter(|request| request.conflicts(exclusive, &range)).count();
        let (looked, state) = (Cursor::default(), State::Waiting);
        self.requests.push(Request { user, place, range, exclusive, blockers, looked, state });
    }

    /// What the user has in the queue for that place is over. False if there is nothing.
    pub(super) fn remove(&mut self, user: usize, place: usize) -> bool {
        let at = self.requests.iter().position(|request| request.is_of(user, place));
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

    /// Append the places of those of `user` that may go to `places`: it knows of them then.
    pub(super) fn take_granted(&mut self, user: usize, places: &mut Vec<usize>) {
        let granted = |request: &&mut Request| request.state == State::Granted;
        let own = self.requests.iter_mut().filter(|request| request.user == user);
        for request in own.filter(granted) {
            request.state = State::Held;
            places.push(request.place);
        }
    }

    /// The range of what the user has in the queue for that place, if it is shared.
    pub(super) fn shared_range(&self, user: usize, place: usize) -> Option<Range<u64>> {
        let request = self.requests.iter().find(|request| request.is_of(user, place))?;
        (!request.exclusive).then(|| request.range.clone())
    }
}

/// Whether nothing is in the way of one that waits.
fn may_go(request: &mut Request, users: &[Option<Arc<Places>>]) -> bool {
    let Request { blockers, exclusive, looked, range, .. } = request;
    *blockers == 0 && (!*exclusive || looked.reaches_end(users, range))
}
