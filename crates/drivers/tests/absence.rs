//! 32 contexts on one file, with fewer tags than I/O. In turn each thread stops calling the library
//! for two seconds, right after a call and with I/O open. Nobody else's I/O waits for it, and the
//! scheduler can be switched meanwhile.
//!
//! No time is judged: an owner that is away stays away until the others have gone on, and if they
//! do not the test ends with what each of them was at.

use drystone_core::clock::SystemClock;
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioList, ChannelId, Context, ContextSet, Device, Env, Extent, IoBuf, Limits, Result,
    Sector, Status,
};
use drystone_drivers::file::{Direct, File, FileOptions, FileQueue};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use drystone_queue::{Driver, HwQueues, RequestQueue};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::thread::sleep;
use std::time::{Duration, Instant};

const CONTEXTS: usize = 32;
/// Of the device: fewer than absent owners hold, if no other thread reaps for them.
const TAGS: u32 = 16;
const AWAY: Duration = Duration::from_secs(2);
/// From one's leaving to the next one's; so up to 25 are away at a time.
const STAGGER: Duration = Duration::from_millis(80);
/// I/Os that everybody present completes during each absence.
const IOS: u64 = 32;
const BATCH: u64 = 4;
/// Blocks of 512 bytes that each context has of its own.
const BLOCKS: u64 = 256;
/// The test hangs if it takes longer: twice what it should, and a minute.
const PATIENCE: Duration = Duration::from_secs(110);

/// A file with one hardware queue of few tags.
struct Shallow(File);

impl Driver for Shallow {
    type Queue = FileQueue;

    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn limits(&self) -> Limits {
        self.0.limits()
    }

    fn hw_queues(&self) -> HwQueues {
        HwQueues { default: 1, poll: 0, depth: TAGS }
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<FileQueue> {
        self.0.open_queue(env, channel, slots)
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.0.extents(offset, length, max)
    }
}

/// The state of a member that all may see.
#[derive(Default)]
struct Member {
    completed: AtomicU64,
    /// It calls nothing now.
    away: AtomicBool,
    /// When the I/O that it has open was submitted, in ns of the test's own; 0 without any.
    open_since: AtomicU64,
    returned: AtomicBool,
}

struct Hall {
    device: Arc<dyn Device>,
    members: Vec<Member>,
    /// Members below this one may leave.
    turn: AtomicUsize,
    /// The number of times that the scheduler was switched there and back.
    switched: AtomicU64,
    ended: AtomicBool,
    start: Instant,
}

impl Hall {
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 + 1
    }

    fn completed(&self) -> Vec<u64> {
        self.members.iter().map(|member| member.completed.load(SeqCst)).collect()
    }

    fn all_returned(&self) -> bool {
        self.members.iter().all(|member| member.returned.load(SeqCst))
    }

    /// True if everybody present has gone on since `before`, and has nothing open that it submitted
    /// by `half`. A member that is away went on before it left: see [`Submitter::take_leave`].
    fn went_on(&self, before: &[u64], half: u64) -> bool {
        self.members.iter().zip(before).all(|(member, before)| {
            let open_since = member.open_since.load(SeqCst);
            let went_on = member.completed.load(SeqCst) >= before + IOS;
            member.away.load(SeqCst) || went_on && (open_since == 0 || open_since > half)
        })
    }

    /// Switch the scheduler there and back until all have returned, each time with its effect.
    fn switch(&self) {
        let set = |name: &str, value: &str| self.device.set_attribute(name, value);
        let scheduler = || self.device.attribute("queue/scheduler").expect("a scheduler");
        while !self.all_returned() {
            set("queue/scheduler", "none").expect("a switch");
            assert_eq!(scheduler(), "[none] mq-deadline");
            set("queue/iosched/straight", "0").expect_err("a tunable of another scheduler");
            sleep(Duration::from_millis(30));
            set("queue/scheduler", "mq-deadline").expect("a switch");
            assert_eq!(scheduler(), "none [mq-deadline]");
            set("queue/iosched/straight", "0").expect("everything goes through the scheduler");
            sleep(Duration::from_millis(30));
            self.switched.fetch_add(1, SeqCst);
        }
        self.ended.store(true, SeqCst);
    }

