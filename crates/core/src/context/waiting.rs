//! The waits of a context: asleep, polling, or adaptive.
//!
//! A poll instead of a sleep saves the wake-up and costs a processor. So *adaptive* tries both and
//! compares: it learns how long waits last when it sleeps and when it polls, apart for waits with
//! I/O in flight (a device's time) and without (a client's next request). It polls only where that
//! has shortened waits by a sixth or more and most polls of a trial found something within
//! [`LONGEST_POLL_NS`]; later, polls that find nothing end it unless waits are still shorter. So it
//! sleeps with devices that are slow next to a wake-up, with such clients, and where the thread
//! that brings the event needs this very core.
//!
//! Linux had "hybrid polling", which slept for half of the expected time; it was removed in 2023
//! (linux-block, "block: remove hybrid polling"), since wrong estimates harm. Here each trial is
//! measured, and seldom repeated if it did not pay.
//!
//! Invariants:
//! * Only the owner uses this state, inside its calls.
//! * In *adaptive* a wait polls for at most [`LONGEST_POLL_NS`] before it sleeps; but it does
//!   not sleep while polled I/O is in flight, which nothing would wake it for.

use crate::clock::Ns;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The way in which a data thread waits for completions and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PollMode {
    /// It sleeps, and an event wakes it.
    #[default]
    Interrupt,
    /// It never sleeps, and all its I/O is polled where the device can be: a core is its own.
    Poll,
    /// It polls for a while before it sleeps, where that pays; then its I/O is polled, too.
    Adaptive,
}

impl PollMode {
    /// All modes.
    pub const ALL: [PollMode; 3] = [PollMode::Interrupt, PollMode::Poll, PollMode::Adaptive];

    /// Their names.
    pub const NAMES: [&'static str; 3] = ["interrupt", "poll", "adaptive"];

    /// `interrupt`, `poll` or `adaptive`.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// The mode of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

/// The poll mode of a server's data threads, changed from any thread. Each follows it from its next
/// wait on ([`super::Context::follow_poll_mode`]).
#[derive(Debug, Default)]
pub struct PollSwitch(AtomicU8);

impl PollSwitch {
    /// A switch that stands at `mode`.
    pub fn new(mode: PollMode) -> Arc<Self> {
        let switch = Arc::new(PollSwitch::default());
        switch.set(mode);
        switch
    }

    /// The mode.
    pub fn mode(&self) -> PollMode {
        PollMode::ALL[usize::from(self.0.load(Relaxed))]
    }

    /// Change it.
    pub fn set(&self, mode: PollMode) {
        self.0.store(mode as u8, Relaxed);
    }
}

/// Counts of a context's waits since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitCounts {
    /// Waits that slept.
    pub sleeps: u64,
    /// Waits that polled and found something, so that they did not sleep.
    pub polls: u64,
    /// Waits that polled and found nothing.
    pub fruitless_polls: u64,
}

/// The longest that *adaptive* polls before it sleeps.
pub(super) const LONGEST_POLL_NS: Ns = 100_000;
/// The shortest.
const SHORTEST_POLL_NS: Ns = 4_000;
/// A longer wait counts as one of this length.
const LONGEST_WAIT_NS: Ns = 4_000_000;
/// Waits of a trial of the way that is not taken.
const TRIAL: u32 = 4;
/// Waits between two trials: at first, and at the most.
const PAUSE_MIN: u32 = 32;
const PAUSE_MAX: u32 = 2048;

/// The purpose of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// I/O in flight.
    Completions,
    /// Nothing of the context's own.
    Requests,
}

/// The experience with waits of one kind.
#[derive(Debug)]
struct Learned {
    /// The way taken: poll first, or sleep at once.
    polls_first: bool,
    /// How long waits last that way, as a moving average; 0 is not known.
    usual_ns: Ns,
    /// How long they lasted the other way when that was last taken; 0 is not known.
    other_ns: Ns,
    /// The time of waits that polled, and did or could have found something within
    /// [`LONGEST_POLL_NS`], as a moving average.
    found_ns: Ns,
    /// Polls that found nothing, as a moving average of 1024 (always) and 0 (never).
    fruitless: u32,
    /// Waits until the next trial of the other way.
    until_trial: u32,
    pause: u32,
    trial: Trial,
}

