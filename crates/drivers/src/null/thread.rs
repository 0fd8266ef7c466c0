//! The threads that act as null devices: they take requests, and send each request's message to its
//! context when its time has come.
//!
//! * Requests that take no time are completed in order, by a thread of the device that sleeps
//!   between them.
//! * Requests that take time are completed by one thread for all devices that share it. Like
//!   hardware it keeps exact time: it polls the clock, so the latency grows only by the cost of a
//!   notification. It goes on polling for [`AWAKE_NS`] without requests, so that a request start
//!   costs no wake-up.

use drystone_core::clock::{Clock, Ns};
use drystone_core::mailbox::Message;
use drystone_core::{Error, Result, signals, threads};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};

/// The time that the thread stays awake without requests, once one took time.
const AWAKE_NS: Ns = 1_000_000;
/// The pause between two checks for new requests while it has some. A check reads the cache line to
/// which submitting contexts write.
const ARRIVALS_NS: Ns = 1_000;

/// Handle of a completing thread. When the last handle is dropped, the thread ends after it has
/// completed all requests. From any thread.
#[derive(Clone, Debug)]
pub struct CompletionThread {
    sender: Arc<Sender<Job>>,
}

/// A message to the thread.
enum Job {
    /// The clock of the contexts that use the device.
    Clock(Arc<dyn Clock>),
    /// Complete at once.
    Now(Arc<Message>),
    /// Complete later.
    At(Due),
}

/// A request that takes time.
struct Due {
    at: Ns,
    word: Arc<Message>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The entry that is due first compares as the greatest, because `BinaryHeap` is a max-heap.
impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.cmp(&self.at)
    }
}

impl CompletionThread {
    /// A thread, which sleeps until it has something to complete.
    ///
    /// # Errors
    /// The operating system cannot start a thread.
    pub fn start() -> Result<Self> {
        let (sender, receiver) = channel::<Job>();
        signals::blocked(|| threads::start("null-complete", move || run(&receiver)))
            .map_err(|e| Error::os("no thread for irqmode=1", e))?;
        Ok(CompletionThread { sender: Arc::new(sender) })
    }

    /// Set the clock by which requests take time. Called before the first such request.
    pub(crate) fn goes_by(&self, clock: &Arc<dyn Clock>) {
        self.tell(Job::Clock(clock.clone()));
    }

    /// Complete a request at once.
    pub(crate) fn complete(&self, word: Arc<Message>) {
        self.tell(Job::Now(word));
    }

    /// Complete a request when the clock shows `at`.
    pub(crate) fn complete_at(&self, at: Ns, word: Arc<Message>) {
        self.tell(Job::At(Due { at, word }));
    }

    fn tell(&self, job: Job) {
        // The receiver lives as long as this sender.
        let _ = self.sender.send(job);
    }
}

fn run(jobs: &Receiver<Job>) {
    let mut clock = None;
    while let Ok(job) = jobs.recv() {
        match (job, &clock) {
            (Job::Clock(new), _) => clock = Some(new),
            (Job::Now(word), _) => word.send(),
            (Job::At(due), Some(clock)) => {
                if keep_time(jobs, &**clock, due).is_err() {
                    return;
                }
            }
            (Job::At(due), None) => due.word.send(),
        }
    }
}

/// The requests that the time-keeping thread has to complete.
#[derive(Default)]
struct Waiting {
    due: BinaryHeap<Due>,
    /// True if no device is left.
    ends: bool,
}

impl Waiting {
    fn take(&mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.try_recv() {
                Ok(Job::At(due)) => self.due.push(due),
                Ok(Job::Now(word)) => word.send(),
                Ok(Job::Clock(_)) => {}
                Err(end) => {
                    self.ends = end == TryRecvError::Disconnected;
                    return;
                }
            }
        }
    }

    fn complete(&mut self, now: Ns) {
        while self.due.peek().is_some_and(|first| first.at <= now) {
            self.due.pop().into_iter().for_each(|due| due.word.send());
        }
    }
}

/// Complete `first` and later requests, until none came for [`AWAKE_NS`].
fn keep_time(
    jobs: &Receiver<Job>,
    clock: &dyn Clock,
    first: Due,
) -> std::result::Result<(), RecvError> {
    let mut waiting = Waiting { due: BinaryHeap::from([first]), ends: false };
    let (mut now, mut taken_at) = (clock.now(), 0);
    let mut idle_since = now;
    while !waiting.due.is_empty() || !waiting.ends && now < idle_since + AWAKE_NS {
        if waiting.due.is_empty() || now >= taken_at + ARRIVALS_NS {
            waiting.take(jobs);
            taken_at = now;
        }
        now = clock.now();
        waiting.complete(now);
        if !waiting.due.is_empty() {
            idle_since = now;
        }
        std::hint::spin_loop();
    }
    if waiting.ends { Err(RecvError) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drystone_core::clock::SystemClock;
    use drystone_core::ring::Engine;
    use drystone_core::{ChannelId, ContextSet};

    /// Later ones are not completed before their time, nor kept when the device goes.
    #[test]
    fn requests_complete_in_the_order_of_their_times() {
        let clock: Arc<dyn Clock> = SystemClock::new();
        let set = ContextSet::new(clock.clone());
        let mut cx = set.open(Engine::Plain).unwrap();
        let thread = CompletionThread::start().unwrap();
        thread.goes_by(&clock);
        let words = [0, 1].map(|n| Message::to(Arc::downgrade(cx.handle()), ChannelId(0), n));
        let now = clock.now();
        thread.complete_at(now + 30_000_000, words[0].clone());
        thread.complete_at(now + 1_000_000, words[1].clone());
        // A message without a channel is dropped, and then this test holds the only reference.
        while Arc::strong_count(&words[1]) > 1 {
            cx.wait(None);
        }
        assert!(clock.now() >= now + 1_000_000);
        drop(thread);
        while Arc::strong_count(&words[0]) > 1 {
            cx.wait(None);
        }
        assert!(clock.now() >= now + 30_000_000);
    }
}
