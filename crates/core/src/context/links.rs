//! The links between the channels of a context: bios on their way down to another device,
//! ended bios that a channel gets before their submitter, and the ends of bios that volumes
//! remapped.
//!
//! Invariants:
//! * A channel passes things on while it is called; they are taken from here when it has returned.
//!   So channels never call one another, and a stack of any depth needs no stack of calls.
//! * Bios for one device keep the order in which they were passed on.
//! * `ready` names each link that has something to be taken, once.
//! * `in_flight` counts the bios that carry the channel in their trail.
//! * A number is given to another device only after [`Links::forget`]: when no bio, no channel and
//!   no owner names it any more.

use crate::bio::{Bio, Trail};
use crate::clock::Ns;
use crate::device::Device;
use crate::list::BioList;
use crate::op::OpGroup;
use crate::slab::Slab;
use crate::units::ChannelId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bios of one group that a volume remapped together and that have ended together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemappedDone {
    /// Their operation.
    pub group: OpGroup,
    /// When they were submitted.
    pub start_ns: Ns,
    /// Their number.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// A sweep for numbers that are not needed goes over all of them; so it is done once in so many new
/// ones, and once in this share of those that there are.
const GIVEN_MIN: usize = 64;
const GIVEN_SHARE: usize = 4;

/// Bios and ends that are left for one channel.
#[derive(Default)]
pub(super) struct Link {
    pub(super) down: BioList,
    pub(super) returned: BioList,
    pub(super) remapped_done: Vec<RemappedDone>,
    /// The channel asked to be called again.
    pub(super) is_called_again: bool,
    in_flight: usize,
    is_ready: bool,
    /// The owner has the number, for as long as it likes.
    is_owners: bool,
}

impl Link {
    fn is_idle(&self) -> bool {
        let nothing_left =
            self.down.is_empty() && self.returned.is_empty() && self.remapped_done.is_empty();
        nothing_left && self.in_flight == 0 && !self.is_ready
    }
}

/// Bios that ended one after the other and were remapped by the same volumes.
#[derive(Default)]
struct Run {
    trail: Trail,
    done: RemappedDone,
}

/// The links of all devices of a context, by channel number.
#[derive(Default)]
pub(super) struct Links {
    devices: Slab<Arc<dyn Device>>,
    /// By number, also by one that no device has. Apart from the devices: the way of a bio needs
    /// these only.
    links: Vec<Link>,
    /// Numbers given since the last sweep, and how many there may be until the next.
    given: usize,
    given_max: usize,
    ready: VecDeque<ChannelId>,
    /// The last ends, not yet told to their volumes.
    run: Run,
}

impl Links {
    /// The number of `device`'s channel; a new one for a device that has none.
    pub(super) fn number(&mut self, device: &Arc<dyn Device>) -> ChannelId {
        let same = |d: &Arc<dyn Device>| Arc::as_ptr(d).addr() == Arc::as_ptr(device).addr();
        if let Some((found, _)) = self.devices.iter().find(|(_, device)| same(device)) {
            return ChannelId(found);
        }
        self.given += 1;
        let number = self.devices.insert(device.clone());
        self.links.resize_with(self.devices.numbers_end() as usize, Link::default);
        ChannelId(number)
    }

    /// The device of a channel.
    pub(super) fn device(&self, channel: ChannelId) -> Option<&Arc<dyn Device>> {
        self.devices.get(channel.0)
    }

    /// Numbers that a device has, open or not.
    pub(super) fn numbers(&self) -> impl Iterator<Item = ChannelId> {
        self.devices.iter().map(|(number, _)| ChannelId(number))
    }

    /// The owner gets the number of a channel, which stays.
    pub(super) fn give_to_owner(&mut self, channel: ChannelId) {
        self.links[channel.index()].is_owners = true;
    }

    /// The owner does not need the number any more.
    pub(super) fn take_from_owner(&mut self, channel: ChannelId) {
        self.links[channel.index()].is_owners = false;
    }

    /// Some number is not needed any more, or soon will not be: sweep at the next occasion.
    pub(super) fn request_sweep(&mut self) {
        self.given = self.given.max(self.given_max + 1);
    }

    /// No bio and no owner names the channel. Asked after [`Links::end_run`].
    pub(super) fn is_idle(&self, channel: ChannelId) -> bool {
        debug_assert!(self.run.trail.is_empty());
        let link = &self.links[channel.index()];
        link.is_idle() && !link.is_owners
    }

    /// True after so many new numbers that a sweep for those that are not needed pays.
    #[inline]
    pub(super) fn has_grown(&self) -> bool {
        self.given > self.given_max
    }

    /// The numbers that were not needed are forgotten.
    pub(super) fn swept(&mut self) {
        (self.given, self.given_max) = (0, GIVEN_MIN.max(self.devices.len() / GIVEN_SHARE));
    }

    /// Nobody names the channel any more: its number is free.
    pub(super) fn forget(&mut self, channel: ChannelId) {
        debug_assert!(self.links[channel.index()].is_idle());
        self.devices.remove(channel.0);
    }

    #[inline]
    fn ready(&mut self, channel: ChannelId) -> &mut Link {
        let link = &mut self.links[channel.index()];
        if !link.is_ready {
            link.is_ready = true;
            self.ready.push_back(channel);
        }
        link
    }

    #[inline]
    pub(super) fn send_down(&mut self, channel: ChannelId, bio: Box<Bio>) {
        self.ready(channel).down.push(bio);
    }

    pub(super) fn send_all_down(&mut self, channel: ChannelId, bios: &mut BioList) {
        self.ready(channel).down.append(bios);
    }

    /// Call the channel again, after all that are ready now.
    pub(super) fn call_again(&mut self, channel: ChannelId) {
        if std::mem::take(&mut self.links[channel.index()].is_ready) {
            self.ready.retain(|ready| *ready != channel);
        }
        self.ready(channel).is_called_again = true;
    }

    pub(super) fn give_back(&mut self, channel: ChannelId, bio: Box<Bio>) {
        self.ready(channel).returned.push(bio);
    }

    #[inline]
    pub(super) fn count_remapped(&mut self, channel: ChannelId, bios: usize) {
        self.links[channel.index()].in_flight += bios;
    }

    /// A bio that volumes remapped has ended.
    #[inline]
    pub(super) fn leave(&mut self, bio: &Bio) {
        let run = &mut self.run;
        let same = run.trail == bio.trail()
            && run.done.group == bio.op.group()
            && run.done.start_ns == bio.start_ns;
        if !same {
            self.begin_run(bio);
        }
        self.run.done.count += 1;
        self.run.done.bytes += bio.bytes;
    }

    /// A bio that goes on elsewhere has left one of the volumes that remapped it.
    pub(super) fn leave_one(&mut self, channel: ChannelId, bio: &Bio) {
        let (group, start_ns) = (bio.op.group(), bio.start_ns);
        let link = self.ready(channel);
        link.in_flight -= 1;
        link.remapped_done.push(RemappedDone { group, start_ns, count: 1, bytes: bio.bytes });
    }

    #[inline(never)]
    fn begin_run(&mut self, bio: &Bio) {
        self.end_run();
        let (group, start_ns) = (bio.op.group(), bio.start_ns);
        let done = RemappedDone { group, start_ns, count: 0, bytes: 0 };
        self.run = Run { trail: bio.trail(), done };
    }

    /// Tell the volumes of the last ends.
    pub(super) fn end_run(&mut self) {
        let Run { mut trail, done } = std::mem::take(&mut self.run);
        while let Some(channel) = trail.pop() {
            let link = self.ready(channel);
            link.in_flight -= done.count as usize;
            link.remapped_done.push(done);
        }
    }

    pub(super) fn in_flight(&mut self, channel: ChannelId) -> usize {
        self.end_run();
        self.links[channel.index()].in_flight
    }

    /// The next channel for which something is left; the caller takes it.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<ChannelId> {
        if !self.run.trail.is_empty() {
            self.end_run();
        }
        let channel = self.ready.pop_front()?;
        self.links[channel.index()].is_ready = false;
        Some(channel)
    }

    #[inline]
    pub(super) fn link(&mut self, channel: ChannelId) -> &mut Link {
        &mut self.links[channel.index()]
    }
}
