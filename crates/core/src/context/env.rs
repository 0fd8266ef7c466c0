//! What a channel may use while it is called: the context's ring, time, and the ways a bio can
//! go on (end, or down to another device).

use crate::bio::{Bio, End};
use crate::clock::TimeCache;
use crate::context::set::Handle;
use crate::list::BioList;
use crate::mailbox::Message;
use crate::op::BioFlags;
use crate::ring::{Ring, RingEvent, Token};
use crate::status::Status;
use crate::sync::LockCounters;
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
    /// Contexts to be kicked when this one has been left.
    pub(crate) kicks: Vec<Arc<Handle>>,
    /// Bios submitted and not yet reaped.
    pub(crate) outstanding: usize,
    /// What this context expects of others by messages: bios that a shared scheduler has, a turn at
    /// tags. While there is any the owner looks for messages whenever it leaves
    /// ([`Env::leave_word`]). Kept by the channels.
    pub entrusted: usize,
    /// The owner asked for bios to be held back.
    pub plugged: bool,
    pub(crate) handle: Weak<Handle>,
    pub(crate) id: u32,
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
            kicks: Vec::new(),
            outstanding: 0,
            entrusted: 0,
            plugged: false,
            handle,
            id,
            abandoned: false,
        }
    }

    /// Number of this context.
    pub fn context_id(&self) -> u32 {
        self.id
    }

    /// The context was dropped: what no driver has is to end, because nobody will come back to
    /// offer it again.
    pub fn is_abandoned(&self) -> bool {
        self.abandoned
    }

    /// What other threads use to reach this context.
    pub fn handle(&self) -> Weak<Handle> {
        self.handle.clone()
    }

    /// A token for an operation of channel `channel`.
    #[inline]
    pub fn token(channel: u32, value: u64) -> Token {
        Token::new(channel as u16, value)
    }

    /// `bio` is over. A part of another bio counts its parent down, which ends with its last
    /// part and with the first error among them.
    #[inline]
    pub fn end_bio(&mut self, bio: Box<Bio>) {
        match bio.end {
            End::Submitter => self.done.push(bio),
            End::Chain(parent) => self.end_part(bio, parent),
        }
    }

    #[cold]
    fn end_part(&mut self, bio: Box<Bio>, parent: NonNull<Bio>) {
        // SAFETY: a parent does not end before its last part, and `split` released its box.
        let (status, remaining) = unsafe {
            let p = parent.as_ptr();
            (&mut (*p).status, &mut (*p).remaining)
        };
        if status.is_ok() {
            *status = bio.status;
        }
        *remaining -= 1;
        if *remaining == 0 {
            // SAFETY: all parts have ended, so the box that `split` released is ours again.
            self.end_bio(unsafe { Box::from_raw(parent.as_ptr()) });
        }
        if self.parts.len() < PARTS_KEPT {
            self.parts.push_front(bio);
        }
    }

    /// Cut `bio`, which is in flight, in two: its first `bytes` bytes and the rest. Both borrow
    /// its memory; the original ends when all its parts have (Linux `bio_split`, `bio_chain`).
    /// A part that is cut again gets a sibling, so parents are never nested.
    pub fn split(&mut self, bio: Box<Bio>, bytes: u64) -> (Box<Bio>, Box<Bio>) {
        let (mut front, mut rest, parent) = match bio.end {
            End::Chain(parent) => (self.part(), bio, parent),
            End::Submitter => self.whole_as_part(bio),
        };
        // SAFETY: the parent is in flight and held by `remaining`, which `rest` counts in.
        unsafe { front.sibling_of(&rest, parent) };
        front.truncate(bytes);
        rest.advance(bytes);
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
            self.kicks.push(handle);
        }
    }

    /// The same for a context that has bios entrusted to others, and so looks for messages
    /// whenever it is left: its crank is turned for it only if its owner is away.
    pub fn leave_word(&mut self, message: Arc<Message>) {
        if let Some(handle) = message.receiver()
            && handle.leave_word(message)
        {
            self.kicks.push(handle);
        }
    }

    fn part(&mut self) -> Box<Bio> {
        self.parts.pop().unwrap_or_else(Bio::flush)
    }
}
