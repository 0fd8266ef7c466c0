//! The throttles of *before*, *mailed*, *ours* and *none*: every bio ends, counts are right, limits
//! hold in simulated time, and each takes the locks that its design takes.

use std::path::Path;
use std::sync::Arc;

use drystone_core::clock::{Clock, ManualClock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockClass;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status,
};
use drystone_lab::throttle::{Baseline, NoThrottle, Patched, QUEUE_LOCK, STATS_LOCK};
use drystone_queue::scheduler::MqDeadline;
use drystone_stack::live::{OpenDevice, OpenEnv, open_device, open_with};
use drystone_stack::spec::DeviceSpec;
use drystone_throttle::{Change, DeviceThrottle, IoStat};

const BEFORE: OpenDevice = open_with::<MqDeadline, Baseline>;
const MAILED: OpenDevice = open_with::<MqDeadline, Patched>;
const OURS: OpenDevice = open_with::<MqDeadline, DeviceThrottle>;
const NONE: OpenDevice = open_with::<MqDeadline, NoThrottle>;

const KIB: u64 = 1024;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const START: u64 = 1000 * SECOND;

struct Bench {
    at: OpenEnv,
    device: Arc<dyn Device>,
    set: Arc<ContextSet>,
    name: String,
}

impl Bench {
    fn new(open: OpenDevice, clock: Arc<dyn Clock>) -> Self {
        let at = OpenEnv { open, ..OpenEnv::new(4, clock) };
        let spec = DeviceSpec::parse("null,queue.scheduler=none", Path::new("/"))
            .unwrap_or_else(|report| panic!("{}", report.render(false)));
        let device = open_device(&spec, &at).expect("a device");
        let set = ContextSet::counted_by(at.locks.clone());
        Bench { at, device, set, name: spec.name }
    }

    fn group(&self, path: &str) -> u32 {
        self.at.groups.create(path).expect("a group").id().as_u32()
    }

    fn limit(&self, path: &str, change: Change) {
        self.at.groups.set_max(path, &self.name, &change).expect("a limit");
    }

    fn user(&self) -> User {
        let mut cx = self.set.open(Engine::Plain).expect("a context");
        let index = cx.open(&self.device).expect("a channel");
        User { cx, index }
    }

    fn stat(&self, path: &str) -> IoStat {
        let all = self.at.groups.io_stat(path).expect("a group");
        all.into_iter().next().map(|(_, stat)| stat).unwrap_or_default()
    }

    fn locks(&self, class: LockClass) -> u64 {
        self.at.locks.stats().get(class).acquisitions
    }
}

struct User {
    cx: Context,
    index: ChannelId,
}

fn bio(write: bool, group: u32, bytes: u64) -> Box<Bio> {
    let buf = IoBuf::zeroed(bytes as usize);
    let make = if write { Bio::write } else { Bio::read };
    let mut bio = make(Sector(0), buf);
    bio.group = group;
    bio
}

impl User {
    fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.cx.submit(self.index, &mut list);
    }

    fn reap(&mut self) -> BioList {
        let mut out = BioList::new();
        self.cx.reap(&mut out);
        out
    }

    /// When each bio ended, in steps of a millisecond for at most `most` of them.
    fn times(&mut self, clock: &ManualClock, most: u64) -> Vec<(u64, u64)> {
        let mut times = Vec::new();
        for step in 0..=most {
            self.cx.wait(Some(clock.now()));
            for bio in self.reap().iter() {
                assert_eq!(bio.status, Status::Ok);
                times.push((step, bio.user_data));
            }
            clock.advance(MS);
        }
        times
    }
}

fn reads(bps: Option<u64>, iops: Option<u64>) -> Change {
    Change { rbps: Some(bps), riops: Some(iops), ..Change::default() }
}

#[test]
fn every_bio_of_every_thread_ends_and_is_counted_for_its_group() {
    const ROUNDS: u64 = 200;
    for (name, open) in [("before", BEFORE), ("mailed", MAILED), ("ours", OURS), ("none", NONE)] {
        let bench = Bench::new(open, SystemClock::new());
        let (free, ruled, below) =
            (bench.group("free"), bench.group("ruled"), bench.group("ruled/below"));
        bench.limit("ruled", reads(Some(1 << 44), Some(u64::from(u32::MAX))));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mut user = bench.user();
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let all = [0, free, ruled, below]
                            .map(|group| [bio(false, group, 4096), bio(true, group, 512)]);
                        user.submit(all.into_iter().flatten());
                        let mut ended = 0;
                        while ended < 8 {
                            let bios = user.reap();
                            assert!(bios.iter().all(|bio| bio.status == Status::Ok));
                            ended += bios.len();
                            if ended < 8 {
                                user.cx.wait(None);
                            }
                        }
                    }
                });
            }
        });
        let times = |n: u64| IoStat {
            rbytes: 4096 * n,
            rios: n,
            wbytes: 512 * n,
            wios: n,
            ..IoStat::default()
        };
        let each = if name == "none" { 0 } else { 4 * ROUNDS };
        assert_eq!(bench.stat("free"), times(each), "{name}");
        assert_eq!(bench.stat("ruled"), times(2 * each), "{name}, with those below");
        let fields = bench.device.stats().fields();
        assert_eq!(
            (fields[0] + fields[1], fields[4] + fields[5]),
            (16 * ROUNDS, 16 * ROUNDS),
            "{name}"
        );
    }
}