    /// One after the other may leave.
    fn call_turns(&self) {
        for (number, member) in self.members.iter().enumerate() {
            self.turn.store(number + 1, SeqCst);
            while !member.away.load(SeqCst) {
                sleep(Duration::from_millis(1));
            }
            sleep(STAGGER);
        }
    }

    /// Ends a test that hangs, with what each was at.
    fn watch(&self) {
        while !self.ended.load(SeqCst) {
            if self.start.elapsed() > PATIENCE {
                self.tell();
                std::process::abort();
            }
            sleep(Duration::from_millis(100));
        }
    }

    fn tell(&self) {
        // Not by the macro, whose text would be kept back until the end of the test.
        let mut out = std::io::stderr().lock();
        let _ = writeln!(
            out,
            "a member waits for an absent one; turn {}, scheduler {:?}, in flight {:?}",
            self.turn.load(SeqCst),
            self.device.attribute("queue/scheduler"),
            self.device.stats().in_flight()
        );
        for (number, m) in self.members.iter().enumerate() {
            let open = match m.open_since.load(SeqCst) {
                0 => "nothing open".to_owned(),
                since => format!("open for {} ms", (self.now() - since) / 1_000_000),
            };
            let _ = writeln!(
                out,
                "{number}: {} completed, away {}, returned {}, {open}",
                m.completed.load(SeqCst),
                m.away.load(SeqCst),
                m.returned.load(SeqCst)
            );
        }
    }
}

/// One thread's context, with blocks of its own.
struct Submitter<'a> {
    cx: Context,
    device: ChannelId,
    hall: &'a Hall,
    number: usize,
    /// The round that wrote each block last.
    written: Vec<u64>,
    round: u64,
    /// I/Os that are open.
    open: u64,
}

impl Submitter<'_> {
    fn me(&self) -> &Member {
        &self.hall.members[self.number]
    }

    fn first(&self) -> u64 {
        self.number as u64 * BLOCKS
    }

    /// Four blocks, two of them neighbours, in another place each round.
    fn blocks(&self) -> [u64; BATCH as usize] {
        [0, 1, 100, 170].map(|n| (self.round * 37 + n) % BLOCKS)
    }

    fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.open += list.len() as u64;
        self.me().open_since.store(self.hall.now(), SeqCst);
        self.cx.submit(self.device, &mut list);
    }

    fn write(&mut self) {
        self.round += 1;
        let (first, round) = (self.first(), self.round);
        let blocks = self.blocks();
        for block in blocks {
            self.written[block as usize] = round;
        }
        self.submit(blocks.map(|block| {
            Bio::write(Sector(first + block), IoBuf::from_slice(&content(first + block, round)))
        }));
    }

    fn read(&mut self) {
        let first = self.first();
        let blocks = self.blocks();
        self.submit(blocks.map(|block| Bio::read(Sector(first + block), IoBuf::zeroed(512))));
    }

    /// Take what has ended, and look at it.
    fn reap(&mut self) -> usize {
        let mut out = BioList::new();
        let count = self.cx.reap(&mut out);
        for bio in out.iter() {
            assert_eq!(bio.status, Status::Ok);
            let last = self.written[(bio.sector.0 - self.first()) as usize];
            let buf = bio.buf().expect("its buffer");
            assert!(buf[..] == content(bio.sector.0, last), "block {}", bio.sector.0);
        }
        self.open -= count as u64;
        self.me().completed.fetch_add(count as u64, SeqCst);
        count
    }

    fn wait_all(&mut self) {
        while self.open > 0 {
            if self.reap() == 0 {
                self.cx.wait(None);
            }
        }
        self.me().open_since.store(0, SeqCst);
    }

    fn lap(&mut self) {
        self.write();
        self.wait_all();
        self.read();
        self.wait_all();
        sleep(Duration::from_millis(1));
    }

    /// The last call before the absence is another one for each of five.
    fn last_call(&mut self) {
        match self.number % 5 {
            0 => self.write(),
            1 => self.read(),
            2 => {
                self.write();
                self.reap();
            }
            3 => {
                self.cx.start_plug();
                self.write();
            }
            _ => {
                self.write();
                self.cx.wait(Some(0));
            }
        }
    }

    /// Go on for a while after the member that left before, then call nothing until time is over
    /// and the others have gone on without.
    fn take_leave(&mut self) {
        let enough = self.me().completed.load(SeqCst) + IOS;
        while self.me().completed.load(SeqCst) < enough {
            self.lap();
        }
        self.last_call();
        let (before, switched) = (self.hall.completed(), self.hall.switched.load(SeqCst));
        self.me().away.store(true, SeqCst);
        sleep(AWAY / 2);
        let half = self.hall.now();
        sleep(AWAY / 2);
        let is_over =
            || self.hall.went_on(&before, half) && self.hall.switched.load(SeqCst) > switched + 1;
        while !is_over() {
            sleep(Duration::from_millis(5));
        }
        self.me().away.store(false, SeqCst);
        self.cx.finish_plug();
        self.wait_all();
        self.me().returned.store(true, SeqCst);
    }

    fn run(mut self) -> Vec<u64> {
        while !self.hall.ended.load(SeqCst) {
            self.lap();
            if self.hall.turn.load(SeqCst) > self.number && !self.me().returned.load(SeqCst) {
                self.take_leave();
            }
        }
        self.written
    }
}

