//! Devices and their channels.
//!
//! A [`Device`] is shared by all threads and holds what all of them need to know. For each
//! context it opens a [`Channel`], which holds what that context alone uses (plug, statistics,
//! requests). A context knows a channel only by this trait and its number ([`ChannelId`]).

use crate::bio::Bio;
use crate::clock::Ns;
use crate::context::{Env, RemappedDone};
use crate::error::Result;
use crate::extent::{Extent, ExtentSource};
use crate::failures::Failures;
use crate::histogram::Snapshot;
use crate::holders::Holders;
use crate::limits::Limits;
use crate::list::BioList;
use crate::mailbox::Message;
use crate::op::OpGroup;
use crate::ring::RingEvent;
use crate::stats::DiskStats;
use crate::units::ChannelId;
use std::ops::Range;
use std::sync::Arc;

/// A device as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name in the stack.
    pub name: String,
    /// Kind: `file`, `ram`, `null`, a target's name.
    pub kind: &'static str,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Its limits.
    pub limits: Limits,
}

/// A block device: something that takes bios. All methods may be called from any thread.
pub trait Device: ExtentSource + Send + Sync {
    /// Name, kind, size and limits as of now. The size may grow.
    fn info(&self) -> DeviceInfo;

    /// Open this device for a context, whose channel `id` it becomes.
    ///
    /// # Errors
    /// When the operating system refuses what the channel needs.
    fn open_channel(&self, env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>>;

    /// The allocation query: what is known of `length` bytes from `offset` (both inside the
    /// device), as contiguous extents from `offset`, at most `max` of them. May ask the file
    /// system, which is a short system call; never waits for I/O in flight.
    ///
    /// # Errors
    /// When the file system refuses; the caller may then treat everything as data.
    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>>;

    /// The sums of all contexts' statistics.
    fn stats(&self) -> DiskStats;

    /// Latencies of `group`, summed over all contexts.
    fn latencies(&self, group: OpGroup) -> Snapshot;

    /// The I/O of it that failed, until somebody takes it: one at a time may. `None` of a device
    /// that only hands bios on, whose members have their own.
    fn failures(&self) -> Option<&Failures> {
        None
    }

    /// The devices on top of this one, which hear of its changes.
    fn holders(&self) -> Option<&Holders> {
        None
    }

    /// The value of the attribute `name` (named as in sysfs, `queue/nr_requests`), if it has one.
    fn attribute(&self, name: &str) -> Option<String>;

    /// False if a flush of the device does nothing now, because the device has no volatile write
    /// cache. Cheap, and never waits; a device that would have to ask others says true.
    fn has_volatile_cache(&self) -> bool {
        true
    }

    /// True if it pays to give long reads a pipe ([`crate::Bio::set_pipe`]): some of them may end
    /// there. Cheap, and never waits. Volumes say false.
    fn fills_pipes(&self) -> bool {
        false
    }

    /// Change the attribute `name`, on the live device.
    ///
    /// # Errors
    /// The value is refused: the message names the permitted range, and nothing changed.
    fn set_attribute(&self, name: &str, value: &str) -> Result<()>;

    /// Nobody will use this device any more: contexts give it up as soon as nothing of it is in
    /// flight, and with the last of them it is closed. Nothing waits; call it again to remind the
    /// contexts that have not given it up. A device that holds nothing of others may do nothing.
    fn retire(&self) {}
}

impl<D: Device> ExtentSource for D {
    fn find_extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.extents(offset, length, max)
    }
}

/// A device that says of what type its channels are, so that what stands before one of them calls
/// it directly.
pub trait TypedDevice: Device + 'static {
    /// Its channels.
    type Channel: Channel + 'static;

    /// As [`Device::open_channel`].
    ///
    /// # Errors
    /// The same.
    fn open_typed(&self, env: &mut Env, id: ChannelId) -> Result<Self::Channel>;
}

/// A device as one context uses it. Called only with that context in hand: by its owner inside
/// a call, or by a visitor through the context's gate.
pub trait Channel: Send {
    /// Take `bios`. Nothing waits: a bio that cannot go on is kept and goes on when it can.
    /// Every bio ends exactly once, through [`Env::end_bio`].
    fn submit(&mut self, env: &mut Env, bios: &mut BioList);

