//! A lane: the queue of all bios of one direction that the same topmost limit of a device binds.
//!
//! Invariants:
//! * A channel publishes its bios at the lane's [`TurnLock`] and asks for the turn. The holder of
//!   the turn takes them in, and dispatches all bios that may go, those of other channels as well.
//!   Each goes back to the channel that it came through ([`crate::port::PortState::granted`]).
//! * While bios wait, one channel that has any is the *keeper*: it wakes when the next bio may go
//!   (`due`), and is told if that is earlier than before. The other channels recheck [`GRACE_NS`]
//!   later, because the keeper's owner may be away.
//! * A lane is closed when its structure changes: from then on the holder of the turn sends its
//!   bios on to the lanes that the rules name. Until these rules are published the bios stay in
//!   `parked`.
//! * The data path never waits for the turn.
//! * [`Lane::close`], [`Lane::release`], [`Lane::take_out`] and [`Lane::change_limits`] may swallow
//!   a request for the turn. So [`Caller::run`] follows each of them.

use crate::budget::{ns_of, ticks_of};
use crate::device::DeviceThrottle;
use crate::limits::Direction;
use crate::port::{Port, Ports};
use crate::rules::{Path, Rules};
use crate::tree::Tree;
use drystone_core::clock::Ns;
use drystone_core::primitive::{AtomicBool, AtomicU32, AtomicU64, Ordering::*};
use drystone_core::sync::{LockClass, LockCounters};
use drystone_core::turn::{Place, TurnLock};
use drystone_core::{Bio, BioList};
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much later than the keeper the other channels recheck.
pub(crate) const GRACE_NS: Ns = 5_000_000;
/// Bios that become free within this time go together: far less than the burst, so no time is lost.
const QUANTUM_NS: Ns = 500_000;
/// Nothing is due.
pub(crate) const NEVER: Ns = Ns::MAX;

/// See the module's text. On cache lines of its own.
#[repr(align(128))]
pub(crate) struct Lane {
    /// The group whose limit it is.
    pub(crate) top: u32,
    /// A channel is gone whose bios are to leave.
    purge: AtomicBool,
    due: AtomicU64,
    keeper: AtomicU32,
    turn: TurnLock<Waiting>,
}

/// What the turn guards.
#[derive(Default)]
struct Waiting {
    tree: Tree,
    /// Bios in the tree by the channel that they came through.
    homes: BTreeMap<u32, usize>,
    closed: bool,
    parked: BioList,
}

