//! Waiting for a context in an event loop of the program's own, instead of [`Context::wait`].
//!
//! The loop: [`Context::clear_event`], reap, and if nothing came, sleep until the descriptor is
//! readable or [`Context::next_deadline`] has passed.
//!
//! Invariants:
//! * The descriptor, once it was asked for, is readable whenever the owner or a visitor leaves the
//!   context with completions that were not reaped. It is readable, too, while the ring has events
//!   and after the context was woken.
//! * Polled I/O and work that other contexts hold show in no descriptor; they have a deadline.

use super::core::ContextCore;
use super::set::Handle;
use super::{Call, Context};
use crate::clock::Ns;
use crate::error::Result;
use crate::ring::bell::Bell;
use std::os::fd::RawFd;

/// How long a context may sleep outside a wait while it needs what another context holds. A wait
/// watches the other's ring for that; a descriptor of one context cannot. The figure is that of the
/// coarsest sleeps of event loops (poll(2) and epoll_wait(2) count milliseconds).
const PEER_RECHECK_NS: Ns = 1_000_000;

impl Context {
    /// A descriptor that becomes readable when something may be reaped, for poll(2) and the like,
    /// level-triggered. It is the context's: it is closed with it, and not to be read or closed.
    ///
    /// # Errors
    /// When the kernel has no descriptor left for it.
    pub fn event_descriptor(&mut self) -> Result<RawFd> {
        let mut call = Call::begin(&self.handle);
        let handle = call.handle;
        call.core().event_descriptor(handle)
    }

    /// Forget what made the descriptor readable, and look for work: completions,
    /// polled I/O, deadlines that have passed. Reap afterwards, then sleep.
    pub fn clear_event(&mut self) {
        let mut call = Call::begin(&self.handle);
        let handle = call.handle;
        call.core().clear_event(handle);
    }

    /// When [`Context::clear_event`] has to be called although the descriptor is not readable: at
    /// once (0) while polled I/O is in flight.
    pub fn next_deadline(&mut self) -> Option<Ns> {
        Call::begin(&self.handle).core().next_deadline()
    }

    /// End the context's work: the owner submits nothing more. Bios that no driver has end with
    /// [`crate::Status::Cancelled`]: those that wait for a tag or a limit, or in a suspended
    /// volume. The rest goes on; reap until nothing is outstanding, before memory that is not the
    /// bios' own is used again.
    pub fn wind_up(&mut self) {
        Call::begin(&self.handle).core().wind_up();
    }
}

impl ContextCore {
    fn event_descriptor(&mut self, handle: &Handle) -> Result<RawFd> {
        if self.bell.is_none() {
            self.bell = Some(Bell::new(handle.descriptors())?);
            handle.parking().watch();
            self.clear_event(handle);
        }
        Ok(self.bell.as_ref().map_or(-1, Bell::fd))
    }

    /// The context is about to be left. A thread that reaps the ring clears the sign of a wake-up
    /// there; only [`Context::clear_event`] and a wait forget that the context was woken.
    #[inline]
    pub(super) fn announce(&self, handle: &Handle) {
        if let Some(bell) = &self.bell
            && (!self.env.done.is_empty() || !self.env.events.is_empty() || handle.is_woken())
        {
            bell.ring();
        }
    }

    fn clear_event(&mut self, handle: &Handle) {
        if let Some(bell) = &self.bell {
            bell.clear();
        }
        self.env.time.slept();
        handle.take_wake();
        self.poll_for_owner(handle);
        if self.waits_on_peer() {
            handle.set.others_do(self.env.id, |other| self.env.kick_later(other.clone()));
        }
    }

