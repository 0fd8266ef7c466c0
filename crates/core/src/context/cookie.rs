//! Polling for polled I/O: the three ways of "dm: support IO polling" (Jeffle Xu, dm-devel,
//! February 2021), without its hazard.
//!
//! The mail's cookie was a bare pointer to a hardware queue, and was refused because a table swap
//! can free what it points at. Ours holds numbers that are never used again for anything else but a
//! channel of the same context; if what they name is gone, polling it finds nothing.

use crate::units::{ChannelId, ContextId};

/// The trace of a submission of polled bios, for [`super::Context::poll_for`]. May be given to
/// another thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    pub(super) context: ContextId,
    pub(super) serial: u64,
    pub(super) to: PolledTo,
}

/// The channels that the polled bios of a submission went to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PolledTo {
    /// Nothing of it is polled: it has ended, or ends by itself.
    #[default]
    Nobody,
    /// All of it to one channel.
    One(ChannelId),
    /// To several.
    Several,
}

impl PolledTo {
    pub(super) fn add(&mut self, channel: ChannelId) {
        *self = match *self {
            PolledTo::Nobody => PolledTo::One(channel),
            PolledTo::One(one) if one == channel => PolledTo::One(channel),
            _ => PolledTo::Several,
        };
    }
}

/// Which way a poller goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PollPath {
    /// There is nothing to poll.
    None,
    /// The one queue that the bio went to.
    Queue,
    /// All queues on which the submitting context has polled I/O.
    Context,
    /// The submitting context is another one. It is visited, or skipped if another thread is in
    /// it, because that thread polls anyway.
    Other,
}