/// The thread that asks for turns at lanes, with what it needs there and what it has to do after
/// it.
pub(crate) struct Caller<'a> {
    pub(crate) device: &'a DeviceThrottle,
    /// The rules as the caller knows them, and their epoch; perhaps old ones.
    rules: &'a Rules,
    epoch: u64,
    pub(crate) locks: &'a LockCounters,
    pub(crate) now: Ns,
    /// The caller's own channel.
    pub(crate) me: Option<u32>,
    /// Channels to be told that something is there for them.
    pub(crate) told: Vec<Arc<Port>>,
    /// Lanes to which bios were sent on.
    lanes: Vec<Arc<Lane>>,
    ports: Option<Arc<Ports>>,
    current: Option<Arc<Rules>>,
    /// Bios that may go, all of one channel.
    granted: BioList,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(
        device: &'a DeviceThrottle,
        (epoch, rules): (u64, &'a Rules),
        locks: &'a LockCounters,
        now: Ns,
        me: Option<u32>,
    ) -> Self {
        Caller {
            device,
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

    /// Do what is to be done at `lane`, and at the lanes that bios are sent on to.
    pub(crate) fn run(&mut self, lane: &Arc<Lane>) {
        lane.run(self);
        while let Some(next) = self.lanes.pop() {
            next.run(self);
        }
    }

    /// A turn begins: what was known before it may be older than what is there.
    fn forget(&mut self) {
        (self.current, self.ports) = (None, None);
    }

    fn port(&mut self, home: u32) -> Arc<Port> {
        let known = self.ports.as_ref().and_then(|ports| ports.get(home));
        if let Some(port) = known {
            return port.clone();
        }
        let ports = self.ports.insert(self.device.ports(self.locks));
        ports.get(home).expect("a channel stays while bios of it wait").clone()
    }

    /// `bio` may go.
    fn grant(&mut self, bio: Box<Bio>) {
        if self.granted.back().is_some_and(|last| last.home != bio.home) {
            self.hand_over();
        }
        self.granted.push(bio);
    }

    /// Give what was granted to its channel.
    fn hand_over(&mut self) {
        let Some(home) = self.granted.back().map(|bio| bio.home) else { return };
        let port = self.port(home);
        port.granted.add(&mut self.granted);
        self.tell(port);
    }

    fn tell(&mut self, port: Arc<Port>) {
        let known = self.told.iter().any(|other| Arc::ptr_eq(other, &port));
        if self.me != Some(port.index()) && !known {
            self.told.push(port);
        }
    }

    /// The path of `bio` by the rules of now: whoever changes them looks at the lanes after that,
    /// but not before the turn that is under way.
    fn path_now(&mut self, bio: &Bio) -> Option<Arc<Path>> {
        if self.epoch == self.device.epoch() || drystone_core::mutated!("lane_epoch") {
            return self.rules.path(bio.group, Direction::of(bio)).cloned();
        }
        if self.current.is_none() {
            self.current = Some(self.device.rules(self.locks).1);
        }
        let current = self.current.as_ref()?;
        current.path(bio.group, Direction::of(bio)).cloned()
    }

    /// Send `bio` to where the rules of now say; back comes what belongs to `here`, with its path.
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

impl Lane {
    pub(crate) fn new(top: u32) -> Arc<Self> {
        Arc::new(Lane {
            top,
            purge: AtomicBool::new(false),
            due: AtomicU64::new(NEVER),
            keeper: AtomicU32::new(u32::MAX),
            turn: TurnLock::new(LockClass::Throttle, Waiting::default()),
        })
    }

    /// Publish `bios` (emptied), whose `home` is set, to the holder of the turn. [`Caller::run`]
    /// follows.
    pub(crate) fn publish(&self, locks: &LockCounters, bios: &mut BioList) {
        self.turn.leave_to_others(locks, bios, Place::Tail);
    }

    /// The published bios, first published first. With the turn.
    fn published(&self) -> BioList {
        let [(mut head, _), (mut tail, _)] = self.turn.take();
        head.append(&mut tail);
        head
    }

    /// When channel `port`, which has bios here, is to look; [`NEVER`] if that is not known yet.
    pub(crate) fn due(&self, port: u32) -> Ns {
        let due = self.due.load(Relaxed);
        match self.keeper.load(Relaxed) == port {
            true => due,
            false => due.saturating_add(GRACE_NS),
        }
    }

    /// Bios wait here, as far as can be seen.
    pub(crate) fn has_bios(&self) -> bool {
        self.due.load(Relaxed) != NEVER || self.turn.has_published()
    }

    /// The bios of channels that are gone are to leave. [`Caller::run`] follows.
    pub(crate) fn purge(&self) {
        self.purge.store(true, Release);
    }

    fn run(&self, caller: &mut Caller<'_>) {
        let who = caller.me.unwrap_or(u32::MAX);
        while let Some(mut waiting) = self.turn.enter_to_recheck(caller.locks, who) {
            caller.forget();
            let published = self.published();
            match waiting.closed && !drystone_core::mutated!("lane_closed") {
                true => self.send_all_on(published, &mut waiting, caller),
                false => self.dispatch(published, &mut waiting, caller),
            }
            caller.hand_over();
            if !self.turn.leave(waiting) {
                return;
            }
        }
    }

    fn dispatch(&self, published: BioList, waiting: &mut Waiting, caller: &mut Caller<'_>) {
        self.take_in(published, waiting, caller);
        if self.purge.swap(false, AcqRel) {
            self.let_go(waiting, caller);
        }
        let now = ticks_of(caller.now);
        let next = loop {
            match waiting.tree.pop(now) {
                Ok(bio) => {
                    leave_home(&mut waiting.homes, &bio);
                    caller.grant(bio);
                }
                Err(at) => break at,
            }
        };
        let due = match waiting.tree.is_empty() {
            true => NEVER,
            false => ns_of(next).max(caller.now + QUANTUM_NS),
        };
        self.keep_time(waiting, caller, due);
    }

    fn take_in(&self, mut bios: BioList, waiting: &mut Waiting, caller: &mut Caller<'_>) {
        while let Some(bio) = bios.pop() {
            if let Some((bio, path)) = caller.send_on(self, bio) {
                if caller.port(bio.home).is_gone() {
                    caller.grant(bio);
                    continue;
                }
                *waiting.homes.entry(bio.home).or_default() += 1;
                waiting.tree.push(&path.steps, bio, ticks_of(caller.now));
            }
        }
    }

    /// Bios of channels that are gone leave.
    fn let_go(&self, waiting: &mut Waiting, caller: &mut Caller<'_>) {
        let ports = caller.device.ports(caller.locks);
        let is_gone = |bio: &Bio| ports.get(bio.home).is_none_or(|port| port.is_gone());
        self.grant_all(waiting.tree.take(is_gone), waiting, caller);
    }

    fn grant_all(&self, mut bios: BioList, waiting: &mut Waiting, caller: &mut Caller<'_>) {
        while let Some(bio) = bios.pop() {
            leave_home(&mut waiting.homes, &bio);
            caller.grant(bio);
        }
    }

    /// Note when the next bio may go and who wakes then. A keeper that will wake early enough
    /// stays, so that nobody wakes in vain; else it is the caller, if bios of it wait.
    fn keep_time(&self, waiting: &Waiting, caller: &mut Caller<'_>, due: Ns) {
        let before = (self.keeper.load(Relaxed), self.due.load(Relaxed));
        let has_bios = |home: &u32| waiting.homes.contains_key(home);
        let stays = caller.now < before.1 && before.1 <= due;
        let stays = stays.then_some(before.0);
        let keeper = (stays.into_iter().chain(caller.me).chain([before.0]).find(has_bios))
            .or_else(|| waiting.homes.keys().next().copied());
        self.due.store(due, Relaxed);
        let Some(keeper) = keeper else { return };
        self.keeper.store(keeper, Relaxed);
        if keeper != before.0 || due < before.1 {
            let port = caller.port(keeper);
            caller.tell(port);
        }
    }

    fn send_all_on(&self, mut published: BioList, waiting: &mut Waiting, caller: &mut Caller<'_>) {
        let mut bios = waiting.parked.take();
        bios.append(&mut published);
        while let Some(bio) = bios.pop() {
            if let Some((bio, _)) = caller.send_on(self, bio) {
                // The new rules are not published yet; their publisher runs the lane after that.
                waiting.parked.push(bio);
            }
        }
    }

    /// Its structure changes: nothing goes until the new rules are published, and then it goes on
    /// by these. For the control plane, which may wait.
    pub(crate) fn close(&self, locks: &LockCounters) {
        let mut waiting = self.turn.wait(locks);
        waiting.closed = true;
        let mut bios = waiting.tree.move_all();
        bios.append(&mut self.published());
        waiting.parked.append(&mut bios);
        waiting.homes.clear();
        self.due.store(NEVER, Relaxed);
        _ = self.turn.leave(waiting);
    }

    /// Let the bios of `group` go, whatever the limits. For the control plane.
    pub(crate) fn release(&self, group: u32, caller: &mut Caller<'_>) {
        let mut bios = self.take_out(caller, |bio| bio.group == group);
        while let Some(bio) = bios.pop() {
            caller.grant(bio);
        }
        caller.hand_over();
    }

    /// Take out the bios that wait here and for which `is_one` says true. Waits for the turn, which
    /// no thread has for long.
    pub(crate) fn take_out(
        &self,
        caller: &mut Caller<'_>,
        is_one: impl Fn(&Bio) -> bool,
    ) -> BioList {
        let mut waiting = self.turn.wait(caller.locks);
        caller.forget();
        let published = self.published();
        match waiting.closed {
            true => self.send_all_on(published, &mut waiting, caller),
            false => self.take_in(published, &mut waiting, caller),
        }
        caller.hand_over();
        let mut bios = waiting.tree.take(&is_one);
        bios.iter().for_each(|bio| leave_home(&mut waiting.homes, bio));
        let mut parked = waiting.parked.take();
        while let Some(bio) = parked.pop() {
            let to = if is_one(&bio) { &mut bios } else { &mut waiting.parked };
            to.push(bio);
        }
        _ = self.turn.leave(waiting);
        bios
    }

    /// Do `change`, of limits, while nothing goes. For the control plane.
    pub(crate) fn change_limits(&self, locks: &LockCounters, change: impl FnOnce()) {
        let mut waiting = self.turn.wait(locks);
        change();
        waiting.tree.forget_service();
        _ = self.turn.leave(waiting);
    }
}

fn leave_home(homes: &mut BTreeMap<u32, usize>, bio: &Bio) {
    let Some(count) = homes.get_mut(&bio.home) else { return };
    *count -= 1;
    if *count == 0 {
        homes.remove(&bio.home);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::hierarchy::Hierarchy;
    use crate::limits::Limits;
    use crate::rules::ROOT;
    use drystone_core::clock::ManualClock;
    use drystone_core::mailbox::Message;
    use drystone_core::ring::Engine;
    use drystone_core::sync::LockRegistry;
    use drystone_core::{ContextSet, IoBuf, Sector};

    /// Bios are withdrawn between the closing of a lane and the new rules, while others are
    /// published there that no holder has taken in yet.
    #[test]
    fn what_comes_to_a_closed_lane_stays_where_the_new_rules_find_it() {
        let clock = ManualClock::new(1);
        let registry = LockRegistry::new(clock.clone());
        let locks = registry.counters();
        let device = DeviceThrottle::new("d", clock, &locks);
        let mut hierarchy = Hierarchy::new();
        let group = hierarchy.insert(ROOT, "g", "g").unwrap();
        device.add_groups(&hierarchy, &[group]);
        let limits = Limits { wiops: Some(1), ..Limits::default() };
        device.set_limits(&hierarchy, &[(group, limits)]);
        let context = ContextSet::counted_by(registry).open(Engine::Plain).unwrap();
        let port = device.open_port(Message::to(Arc::downgrade(context.handle()), 0, 0), &locks);

        let (epoch, rules) = device.rules(&locks);
        let lane = rules.path(group, Direction::Write).unwrap().lane.clone();
        lane.close(&locks);
        let mut bios = BioList::new();
        for n in 0..2 {
            let mut bio = Bio::write(Sector(0), IoBuf::zeroed(512));
            (bio.group, bio.home, bio.user_data) = (group, port.index(), n);
            bios.push(bio);
        }
        lane.publish(&locks, &mut bios);
        let mut caller = Caller::new(&device, (epoch, &rules), &locks, 1, Some(port.index()));
        let mut taken = lane.take_out(&mut caller, |bio| bio.user_data == 1);
        assert_eq!(taken.pop().map(|bio| bio.user_data), Some(1));
        let mut waiting = lane.turn.wait(&locks);
        assert!(waiting.tree.is_empty() && waiting.homes.is_empty());
        assert_eq!(waiting.parked.take().pop().map(|bio| bio.user_data), Some(0));
    }
}
