//! A storm of groups: they come and go, and their limits change, while contexts have bios of them
//! under way, withdraw them, and are dropped; and a volume's table is reloaded. Each bio ends once,
//! with the right data, and nothing is left waiting.
//!
//! The changes are random, from a seed that is printed (`DRYSTONE_SEED` repeats it). No time is
//! judged but that of no progress after all limits have been lifted.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use common::{Random, one, seed};
use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Op, Sector, Status,
};
use drystone_stack::live::{LiveRuntime, LiveStack, OpenEnv};
use drystone_stack::runtime::{Change, Runtime};
use drystone_stack::{Source, check};
use drystone_throttle::{self as throttle, Groups};

const STACK: &str = r#"
[device.a]
type = "ram"
size = "8MiB"
[device.b]
type = "ram"
size = "8MiB"
[device.stripe]
table = "0 32768 striped 2 16 a 0 b 0"
[device.top]
table = "0 32768 linear stripe 0"
"#;

const TABLE: &str = "0 32768 linear stripe 0";
const DEVICES: [&str; 4] = ["a", "b", "stripe", "top"];
const THREADS: usize = 4;
/// Sectors of the volume that a thread has of its own.
const OWN: u64 = 8192;
const PLACE: u64 = 16;
const BIOS_MAX: usize = 12;
/// Changes, about [`PAUSE`] apart.
const CHANGES: u64 = 1_500;
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(60);
/// Groups that come and go, each below the one that its path says.
const PATHS: [&str; 7] = ["p", "p/q", "p/q/r", "p/s", "t", "t/u", "v"];
const RATES: [Option<u64>; 8] =
    [None, None, None, Some(1), Some(300), Some(100_000), Some(50_000_000), Some(u64::MAX)];

struct Storm {
    stack: LiveStack,
    /// Numbers of groups, of which some are no more.
    groups: Mutex<Vec<u32>>,
    ended: [AtomicU64; THREADS],
    calm: AtomicBool,
    seed: u64,
}

impl Storm {
    fn device(&self, name: &str) -> Arc<dyn Device> {
        let all = self.stack.devices();
        all.iter().find(|live| live.name == name).expect(name).device.clone()
    }

    fn all_groups(&self) -> &Groups {
        self.stack.groups()
    }

    fn create(&self, random: &mut Random) {
        if let Ok(group) = self.all_groups().create(random.of(&PATHS)) {
            let mut groups = self.groups.lock().unwrap();
            groups.push(group.id().as_u32());
            let few = groups.len().saturating_sub(12);
            groups.drain(..few);
        }
    }

    fn limit(&self, random: &mut Random) {
        let (path, device) = (random.of(&PATHS), random.of(&DEVICES));
        let mut rate = || (random.below(2) == 0).then(|| random.of(&RATES));
        let change = throttle::Change { rbps: rate(), wbps: rate(), riops: rate(), wiops: rate() };
        // Perhaps there is no such group.
        let _ = self.all_groups().set_max(path, device, &change);
    }

    fn reload(&self, runtime: &LiveRuntime) {
        let change = Change::Reload { table: TABLE, force: true, resume_within: Some(20_000_000) };
        // I/O that waits below may take longer.
        let _ = runtime.change("top", &change);
    }

    fn run_changes(&self) {
        let mut random = Random::new(self.seed);
        let runtime = self.stack.runtime(Box::new(|ns| sleep(Duration::from_nanos(ns))));
        for change in 0..CHANGES {
            match random.below(16) {
                0..3 => self.create(&mut random),
                // Perhaps there is none, or there are others below it.
                3..5 => drop(self.all_groups().remove(random.of(&PATHS))),
                5 if change.is_multiple_of(8) => self.reload(&runtime),
                6 => drop(self.all_groups().reset_stat("")),
                7 => drop(self.all_groups().io_stat("")),
                _ => self.limit(&mut random),
            }
            if random.below(4) > 0 {
                sleep(PAUSE);
            }
        }
        self.lift();
    }

