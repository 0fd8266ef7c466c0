//! The environment of a channel while it is called: the context's ring, time, and the ways a bio
//! can go on (end, or down to another device).

use super::cookie::PolledTo;
use super::links::Links;
use crate::bio::{Bio, End};
use crate::clock::TimeCache;
use crate::context::set::{Handle, Kicks};
use crate::device::Device;
use crate::list::BioList;
use crate::mailbox::Message;
use crate::ring::{Ring, RingEvent, Token};
use crate::status::Status;
use crate::sync::LockCounters;
use crate::units::{ChannelId, ContextId};
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// Most bios a plug holds back before it flushes (Linux `BLK_MAX_REQUEST_COUNT`).
pub const PLUG_MAX_BIOS: usize = 32;
/// A bio of at least this many bytes flushes the plug (Linux `BLK_PLUG_FLUSH_SIZE`).
pub const PLUG_MAX_BYTES: u64 = 128 << 10;

/// Most idle boxes for parts of split bios that a context keeps.
const PARTS_KEPT: usize = 256;

/// The part of a context that its channels share.
pub struct Env {
    /// Kernel I/O and timers.
    pub ring: Box<dyn Ring>,
    /// Time.
    pub time: TimeCache,
    /// The counters of lock acquisitions.
    pub locks: Arc<LockCounters>,
    /// Events of front ends' operations.
    pub(crate) events: Vec<RingEvent>,
    /// Completed bios of the submitter.
    pub(crate) done: BioList,
    /// Idle boxes for parts.
    parts: BioList,
    /// Bios and ends that channels pass to one another.
    pub(super) links: Links,
    /// The channels that polled bios of the present submission went to.
    pub(super) polled_to: PolledTo,
    /// Contexts to be kicked when this one has been left.
    pub(crate) kicks: Kicks,
    /// Bios submitted and not yet reaped.
    pub(crate) outstanding: usize,
    /// Messages that this context expects of others: for bios that a shared scheduler has, for a
    /// turn at tags. While there are any the owner rechecks its mailbox whenever it leaves
    /// ([`Env::notify_lazily`]). Channels count here.
    pub expected_remote: usize,
    /// The owner is submitting, and asked for bios to be held back.
    pub plugged: bool,
    pub(crate) handle: Weak<Handle>,
    pub(crate) id: ContextId,
    /// Nothing is submitted any more: what no driver has ends.
    pub(crate) draining: bool,
    /// The context was dropped: completed bios are freed instead of kept.
    pub(crate) is_orphaned: bool,
}

impl Env {
    pub(crate) fn new(
        ring: Box<dyn Ring>,
        time: TimeCache,
        locks: Arc<LockCounters>,
        handle: Weak<Handle>,
        id: ContextId,
    ) -> Self {
        Env {
            ring,
            time,
            locks,
            events: Vec::new(),
            done: BioList::new(),
            parts: BioList::new(),
            links: Links::default(),
            polled_to: PolledTo::default(),
            kicks: Kicks::new(),
            outstanding: 0,
            expected_remote: 0,
            plugged: false,
            handle,
            id,
            draining: false,
            is_orphaned: false,
        }
    }

    /// Number of this context.
    pub fn context_id(&self) -> ContextId {
        self.id
    }

    /// The context was dropped, or is about to be: bios that no driver has end, because no call
    /// will offer them again.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// The handle by which other threads reach this context.
    pub fn handle(&self) -> Weak<Handle> {
        self.handle.clone()
    }

    /// Channel `channel` has started something that only polling finds.
    pub fn polls(&mut self, channel: ChannelId) {
        self.polled_to.add(channel);
    }

    /// A token for an operation of channel `channel`.
    #[inline]
    pub fn token(channel: ChannelId, value: u64) -> Token {
        Token::new(channel.0 as u16, value)
    }

    /// The number of `device`'s channel in this context, valid while the calling channel has it
    /// among its [`crate::Channel::members`]. The channel is opened, if there is none, when the
    /// calling channel has returned; if it cannot be, bios sent to it end with [`Status::IoError`].
    pub fn channel_of(&mut self, device: &Arc<dyn Device>) -> ChannelId {
        self.links.number(device)
    }

    /// The calling channel needs some channel no longer, or is over itself: soon after the call the
    /// context closes the channels that can go.
    pub fn request_sweep(&mut self) {
        self.links.request_sweep();
    }

    /// Send `bio` to channel `channel`, once the calling channel has returned.
    #[inline]
    pub fn send_down(&mut self, channel: ChannelId, bio: Box<Bio>) {
        self.links.send_down(channel, bio);
    }

    /// Send `bios` (emptied) to channel `channel`, in their order, once the calling channel has
    /// returned.
    #[inline]
    pub fn send_all_down(&mut self, channel: ChannelId, bios: &mut BioList) {
        if !bios.is_empty() {
            self.links.send_all_down(channel, bios);
        }
    }

    /// Have the calling channel, `channel`, called again after the channels that it has sent bios
    /// to, and within the same call of the context: its [`crate::Channel::returned`] gets what has
    /// come back until then, perhaps nothing.
    pub fn call_again(&mut self, channel: ChannelId) {
        self.links.call_again(channel);
    }

