//! What a channel may use while it is called: the context's ring, time, and the ways a bio can
//! go on (end, or down to another device).

use super::cookie::PolledTo;
use super::links::Links;
use super::parts::Parts;
use crate::bio::{Bio, End};
use crate::clock::TimeCache;
use crate::context::set::{Handle, Kicks};
use crate::device::Device;
use crate::list::BioList;
use crate::mailbox::Message;
use crate::mistake;
use crate::op::BioFlags;
use crate::ring::{Ring, RingEvent, Token};
use crate::status::Status;
use crate::sync::LockCounters;
use crate::units::SECTOR_SIZE;
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
    /// Whom lock acquisitions are counted for.
    pub locks: Arc<LockCounters>,
    /// Events of front ends' operations.
    pub(crate) events: Vec<RingEvent>,
    /// Completed bios of the submitter.
    pub(crate) done: BioList,
    /// Idle boxes for parts.
    parts: BioList,
    /// What channels pass to one another.
    pub(super) links: Links,
    /// Where polled bios of the present submission went.
    pub(super) polled_to: PolledTo,
    /// Contexts to be kicked when this one has been left.
    pub(crate) kicks: Kicks,
    /// Bios submitted and not yet reaped.
    pub(crate) outstanding: usize,
    /// What this context expects of others by messages: bios that a shared scheduler has, a turn at
    /// tags. While there is any the owner looks for messages whenever it leaves
    /// ([`Env::leave_word`]). Kept by the channels.
    pub entrusted: usize,
    /// The owner, who is submitting, asked for bios to be held back.
    pub plugged: bool,
    pub(crate) handle: Weak<Handle>,
    pub(crate) id: u32,
    /// Nothing is submitted any more: what no driver has ends.
    pub(crate) winding_up: bool,
    /// The context was dropped: completed bios are freed instead of kept.
    pub(crate) abandoned: bool,
}