    fn lift(&self) {
        let max = throttle::Change {
            rbps: Some(None),
            wbps: Some(None),
            riops: Some(None),
            wiops: Some(None),
        };
        for path in PATHS.iter().filter(|path| self.all_groups().find(path).is_some()) {
            DEVICES.iter().for_each(|device| {
                self.all_groups().set_max(path, device, &max).unwrap();
            });
        }
    }

    /// Ends a test that hangs.
    fn watch(&self, over: &AtomicBool) {
        let mut since = None;
        while !over.load(SeqCst) {
            let calm = self.calm.load(SeqCst);
            let since = since.get_or_insert_with(Instant::now);
            if !calm {
                *since = Instant::now();
            } else if since.elapsed() > PATIENCE {
                let ended: Vec<_> = self.ended.iter().map(|n| n.load(SeqCst)).collect();
                let bios: Vec<_> =
                    DEVICES.map(|name| self.device(name).attribute("inflight")).into();
                // Not by the macro, whose text would be kept back until the end of the test.
                let mut out = std::io::stderr().lock();
                use std::io::Write;
                let _ =
                    writeln!(out, "DRYSTONE_SEED={}: hangs; ended {ended:?}, {bios:?}", self.seed);
                std::process::abort();
            }
            sleep(Duration::from_millis(20));
        }
    }
}

/// One thread's context, with sectors of its own.
struct Load<'a> {
    storm: &'a Storm,
    set: Arc<ContextSet>,
    number: usize,
    cx: Context,
    device: ChannelId,
    random: Random,
    /// The open I/Os, by user data: the place, and whether it is written.
    open: BTreeMap<u64, (u64, bool)>,
    /// The value that was written last, by place.
    written: BTreeMap<u64, u64>,
    /// Places of which nobody knows what they contain.
    unknown: BTreeSet<u64>,
    /// Places that bios of dropped contexts may still write to.
    lost: BTreeSet<u64>,
    withdrawn: u64,
    serial: u64,
}

impl<'a> Load<'a> {
    fn new(storm: &'a Storm, set: &Arc<ContextSet>, number: usize) -> Self {
        let (cx, device) = opened_context(storm, set);
        Load {
            storm,
            set: set.clone(),
            number,
            cx,
            device,
            random: Random::new(storm.seed.wrapping_add(number as u64 + 1)),
            open: BTreeMap::new(),
            written: BTreeMap::new(),
            unknown: BTreeSet::new(),
            lost: BTreeSet::new(),
            withdrawn: 0,
            serial: 0,
        }
    }

    /// A bio of a place that no other open one touches.
    fn next(&mut self) -> Option<Box<Bio>> {
        let place = self.number as u64 * OWN + PLACE * self.random.below(OWN / PLACE);
        // Half of a chunk behind its beginning, so that it is divided.
        let place = if self.random.below(2) == 0 { place + PLACE / 2 } else { place };
        let is_near = |other: &u64| other.abs_diff(place) < PLACE;
        let taken = self.open.values().any(|(other, _)| is_near(other));
        if taken || self.lost.iter().any(is_near) || place + PLACE > (self.number as u64 + 1) * OWN
        {
            return None;
        }
        self.serial += 1;
        let (write, sector) = (self.random.below(2) == 0, Sector(place));
        let mut bio = match write {
            true => Bio::write(sector, IoBuf::from_slice(&content(place, self.serial))),
            false => Bio::read(sector, IoBuf::zeroed(PLACE as usize * 512)),
        };
        bio.user_data = self.serial;
        let groups = self.storm.groups.lock().unwrap();
        bio.group = if groups.is_empty() { 0 } else { self.random.of(&groups) };
        self.open.insert(self.serial, (place, write));
        Some(bio)
    }

    fn submit(&mut self) {
        let mut list = BioList::new();
        for _ in 0..1 + self.random.below(6) {
            if self.open.len() < BIOS_MAX
                && let Some(bio) = self.next()
            {
                list.push(bio);
            }
        }
        self.cx.submit(self.device, &mut list);
    }

