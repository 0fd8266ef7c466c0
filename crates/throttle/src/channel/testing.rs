//! A device with groups that each have their own limit, for the tests of a channel's parts.

use crate::budget::{BURST, ticks_of};
use crate::device::DeviceThrottle;
use crate::dispatcher::Dispatcher;
use crate::group::GroupId;
use crate::lane::Lane;
use crate::limits::Direction;
use crate::meter::{Meter, Step};
use crate::port::Port;
use crate::rules::{Path, Ruled, Rules};
use drystone_core::clock::{ManualClock, Ns};
use drystone_core::mailbox::Message;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, IoBuf, Sector};
use std::sync::Arc;

/// The time of a scene.
pub(super) const NOW: Ns = 1_000_000_000;
/// The writes that a limited group may do in a second.
const RATE: u64 = 1000;

/// A device and a channel of it.
pub(super) struct Scene {
    pub(super) device: Arc<DeviceThrottle>,
    pub(super) rules: Rules,
    pub(super) port: Arc<Port>,
    locks: Arc<LockCounters>,
}

/// The `nth` number of a group in `slot`.
pub(super) fn group(slot: usize, nth: u32) -> GroupId {
    let first = GroupId::first_in_slot(slot).expect("a slot");
    (0..nth).fold(first, |id, _| id.next_in_slot())
}

/// A group without limits.
pub(super) fn free(id: GroupId) -> Arc<Ruled> {
    Arc::new(Ruled { id, paths: [None, None] })
}

/// A group with a limit of writes, in a lane of its own.
pub(super) fn limited(id: GroupId) -> Arc<Ruled> {
    let meter = Arc::new(Meter::default());
    meter.set_rates(ticks_of(NOW), None, Some(RATE));
    let steps = Box::new([Step { group: id, meter: Some(meter) }]);
    Arc::new(Ruled { id, paths: [None, Some(Arc::new(Path { steps, lane: Lane::new(id) }))] })
}

impl Scene {
    /// A device whose rules have these groups.
    pub(super) fn new(groups: &[Arc<Ruled>]) -> Self {
        let clock = ManualClock::new(NOW);
        let locks = LockCounters::new(clock.clone());
        let device = DeviceThrottle::new("d", clock, &locks);
        let port = device.shared().open_port(Message::new(ChannelId(0), 0), &locks);
        let mut scene = Scene { device, rules: Rules::default(), port, locks };
        groups.iter().for_each(|group| scene.rules.set(group.clone()));
        scene.device.shared().set_rules(scene.rules.clone(), &scene.locks);
        scene
    }

    fn path(&self, id: GroupId) -> &Path {
        self.rules.path(id, Direction::Write).expect("it is limited")
    }

    /// The lane of a limited group.
    pub(super) fn lane(&self, id: GroupId) -> Arc<Lane> {
        self.path(id).lane.clone()
    }

    /// The ticks until a limited group has paid for all that it was charged and for one more write.
    pub(super) fn owed(&self, id: GroupId) -> u64 {
        let when = self.path(id).meters().map(|meter| meter.when(512)).sum::<u64>();
        (when + BURST).saturating_sub(ticks_of(NOW))
    }

    /// A write of a group, through the channel.
    pub(super) fn bio(&self, id: GroupId) -> Box<Bio> {
        let mut bio = Bio::write(Sector(0), IoBuf::zeroed(512));
        (bio.group, bio.port) = (id.as_u32(), self.port.id());
        bio
    }

    /// Publish a write of a group at its lane, where it waits.
    pub(super) fn publish(&self, id: GroupId) {
        let mut bios = BioList::new();
        bios.push(self.bio(id));
        self.lane(id).publish(&self.locks, &mut bios);
    }

    /// The channel's thread at the lanes.
    pub(super) fn dispatcher(&self, now: Ns) -> Dispatcher<'_> {
        let shared = self.device.shared();
        let rules = (shared.epoch(), &self.rules);
        Dispatcher::new(shared, rules, &self.locks, now, Some(self.port.id()))
    }
}