/// A trial that is going on.
#[derive(Debug, Default)]
struct Trial {
    left: u32,
    sum_ns: Ns,
    found: u32,
}

fn averaged(average: u64, new: u64) -> u64 {
    if average == 0 { new } else { (average * 7 + new) / 8 }
}

impl Learned {
    fn new() -> Self {
        Learned {
            polls_first: false,
            usual_ns: 0,
            other_ns: 0,
            found_ns: 0,
            fruitless: 0,
            until_trial: PAUSE_MIN,
            pause: PAUSE_MIN,
            trial: Trial::default(),
        }
    }

    /// True if the present wait polls first.
    fn polls_now(&self) -> bool {
        self.polls_first != (self.trial.left > 0)
    }

    /// The time for which it polls.
    fn longest_poll(&self) -> Ns {
        match self.polls_first {
            true => (self.found_ns * 4).clamp(SHORTEST_POLL_NS, LONGEST_POLL_NS),
            false => LONGEST_POLL_NS,
        }
    }

    /// A wait has lasted `ns`; `found` if a poll ended it. Polls for polled I/O may last longer
    /// than others, and count as fruitless then.
    fn waited(&mut self, ns: Ns, found: bool) {
        let (ns, found) = (ns.clamp(1, LONGEST_WAIT_NS), found && ns <= LONGEST_POLL_NS);
        let polled = self.polls_now();
        if polled && ns <= LONGEST_POLL_NS {
            self.found_ns = averaged(self.found_ns, ns);
        }
        match self.trial.left {
            0 => self.waited_as_usual(ns, polled && !found),
            _ => self.tried(ns, found),
        }
    }

    fn waited_as_usual(&mut self, ns: Ns, fruitless: bool) {
        self.usual_ns = averaged(self.usual_ns, ns);
        self.fruitless = (self.fruitless * 7 + if fruitless { 1024 } else { 0 }) / 8;
        self.until_trial -= 1;
        if self.polls_first && self.fruitless > 512 && !self.is_shorter() {
            self.turn(ns);
        } else if self.until_trial == 0 {
            self.trial = Trial { left: TRIAL, ..Trial::default() };
        }
    }

    /// Waits are shorter than the other way, by a sixth.
    fn is_shorter(&self) -> bool {
        self.usual_ns + self.usual_ns / 6 < self.other_ns
    }

    fn tried(&mut self, ns: Ns, found: bool) {
        let trial = &mut self.trial;
        trial.left -= 1;
        trial.sum_ns += ns;
        trial.found += u32::from(found);
        if trial.left > 0 {
            return;
        }
        let (tried_ns, found) = (trial.sum_ns / u64::from(TRIAL), trial.found);
        if self.is_better(tried_ns, found) {
            self.turn(tried_ns);
        } else {
            self.other_ns = tried_ns;
            self.pause = (self.pause * 2).min(PAUSE_MAX);
            self.until_trial = self.pause;
        }
    }

    /// Sleeping must be as good as polling to be taken, polling a sixth better.
    fn is_better(&self, tried_ns: Ns, found: u32) -> bool {
        match self.polls_first {
            true => tried_ns < self.usual_ns + self.usual_ns / 16,
            false => found + 1 >= TRIAL && tried_ns + tried_ns / 6 < self.usual_ns,
        }
    }

    /// Take the other way from now on.
    fn turn(&mut self, usual_ns: Ns) {
        self.polls_first = !self.polls_first;
        self.other_ns = self.usual_ns;
        (self.usual_ns, self.fruitless) = (usual_ns, 0);
        self.pause = if self.polls_first { PAUSE_MIN } else { (self.pause * 2).min(PAUSE_MAX) };
        self.until_trial = self.pause;
    }
}

