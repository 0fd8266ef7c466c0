//! The interface of a driver to the request queue.

use crate::request::{Request, Slots};
use drystone_core::mailbox::Message;
use drystone_core::ring::RingEvent;
use drystone_core::{Bio, ChannelId, Env, Extent, Limits, Result, Status};
use std::ops::Range;
use std::sync::Arc;

/// The number and depth of a device's hardware queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HwQueues {
    /// The number of queues for I/O that is not polled; at least 1.
    pub default: u32,
    /// The number of queues for polled I/O; 0 if the device cannot poll.
    pub poll: u32,
    /// The number of tags of each queue.
    pub depth: u32,
}

/// A driver's answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Issue {
    /// The request is done already.
    Done(Status),
    /// The driver has the request and will report its completion.
    Started,
    /// The driver cannot take the request until one that it has completes, or, if the given time is
    /// not 0, until that time. The queue keeps the request.
    Busy(u64),
}

/// A leaf device. Shared by all contexts; all methods may be called from any thread.
pub trait Driver: Send + Sync + 'static {
    /// The driver as one context uses it.
    type Queue: DriverQueue;

    /// The kind in listings: `null`, `ram`, `file`.
    fn kind(&self) -> &'static str;

    /// The present size in bytes.
    fn size_bytes(&self) -> u64;

    /// The limits of a request.
    fn limits(&self) -> Limits;

    /// The device's hardware queues at the start.
    fn hw_queues(&self) -> HwQueues;

    /// True if ordering requests is useful. Such a device with one hardware queue gets
    /// `mq-deadline` unless the user chooses otherwise. Devices in memory return false.
    fn wants_scheduler(&self) -> bool {
        true
    }

    /// True if its queues may put the data of reads into pipes ([`Bio::pipe_to_fill`]), as the
    /// device is now.
    fn fills_pipes(&self) -> bool {
        false
    }

    /// True if users may change the numbers of hardware queues while the device runs, as
    /// `submit_queues` and `poll_queues` of null_blk. The request queue keeps these numbers.
    fn has_settable_hw_queues(&self) -> bool {
        false
    }

    /// Open the device for a context. `channel` is the owner number for ring tokens and messages;
    /// `slots` is the number of requests that can be in flight.
    ///
    /// # Errors
    /// The operating system refuses a resource.
    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<Self::Queue>;

    /// The allocation query; see [`drystone_core::Device::extents`].
    ///
    /// # Errors
    /// The file system refuses the query.
    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>>;

    /// The value of an attribute of the driver's own.
    fn attribute(&self, _name: &str) -> Option<String> {
        None
    }

    /// Change one of the driver's own attributes; `None` if it has none of this name. After a
    /// change the request queue informs all queues of the driver ([`DriverQueue::refresh`]).
    fn set_attribute(&self, _name: &str, _value: &str) -> Option<Result<()>> {
        None
    }
}

/// The longest discard or write of zeroes, in bytes, that must complete inline with a driver that
/// [completes inline](DriverQueue::completes_inline). It takes about 1 ms.
pub const INLINE_BYTES_MAX: u64 = 4 << 20;

/// A leaf device as one context uses it.
pub trait DriverQueue: Send + 'static {
    /// Take a request. Its memory stays valid until the driver has given the request back.
    fn queue_rq(&mut self, env: &mut Env, request: &mut Request) -> Issue;

    /// Use the device's poll queue `queue` from now on. Without one, end polled requests like
    /// others. Called when the queue is opened, and again after the number of poll queues has
    /// changed, while this context has nothing in flight.
    fn use_poll_queue(&mut self, _env: &mut Env, _queue: Option<u32>) {}

    /// True if [`DriverQueue::queue_rq`] completes each request that it takes, except polled ones,
    /// and discards and writes of zeroes longer than [`INLINE_BYTES_MAX`]. Then a context may issue
    /// requests of another context, and holds none of them afterwards.
    fn completes_inline(&self) -> bool {
        false
    }

    /// Complete `bio` in this call, without a request. The bio is a read or write, whose data is
    /// the beginning of one segment, and the queue has checked it. `None` if the driver wants a
    /// request for it. Called only with drivers that return true for
    /// [`DriverQueue::completes_inline`].
    #[inline]
    fn do_bio(&mut self, _env: &mut Env, _bio: &mut Bio) -> Option<Status> {
        None
    }

    /// No more requests follow for the moment.
    fn commit(&mut self, _env: &mut Env) {}

    /// Handle the end of an operation on the ring. For each request that is done by that, set its
    /// `status` and push its slot to `done`.
    fn ring_event(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    );

    /// Handle a message. Reports requests as `ring_event` does.
    fn message(
        &mut self,
        _env: &mut Env,
        _message: Arc<Message>,
        _slots: &mut Slots,
        _done: &mut Vec<u32>,
    ) {
    }

    /// Look for completions of polled requests. Reports requests as `ring_event` does.
    fn poll(&mut self, _env: &mut Env, _slots: &mut Slots, _done: &mut Vec<u32>) {}

    /// Note that bios with `user_data` in `range` are not wanted any more. If the driver does a
    /// discard or write of zeroes in pieces, and only for such bios, it must end that early with
    /// [`drystone_core::Status::Cancelled`]. Reports requests as `ring_event` does.
    fn withdraw(
        &mut self,
        _env: &mut Env,
        _range: &Range<u64>,
        _slots: &mut Slots,
        _done: &mut Vec<u32>,
    ) {
    }

    /// The requests in `done` have ended since the last call and are about to be given back. The
    /// driver may still change their `status`.
    #[inline]
    fn ending(&mut self, _env: &mut Env, _slots: &mut Slots, _done: &[u32]) {}

    /// Follow a change, for example of an attribute of the driver. May be called in the middle of
    /// any call, and also while the context's owner is away.
    #[inline]
    fn refresh(&mut self, _env: &mut Env) {}

    /// True while a request is in flight that only [`DriverQueue::poll`] can find.
    fn must_poll(&self) -> bool {
        false
    }

    /// Remove what the context's ring has of this queue. The queue is about to be dropped with
    /// nothing in flight, while its context goes on.
    fn close(&mut self, _env: &mut Env) {}

    /// A request took longer than the queue's time-out. If possible, ask for its early return; it
    /// stays in flight until then.
    fn timed_out(&mut self, _env: &mut Env, _request: &mut Request) {}
}