#[test]
fn each_takes_the_locks_of_its_design() {
    const COUNT: u64 = 50;
    // Of the queue lock and of the statistics', for a bio without a rule and for one with.
    let expected = [
        ("before", BEFORE, [1, 1], [1, 1]),
        ("mailed", MAILED, [0, 0], [1, 0]),
        ("ours", OURS, [0, 0], [0, 0]),
        ("none", NONE, [0, 0], [0, 0]),
    ];
    for (name, open, without, with) in expected {
        let bench = Bench::new(open, ManualClock::new(START));
        let (free, ruled) = (bench.group("free"), bench.group("ruled"));
        bench.limit("ruled", reads(Some(1 << 44), None));
        let mut user = bench.user();
        // A write of the group whose reads are limited has no rule.
        let loads = [(0, false, without), (free, false, without), (ruled, true, without)];
        for (group, write, each) in loads.into_iter().chain([(ruled, false, with)]) {
            user.submit([bio(write, group, 512)]);
            let before = [QUEUE_LOCK, STATS_LOCK].map(|class| bench.locks(class));
            (0..COUNT).for_each(|_| user.submit([bio(write, group, 512)]));
            let taken = [QUEUE_LOCK, STATS_LOCK].map(|class| bench.locks(class));
            let taken = [taken[0] - before[0], taken[1] - before[1]];
            assert_eq!(taken, each.map(|n| n * COUNT), "{name}: group {group}, write {write}");
            assert_eq!(user.reap().len() as u64, COUNT + 1);
        }
    }
}

#[test]
fn limits_hold_in_simulated_time() {
    for (name, open) in [("before", BEFORE), ("mailed", MAILED), ("ours", OURS)] {
        for limit in [reads(Some(KIB * KIB), None), reads(None, Some(256))] {
            let clock = ManualClock::new(START);
            let bench = Bench::new(open, clock.clone());
            let group = bench.group("a");
            bench.limit("a", limit);
            let mut user = bench.user();
            user.submit((0..512).map(|number| {
                let mut bio = bio(false, group, 4 * KIB);
                bio.user_data = number;
                bio
            }));
            // Two seconds' worth, but for what a slice lets pass at once.
            let times = user.times(&clock, 3000);
            assert_eq!(times.len(), 512, "{name}");
            assert!(times.windows(2).all(|pair| pair[0].1 < pair[1].1), "{name}: in their order");
            assert!((1850..=2250).contains(&times[511].0), "{name}: {:?}", times[511]);
            assert_eq!(bench.stat("a").rios, 512, "{name}");
        }
    }
}

#[test]
fn a_parents_limit_binds_its_children_and_nobody_else() {
    for (name, open) in [("before", BEFORE), ("mailed", MAILED), ("ours", OURS)] {
        let clock = ManualClock::new(START);
        let bench = Bench::new(open, clock.clone());
        bench.group("p");
        let (a, b, other) = (bench.group("p/a"), bench.group("p/b"), bench.group("other"));
        bench.limit("p", reads(None, Some(100)));
        let mut user = bench.user();
        user.submit((0..100).map(|n| bio(false, if n % 2 == 0 { a } else { b }, 512)));
        user.submit((0..100).map(|_| bio(false, other, 512)));
        user.submit((0..100).map(|_| bio(true, a, 512)));
        let times = user.times(&clock, 2000);
        let at_once = times.iter().filter(|(at, _)| *at == 0).count();
        assert_eq!(times.len(), 300, "{name}");
        assert!((201..=212).contains(&at_once), "{name}: {at_once}");
        assert!((880..=1250).contains(&times[299].0), "{name}: {:?}", times[299]);
    }
}

#[test]
fn a_limit_that_is_lifted_lets_go_and_who_goes_away_ends() {
    for (name, open) in [("before", BEFORE), ("mailed", MAILED), ("ours", OURS)] {
        let clock = ManualClock::new(START);
        let bench = Bench::new(open, clock.clone());
        let group = bench.group("a");
        bench.limit("a", reads(None, Some(1)));
        let mut user = bench.user();
        user.submit((0..10).map(|_| bio(false, group, 512)));
        let early = user.times(&clock, 100).len();
        assert!(early <= 1, "{name}: {early}");
        let mut hurried = bio(false, group, 512);
        hurried.flags |= BioFlags::NOWAIT;
        user.submit([hurried]);
        let ended = user.reap();
        assert_eq!(
            ended.iter().map(|bio| bio.status).collect::<Vec<_>>(),
            [Status::Again],
            "{name}"
        );
        bench.limit("a", reads(None, None));
        assert_eq!(user.times(&clock, 1000).len(), 10 - early, "{name}");
        bench.limit("a", reads(None, Some(1)));
        user.submit((0..10).map(|_| bio(false, group, 512)));
        drop(user);
        let mut next = bench.user();
        bench.limit("a", reads(None, None));
        next.submit([bio(false, group, 512)]);
        assert_eq!(next.times(&clock, 1000).len(), 1, "{name}");
    }
}