    /// A volume, whose channel is `channel`, remaps `bio`: it counts as in flight there until it
    /// ends, and may be moved meanwhile. The returned bio goes on in its place: the bio itself, or,
    /// after many volumes, a part of it.
    #[must_use]
    pub fn begin_remap(&mut self, mut bio: Box<Bio>, channel: ChannelId) -> Box<Bio> {
        self.count_remapped(channel, 1);
        while !bio.begin_remap(channel) {
            bio = self.part_instead(bio);
        }
        bio
    }

    /// Channel `channel` has remapped `bios` bios ([`Bio::begin_remap`]). To be called before the
    /// channel returns.
    #[inline]
    pub fn count_remapped(&mut self, channel: ChannelId, bios: usize) {
        self.links.count_remapped(channel, bios);
    }

    /// Bios that channel `channel` remapped and that have not ended.
    pub fn remapped_in_flight(&mut self, channel: ChannelId) -> usize {
        self.links.in_flight(channel)
    }

    /// `bio` is over. The volumes that remapped it are told. A part of another bio counts its
    /// parent down, which ends with its last part and with the first error among them.
    #[inline]
    pub fn end_bio(&mut self, mut bio: Box<Bio>) {
        if !bio.trail().is_empty() {
            if let Some(channel) = self.retry_channel(&mut bio) {
                return self.links.give_back(channel, bio);
            }
            self.links.leave(&bio);
            bio.end_remaps();
        }
        match bio.end {
            End::Submitter => self.done.push(bio),
            End::RetryOnError(_) => self.end_without_retry(bio),
            End::Chain(parent) => self.end_part(bio, parent),
            End::Channel(channel) => self.links.give_back(channel, bio),
        }
    }

    /// `bios` (emptied) are over, as for [`Env::end_bio`]. [`Bio::is_submitters`] is true of each.
    #[inline]
    pub fn end_submitters(&mut self, bios: &mut BioList) {
        debug_assert!(bios.iter().all(Bio::is_submitters));
        self.done.append(bios);
    }

    /// A bio that a channel would have retried has succeeded.
    #[inline]
    fn end_without_retry(&mut self, mut bio: Box<Bio>) {
        bio.end = End::Submitter;
        self.done.push(bio);
    }

    /// The channel that gets the ended bio before its submitter, because it failed.
    #[inline]
    fn retry_channel(&mut self, bio: &mut Bio) -> Option<ChannelId> {
        if bio.status.is_ok() {
            return None;
        }
        bio.take_retry(|volume, bio| self.links.leave_one(volume, bio))
    }

    #[inline(never)]
    fn end_part(&mut self, mut bio: Box<Bio>, mut parent: NonNull<Bio>) {
        loop {
            if let Some(channel) = bio.take_end_io() {
                return self.links.give_back(channel, bio);
            }
            let status = bio.status;
            self.keep_part(bio);
            let Some(ended) = self.count_down(parent, status) else { return };
            bio = ended;
            if !bio.trail().is_empty() {
                if let Some(channel) = self.retry_channel(&mut bio) {
                    return self.links.give_back(channel, bio);
                }
                self.links.leave(&bio);
                bio.end_remaps();
            }
            match bio.end {
                End::Submitter => return self.done.push(bio),
                End::RetryOnError(_) => return self.end_without_retry(bio),
                End::Chain(next) => parent = next,
                End::Channel(channel) => return self.links.give_back(channel, bio),
            }
        }
    }

    fn keep_part(&mut self, bio: Box<Bio>) {
        if self.parts.len() < PARTS_KEPT {
            self.parts.push_front(bio);
        }
    }

    /// A part of `parent`, or a hold on it, is over. The parent, if that was the last.
    pub(super) fn count_down(&mut self, parent: NonNull<Bio>, status: Status) -> Option<Box<Bio>> {
        // SAFETY: a parent does not end before its last part, and its box was released when it was
        // divided.
        let (first, remaining) = unsafe {
            let p = parent.as_ptr();
            (&mut (*p).status, &mut (*p).remaining)
        };
        if first.is_ok() {
            *first = status;
        }
        *remaining -= 1;
        if *remaining > 0 {
            return None;
        }
        // SAFETY: all parts have ended, so the released box is ours again.
        Some(unsafe { Box::from_raw(parent.as_ptr()) })
    }

    /// End `bio` with `status`.
    #[inline]
    pub fn end_with(&mut self, mut bio: Box<Bio>, status: Status) {
        bio.status = status;
        self.end_bio(bio);
    }

    /// Send `message` to its context, and kick that context as soon as this one is left. It is
    /// delivered though the other's owner may be away.
    pub fn send_and_kick(&mut self, message: Arc<Message>) {
        if let Some(handle) = message.receiver() {
            handle.mailbox.push(message);
            self.kick_later(handle);
        }
    }

    /// The same for a context that expects messages of others ([`Env::expected_remote`]). Its owner
    /// rechecks its mailbox when it leaves a call, so it is kicked only if its owner is away.
    pub fn notify_lazily(&mut self, message: Arc<Message>) {
        if let Some(handle) = message.receiver()
            && handle.notify_lazily(message)
        {
            self.kick_later(handle);
        }
    }

    /// Kick another context as soon as this one is left. One kick serves all reasons.
    pub(super) fn kick_later(&mut self, handle: Arc<Handle>) {
        if !self.kicks.iter().any(|kicked| Arc::ptr_eq(kicked, &handle)) {
            self.kicks.push(handle);
        }
    }

    /// An idle box for a part.
    #[inline]
    pub(super) fn part(&mut self) -> Box<Bio> {
        self.parts.pop().unwrap_or_else(Bio::flush)
    }
}