    fn next_deadline(&mut self) -> Option<Ns> {
        if self.must_poll() {
            return Some(0);
        }
        let recheck = self.waits_on_peer().then(|| self.env.time.now() + PEER_RECHECK_NS);
        self.until(recheck)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::tests::{ENGINES, Fake, Mode, new_set, open, writes};
    use super::*;
    use crate::list::BioList;

    fn is_readable(fd: RawFd, ms: i32) -> bool {
        let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives for the call.
        unsafe { libc::poll(&raw mut poll, 1, ms) == 1 }
    }

    /// The loop of the module's text; how often it slept until the deadline.
    fn reap_by_event(context: &mut Context, fd: RawFd, count: usize) -> usize {
        let (mut out, mut timeouts) = (BioList::new(), 0);
        while out.len() < count {
            context.clear_event();
            if context.reap(&mut out) > 0 {
                continue;
            }
            let now = context.set().clock().now();
            let left = context.next_deadline().map(|at| at.saturating_sub(now));
            let ms = left.map_or(20_000, |ns| ns.div_ceil(1_000_000) as i32);
            let readable = is_readable(fd, ms);
            assert!(readable || left.is_some(), "nothing came for 20 s");
            timeouts += usize::from(!readable);
        }
        timeouts
    }

    #[test]
    fn the_descriptor_tells_of_completions_of_every_kind() {
        for engine in ENGINES {
            for mode in [Mode::Inline, Mode::Message(9), Mode::Timer, Mode::TwoWrites] {
                let (set, fake) = (new_set(), Fake::new(mode));
                let (mut a, index) = open(&set, engine, &fake);
                let fd = a.event_descriptor().unwrap();
                assert_eq!(a.event_descriptor().unwrap(), fd);
                for round in 0..3 {
                    a.submit(index, &mut writes(round, 2));
                    if let Mode::Message(_) = mode {
                        fake.give_back();
                    }
                    assert!(is_readable(fd, 20_000), "{engine:?} {mode:?}");
                    assert_eq!(reap_by_event(&mut a, fd, 2), 0, "{engine:?} {mode:?}");
                }
                // The trace of a wake-up may show once more, but not for ever.
                let quiet = (0..100).any(|_| {
                    a.clear_event();
                    !is_readable(fd, 0)
                });
                assert!(quiet, "{engine:?} {mode:?}: readable with nothing to reap");
            }
        }
    }

    /// Events that a visitor reaped from the ring still show.
    #[test]
    fn a_visitor_rings_for_the_owner() {
        for engine in ENGINES {
            let (set, fake) = (new_set(), Fake::new(Mode::Timer));
            let (mut a, index) = open(&set, engine, &fake);
            let fd = a.event_descriptor().unwrap();
            a.submit(index, &mut writes(0, 1));
            assert!(is_readable(fd, 20_000));
            set.kick_all();
            assert!(is_readable(fd, 0), "{engine:?}");
            assert_eq!(reap_by_event(&mut a, fd, 1), 0);
        }
    }

    #[test]
    fn a_wake_up_shows() {
        for engine in ENGINES {
            let (set, fake) = (new_set(), Fake::new(Mode::Inline));
            let (mut a, _) = open(&set, engine, &fake);
            let fd = a.event_descriptor().unwrap();
            let handle = a.handle().clone();
            std::thread::scope(|s| _ = s.spawn(move || handle.wake()));
            assert!(is_readable(fd, 20_000), "{engine:?}");
        }
    }

    /// A reap of the ring meanwhile, by the owner or a visitor, does not take it away.
    #[test]
    fn a_wake_up_shows_until_the_owner_clears_it() {
        for engine in ENGINES {
            let (set, fake) = (new_set(), Fake::new(Mode::Inline));
            let (mut a, _) = open(&set, engine, &fake);
            let fd = a.event_descriptor().unwrap();
            let mut out = BioList::new();
            let looks: [&mut dyn FnMut(&mut Context); 3] = [
                &mut |a| _ = a.reap(&mut out),
                &mut |a| _ = a.poll(&mut BioList::new()),
                &mut |_| set.kick_all(),
            ];
            for look in looks {
                a.clear_event();
                a.handle().wake();
                (0..3).for_each(|_| look(&mut a));
                assert!(is_readable(fd, 0), "{engine:?}");
            }
            let quiet = (0..100).any(|_| {
                a.clear_event();
                !is_readable(fd, 0)
            });
            assert!(quiet, "{engine:?}: readable for ever");
        }
    }

    /// Neither a wait nor a descriptor: the loop only reaps, or polls.
    #[test]
    fn who_waits_for_a_tag_by_reaping_gets_it() {
        for engine in ENGINES {
            for polls in [false, true] {
                let (set, fake) = (new_set(), Fake::new(Mode::OneTag));
                let (mut a, on_a) = open(&set, engine, &fake);
                let (mut b, on_b) = open(&set, engine, &fake);
                a.submit(on_a, &mut writes(0, 1));
                b.submit(on_b, &mut writes(1, 1));
                let mut out = BioList::new();
                let look = |b: &mut Context, out: &mut BioList| match polls {
                    true => b.poll(out),
                    false => b.reap(out),
                };
                assert!((0..1_000_000).any(|_| look(&mut b, &mut out) == 1), "{engine:?}");
            }
        }
    }

    /// The tag's holder never comes back.
    #[test]
    fn who_waits_for_a_tag_by_the_descriptor_gets_it() {
        for engine in ENGINES {
            let (set, fake) = (new_set(), Fake::new(Mode::OneTag));
            let (mut a, on_a) = open(&set, engine, &fake);
            let (mut b, on_b) = open(&set, engine, &fake);
            let fd = b.event_descriptor().unwrap();
            a.submit(on_a, &mut writes(0, 1));
            b.submit(on_b, &mut writes(1, 1));
            assert!(b.next_deadline().is_some());
            reap_by_event(&mut b, fd, 1);
            assert_eq!(b.next_deadline(), None);
        }
    }

    #[test]
    fn what_no_driver_has_is_cancelled_and_the_rest_goes_on() {
        let (set, fake) = (new_set(), Fake::new(Mode::Message(2)));
        let (mut a, index) = open(&set, ENGINES[0], &fake);
        a.submit(index, &mut writes(0, 5));
        a.wind_up();
        let mut out = BioList::new();
        assert_eq!(a.reap(&mut out), 3);
        assert!(out.iter().all(|bio| bio.status == crate::Status::Cancelled));
        assert_eq!(a.outstanding(), 2);
        assert_eq!(fake.give_back(), 2);
        assert_eq!(a.reap(&mut out), 2);
    }
}
