//! Coalesces receives: decides whether a connection's next receive waits a moment, so that it finds
//! several requests at once (like the interrupt coalescing of network cards).
//!
//! A client that keeps many requests in flight but sends them one by one makes a fast server
//! wake up, enter the kernel and answer once for each. A receive that waits for
//! [`DELAY_NS`] finds the requests that came meanwhile and answers them together, at less than
//! half the processor time of both sides.
//!
//! The number of requests that a client keeps in flight is unknown, so the server tries: a
//! [`TRIAL`] of delayed receives follows every [`PAUSE`] receives. If those find [`WORTH`] requests
//! each or more, the delay stays on as long as this holds. So a client that waits for each reply is
//! delayed in 1.5 % of its requests, and one whose requests fill a receive anyway never.

use drystone_core::clock::Ns;

/// The time that a receive waits: a client that sends at full speed sends three to five requests in
/// it. It is short against the 50 us of a fast disk.
pub(super) const DELAY_NS: Ns = 20_000;
/// Receives of a trial, and between two checks of the mode.
const TRIAL: u32 = 16;
/// Receives without delay between two trials.
const PAUSE: u32 = 1024;
/// Requests a delayed receive must find on average.
const WORTH: u32 = 2;
/// With this many requests in an undelayed receive, clients need no delay.
const PLENTY: u32 = 6;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Prompt,
    Delayed,
}

/// The state of one connection.
pub(super) struct Coalesce {
    mode: Mode,
    /// Receives left until the next check of the mode.
    left: u32,
    /// Requests found since the last check.
    requests: u32,
    /// True while the wait before the next receive has begun and not ended.
    is_waiting: bool,
}

impl Coalesce {
    pub(super) fn new() -> Self {
        // A new client gets a quarter of the pause before the first trial.
        Coalesce { mode: Mode::Prompt, left: PAUSE / 4, requests: 0, is_waiting: false }
    }

    /// Begins the wait before the next receive. True if there is one.
    #[inline]
    pub(super) fn begin_wait(&mut self) -> bool {
        self.is_waiting = self.mode == Mode::Delayed;
        self.is_waiting
    }

    /// Ends that wait.
    pub(super) fn end_wait(&mut self) {
        self.is_waiting = false;
    }

    /// True during the wait.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// A request was found.
    #[inline]
    pub(super) fn request(&mut self) {
        self.requests += 1;
    }

    /// A receive ended.
    #[inline]
    pub(super) fn receive(&mut self) {
        self.left -= 1;
        if self.left == 0 {
            self.look();
        }
    }

    #[cold]
    fn look(&mut self) {
        (self.mode, self.left) = match self.mode {
            Mode::Prompt if self.requests >= PLENTY * PAUSE / 4 => (Mode::Prompt, PAUSE),
            Mode::Prompt => (Mode::Delayed, TRIAL),
            Mode::Delayed if self.requests >= WORTH * TRIAL => (Mode::Delayed, TRIAL),
            Mode::Delayed => (Mode::Prompt, PAUSE),
        };
        self.requests = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds receives that find `prompt` requests without and `delayed` with a delay. Returns the
    /// percentage of delayed receives.
    fn share(prompt: u32, delayed: u32) -> u32 {
        let mut c = Coalesce::new();
        let mut count = 0;
        for _ in 0..100_000 {
            let waits = c.begin_wait();
            assert_eq!(c.is_waiting(), waits);
            c.end_wait();
            let found = if waits { delayed } else { prompt };
            count += u32::from(waits);
            (0..found).for_each(|_| c.request());
            c.receive();
        }
        count / 1000
    }

    #[test]
    fn delays_only_where_it_pays() {
        assert!(share(1, 4) >= 98, "many in flight, sent one by one");
        assert!(share(1, 1) <= 2, "one in flight");
        assert_eq!(share(8, 8), 0, "receives are full by themselves");
    }
}