impl Env {
    pub(crate) fn new(
        ring: Box<dyn Ring>,
        time: TimeCache,
        locks: Arc<LockCounters>,
        handle: Weak<Handle>,
        id: u32,
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
            entrusted: 0,
            plugged: false,
            handle,
            id,
            winding_up: false,
            abandoned: false,
        }
    }

    /// Number of this context.
    pub fn context_id(&self) -> u32 {
        self.id
    }

    /// The context was dropped, or is about to be: what no driver has is to end, because nobody will
    /// come back to offer it again.
    pub fn is_abandoned(&self) -> bool {
        self.winding_up
    }

    /// What other threads use to reach this context.
    pub fn handle(&self) -> Weak<Handle> {
        self.handle.clone()
    }

    /// Channel `channel` has started something that only polling finds.
    pub fn polls(&mut self, channel: u32) {
        self.polled_to.add(channel);
    }

    /// A token for an operation of channel `channel`.
    #[inline]
    pub fn token(channel: u32, value: u64) -> Token {
        Token::new(channel as u16, value)
    }

    /// The number of `device`'s channel in this context, valid while the calling channel has it among
    /// its [`crate::Channel::members`]. The channel is opened, if there is none,
    /// when the calling channel has returned; if it cannot be, bios sent to it end with
    /// [`Status::IoError`].
    pub fn channel_of(&mut self, device: &Arc<dyn Device>) -> u32 {
        self.links.number(device)
    }

    /// The calling channel needs some channel no longer, or is over itself: the context looks for those
    /// that can go, soon after the call.
    pub fn look_for_unneeded(&mut self) {
        self.links.want_look();
    }

    /// Send `bio` to channel `channel`, once the calling channel has returned.
    #[inline]
    pub fn send_down(&mut self, channel: u32, bio: Box<Bio>) {
        self.links.send_down(channel, bio);
    }

    /// Send `bios` (emptied) to channel `channel`, in their order, once the calling channel has
    /// returned.
    #[inline]
    pub fn send_all_down(&mut self, channel: u32, bios: &mut BioList) {
        if !bios.is_empty() {
            self.links.send_all_down(channel, bios);
        }
    }

    /// `bio` passes a volume, whose channel is `channel`: it is in flight there until it ends, and
    /// may be moved meanwhile. What comes back goes on in its place: the bio itself, or, after many
    /// volumes, a part of it.
    #[must_use]
    pub fn pass(&mut self, mut bio: Box<Bio>, channel: u32) -> Box<Bio> {
        self.entered(channel, 1);
        while !bio.pass(channel) {
            bio = self.part_instead(bio);
        }
        bio
    }

    /// So many bios have passed channel `channel` ([`Bio::pass`]). To be told before the channel
    /// returns.
    #[inline]
    pub fn entered(&mut self, channel: u32, bios: usize) {
        self.links.entered(channel, bios);
    }

    /// A part that covers the whole of `bio`, which ends with it.
    #[cold]
    fn part_instead(&mut self, bio: Box<Bio>) -> Box<Bio> {
        let mut parts = self.divide(bio);
        let bytes = parts.left();
        let part = parts.next(self, bytes);
        self.divided(parts);
        part
    }

    /// Bios that passed channel `channel` and have not ended.
    pub fn passing(&mut self, channel: u32) -> usize {
        self.links.in_flight(channel)
    }

    /// `bio` is over. The volumes that it passed are told. A part of another bio counts its parent
    /// down, which ends with its last part and with the first error among them.
    #[inline]
    pub fn end_bio(&mut self, mut bio: Box<Bio>) {
        if !bio.trail().is_empty() {
            if let Some(channel) = self.rescuer(&mut bio) {
                return self.links.give_back(channel, bio);
            }
            self.links.leave(&bio);
            bio.leave_volumes();
        }
        match bio.end {
            End::Submitter => self.done.push(bio),
            End::Rescue(_) => self.end_unrescued(bio),
            End::Chain(parent) => self.end_part(bio, parent),
            End::Channel(channel) => self.links.give_back(channel, bio),
        }
    }

    /// Nothing went wrong with a bio that a channel would have seen.
    #[inline]
    fn end_unrescued(&mut self, mut bio: Box<Bio>) {
        bio.end = End::Submitter;
        self.done.push(bio);
    }

    /// The channel that sees the ended bio before its submitter, because it failed.
    #[inline]
    fn rescuer(&mut self, bio: &mut Bio) -> Option<u32> {
        if bio.status.is_ok() {
            return None;
        }
        bio.take_rescue(|volume, bio| self.links.leave_one(volume, bio))
    }

    #[inline(never)]
    fn end_part(&mut self, mut bio: Box<Bio>, mut parent: NonNull<Bio>) {
        loop {
            if let Some(channel) = bio.take_hook() {
                return self.links.give_back(channel, bio);
            }
            let status = bio.status;
            self.keep_part(bio);
            let Some(ended) = self.count_down(parent, status) else { return };
            bio = ended;
            if !bio.trail().is_empty() {
                if let Some(channel) = self.rescuer(&mut bio) {
                    return self.links.give_back(channel, bio);
                }
                self.links.leave(&bio);
                bio.leave_volumes();
            }
            match bio.end {
                End::Submitter => return self.done.push(bio),
                End::Rescue(_) => return self.end_unrescued(bio),
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
    fn count_down(&mut self, parent: NonNull<Bio>, status: Status) -> Option<Box<Bio>> {
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

    /// Cut `bio`, which is in flight, in two: its first `bytes` bytes and the rest. Both borrow
    /// its memory; the original ends when all its parts have (Linux `bio_split`, `bio_chain`).
    /// A part that is cut again gets a sibling, unless a volume or a channel waits for its end.
    pub fn split(&mut self, bio: Box<Bio>, bytes: u64) -> (Box<Bio>, Box<Bio>) {
        let (mut front, mut rest, parent) = match bio.end {
            End::Chain(parent) if !bio.is_watched() => (self.part(), bio, parent),
            _ => self.whole_as_part(bio),
        };
        // SAFETY: the parent is in flight and held by `remaining`, which `rest` counts in.
        unsafe { front.sibling_of(&rest, parent) };
        front.truncate(bytes);
        rest.advance(bytes);
        if mistake!("split_off_by_one") {
            rest.sector = rest.sector.after(SECTOR_SIZE);
        }
        front.flags |= BioFlags::NOMERGE;
        (front, rest)
    }

    /// A part that covers the whole of `bio`, and an idle box for its sibling.
    fn whole_as_part(&mut self, bio: Box<Bio>) -> (Box<Bio>, Box<Bio>, NonNull<Bio>) {
        let (front, mut whole) = (self.part(), self.part());
        let parent = NonNull::from(Box::leak(bio));
        // SAFETY: the original's box is released until `remaining` is 0 again.
        unsafe { whole.whole_of(parent) };
        (front, whole, parent)
    }

    /// Divide `bio`, which is in flight: it ends when all parts that [`Parts`] makes of it have,
    /// and [`Env::divided`] was called.
    pub fn divide(&mut self, bio: Box<Bio>) -> Parts {
        Parts::of(bio)
    }

    /// Make more parts of the bio that `part` is a part of.
    ///
    /// # Panics
    /// If it is not a part.
    pub fn divide_again(&mut self, part: &Bio) -> Parts {
        let End::Chain(parent) = part.end else { panic!("not a part of another bio") };
        Parts::again(parent)
    }

    /// No more parts are made; if all have ended (or there are none), so does their bio.
    #[inline]
    pub fn divided(&mut self, parts: Parts) {
        if let Some(ended) = self.count_down(parts.into_parent(), Status::Ok) {
            self.end_bio(ended);
        }
    }

    /// End `bio` with `status`.
    #[inline]
    pub fn end_with(&mut self, mut bio: Box<Bio>, status: Status) {
        bio.status = status;
        self.end_bio(bio);
    }

    /// Send `message` to its context, and have that context's crank turned as soon as this one
    /// is left: even if its owner is away, it will be delivered.
    pub fn send_and_kick(&mut self, message: Arc<Message>) {
        if let Some(handle) = message.receiver() {
            handle.mailbox.push(message);
            self.kick_later(handle);
        }
    }

    /// The same for a context that has bios entrusted to others, and so looks for messages
    /// whenever it is left: its crank is turned for it only if its owner is away.
    pub fn leave_word(&mut self, message: Arc<Message>) {
        if let Some(handle) = message.receiver()
            && handle.leave_word(message)
        {
            self.kick_later(handle);
        }
    }

    /// Have the crank of another context turned as soon as this one is left. Once is enough, whatever it is for.
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
