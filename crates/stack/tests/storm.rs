//! A storm: polling is switched off and on, and the numbers of queues change, below and in volumes
//! under load. Each bio ends once, with the right data.
//!
//! The changes are random, from a seed that is printed (`DRYSTONE_SEED` repeats it). No time is
//! judged but that of no progress: a thread whose I/O does not go on for five seconds ends the
//! test, with what each of them was at.

mod common;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use common::{Random, one, seed};
use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::{
    Bio, BioFlags, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status,
};
use drystone_stack::live::{LiveStack, OpenEnv};
use drystone_stack::{Source, check};
use tempfile::TempDir;

/// Volumes over devices that poll, one on the other, and over devices that do not.
const STACK: &str = r#"
[device.a]
type = "null"
size = "8MiB"
memory_backed = true
submit_queues = 2
poll_queues = 2
hw_queue_depth = 4
queue = { io_poll = true }

[device.b]
type = "null"
size = "8MiB"
memory_backed = true
irqmode = "timer"
completion_nsec = "20us"
submit_queues = 2
poll_queues = 2
hw_queue_depth = 4
queue = { io_poll = true, scheduler = "mq-deadline", straight = false }

[device.c]
type = "ram"
size = "8MiB"

[device.d]
type = "file"
path = "d.img"
size = "8MiB"
queue = { hw_queues = 1 }

[device.stripe]
table = "0 16384 striped 2 8 a 0 b 0"

[device.top]
table = "0 16384 linear stripe 0"

[device.linear]
table = ["0 8192 linear a 8192", "8192 8192 linear b 8192"]

[device.mixed]
table = "0 32768 striped 2 16 c 0 d 0"
"#;

/// The target of the load.
const LOADED: [&str; 3] = ["top", "linear", "mixed"];
const THREADS: usize = 4;
/// Sectors of each volume that a thread has of its own.
const OWN: u64 = 4096;
const SECTORS: u64 = 8;
const BIOS_MAX: usize = 16;
const CHANGES: u32 = 1_000;
/// I/Os from one change to the next one, so that each meets some.
const IOS_BETWEEN: u64 = 100;
const PATIENCE: Duration = Duration::from_secs(5);

struct Storm {
    stack: LiveStack,
    /// I/Os that ended, by thread.
    ended: [AtomicU64; THREADS],
    /// The state of each thread, for the message of a hang: I/Os open.
    open: [AtomicU64; THREADS],
    changes: AtomicU64,
    over: AtomicBool,
    seed: u64,
}

impl Storm {
    fn device(&self, name: &str) -> Arc<dyn Device> {
        let all = self.stack.devices();
        all.iter().find(|live| live.name == name).expect(name).device.clone()
    }

    fn set(&self, name: &str, attribute: &str, value: u64) {
        self.device(name).set_attribute(attribute, &value.to_string()).expect(attribute);
    }

    fn polls(&self, name: &str) -> bool {
        self.device(name).attribute("queue/io_poll").as_deref() == Some("1")
    }

    fn all_ended(&self) -> u64 {
        self.ended.iter().map(|n| n.load(SeqCst)).sum()
    }

    /// Something else than it was, below the volumes or in one. No volume says that it polls while
    /// something below it does not.
    fn change_polling(&self, random: &mut Random) {
        let member = ["a", "b"][random.below(2) as usize];
        match random.below(6) {
            0 => self.set(member, "queue/io_poll", 0),
            1 => {
                self.set(member, "poll_queues", 2);
                self.set(member, "queue/io_poll", 1);
            }
            2 => self.set(member, "poll_queues", 0),
            3 => self.set(member, "poll_queues", 1 + random.below(4)),
            n => {
                let volume = ["stripe", "top"][n as usize - 4];
                self.set(volume, "queue/io_poll", 0);
                assert!(!self.polls("top"), "{volume} does not");
                if self.polls("a") && self.polls("b") && volume == "stripe" {
                    self.set(volume, "queue/io_poll", 1);
                }
            }
        }
        if !self.polls("a") || !self.polls("b") {
            assert!(["stripe", "linear", "top"].iter().all(|volume| !self.polls(volume)));
        }
    }

