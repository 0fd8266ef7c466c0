//! Models of the state that contexts share without a lock, for every order of steps (loom).
//! `scripts/loom.sh` lists the mutations that each model must catch.

use crate::budget::{BURST, Budget, LEASE_NS, cost_ticks, ticks_of};
use crate::counts::{Count, Counted, Halves};
use crate::device::DeviceThrottle;
use crate::dispatcher::Dispatcher;
use crate::group::GroupId;
use crate::hierarchy::Hierarchy;
use crate::limits::{Direction, Limits};
use crate::port::Port;
use drystone_core::clock::ManualClock;
use drystone_core::mailbox::Message;
use drystone_core::sync::{Lock, LockClass, LockCounters};
use drystone_core::{Bio, BioList, ChannelId, IoBuf, Sector};
use std::sync::Arc;

fn check(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(body);
}

fn counters() -> Arc<LockCounters> {
    LockCounters::new(ManualClock::new(1))
}

/// Contexts together never lease more than permitted, and never charge more than the burst.
#[test]
fn loom_throttle_leases() {
    const RATE: u64 = 1_000_000;
    check(3, || {
        let budget = Arc::new(Budget::default());
        let now = ticks_of(1_000_000_000);
        budget.set_rate(now, Some(RATE));
        let take =
            move |budget: &Budget| (0..2).map(|_| budget.take(now, 10).unwrap()).sum::<u64>();
        let other = {
            let budget = budget.clone();
            loom::thread::spawn(move || take(&budget))
        };
        let leased = take(&budget) + other.join().unwrap();
        assert!(leased > 0 && leased <= LEASE_NS / 1000, "{leased} leased");
        let owed = budget.when(0) + BURST - now;
        assert!(owed <= BURST && owed >= cost_ticks(40 + leased, RATE));
    });
}

/// A change of the limit does not forgive I/O that passes at the same time.
#[test]
fn loom_throttle_rate_change() {
    check(3, || {
        let budget = Arc::new(Budget::default());
        let now = ticks_of(1_000_000_000);
        budget.set_rate(now, Some(1000));
        let other = {
            let budget = budget.clone();
            loom::thread::spawn(move || budget.take(now, 10).map_or(0, |lease| 10 + lease))
        };
        budget.set_rate(now, Some(500));
        let passed = other.join().unwrap();
        let owed = (budget.when(0) + BURST).saturating_sub(now);
        assert!(owed >= cost_ticks(passed, 500), "{passed} passed, {owed} owed");
    });
}

/// Readers never see a number of two halves torn.
#[test]
fn loom_throttle_halves() {
    const EDGE: u64 = u32::MAX as u64;
    check(3, || {
        let count = Arc::new(Halves::default());
        count.add(EDGE);
        let reader = {
            let count = count.clone();
            loom::thread::spawn(move || count.get())
        };
        count.add(1);
        let seen = reader.join().unwrap();
        assert!(seen == EDGE || seen == EDGE + 1, "{seen:x}");
        assert_eq!(count.get(), EDGE + 1);
    });
}

/// A reset loses no count that is made after it, whatever is counted at the same time.
#[test]
fn loom_throttle_reset() {
    check(3, || {
        let counted = Arc::new(Lock::new(LockClass::Control, Counted::default()));
        let [one, other] = [(); 2].map(|()| counted.lock(&counters()).for_channel());
        // A count that is under way must not bring back counts from before the reset.
        one.passed(0, 1, 5);
        let resetter = {
            let counted = counted.clone();
            loom::thread::spawn(move || {
                counted.lock(&counters()).reset();
                other.passed(0, 1, 1);
            })
        };
        one.passed(0, 1, 1);
        resetter.join().unwrap();
        let shown = counted.lock(&counters()).get().rios;
        assert!((1..=2).contains(&shown), "{shown} shown");
    });
}

/// A device with a group that may do almost nothing, and has done that already.
struct Scene {
    device: Arc<DeviceThrottle>,
    hierarchy: Hierarchy,
    group: GroupId,
    port: Arc<Port>,
}

impl Scene {
    fn new() -> Arc<Self> {
        let locks = counters();
        let device = DeviceThrottle::new("d", ManualClock::new(1_000_000_000), &locks);
        let port = device.shared().open_port(Message::new(ChannelId(0), 0), &locks);
        let mut hierarchy = Hierarchy::new();
        let group = hierarchy.insert(GroupId::ROOT, "g", "g").unwrap();
        device.add_groups(&hierarchy, &[group]);
        let scene = Scene { device, hierarchy, group, port };
        scene.limit(Some(1));
        // Every lock is used once before threads contend for it.
        scene.submit();
        Arc::new(scene)
    }

    fn limit(&self, riops: Option<u64>) {
        let limits = Limits { riops, ..Limits::default() };
        self.device.set_limits(&self.hierarchy, &[(self.group, limits)]);
    }

    /// Submit as a channel whose bio may have to wait by its rules.
    fn submit(&self) {
        let locks = counters();
        let (epoch, rules) = self.device.shared().rules(&locks);
        let mut bio = Bio::read(Sector(0), IoBuf::zeroed(512));
        (bio.group, bio.port) = (self.group.as_u32(), self.port.id());
        let mut bios = BioList::new();
        bios.push(bio);
        match rules.path(self.group, Direction::Read) {
            None => self.port.granted.add(&mut bios),
            Some(path) => {
                path.lane.publish(&locks, &mut bios);
                let mut dispatcher = Dispatcher::new(
                    self.device.shared(),
                    (epoch, &rules),
                    &locks,
                    1_000_000_000,
                    Some(self.port.id()),
                );
                dispatcher.run(&path.lane);
            }
        }
    }

    fn granted(&self) -> usize {
        self.port.granted.take().len()
    }
}

fn goes_on(change: impl Fn(&Scene) + Sync + Send + 'static) {
    check(2, move || {
        let scene = Scene::new();
        assert_eq!(scene.granted(), 0);
        let bringer = {
            let scene = scene.clone();
            loom::thread::spawn(move || scene.submit())
        };
        change(&scene);
        bringer.join().unwrap();
        assert_eq!(scene.granted(), 2, "a bio stays behind");
    });
}

/// A limit is removed while a bio is published: no bio stays behind.
#[test]
fn loom_throttle_limit_lifted() {
    goes_on(|scene| scene.limit(None));
}

/// The device is closed while a bio is published.
#[test]
fn loom_throttle_device_closed() {
    goes_on(|scene| scene.device.close());
}

/// The group is removed while a bio looks up its path.
#[test]
fn loom_throttle_group_removed() {
    goes_on(|scene| scene.device.remove_group(scene.group));
}
