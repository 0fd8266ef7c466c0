//! A descriptor that a program's own event loop can wait on for a context.
//!
//! Invariant: it is readable while the ring has events, while the ring's waker was used and not yet
//! looked at, and from [`Bell::ring`] until [`Bell::clear`].

use super::Waker;
use super::epoll::{add, new_epoll, source};
use super::eventfd::EventFd;
use crate::error::Result;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

/// An epoll over a ring's descriptors and one event descriptor more, for what the ring does not
/// show.
pub(crate) struct Bell {
    epoll: OwnedFd,
    news: Arc<EventFd>,
}

impl Bell {
    /// For the ring with these descriptors.
    ///
    /// # Errors
    /// When the kernel has no descriptor left for us.
    pub(crate) fn new(descriptors: [RawFd; 2]) -> Result<Self> {
        let (epoll, news) = (new_epoll()?, EventFd::new()?);
        for fd in descriptors.into_iter().chain([news.fd()]) {
            add(epoll.as_raw_fd(), fd, libc::EPOLLIN, source::INNER, 0)?;
        }
        Ok(Bell { epoll, news })
    }

    /// The descriptor to wait on.
    pub(crate) fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Make it readable. Costs a system call only if it was not.
    pub(crate) fn ring(&self) {
        self.news.wake();
    }

    /// Clear it. The caller looks for news afterwards.
    pub(crate) fn clear(&self) {
        if self.news.is_pending() {
            self.news.clear();
        }
    }
}
