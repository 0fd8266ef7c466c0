//! What the channels of a context pass to one another: bios on their way down to another device,
//! ended bios that a channel wanted to see, and the ends of bios that passed a volume.
//!
//! Invariants:
//! * A channel passes things on while it is called; they are taken from here when it has returned.
//!   So channels never call one another, and a stack of any depth needs no stack of calls.
//! * Bios for one device keep the order in which they were passed on.
//! * `ready` names each link that has something to be taken, once.
//! * `in_flight` counts the bios that carry the channel in their trail.

use crate::bio::{Bio, Trail};
use crate::clock::Ns;
use crate::device::Device;
use crate::list::BioList;
use crate::op::OpGroup;
use std::collections::VecDeque;
use std::sync::Arc;

/// Bios of one group that were submitted to a volume together and have ended together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// What they did.
    pub group: OpGroup,
    /// When they were submitted.
    pub start_ns: Ns,
    /// How many they were.
    pub count: u64,
    /// Bytes of all of them.
    pub bytes: u64,
}

/// What is left for one channel.
#[derive(Default)]
pub(super) struct Link {
    pub(super) down: BioList,
    pub(super) returned: BioList,
    pub(super) passed: Vec<Passed>,
    in_flight: usize,
    is_ready: bool,
}

/// Bios that ended one after the other and passed the same volumes.
#[derive(Default)]
struct Run {
    trail: Trail,
    passed: Passed,
}

/// The links of all devices of a context, by channel number.
#[derive(Default)]
pub(super) struct Links {
    devices: Vec<Arc<dyn Device>>,
    links: Vec<Link>,
    ready: VecDeque<u32>,
    /// The last ends, not yet told to their volumes.
    run: Run,
}

impl Links {
    /// The number of `device`'s channel; a new one for a device that has none.
    pub(super) fn number(&mut self, device: &Arc<dyn Device>) -> u32 {
        let same = |d: &Arc<dyn Device>| Arc::as_ptr(d).addr() == Arc::as_ptr(device).addr();
        if let Some(found) = self.devices.iter().position(same) {
            return found as u32;
        }
        self.devices.push(device.clone());
        self.links.push(Link::default());
        self.devices.len() as u32 - 1
    }

    /// The device of a channel.
    pub(super) fn device(&self, channel: u32) -> &Arc<dyn Device> {
        &self.devices[channel as usize]
    }

    /// Channels, open or not.
    pub(super) fn len(&self) -> usize {
        self.devices.len()
    }

    /// The channel that came last could not be opened.
    pub(super) fn forget_last(&mut self) {
        self.devices.pop();
        self.links.pop();
    }

    #[inline]
    fn ready(&mut self, channel: u32) -> &mut Link {
        let link = &mut self.links[channel as usize];
        if !link.is_ready {
            link.is_ready = true;
            self.ready.push_back(channel);
        }
        link
    }

    #[inline]
    pub(super) fn send_down(&mut self, channel: u32, bio: Box<Bio>) {
        self.ready(channel).down.push(bio);
    }

    pub(super) fn send_all_down(&mut self, channel: u32, bios: &mut BioList) {
        self.ready(channel).down.append(bios);
    }

    pub(super) fn give_back(&mut self, channel: u32, bio: Box<Bio>) {
        self.ready(channel).returned.push(bio);
    }

    #[inline]
    pub(super) fn entered(&mut self, channel: u32, bios: usize) {
        self.links[channel as usize].in_flight += bios;
    }

    /// A bio that passed volumes has ended.
    #[inline]
    pub(super) fn leave(&mut self, bio: &Bio) {
        let run = &mut self.run;
        let same = run.trail == bio.trail()
            && run.passed.group == bio.op.group()
            && run.passed.start_ns == bio.start_ns;
        if !same {
            self.begin_run(bio);
        }
        self.run.passed.count += 1;
        self.run.passed.bytes += bio.bytes;
    }

    #[inline(never)]
    fn begin_run(&mut self, bio: &Bio) {
        self.end_run();
        let (group, start_ns) = (bio.op.group(), bio.start_ns);
        let passed = Passed { group, start_ns, count: 0, bytes: 0 };
        self.run = Run { trail: bio.trail(), passed };
    }

    fn end_run(&mut self) {
        let Run { mut trail, passed } = std::mem::take(&mut self.run);
        while let Some(channel) = trail.pop() {
            let link = self.ready(channel);
            link.in_flight -= passed.count as usize;
            link.passed.push(passed);
        }
    }

    pub(super) fn in_flight(&mut self, channel: u32) -> usize {
        self.end_run();
        self.links[channel as usize].in_flight
    }

    /// The next channel for which something is left, which is to be taken.
    #[inline]
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        if !self.run.trail.is_empty() {
            self.end_run();
        }
        let channel = self.ready.pop_front()?;
        self.links[channel as usize].is_ready = false;
        Some(channel)
    }

    #[inline]
    pub(super) fn link(&mut self, channel: u32) -> &mut Link {
        &mut self.links[channel as usize]
    }
}
