//! Coalesces receives: decides whether a connection's next receive waits a moment, so that it finds
//! several requests at once (like the interrupt coalescing of network cards).
//!
//! A client that keeps many requests in flight but sends them one by one makes a fast server
//! wake up, enter the kernel and answer once for each. A receive that waits for
//! [`DELAY_NS`] finds the requests that came meanwhile and answers them together, at less than
//! half the processor time of both sides.
//!
//! The number of requests that a client keeps in flight is unknown, so the server tries: a new
//! client's first [`PAUSE_FIRST`] receives are prompt, and a [`TRIAL`] of delayed ones follows. If
//! those find [`WORTH`] requests each or more, and half as many again as prompt ones did, the delay
//! stays on as long as this holds. If not, the next trial comes after [`PAUSE_MIN`] receives, and
//! then after twice as many each time, up to [`PAUSE_MAX`]. So in the long run a client that waits
//! for each reply is delayed in 0.1 % of its requests, which its 99th percentile does not show, and
//! one whose requests come together is not delayed more.

use drystone_core::clock::Ns;

/// The time that a receive waits: a client that sends at full speed sends three to five requests in
/// it. It is short against the 50 us of a fast disk.
pub(super) const DELAY_NS: Ns = 20_000;
/// Receives of a trial, and between two checks of the mode.
const TRIAL: u32 = 16;
/// Receives without delay before a trial: after one that paid, and at the most.
const PAUSE_MIN: u32 = 1024;
const PAUSE_MAX: u32 = 16_384;
/// Receives without delay before a new client's first trial.
const PAUSE_FIRST: u32 = 256;
/// Requests a delayed receive must find on average.
const WORTH: u32 = 2;
/// With this many requests in two undelayed receives, a client gets no trial: a new one, and
/// any other.
const PLENTY_IN_TWO_FIRST: u32 = 12;
const PLENTY_IN_TWO: u32 = 3;

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
    /// Receives without delay before the next check of them.
    pause: u32,
    /// Requests found since the last check.
    requests: u32,
    /// Requests that as many prompt receives as a trial has found when they were last counted.
    prompt: u32,
    /// True while the wait before the next receive has begun and not ended.
    is_waiting: bool,
}

impl Coalesce {
    pub(super) fn new() -> Self {
        Coalesce {
            mode: Mode::Prompt,
            left: PAUSE_FIRST,
            pause: PAUSE_FIRST,
            requests: 0,
            prompt: 0,
            is_waiting: false,
        }
    }

    /// The requests of a receive were found, and the next one is wanted. Begins the wait before it;
    /// true if there is one.
    #[inline]
    pub(super) fn begin_wait(&mut self) -> bool {
        self.left -= 1;
        if self.left == 0 {
            self.look();
        }
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

    fn plenty_in_two(&self) -> u32 {
        if self.pause == PAUSE_FIRST { PLENTY_IN_TWO_FIRST } else { PLENTY_IN_TWO }
    }

    #[cold]
    fn look(&mut self) {
        match self.mode {
            Mode::Prompt => self.end_pause(),
            Mode::Delayed if self.has_paid() => self.pause = PAUSE_MIN / 2,
            Mode::Delayed => {
                self.mode = Mode::Prompt;
                self.pause = (self.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
            }
        }
        self.left = if self.mode == Mode::Delayed { TRIAL } else { self.pause };
        self.requests = 0;
    }

    /// Begins a trial, unless clients need none.
    fn end_pause(&mut self) {
        self.prompt = self.requests / (self.pause / TRIAL);
        match self.requests * 2 >= self.plenty_in_two() * self.pause {
            true => self.pause = self.pause.max(PAUSE_MIN),
            false => self.mode = Mode::Delayed,
        }
    }

    fn has_paid(&self) -> bool {
        self.requests >= WORTH * TRIAL && self.requests * 2 >= self.prompt * 3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds receives that find `prompt` requests without and `delayed` with a delay. Returns the
    /// share of delayed receives, in a thousandth.
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
        }
        count / 100
    }

    /// A client that waited for each reply, and then keeps many in flight.
    #[test]
    fn a_delay_that_begins_to_pay_is_found() {
        let mut c = Coalesce::new();
        let receive = |c: &mut Coalesce, delayed| {
            let waits = c.begin_wait();
            c.end_wait();
            (0..if waits { delayed } else { 1 }).for_each(|_| c.request());
            waits
        };
        (0..100_000).for_each(|_| _ = receive(&mut c, 1));
        let until = (0..100_000).position(|_| receive(&mut c, 4)).expect("a trial");
        assert!(until <= PAUSE_MAX as usize, "{until}");
        assert!((0..1000).all(|_| receive(&mut c, 4)), "it stays");
    }

    #[test]
    fn delays_only_where_it_pays() {
        assert!(share(1, 4) >= 980, "many in flight, sent one by one");
        assert!(share(1, 2) >= 980, "two in flight");
        assert!(share(3, 5) >= 980, "some come together, and more with a delay");
        assert!((1..=2).contains(&share(1, 1)), "one in flight");
        assert!((2..=5).all(|n| share(n, n) <= 2), "as many without a delay");
        assert_eq!(share(7, 9), 0, "receives are full by themselves");
    }
}
