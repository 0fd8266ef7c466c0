//! The interface of a driver to the request queue.

use crate::request::{Request, Slots};
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::{Bio, ChannelId, Env, Extent, Limits, Result, Status};
use std::ops::Range;
use std::sync::Arc;

/// The number of hardware queues that a device has and how deep they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwQueues {
    /// Queues for everything that is not polled; at least 1.
    pub default: u32,
    /// Queues for polled I/O; 0 if the device cannot poll.
    pub poll: u32,
    /// Tags of each queue.
    pub depth: u32,
}

/// A driver's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// It is done already.
    Done(Status),
    /// The driver has it and will say when it is done.
    Started,
    /// The driver cannot take it before something it has completes, or the clock passes the
    /// given time if it is not 0; the queue keeps it.
    Busy(u64),
}

/// A leaf device. Shared by all contexts; all methods may be called from any thread.
pub trait Driver: Send + Sync + 'static {
    /// The driver as one context uses it.
    type Queue: DriverQueue;

    /// The kind in listings: `null`, `ram`, `file`.
    fn kind(&self) -> &'static str;

    /// Size in bytes, as of now.
    fn size_bytes(&self) -> u64;

    /// The limits of a request.
    fn limits(&self) -> Limits;

    /// Its hardware queues, as they are at first.
    fn hw_queues(&self) -> HwQueues;

    /// True if requests are worth ordering at all: with one hardware queue such a device gets
    /// `mq-deadline` unless the user says otherwise. Devices in memory say no.
    fn wants_scheduler(&self) -> bool {
        true
    }

    /// True if users may change the numbers of its hardware queues while it runs, as
    /// `submit_queues` and `poll_queues` (null_blk). The request queue keeps these numbers.
    fn has_settable_hw_queues(&self) -> bool {
        false
    }

    /// Open the device for a context; `channel` is the owner number for ring tokens and
    /// messages, `slots` how many requests can be in flight.
    ///
    /// # Errors
    /// When the operating system refuses what it needs.
    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<Self::Queue>;

    /// The allocation query; see [`drystone_core::Device::extents`].
    ///
    /// # Errors
    /// When the file system refuses.
    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>>;

    /// The value of an attribute of the driver's own.
    fn attribute(&self, _name: &str) -> Option<String> {
        None
    }

    /// Change an attribute of the driver's own; `None` if it has no such attribute. Then all its
    /// queues are told ([`DriverQueue::refresh`]).
    fn set_attribute(&self, _name: &str, _value: &str) -> Option<Result<()>> {
        None
    }
}

/// The longest discard or write of zeroes, in bytes, that a driver must complete inline if it
/// [completes inline](DriverQueue::completes_inline) at all: about 1 ms.
pub const INLINE_BYTES_MAX: u64 = 4 << 20;

/// A leaf device as one context uses it.
pub trait DriverQueue: Send + 'static {
    /// Take a request. The memory it names stays until the driver has given it back.
    fn queue_rq(&mut self, env: &mut Env, request: &mut Request) -> Issue;

    /// Use the device's poll queue of that number from now on; without one, end polled requests as
    /// others. Called when the queue is opened, and again when the number of poll queues changed,
    /// while nothing of this context is in flight.
    fn use_poll_queue(&mut self, _env: &mut Env, _queue: Option<u32>) {}

    /// True if [`DriverQueue::queue_rq`] ends each request that it takes, unless that is polled, or
    /// a discard or write of zeroes longer than [`INLINE_BYTES_MAX`]. Then a context may run
    /// requests of another one and holds nothing of it afterwards.
    fn completes_inline(&self) -> bool {
        false
    }

    /// Do `bio` in this call, without a request: a read or write whose data is the beginning of one
    /// segment, checked by the queue. `None` if the driver wants a request for it. Only called
    /// where [`DriverQueue::completes_inline`].
    #[inline]
    fn do_bio(&mut self, _env: &mut Env, _bio: &Bio) -> Option<Status> {
        None
    }

    /// No more requests follow for now.
    fn commit(&mut self, _env: &mut Env) {}

    /// An operation on the ring ended. Slots of requests that are done by it, with their
    /// `status` set, are pushed to `done`.
    fn ring_event(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    );

    /// A message came. As for ring events.
    fn message(
        &mut self,
        _env: &mut Env,
        _message: Arc<Message>,
        _slots: &mut Slots,
        _done: &mut Vec<u32>,
    ) {
    }

    /// Look for completions of polled requests. As for ring events.
    fn poll(&mut self, _env: &mut Env, _slots: &mut Slots, _done: &mut Vec<u32>) {}

    /// Bios whose `user_data` lies in `range` are not wanted any more. A discard or write of zeroes
    /// that the driver does piece by piece, and that is for such bios alone, must end with
    /// [`drystone_core::Status::Cancelled`] before its time. As for ring events.
    fn withdraw(
        &mut self,
        _env: &mut Env,
        _range: &Range<u64>,
        _slots: &mut Slots,
        _done: &mut Vec<u32>,
    ) {
    }

    /// The requests in `done`, which have ended since the last call, are about to be given back.
    /// Their `status` may still be changed.
    #[inline]
    fn ending(&mut self, _env: &mut Env, _slots: &mut Slots, _done: &[u32]) {}

    /// Something has changed, perhaps an attribute of the driver: take that over. May be called in
    /// the middle of any call, and is called though the context's owner is away.
    #[inline]
    fn refresh(&mut self, _env: &mut Env) {}

    /// True while a request is in flight that only [`DriverQueue::poll`] can find.
    fn must_poll(&self) -> bool {
        false
    }

    /// The queue is about to be dropped, with nothing in flight, while its context goes on: give
    /// back what the context's ring knows of it.
    fn close(&mut self, _env: &mut Env) {}

    /// A request took longer than the queue's time-out. Ask for it to come back early if that
    /// is possible; it stays in flight until it does.
    fn timed_out(&mut self, _env: &mut Env, _request: &mut Request) {}
}
