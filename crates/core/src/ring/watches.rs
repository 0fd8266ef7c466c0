//! Watching other rings: their news become events of this one.
//!
//! Invariants:
//! * Watched rings hang on an epoll of their own, `outer`, beside the ring's `inner` descriptor, on
//!   which the owner sleeps while it watches. So what a watch brings does not show in the
//!   descriptors that others watch: contexts do watch each other, and would wake each other for
//!   ever with the news that they were woken.
//! * While nothing is watched there is no `outer`, and nothing is asked of it.

use super::epoll::{add, control, new_epoll, sleep, source};
use super::{Buffers, RingEvent, Token};
use crate::clock::Ns;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Reports that the kernel gives at once.
const REPORTS: usize = 64;

struct Watch {
    others: [RawFd; 2],
    token: Token,
}

/// The watches of one ring.
pub(super) struct Watches {
    inner: RawFd,
    outer: Option<OwnedFd>,
    /// By the number that reports name; a gap is a watch that has ended.
    watches: Vec<Option<Watch>>,
}

impl Watches {
    /// None yet. The ring shows its own news in `inner`.
    pub(super) fn new(inner: RawFd) -> Self {
        Watches { inner, outer: None, watches: Vec::new() }
    }

    /// True while nothing is watched.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.outer.is_none()
    }

    /// See [`super::Ring::watch`]. Where the kernel refuses there are no watches: a context then
    /// learns what others hold for it only when they come back.
    pub(super) fn watch(&mut self, others: [RawFd; 2], token: Token) {
        if self.outer.is_none() {
            self.outer = new_outer(self.inner);
        }
        let Some(outer) = &self.outer else { return };
        let free = self.watches.iter().position(Option::is_none);
        let index = free.unwrap_or(self.watches.len());
        for fd in others {
            let events = libc::EPOLLIN | libc::EPOLLET;
            let _ = add(outer.as_raw_fd(), fd, events, source::WATCH, index as u32);
        }
        let watch = Some(Watch { others, token });
        match free {
            Some(_) => self.watches[index] = watch,
            None => self.watches.push(watch),
        }
    }

    /// See [`super::Ring::unwatch`].
    pub(super) fn unwatch(&mut self, others: [RawFd; 2], token: Token) {
        let ours =
            |w: &Option<Watch>| w.as_ref().is_some_and(|w| w.others == others && w.token == token);
        let Some(index) = self.watches.iter().position(ours) else { return };
        self.watches[index] = None;
        let Some(outer) = &self.outer else { return };
        for fd in others {
            // A ring that is gone has taken its descriptors out itself.
            control(outer.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, 0, source::WATCH, 0);
        }
        if self.watches.iter().all(Option::is_none) {
            self.watches.clear();
            self.outer = None;
        }
    }

    /// Sleep until the ring or one that is watched has news, for `timeout` ns at the most
    /// (`Some(0)`: not at all), and push the events of the watches to `ready`. A signal ends it
    /// early. Call while it is not empty.
    pub(super) fn sleep(&self, mut timeout: Option<Ns>, ready: &mut Vec<RingEvent>) {
        let Some(outer) = &self.outer else { return };
        let mut reports = [libc::epoll_event { events: 0, u64: 0 }; REPORTS];
        // A full list may be followed by more, of which edges will not tell again.
        loop {
            let n = sleep(outer.as_raw_fd(), &mut reports, timeout);
            ready.extend(reports[..n].iter().filter_map(|report| self.event(*report)));
            if n < REPORTS {
                return;
            }
            timeout = Some(0);
        }
    }

    fn event(&self, report: libc::epoll_event) -> Option<RingEvent> {
        let (kind, which) = ((report.u64 >> 32) as u32, report.u64 as u32);
        let watch = self.watches.get(which as usize)?.as_ref().filter(|_| kind == source::WATCH)?;
        let result = report.events as i32;
        Some(RingEvent { token: watch.token, result, buffers: Buffers::None })
    }
}

fn new_outer(inner: RawFd) -> Option<OwnedFd> {
    let outer = new_epoll().ok()?;
    add(outer.as_raw_fd(), inner, libc::EPOLLIN, source::INNER, 0).ok()?;
    Some(outer)
}
