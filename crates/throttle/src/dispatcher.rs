//! The dispatcher: a thread that enters the turns of lanes (Linux: `throtl_select_dispatch`), with
//! its input and its remaining duties afterwards.
//!
//! Invariants:
//! * A bio that may go is *granted*: it goes back to the channel that it came through
//!   ([`crate::port::PortState::granted`]). The dispatcher then rings that channel's doorbell,
//!   unless the channel is the thread's own.
//! * A bio whose path by the current rules leads to another lane is sent on to that lane, which
//!   runs later in the same call.
//! * The data path calls only [`Dispatcher::run`] and [`Dispatcher::take_out`]; of these, only
//!   `take_out` waits for the turn.

use crate::group::GroupId;
use crate::lane::{Lane, Waiting};
use crate::limits::Direction;
use crate::port::{Port, Ports};
use crate::rules::{Path, Rules};
use crate::shared::Shared;
use drystone_core::clock::Ns;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, PortId};
use std::sync::Arc;

/// See the module's text.
pub(crate) struct Dispatcher<'a> {
    shared: &'a Shared,
    /// The rules that the thread knows, and their epoch; they may be outdated.
    rules: &'a Rules,
    epoch: u64,
    locks: &'a LockCounters,
    now: Ns,
    /// The thread's own channel.
    me: Option<PortId>,
    /// Channels whose doorbell must ring.
    told: Vec<Arc<Port>>,
    /// Lanes to which bios were sent on.
    lanes: Vec<Arc<Lane>>,
    ports: Option<Arc<Ports>>,
    current: Option<Arc<Rules>>,
    /// Granted bios, all of one channel.
    granted: BioList,
}