    fn reap(&mut self) {
        let mut out = BioList::new();
        if !self.open.is_empty() && self.random.below(2) == 0 {
            let soon = self.cx.now() + 3_000_000;
            self.cx.wait(Some(soon));
        }
        self.cx.reap(&mut out);
        self.storm.ended[self.number].fetch_add(out.len() as u64, SeqCst);
        while let Some(bio) = out.pop() {
            self.check(&bio);
        }
    }

    fn check(&mut self, bio: &Bio) {
        let (place, write) = self.open.remove(&bio.user_data).expect("each bio ends once");
        assert_eq!((bio.sector.0, bio.op == Op::Write), (place, write));
        let sectors = place..place + PLACE;
        if bio.status == Status::Cancelled {
            assert!(bio.user_data < self.withdrawn, "{} is wanted", bio.user_data);
            self.unknown.extend(sectors.filter(|_| write));
            return;
        }
        assert_eq!(bio.status, Status::Ok);
        if write {
            for sector in sectors {
                self.unknown.remove(&sector);
                self.written.insert(sector, bio.user_data);
            }
            return;
        }
        let buf = bio.buf().expect("its buffer");
        for (sector, found) in sectors.zip(buf.chunks(512)) {
            let last = self.written.get(&sector).copied().unwrap_or(0);
            assert!(self.unknown.contains(&sector) || found == one(sector, last), "{sector}");
        }
    }

    fn withdraw(&mut self) {
        self.withdrawn = self.serial + 1;
        self.cx.withdraw(0..self.withdrawn);
    }

    /// Drop the context with what is open, and open another.
    fn leave(&mut self) {
        for (place, write) in std::mem::take(&mut self.open).into_values() {
            if write {
                self.lost.insert(place);
                self.unknown.extend(place..place + PLACE);
            }
        }
        (self.cx, self.device) = opened_context(self.storm, &self.set);
    }

    fn run(mut self) {
        let mut leaves = 0;
        while !self.storm.calm.load(SeqCst) {
            self.submit();
            self.reap();
            match self.random.below(400) {
                0..3 => self.withdraw(),
                3 if leaves < 60 => {
                    leaves += 1;
                    self.leave();
                }
                4 => sleep(Duration::from_millis(8)),
                _ => {}
            }
        }
        while !self.open.is_empty() {
            self.reap();
        }
        assert_eq!(self.cx.outstanding(), 0);
    }
}

fn opened_context(storm: &Storm, set: &Arc<ContextSet>) -> (Context, ChannelId) {
    let mut cx = set.open(Engine::Auto).expect("a ring");
    let device = cx.open(&storm.device("top")).expect("a channel");
    (cx, device)
}

fn content(place: u64, serial: u64) -> Vec<u8> {
    (place..place + PLACE).flat_map(|at| one(at, serial)).collect()
}

fn opened(at: &OpenEnv) -> LiveStack {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let stack = check("s", source, Path::new("/srv")).unwrap_or_else(|report| panic!("{report}"));
    LiveStack::open(&stack, at).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn groups_and_limits_change_under_load() {
    let seed = seed();
    println!("DRYSTONE_SEED={seed}");
    let at = OpenEnv::new(THREADS as u32, SystemClock::new());
    let storm = Storm {
        stack: opened(&at),
        groups: Mutex::default(),
        ended: Default::default(),
        calm: AtomicBool::new(false),
        seed,
    };
    let set = ContextSet::counted_by(at.locks.clone());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..THREADS).map(|number| Load::new(&storm, &set, number)).collect();
        let threads: Vec<_> = loads.into_iter().map(|load| scope.spawn(|| load.run())).collect();
        scope.spawn(|| storm.watch(&over));
        let changed = scope.spawn(|| storm.run_changes()).join();
        storm.calm.store(true, SeqCst);
        let ended: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        over.store(true, SeqCst);
        changed.unwrap();
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    for name in DEVICES {
        assert_eq!(storm.device(name).stats().in_flight(), (0, 0), "{name}");
    }
    assert!(storm.ended.iter().all(|ended| ended.load(SeqCst) > 0), "all had their share");
    assert_eq!(set.free_idle_orphans(), 0, "contexts that were dropped have ended");
}