    /// Largest read or write, in bytes, that is one I/O to the device. It may still be split if its
    /// memory lies in more pieces than the device takes.
    #[inline(always)]
    fn max_io_bytes(&self) -> u64 {
        u64::MAX
    }

    /// The bytes of `bio`, from its beginning, that the device takes as one I/O; 0 if it will
    /// refuse it.
    fn first_part(&self, bio: &Bio) -> u64 {
        bio.bytes
    }

    /// The channels that [`Env::channel_of`] gave this one and that it may still send bios to.
    fn members(&self) -> &[ChannelId];

    /// Bios that this channel remapped ([`Env::begin_remap`]) have ended. For volumes.
    fn remapped_done(&mut self, _env: &mut Env, _done: &[RemappedDone]) {}

    /// Take over limits that have changed, before [`Channel::max_io_bytes`] and
    /// [`Channel::first_part`] are asked about bios that the channel has not got yet.
    #[inline]
    fn follow_limits(&mut self, _env: &mut Env) {}

    /// Parts with this channel's end_io hook ([`crate::Bio::set_end_io`]) or bios of its own
    /// ([`Bio::give_to_channel`]) have ended, or bios that it may retry
    /// ([`Bio::begin_remap_with_retry`]) have failed; their status says how. A part, or another's
    /// bio, goes on when it is given to [`Env::end_bio`], which ends it for good. Also called, with
    /// or without bios, after [`Env::call_again`].
    fn returned(&mut self, env: &mut Env, bios: &mut BioList) {
        while let Some(bio) = bios.pop() {
            env.end_bio(bio);
        }
    }

    /// The context's plug ends: hand on what was held back.
    fn flush_plug(&mut self, _env: &mut Env) {}

    /// An operation that this channel started on the context's ring has ended.
    fn ring_event(&mut self, _env: &mut Env, _event: RingEvent) {}

    /// A message for this channel came through the context's mailbox.
    fn message(&mut self, env: &mut Env, message: Arc<Message>);

    /// All events and messages that had come were given to the channels: what they freed can be
    /// used now, and their completions accounted together.
    fn delivered(&mut self, _env: &mut Env) {}

    /// Look for completions of polled I/O. Returns how many were found.
    fn poll(&mut self, _env: &mut Env) -> usize {
        0
    }

    /// True while something is in flight that only [`Channel::poll`] can find.
    fn must_poll(&self) -> bool {
        false
    }

    /// The time of the next call of [`Channel::tick`], if there is one.
    fn deadline(&self) -> Option<Ns> {
        None
    }

    /// The clock shows `now`, at or past the deadline.
    fn tick(&mut self, _env: &mut Env, _now: Ns) {}

    /// Bios inside this channel that have not ended.
    fn in_flight(&self) -> usize;

    /// Close what others still reach the channel by, if its device is over ([`Device::retire`]).
    /// True if the channel may be dropped and its number given to another: nothing of it is in
    /// flight, and no thread can send it a message or a ring event any more. Called while no bio
    /// names it.
    fn try_retire(&mut self) -> bool {
        false
    }

    /// The channel is about to be dropped while its context goes on: give back what the context's
    /// ring knows of it.
    fn close(&mut self, _env: &mut Env) {}

    /// True while the channel waits for something that another context holds (a tag): then the
    /// waiting context also watches the others' rings.
    fn waits_on_peer(&self) -> bool {
        false
    }

    /// Push on the work that this channel shares with other contexts ([`Env::expected_remote`]):
    /// the owner is about to wait or to poll. True if others are likely to give soon what this
    /// channel waits for, so that a short busy poll is cheaper than a sleep.
    fn push_shared_work(&mut self, _env: &mut Env) -> bool {
        false
    }

    /// End bios whose `user_data` lies in `range` with [`crate::Status::Cancelled`]: those that
    /// wait for a limit of their group, and discards and writes of zeroes that a driver does piece
    /// by piece.
    fn withdraw(&mut self, _env: &mut Env, _range: &Range<u64>) {}

    /// End every bio that the driver does not have yet, with [`crate::Status::Cancelled`].
    fn cancel_pending(&mut self, env: &mut Env);
}