/// The waits of one context.
#[derive(Debug)]
pub(super) struct Waiting {
    mode: PollMode,
    follows: Option<Arc<PollSwitch>>,
    completions: Learned,
    requests: Learned,
    counts: WaitCounts,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Waiting {
            mode: PollMode::Interrupt,
            follows: None,
            completions: Learned::new(),
            requests: Learned::new(),
            counts: WaitCounts::default(),
        }
    }

    pub(super) fn mode(&self) -> PollMode {
        self.mode
    }

    /// Change the mode; what was learned is forgotten.
    pub(super) fn set_mode(&mut self, mode: PollMode) {
        if mode != self.mode {
            let follows = self.follows.take();
            *self = Waiting { mode, follows, counts: self.counts, ..Waiting::new() };
        }
    }

    /// Take the mode of `switch` now and whenever a wait begins.
    pub(super) fn follow(&mut self, switch: Arc<PollSwitch>) {
        self.follows = Some(switch);
        self.begin();
    }

    /// A wait begins.
    pub(super) fn begin(&mut self) {
        if let Some(switch) = &self.follows {
            self.set_mode(switch.mode());
        }
    }

    pub(super) fn counts(&self) -> WaitCounts {
        self.counts
    }

    fn learned(&mut self, what: For) -> &mut Learned {
        match what {
            For::Completions => &mut self.completions,
            For::Requests => &mut self.requests,
        }
    }

    /// True if bios that are submitted now are polled; `None`: as their submitter says.
    #[inline]
    pub(super) fn polls(&self) -> Option<bool> {
        match self.mode {
            PollMode::Interrupt => None,
            PollMode::Poll => Some(true),
            PollMode::Adaptive => Some(self.completions.polls_now()),
        }
    }

    /// *Adaptive*: whether a wait polls before it sleeps.
    pub(super) fn polls_now(&mut self, what: For) -> bool {
        self.learned(what).polls_now()
    }

    /// *Adaptive*: how long the wait that begins polls before it sleeps, if it does.
    pub(super) fn longest_poll(&mut self, what: For) -> Option<Ns> {
        let learned = self.learned(what);
        learned.polls_now().then(|| learned.longest_poll())
    }

    /// A poll has ended; `found` something or not.
    pub(super) fn polled(&mut self, found: bool) {
        match found {
            true => self.counts.polls += 1,
            false => self.counts.fruitless_polls += 1,
        }
    }

    /// The wait goes to sleep, unless it is only to see what is there.
    pub(super) fn slept(&mut self, until: Option<Ns>) {
        self.counts.sleeps += u64::from(until != Some(0));
    }

    /// *Adaptive*: a wait has lasted `ns`; `found` if a poll ended it.
    pub(super) fn waited(&mut self, what: For, ns: Ns, found: bool) {
        self.learned(what).waited(ns, found);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Waits for an event that comes after `ns`, when sleeping takes `wake_ns` more, and polling
    /// costs so much that it takes `harm_ns` more; returns how many of `waits` polled.
    fn run(learned: &mut Learned, waits: u32, ns: Ns, wake_ns: Ns, harm_ns: Ns) -> u32 {
        let mut polled = 0;
        for _ in 0..waits {
            if !learned.polls_now() {
                learned.waited(ns + wake_ns, false);
                continue;
            }
            polled += 1;
            match ns + harm_ns <= learned.longest_poll() {
                true => learned.waited(ns + harm_ns, true),
                false => learned.waited(ns + harm_ns + wake_ns, false),
            }
        }
        polled
    }

    #[test]
    fn it_looks_where_that_shortens_waits() {
        let mut learned = Learned::new();
        run(&mut learned, 200, 10_000, 5_000, 0);
        assert!(learned.polls_first);
        assert_eq!(learned.longest_poll(), 40_000);
        let polled = run(&mut learned, 10_000, 10_000, 5_000, 0);
        assert!(polled > 9_900, "{polled} of 10000");
    }

    #[test]
    fn it_sleeps_where_a_wake_up_is_little() {
        let mut learned = Learned::new();
        let polled = run(&mut learned, 10_000, 80_000, 5_000, 0);
        assert!(!learned.polls_first);
        assert!((4..=60).contains(&polled), "{polled} of 10000");
    }

    #[test]
    fn it_sleeps_where_news_are_far() {
        let mut learned = Learned::new();
        let polled = run(&mut learned, 10_000, 3_000_000, 5_000, 0);
        assert!(!learned.polls_first && polled <= 60, "{polled} of 10000");
    }

    /// The thread that brings the event needs this core: polling keeps it away.
    #[test]
    fn it_sleeps_where_looking_harms() {
        let mut learned = Learned::new();
        let polled = run(&mut learned, 100_000, 10_000, 5_000, 3_000_000);
        assert!(!learned.polls_first);
        assert!(polled < 300, "{polled} of 100000: the 99th percentile is that of sleeping");
    }

    #[test]
    fn it_changes_with_its_device() {
        let mut learned = Learned::new();
        run(&mut learned, 1000, 10_000, 5_000, 0);
        assert!(learned.polls_first);
        run(&mut learned, 20, 2_000_000, 5_000, 0);
        assert!(!learned.polls_first, "polls that find nothing end it soon");
        run(&mut learned, 2 * PAUSE_MAX, 10_000, 5_000, 0);
        assert!(learned.polls_first);
        run(&mut learned, 2 * PAUSE_MAX, 90_000, 1_000, 0);
        assert!(!learned.polls_first);
    }

    /// A poll that is four times as long as those that found something misses the other half.
    #[test]
    fn it_looks_long_enough_for_the_slower_half() {
        let mut learned = Learned::new();
        run(&mut learned, 200, 5_000, 30_000, 0);
        assert_eq!((learned.polls_first, learned.longest_poll()), (true, 20_000));
        let polled: u32 =
            (0..1000).map(|n| run(&mut learned, 1, [5_000, 60_000][n % 2], 30_000, 0)).sum();
        assert!(learned.polls_first && polled > 950, "{polled} of 1000");
        assert!(learned.longest_poll() > 60_000);
    }

    /// Three of five polls end too early, and the other two save more than a sixth.
    #[test]
    fn it_looks_where_most_polls_find_nothing_but_waits_are_shorter() {
        let mut learned = Learned::new();
        let waits = [2_000, 40_000, 2_000, 40_000, 40_000];
        // Learned while all came soon; asleep, waits last 105 us now.
        (learned.polls_first, learned.usual_ns, learned.found_ns) = (true, 70_000, 2_000);
        learned.other_ns = 105_000;
        let polled: u32 = (0..1000).map(|n| run(&mut learned, 1, waits[n % 5], 80_000, 0)).sum();
        assert!(learned.fruitless > 512, "{}", learned.fruitless);
        assert!(learned.polls_first && polled > 950, "{polled} of 1000");
    }

    /// A polled device that has become slow is polled to the end of each I/O, but not many
    /// times.
    #[test]
    fn it_stops_polling_what_takes_long() {
        let mut learned = Learned::new();
        run(&mut learned, 1000, 10_000, 5_000, 0);
        assert!(learned.polls_first);
        let polls = (0..100).take_while(|_| {
            let polls = learned.polls_now();
            learned.waited(2_000_000, polls);
            polls
        });
        assert!(polls.count() < 12);
    }

    #[test]
    fn a_new_mode_forgets_what_was_learned() {
        let mut waiting = Waiting::new();
        assert_eq!(waiting.polls(), None);
        waiting.set_mode(PollMode::Adaptive);
        assert_eq!(waiting.polls(), Some(false));
        assert_eq!(waiting.longest_poll(For::Completions), None);
        run(&mut waiting.completions, 200, 10_000, 5_000, 0);
        assert_eq!(waiting.polls(), Some(true));
        assert_eq!(waiting.longest_poll(For::Requests), None, "learned apart");
        waiting.set_mode(PollMode::Adaptive);
        assert_eq!(waiting.polls(), Some(true), "the same mode again changes nothing");
        waiting.set_mode(PollMode::Poll);
        assert!(PollMode::ALL.iter().all(|mode| PollMode::from_name(mode.name()) == Some(*mode)));
    }
}