/// A block that tells its place and its last writer; of zeroes if there was none.
fn content(block: u64, round: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    if round > 0 {
        bytes.chunks_exact_mut(16).for_each(|part| {
            part[..8].copy_from_slice(&block.to_le_bytes());
            part[8..].copy_from_slice(&round.to_le_bytes());
        });
    }
    bytes
}

fn open(path: &std::path::Path) -> Arc<dyn Device> {
    let options = FileOptions {
        path: path.to_owned(),
        size_bytes: Some(CONTEXTS as u64 * BLOCKS * 512),
        mode: None,
        direct: Direct::No,
        logical_block_size: None,
        read_only: false,
        detect_holes: None,
    };
    let driver = Shallow(File::open(&options).expect("a file"));
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let locks = LockCounters::new(SystemClock::new());
    Arc::new(RequestQueue::new("f", driver, &options, locks).expect("a queue"))
}

/// Every block of the file holds what was written there last.
fn verify(device: &Arc<dyn Device>, written: &[Vec<u64>], engine: Engine) {
    let mut cx = ContextSet::new(SystemClock::new()).open(engine).expect("a ring");
    let index = cx.open(device).expect("a channel");
    for (block, round) in (0..).zip(written.iter().flatten()) {
        let mut list = BioList::new();
        list.push(Bio::read(Sector(block), IoBuf::zeroed(512)));
        cx.submit(index, &mut list);
        while cx.reap(&mut list) == 0 {
            cx.wait(None);
        }
        let bio = list.pop().expect("a bio");
        assert_eq!(bio.status, Status::Ok);
        assert!(bio.buf().expect("its buffer")[..] == content(block, *round), "block {block}");
    }
}

fn nobody_waits(engine: Engine) {
    let folder = tempfile::TempDir::new().expect("a folder");
    let device = open(&folder.path().join("disk.img"));
    let hall = Hall {
        device: device.clone(),
        members: (0..CONTEXTS).map(|_| Member::default()).collect(),
        turn: AtomicUsize::new(0),
        switched: AtomicU64::new(0),
        ended: AtomicBool::new(false),
        start: Instant::now(),
    };
    let set = ContextSet::new(SystemClock::new());
    let submitter = |number| {
        let mut cx = set.open(engine).expect("a ring");
        let device = cx.open(&device).expect("a channel");
        let written = vec![0; BLOCKS as usize];
        Submitter { cx, device, hall: &hall, number, written, round: 0, open: 0 }
    };
    let submitters: Vec<Submitter<'_>> = (0..CONTEXTS).map(submitter).collect();
    let written: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let hall = &hall;
        scope.spawn(|| hall.watch());
        scope.spawn(|| hall.switch());
        let threads: Vec<_> = submitters.into_iter().map(|s| scope.spawn(|| s.run())).collect();
        hall.call_turns();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(device.stats().in_flight(), (0, 0));
    verify(&device, &written, engine);
}

#[test]
fn nobody_waits_for_32_who_are_away_in_turn() {
    nobody_waits(Engine::Auto);
}

#[test]
fn nobody_waits_for_32_who_are_away_in_turn_on_the_plain_engine() {
    nobody_waits(Engine::Plain);
}
