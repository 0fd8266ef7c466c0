//! A poll queue of a null device: requests in it complete only when a context polls, and that
//! context completes all that are due, also those of other contexts that share the queue.
//!
//! Invariants:
//! * `due` is used only under its lock, which a poll only tries: it skips a queue that another
//!   thread polls ("nvme/pci: don't wait for locked polling queue", Jeffle Xu, 20 February 2021),
//!   unless the device is set to wait for it, as before that patch.
//! * A ticket is in either `arrivals` or `due`, once; its request belongs to the driver until the
//!   ticket is taken out.

use crossbeam_queue::ArrayQueue;
use drystone_core::clock::Ns;
use drystone_core::mailbox::Message;
use drystone_core::sync::{Guard, Lock, LockClass, LockCounters};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The most requests that wait for a first poll.
const ARRIVALS: usize = 16_384;

/// A request in a poll queue.
pub(crate) struct Ticket {
    /// The time when it is done.
    pub(crate) at: Ns,
    /// The context that submitted it, and the slot there.
    pub(crate) context: u32,
    pub(crate) slot: u32,
    /// The message that tells the context.
    pub(crate) word: Arc<Message>,
}

impl PartialEq for Ticket {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Ticket {}

impl PartialOrd for Ticket {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The entry that is due first compares as the greatest, because `BinaryHeap` is a max-heap.
impl Ord for Ticket {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |ticket: &Self| (ticket.at, ticket.context, ticket.slot);
        key(other).cmp(&key(self))
    }
}

/// See the module's text.
pub(crate) struct PollQueue {
    arrivals: ArrayQueue<Ticket>,
    due: Lock<BinaryHeap<Ticket>>,
    skip_busy: bool,
    /// The numbers of polls, of successful ones, and of skipped ones. The holder of the lock writes
    /// all but the last.
    invoked: AtomicU64,
    success: AtomicU64,
    skipped: AtomicU64,
}

/// The result of a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollResult {
    /// Another thread was polling.
    Skipped,
    /// So many requests were due.
    Found(usize),
}

impl PollQueue {
    pub(crate) fn new(skip_busy: bool) -> Self {
        let due = Lock::new(LockClass::NullDevice, BinaryHeap::new());
        let count = || AtomicU64::new(0);
        PollQueue {
            arrivals: ArrayQueue::new(ARRIVALS),
            due,
            skip_busy,
            invoked: count(),
            success: count(),
            skipped: count(),
        }
    }

    /// The counts of considered, invoked and successful polls, as Linux showed them in debugfs
    /// (`hctx0/poll` until 5.15).
    pub(crate) fn counts(&self) -> String {
        let [invoked, success, skipped] =
            [&self.invoked, &self.success, &self.skipped].map(|count| count.load(Relaxed));
        format!("considered={} invoked={invoked} success={success}", invoked + skipped)
    }

    /// Add a request. False if too many wait for a first poll.
    pub(crate) fn push(&self, ticket: Ticket) -> bool {
        self.arrivals.push(ticket).is_ok()
    }

    /// Take out the requests that are due at `now`, and give each to `done`.
    pub(crate) fn poll(
        &self,
        user: &LockCounters,
        now: impl FnOnce() -> Ns,
        mut done: impl FnMut(Ticket),
    ) -> PollResult {
        let Some(mut due) = self.lock(user) else {
            self.skipped.fetch_add(1, Relaxed);
            return PollResult::Skipped;
        };
        self.invoked.store(self.invoked.load(Relaxed) + 1, Relaxed);
        while let Some(ticket) = self.arrivals.pop() {
            due.push(ticket);
        }
        if due.is_empty() {
            return PollResult::Found(0);
        }
        let (now, mut found) = (now(), 0);
        while due.peek().is_some_and(|first| first.at <= now) {
            found += 1;
            due.pop().into_iter().for_each(&mut done);
        }
        if found > 0 {
            self.success.store(self.success.load(Relaxed) + 1, Relaxed);
        }
        PollResult::Found(found)
    }

    /// Take out a request that its context has given up. False if it was not in the queue.
    pub(crate) fn withdraw(&self, user: &LockCounters, context: u32, slot: u32) -> bool {
        let mut due = self.due.lock(user);
        while let Some(ticket) = self.arrivals.pop() {
            due.push(ticket);
        }
        let before = due.len();
        due.retain(|ticket| (ticket.context, ticket.slot) != (context, slot));
        due.len() < before
    }

    fn lock(&self, user: &LockCounters) -> Option<Guard<'_, BinaryHeap<Ticket>>> {
        match self.skip_busy {
            true => self.due.try_lock(user),
            false => Some(self.due.lock(user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::ChannelId;
    use drystone_core::clock::ManualClock;

    fn ticket(at: Ns, slot: u32) -> Ticket {
        Ticket { at, context: 1, slot, word: Message::new(ChannelId(0), slot.into()) }
    }

    fn poll(queue: &PollQueue, user: &LockCounters, now: Ns) -> (PollResult, Vec<u32>) {
        let mut slots = Vec::new();
        let result = queue.poll(user, || now, |ticket| slots.push(ticket.slot));
        (result, slots)
    }

    #[test]
    fn what_is_due_comes_out_first_due_first() {
        let (queue, user) = (PollQueue::new(true), LockCounters::new(ManualClock::new(1)));
        for (at, slot) in [(30, 3), (10, 1), (20, 2)] {
            assert!(queue.push(ticket(at, slot)));
        }
        assert_eq!(poll(&queue, &user, 9), (PollResult::Found(0), vec![]));
        assert_eq!(poll(&queue, &user, 20), (PollResult::Found(2), vec![1, 2]));
        assert!(queue.withdraw(&user, 1, 3) && !queue.withdraw(&user, 1, 3));
        assert_eq!(poll(&queue, &user, 99), (PollResult::Found(0), vec![]));
    }

    #[test]
    fn a_queue_that_is_being_polled_is_skipped() {
        let (queue, user) = (PollQueue::new(true), LockCounters::new(ManualClock::new(1)));
        assert!(queue.push(ticket(1, 1)));
        let polling = queue.due.lock(&user);
        assert_eq!(poll(&queue, &user, 5), (PollResult::Skipped, vec![]));
        assert!(queue.push(ticket(2, 2)), "a submitter does not wait for a poller");
        drop(polling);
        assert_eq!(poll(&queue, &user, 5), (PollResult::Found(2), vec![1, 2]));
        assert_eq!(queue.counts(), "considered=2 invoked=1 success=1");
    }

    #[test]
    fn too_many_arrivals_are_refused() {
        let (queue, user) = (PollQueue::new(true), LockCounters::new(ManualClock::new(1)));
        (0..ARRIVALS as u32).for_each(|slot| assert!(queue.push(ticket(1, slot))));
        assert!(!queue.push(ticket(1, 0)));
        assert_eq!(poll(&queue, &user, 1).0, PollResult::Found(ARRIVALS));
        assert!(queue.push(ticket(1, 0)));
    }
}