    fn change_queues(&self, random: &mut Random) {
        let name = ["a", "b", "c", "d"][random.below(4) as usize];
        self.set(name, "queue/hw_queues", 1 + random.below(5));
    }

    fn run_changes(&self) {
        let mut random = Random::new(self.seed);
        for change in 0..CHANGES {
            let enough = self.all_ended() + IOS_BETWEEN;
            match change % 2 {
                0 => self.change_polling(&mut random),
                _ => self.change_queues(&mut random),
            }
            self.changes.fetch_add(1, SeqCst);
            while self.all_ended() < enough {
                sleep(Duration::from_micros(500));
            }
        }
        for volume in ["a", "b"] {
            self.set(volume, "poll_queues", 2);
            self.set(volume, "queue/io_poll", 1);
        }
        ["stripe", "top"].iter().for_each(|volume| self.set(volume, "queue/io_poll", 1));
        assert!(self.polls("top") && self.polls("linear"), "all is as it was");
    }

    /// Ends a test that hangs.
    fn watch(&self) {
        let mut seen = [(0, Instant::now()); THREADS];
        while !self.over.load(SeqCst) {
            for (thread, (last, since)) in seen.iter_mut().enumerate() {
                let now = self.ended[thread].load(SeqCst);
                if now != *last {
                    (*last, *since) = (now, Instant::now());
                } else if since.elapsed() > PATIENCE {
                    self.tell(thread);
                    std::process::abort();
                }
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn tell(&self, thread: usize) {
        // Not by the macro, whose text would be kept back until the end of the test.
        let mut out = std::io::stderr().lock();
        let load = |all: &[AtomicU64]| all.iter().map(|n| n.load(SeqCst)).collect::<Vec<_>>();
        let _ = writeln!(
            out,
            "DRYSTONE_SEED={}: thread {thread} hangs after {} changes; ended {:?}, open {:?}",
            self.seed,
            self.changes.load(SeqCst),
            load(&self.ended),
            load(&self.open)
        );
        for live in self.stack.devices() {
            let names = ["inflight", "queue/io_poll", "queue/hw_queues", "poll_queues"];
            let values = names.map(|name| live.device.attribute(name));
            let _ = writeln!(out, "{}: {names:?} {values:?}", live.name);
        }
    }
}

/// One thread's context, with sectors of its own on each volume.
struct Load<'a> {
    storm: &'a Storm,
    number: usize,
    cx: Context,
    devices: Vec<ChannelId>,
    random: Random,
    /// The open I/Os, by user data: the volume and sector, and the value that is read or written.
    open: BTreeMap<u64, (usize, u64, u64)>,
    /// The value that was written last, by volume and sector.
    written: BTreeMap<(usize, u64), u64>,
    serial: u64,
}

impl Load<'_> {
    /// A read or a write, polled or not, of a place that no other open one touches.
    fn next(&mut self) -> Option<(usize, Box<Bio>)> {
        let volume = self.random.below(LOADED.len() as u64) as usize;
        let places = OWN / SECTORS;
        let sector = self.number as u64 * OWN + SECTORS * self.random.below(places);
        // Half of a chunk, so that some are divided.
        let sector = if self.random.below(4) == 0 { sector + SECTORS / 2 } else { sector };
        let overlaps = |at: u64| at < sector + SECTORS && sector < at + SECTORS;
        let taken = self.open.values().any(|(other, at, _)| *other == volume && overlaps(*at));
        if taken || sector + SECTORS > (self.number as u64 + 1) * OWN {
            return None;
        }
        self.serial += 1;
        let write = self.random.below(2) == 0;
        let mut bio = match write {
            true => Bio::write(Sector(sector), IoBuf::from_slice(&content(sector, self.serial))),
            false => Bio::read(Sector(sector), IoBuf::zeroed(SECTORS as usize * 512)),
        };
        bio.user_data = self.serial;
        bio.flags.set(BioFlags::POLLED, self.random.below(3) > 0);
        let value = if write { self.serial } else { 0 };
        if write {
            for at in sector..sector + SECTORS {
                self.written.insert((volume, at), self.serial);
            }
        }
        self.open.insert(self.serial, (volume, sector, value));
        Some((volume, bio))
    }

    fn submit(&mut self) {
        let mut lists = [(); LOADED.len()].map(|()| BioList::new());
        for _ in 0..1 + self.random.below(6) {
            if self.open.len() < BIOS_MAX
                && let Some((volume, bio)) = self.next()
            {
                lists[volume].push(bio);
            }
        }
        for (volume, list) in lists.iter_mut().enumerate().filter(|(_, list)| !list.is_empty()) {
            self.cx.submit(self.devices[volume], list);
        }
    }

    /// Take what has ended: by polling, waiting, or in passing.
    fn reap(&mut self) {
        let mut out = BioList::new();
        match self.random.below(3) {
            0 => drop(self.cx.reap(&mut out)),
            1 => drop(self.cx.poll(&mut out)),
            _ if self.open.is_empty() => {}
            _ => {
                self.cx.wait(None);
                self.cx.reap(&mut out);
            }
        }
        self.storm.ended[self.number].fetch_add(out.len() as u64, SeqCst);
        while let Some(bio) = out.pop() {
            self.check(&bio);
        }
        self.storm.open[self.number].store(self.open.len() as u64, SeqCst);
    }

    fn check(&mut self, bio: &Bio) {
        assert_eq!(bio.status, Status::Ok);
        let open = self.open.remove(&bio.user_data).expect("each bio ends once");
        let (volume, sector, wrote) = open;
        assert_eq!((bio.sector.0, bio.bytes), (sector, SECTORS * 512));
        if wrote == 0 {
            let buf = bio.buf().expect("its buffer");
            for (at, found) in (sector..).zip(buf.chunks(512)) {
                let last = self.written.get(&(volume, at)).copied().unwrap_or(0);
                assert!(found == one(at, last), "{} sector {at}", LOADED[volume]);
            }
        }
    }

    fn run(mut self) {
        let mut rounds = 0u64;
        while !self.storm.over.load(SeqCst) || !self.open.is_empty() {
            if !self.storm.over.load(SeqCst) {
                self.submit();
            }
            self.reap();
            rounds += 1;
            // Away with I/O open, or only out of the way.
            match rounds.is_multiple_of(500) {
                true => sleep(Duration::from_millis(2)),
                false => yield_now(),
            }
        }
        assert_eq!(self.cx.outstanding(), 0);
    }
}

fn content(sector: u64, serial: u64) -> Vec<u8> {
    (sector..sector + SECTORS).flat_map(|at| one(at, serial)).collect()
}

fn opened(folder: &Path, at: &OpenEnv) -> LiveStack {
    let source = Source { name: "s.toml".to_owned(), text: STACK.to_owned() };
    let stack = check("s", source, folder).unwrap_or_else(|report| panic!("{report}"));
    LiveStack::open(&stack, at).unwrap_or_else(|report| panic!("{report}"))
}

#[test]
fn polling_and_queue_counts_change_under_load() {
    let seed = seed();
    println!("DRYSTONE_SEED={seed}");
    let folder = TempDir::new().unwrap();
    let at = OpenEnv::new(THREADS as u32, SystemClock::new());
    let storm = Storm {
        stack: opened(folder.path(), &at),
        ended: Default::default(),
        open: Default::default(),
        changes: AtomicU64::new(0),
        over: AtomicBool::new(false),
        seed,
    };
    let set = ContextSet::counted_by(at.locks.clone());
    let loads: Vec<Load<'_>> = (0..THREADS)
        .map(|number| {
            let mut cx = set.open(Engine::Auto).expect("a ring");
            let devices = LOADED.map(|name| cx.open(&storm.device(name)).expect("a channel"));
            Load {
                storm: &storm,
                number,
                cx,
                devices: devices.to_vec(),
                random: Random::new(seed.wrapping_add(number as u64 + 1)),
                open: BTreeMap::new(),
                written: BTreeMap::new(),
                serial: 0,
            }
        })
        .collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = loads.into_iter().map(|load| scope.spawn(|| load.run())).collect();
        let watch = scope.spawn(|| storm.watch());
        let changes = scope.spawn(|| storm.run_changes());
        let changed = changes.join();
        storm.over.store(true, SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        watch.join().unwrap();
        changed.unwrap();
    });
    for live in storm.stack.devices() {
        assert_eq!(live.device.stats().in_flight(), (0, 0), "{}", live.name);
    }
}
