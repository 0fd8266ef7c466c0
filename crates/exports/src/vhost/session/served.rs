//! What a message leads to inside of the session.

use super::super::proto::{Features, Inflight, LogArea, Reply, Request, VringAddresses};
use super::action::{Action, QueueIndex};
use super::refusal::Refusal;
use super::region_table::RegionTable;
use std::sync::Arc;

/// What is needed to reply to a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    pub(super) number: u32,
    pub(super) need_reply: bool,
}

impl Asked {
    /// The message, which had an action and so is known.
    pub(super) fn request(self) -> Request {
        Request::from_number(self.number).expect("a message with an action is known")
    }
}

/// A message whose action is under way.
#[derive(Debug)]
pub(super) struct Waiting<F> {
    pub(super) asked: Asked,
    pub(super) pending: Pending<F>,
}

/// The change of the session when an action is done.
#[derive(Debug)]
pub(super) enum Pending<F> {
    Nothing,
    Features(Features),
    Regions(RegionTable),
    Inflight(Inflight),
    Started(QueueIndex),
    Stopped(QueueIndex),
    Addresses(QueueIndex, VringAddresses),
    Enabled(QueueIndex, bool),
    Call(QueueIndex, Option<Arc<F>>),
    Err(QueueIndex, Option<Arc<F>>),
    Log(LogArea),
    MadeInflight(Inflight),
    Reset,
}

/// The result of a message that was not refused.
#[derive(Debug)]
pub(super) enum Served<F> {
    /// Nothing is left to do.
    Done,
    /// The message has a reply of its own.
    Reply(Reply<F>),
    /// The message was refused in a form of its own.
    Refused(Refusal, Reply<F>),
    /// Something is to do outside.
    Act(Action<F>, Pending<F>),
}

impl<F> Served<F> {
    /// A reply that is a number.
    pub(super) fn number(request: Request, value: u64) -> Self {
        Served::Reply(Reply::number(request.number(), value))
    }

    /// The reply that tells the base of a queue.
    pub(super) fn vring_state(queue: QueueIndex, base: u32) -> Self {
        Served::Reply(Reply::vring_state(queue.number().into(), base))
    }
}

/// True if a message has a reply besides the one that `REPLY_ACK` brings.
pub(super) fn has_own_reply(request: Request) -> bool {
    matches!(
        request,
        Request::GetFeatures
            | Request::GetProtocolFeatures
            | Request::SetLogBase
            | Request::GetVringBase
            | Request::GetQueueNum
            | Request::GetConfig
            | Request::GetInflightFd
            | Request::GetMaxMemSlots
            | Request::GetStatus
    )
}