impl<'a> Dispatcher<'a> {
    pub(crate) fn new(
        shared: &'a Shared,
        (epoch, rules): (u64, &'a Rules),
        locks: &'a LockCounters,
        now: Ns,
        me: Option<PortId>,
    ) -> Self {
        Dispatcher {
            shared,
            rules,
            epoch,
            locks,
            now,
            me,
            told: Vec::new(),
            lanes: Vec::new(),
            ports: None,
            current: None,
            granted: BioList::new(),
        }
    }

    /// Dispatch at `lane`, and at the lanes that bios are sent on to.
    pub(crate) fn run(&mut self, lane: &Arc<Lane>) {
        self.run_one(lane);
        while let Some(next) = self.lanes.pop() {
            self.run_one(&next);
        }
    }

    /// The time by which the dispatcher decides.
    pub(crate) fn now(&self) -> Ns {
        self.now
    }

    /// The channels whose doorbell must ring.
    pub(crate) fn into_told(self) -> Vec<Arc<Port>> {
        self.told
    }

    fn run_one(&mut self, lane: &Lane) {
        while let Some(mut waiting) = lane.enter(self.locks, self.me) {
            self.forget();
            let published = lane.take_published();
            match waiting.is_closed() && !drystone_core::mutated!("lane_closed") {
                true => self.send_all_on(lane, published, &mut waiting),
                false => self.dispatch(lane, published, &mut waiting),
            }
            self.hand_over();
            if !lane.leave(waiting) {
                return;
            }
        }
    }

    fn dispatch(&mut self, lane: &Lane, published: BioList, waiting: &mut Waiting) {
        self.take_in(lane, published, waiting);
        if lane.take_purge() {
            self.let_go(waiting);
        }
        let due = loop {
            match waiting.pop(self.now) {
                Ok(bio) => self.grant(bio),
                Err(at) => break at,
            }
        };
        if let Some(keeper) = lane.keep_time(waiting, self.me, self.now, due) {
            let port = self.port(keeper);
            self.tell(port);
        }
    }

    fn take_in(&mut self, lane: &Lane, mut bios: BioList, waiting: &mut Waiting) {
        while let Some(bio) = bios.pop() {
            if let Some((bio, path)) = self.send_on(lane, bio) {
                match self.port(bio.port).is_gone() {
                    true => self.grant(bio),
                    false => waiting.push(&path.steps, bio, self.now),
                }
            }
        }
    }

    /// Grant the bios of dropped channels.
    fn let_go(&mut self, waiting: &mut Waiting) {
        let ports = self.shared.ports(self.locks);
        let is_gone = |bio: &Bio| ports.get(bio.port).is_none_or(|port| port.is_gone());
        self.grant_all(waiting.take(is_gone));
    }

    fn send_all_on(&mut self, lane: &Lane, mut published: BioList, waiting: &mut Waiting) {
        let mut bios = waiting.take_parked();
        bios.append(&mut published);
        while let Some(bio) = bios.pop() {
            if let Some((bio, _)) = self.send_on(lane, bio) {
                // The new rules are not published yet; the thread that publishes them runs the lane
                // afterwards.
                waiting.park(bio);
            }
        }
    }

    /// Grant the bios of `group`, whatever the limits. For the control plane. The caller must run
    /// the lane afterwards.
    pub(crate) fn release(&mut self, lane: &Lane, group: GroupId) {
        let bios = self.take_out(lane, |bio| GroupId::of(bio) == group);
        self.grant_all(bios);
        self.hand_over();
    }

    /// Take the bios that wait at `lane` and for which `is_one` is true. Waits for the turn. The
    /// caller must run the lane afterwards.
    pub(crate) fn take_out(&mut self, lane: &Lane, is_one: impl Fn(&Bio) -> bool) -> BioList {
        let mut waiting = lane.wait(self.locks);
        self.forget();
        let published = lane.take_published();
        match waiting.is_closed() {
            true => self.send_all_on(lane, published, &mut waiting),
            false => self.take_in(lane, published, &mut waiting),
        }
        self.hand_over();
        let mut bios = waiting.take(&is_one);
        let mut parked = waiting.take_parked();
        while let Some(bio) = parked.pop() {
            match is_one(&bio) {
                true => bios.push(bio),
                false => waiting.park(bio),
            }
        }
        _ = lane.leave(waiting);
        bios
    }

    fn grant_all(&mut self, mut bios: BioList) {
        while let Some(bio) = bios.pop() {
            self.grant(bio);
        }
    }

    /// Forget the rules and ports read before this turn: they may be older than the bios that it
    /// finds.
    fn forget(&mut self) {
        (self.current, self.ports) = (None, None);
    }

    fn port(&mut self, id: PortId) -> Arc<Port> {
        let known = self.ports.as_ref().and_then(|ports| ports.get(id));
        if let Some(port) = known {
            return port.clone();
        }
        let ports = self.ports.insert(self.shared.ports(self.locks));
        ports.get(id).expect("a channel stays while bios of it wait").clone()
    }

    /// Grant `bio`.
    fn grant(&mut self, bio: Box<Bio>) {
        if self.granted.back().is_some_and(|last| last.port != bio.port) {
            self.hand_over();
        }
        self.granted.push(bio);
    }

    /// Give the granted bios to their channel.
    fn hand_over(&mut self) {
        let Some(id) = self.granted.back().map(|bio| bio.port) else { return };
        let port = self.port(id);
        port.granted.add(&mut self.granted);
        self.tell(port);
    }

    fn tell(&mut self, port: Arc<Port>) {
        let known = self.told.iter().any(|other| Arc::ptr_eq(other, &port));
        if self.me != Some(port.id()) && !known {
            self.told.push(port);
        }
    }

    /// The path of `bio` by the current rules. A thread that changes the rules runs the lanes
    /// afterwards, but this turn may be under way before that.
    fn path_now(&mut self, bio: &Bio) -> Option<Arc<Path>> {
        if self.epoch == self.shared.epoch() || drystone_core::mutated!("lane_epoch") {
            return self.rules.path(GroupId::of(bio), Direction::of(bio)).cloned();
        }
        if self.current.is_none() {
            self.current = Some(self.shared.rules(self.locks).1);
        }
        let current = self.current.as_ref()?;
        current.path(GroupId::of(bio), Direction::of(bio)).cloned()
    }

    /// Send `bio` to the lane of its current path. Returns the bio and its path if that lane is
    /// `here`.
    fn send_on(&mut self, here: &Lane, bio: Box<Bio>) -> Option<(Box<Bio>, Arc<Path>)> {
        match self.path_now(&bio) {
            Some(path) if std::ptr::eq(&*path.lane, here) => return Some((bio, path)),
            Some(path) => {
                let mut one = BioList::new();
                one.push(bio);
                path.lane.publish(self.locks, &mut one);
                self.lanes.push(path.lane.clone());
            }
            None => self.grant(bio),
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::device::DeviceThrottle;
    use crate::hierarchy::Hierarchy;
    use crate::limits::Limits;
    use drystone_core::clock::ManualClock;
    use drystone_core::mailbox::Message;
    use drystone_core::ring::Engine;
    use drystone_core::sync::LockRegistry;
    use drystone_core::{ChannelId, ContextSet, IoBuf, Sector};

    /// Bios are withdrawn after a lane was closed and before the new rules are published; others
    /// are published there that no holder has taken in yet.
    #[test]
    fn what_comes_to_a_closed_lane_stays_where_the_new_rules_find_it() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let locks = registry.counters();
        let device = DeviceThrottle::new("d", clock, &locks);
        let mut hierarchy = Hierarchy::new();
        let group = hierarchy.insert(GroupId::ROOT, "g", "g").unwrap();
        device.add_groups(&hierarchy, &[group]);
        let limits = Limits { wiops: Some(1), ..Limits::default() };
        device.set_limits(&hierarchy, &[(group, limits)]);
        let context = ContextSet::counted_by(registry).open(Engine::Plain).unwrap();
        let port = device
            .shared()
            .open_port(Message::to(Arc::downgrade(context.handle()), ChannelId(0), 0), &locks);

        let (epoch, rules) = device.shared().rules(&locks);
        let lane = rules.path(group, Direction::Write).unwrap().lane.clone();
        lane.close(&locks);
        let mut bios = BioList::new();
        for n in 0..2 {
            let mut bio = Bio::write(Sector(0), IoBuf::zeroed(512));
            (bio.group, bio.port, bio.user_data) = (group.as_u32(), port.id(), n);
            bios.push(bio);
        }
        lane.publish(&locks, &mut bios);
        let mut dispatcher =
            Dispatcher::new(device.shared(), (epoch, &rules), &locks, 1, Some(port.id()));
        let mut taken = dispatcher.take_out(&lane, |bio| bio.user_data == 1);
        assert_eq!(taken.pop().map(|bio| bio.user_data), Some(1));
        let mut waiting = lane.wait(&locks);
        assert!(waiting.take(|_| true).is_empty());
        assert!(!waiting.has_ports(), "nothing of a channel is left in the tree");
        assert_eq!(waiting.take_parked().pop().map(|bio| bio.user_data), Some(0));
    }
}
