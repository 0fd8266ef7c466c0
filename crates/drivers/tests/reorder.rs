//! The use of reordering, on a simulated disk whose time the test moves: exact times, in the
//! order in which the disk was given its requests, with `mq-deadline` and without a scheduler.
//!
//! Every end is predicted from the formula of [`Seek`] and the requests that the driver got, and
//! must come at that nanosecond.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests have clocks, locks and threads of their own"
)]

use drystone_core::clock::{Clock, ManualClock};
use drystone_core::mailbox::Message;
use drystone_core::ring::{Engine, RingEvent};
use drystone_core::sync::LockCounters;
use drystone_core::{
    Bio, BioList, ChannelId, Context, ContextSet, Device, Env, Extent, IoBuf, Limits, Op, Result,
    Sector, Status,
};
use drystone_drivers::null::{Completion, Latency, Null, NullOptions, NullQueue, Seek};
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use drystone_queue::{Driver, DriverQueue, HwQueues, Issue, Request, RequestQueue, Slots};
use std::sync::{Arc, Mutex};

const MS: u64 = 1_000_000;
/// A time that the kernel's clock does not reach, so that only the test moves timers.
const START: u64 = 1 << 60;

const SIZE_BYTES: u64 = 1 << 30;
const SECTORS: u64 = SIZE_BYTES / 512;
/// The time that each request takes when the head is there.
const BASE_NS: u64 = 100_000;
const SEEK: Seek = Seek { min_ns: 200_000, max_ns: 8 * MS };

const READ_EXPIRE_MS: u64 = 20;
const WRITE_EXPIRE_MS: u64 = 5_000;
const WRITES_STARVED: usize = 2;
const FIFO_BATCH: usize = 16;

/// A request as the driver got it.
#[derive(Clone, Copy, Debug)]
struct Sent {
    op: Op,
    sector: u64,
    end: u64,
    start_ns: u64,
    at: u64,
}

impl Sent {
    /// Time in the queue, before the driver got it.
    fn wait(&self) -> u64 {
        self.at - self.start_ns
    }
}

type Log = Arc<Mutex<Vec<Sent>>>;

/// The null driver, and a list of what it was given.
struct Recorder {
    inner: Null,
    log: Log,
}

struct RecorderQueue {
    inner: NullQueue,
    log: Log,
}

impl Driver for Recorder {
    type Queue = RecorderQueue;

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn hw_queues(&self) -> HwQueues {
        self.inner.hw_queues()
    }

    fn open_queue(&self, env: &mut Env, channel: ChannelId, slots: u32) -> Result<RecorderQueue> {
        let inner = self.inner.open_queue(env, channel, slots)?;
        Ok(RecorderQueue { inner, log: self.log.clone() })
    }

    fn extents(&self, offset: u64, length: u64, max: usize) -> Result<Vec<Extent>> {
        self.inner.extents(offset, length, max)
    }
}

impl DriverQueue for RecorderQueue {
    fn queue_rq(&mut self, env: &mut Env, request: &mut Request) -> Issue {
        let unit = &request.unit;
        self.log.lock().unwrap().push(Sent {
            op: unit.op,
            sector: unit.sector.0,
            end: unit.end_sector().0,
            start_ns: unit.start_ns,
            at: env.time.now(),
        });
        self.inner.queue_rq(env, request)
    }

    fn ring_event(
        &mut self,
        env: &mut Env,
        event: RingEvent,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        self.inner.ring_event(env, event, slots, done);
    }

    fn message(
        &mut self,
        env: &mut Env,
        message: Arc<Message>,
        slots: &mut Slots,
        done: &mut Vec<u32>,
    ) {
        self.inner.message(env, message, slots, done);
    }
}

/// A context on the disk, and the model that says when each request ends.
struct Disk {
    clock: Arc<ManualClock>,
    cx: Context,
    dev: ChannelId,
    log: Log,
    /// Requests that have ended.
    served: usize,
    head: u64,
    free_at: u64,
}

impl Disk {
    /// `read_expire_ms` is for `mq-deadline`; without one there is no scheduler.
    fn new(tags: u32, read_expire_ms: Option<u64>) -> Self {
        let null = NullOptions {
            size_bytes: SIZE_BYTES,
            irqmode: Completion::Timer,
            latency: Some(Latency::constant(BASE_NS)),
            seek: Some(SEEK),
            hw_queue_depth: tags,
            ..NullOptions::default()
        };
        let tunables = |read_expire: u64| {
            let all = [
                ("read_expire", read_expire),
                ("write_expire", WRITE_EXPIRE_MS),
                ("writes_starved", WRITES_STARVED as u64),
                ("fifo_batch", FIFO_BATCH as u64),
                ("straight", 0),
            ];
            all.map(|(name, value)| (name, value.to_string())).to_vec()
        };
        let scheduler = match read_expire_ms {
            Some(_) => SchedulerKind::MqDeadline,
            None => SchedulerKind::None,
        };
        let options = QueueOptions {
            scheduler: Some(scheduler),
            // With a scheduler more than ever wait: admission is not what this is about.
            nr_requests: read_expire_ms.map(|_| 1024),
            nomerges: Some(2),
            iosched: read_expire_ms.map(tunables).unwrap_or_default(),
            ..QueueOptions::default()
        };
        let clock = ManualClock::new(START);
        let log = Log::default();
        let driver = Recorder { inner: Null::new(null).expect("a disk"), log: log.clone() };
        let locks = LockCounters::new(clock.clone());
        let queue = RequestQueue::new("disk", driver, &options, locks).expect("a queue");
        let device: Arc<dyn Device> = Arc::new(queue);
        let mut cx = ContextSet::new(clock.clone()).open(Engine::Plain).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        Disk { clock, cx, dev, log, served: 0, head: 0, free_at: 0 }
    }

    fn submit(&mut self, bios: impl IntoIterator<Item = Box<Bio>>) {
        let mut list = BioList::new();
        list.extend(bios);
        self.cx.submit(self.dev, &mut list);
    }

    fn reap(&mut self) -> usize {
        let mut out = BioList::new();
        self.cx.reap(&mut out);
        assert!(out.iter().all(|bio| bio.status == Status::Ok));
        out.len()
    }

    /// Move the clock to the end of the request that the disk is at: one, and just then.
    fn serve(&mut self) -> Sent {
        let sent = self.log.lock().unwrap()[self.served];
        self.served += 1;
        let service = BASE_NS + way(self.head, sent.sector);
        (self.head, self.free_at) = (sent.end, self.free_at.max(sent.at) + service);
        self.clock.advance(self.free_at - 1 - self.clock.now());
        assert_eq!(self.reap(), 0, "{sent:?} ended early");
        self.clock.advance(1);
        assert_eq!(self.reap(), 1, "{sent:?} did not end");
        sent
    }

    fn elapsed(&self) -> u64 {
        self.clock.now() - START
    }
}

/// The formula of [`Seek`], once more.
fn way(from: u64, to: u64) -> u64 {
    match from.abs_diff(to) {
        0 => 0,
        d => SEEK.min_ns + part((d as f64 / SECTORS as f64).sqrt()),
    }
}

/// So much of what a seek takes beyond settling.
fn part(share: f64) -> u64 {
    ((SEEK.max_ns - SEEK.min_ns) as f64 * share) as u64
}

fn read(sector: u64) -> Box<Bio> {
    Bio::read(Sector(sector), IoBuf::zeroed(4096))
}

fn write(sector: u64) -> Box<Bio> {
    Bio::write(Sector(sector), IoBuf::zeroed(4096))
}

/// Multiples of 4 KiB below the device's end, from a seed.
struct Random(u64);

impl Random {
    fn sector(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (SECTORS / 8) * 8
    }
}

/// The time that `sectors` take in this order, from sector 0.
fn time_of(sectors: &[u64]) -> u64 {
    let ways = sectors.iter().scan(0, |head, sector| {
        let way = way(*head, *sector);
        *head = sector + 8;
        Some(BASE_NS + way)
    });
    ways.sum()
}

/// 64 reads that wait together go in one sweep. Its ways add up to the device at the most, so by
/// Cauchy and Schwarz their roots to no more than 8 = sqrt(64).
#[test]
fn a_sweep_takes_less_than_half_of_the_time() {
    for seed in 1..=20 {
        let mut random = Random(seed * 0x9E37_79B9);
        let sectors: Vec<u64> = (0..64).map(|_| random.sector()).collect();
        let mut sorted = sectors.clone();
        sorted.sort_unstable();
        for tags in [1, 4] {
            let total = |read_expire_ms| {
                let mut disk = Disk::new(tags, read_expire_ms);
                disk.submit(sectors.iter().copied().map(read));
                (0..64).for_each(|_| _ = disk.serve());
                disk.elapsed()
            };
            let (none, ours) = (total(None), total(Some(500)));
            assert_eq!(none, time_of(&sectors), "first in, first out; seed {seed}");
            assert_eq!(ours, time_of(&sorted), "one sweep; seed {seed}");
            assert!(ours <= 64 * (BASE_NS + SEEK.min_ns) + part(8.0), "seed {seed}");
            assert!(2 * ours < none, "{ours} and {none} ns, seed {seed}");
        }
    }
}

/// The longest that a batch takes from the end of what went before it: one way to where it
/// begins, then upwards over at most the device.
fn batch_ns() -> u64 {
    let sweep = part(((FIFO_BATCH - 1) as f64).sqrt());
    SEEK.max_ns + FIFO_BATCH as u64 * (BASE_NS + SEEK.min_ns) + sweep
}

/// The first sector of the reader that streams.
const STREAM: u64 = SECTORS / 2;
const STREAM_DEPTH: u64 = 8;
const WRITES: usize = 256;

/// A writer that always has 256 writes waiting all over the disk; a reader that streams with
/// eight reads ahead; and one that reads alone, each time a little before where it read last, so
/// that no batch comes by its place on its way up: only its deadline helps it.
fn flood(disk: &mut Disk, requests: usize) -> Vec<Sent> {
    let mut random = Random(42);
    let (mut stream, mut alone) = (STREAM, STREAM / 2);
    disk.submit((0..WRITES).map(|_| write(random.sector())));
    disk.submit((0..STREAM_DEPTH).map(|n| read(stream + n * 8)));
    stream += STREAM_DEPTH * 8;
    disk.submit([read(alone)]);
    for _ in 0..requests {
        let next = match disk.serve() {
            sent if sent.op == Op::Write => write(random.sector()),
            sent if sent.sector < STREAM => {
                alone -= 8;
                read(alone)
            }
            _ => {
                stream += 8;
                read(stream - 8)
            }
        };
        disk.submit([next]);
    }
    disk.log.lock().unwrap().clone()
}

fn is_alone(sent: &&Sent) -> bool {
    sent.op == Op::Read && sent.sector < STREAM
}

fn longest_wait<'a>(sent: impl Iterator<Item = &'a Sent>) -> u64 {
    sent.map(Sent::wait).max().expect("some went")
}

/// The longest run of requests of `op` with none of the other kind between.
fn longest_run(log: &[Sent], op: Op) -> usize {
    log.split(|sent| sent.op != op).map(<[Sent]>::len).max().unwrap_or(0)
}

/// Once a read is overdue it waits for the batch that is under way, and for one of writes if it
/// is their turn; with several tags also for what the disk has been given already.
#[test]
fn no_read_waits_longer_than_its_expiry_and_two_batches() {
    for tags in [1, 4] {
        let log = flood(&mut Disk::new(tags, Some(READ_EXPIRE_MS)), 6_000);
        let given = u64::from(tags - 1) * (BASE_NS + SEEK.max_ns);
        let bound = READ_EXPIRE_MS * MS + 2 * batch_ns() + given;
        let reads = || log.iter().filter(|sent| sent.op == Op::Read);
        let longest = longest_wait(reads());
        assert!(longest <= bound, "{longest} of {bound} ns, {tags} tags");
        assert!(log.iter().filter(is_alone).count() > 20, "its deadline came many times");
        for (index, sent) in log.iter().enumerate().filter(|(_, sent)| is_alone(sent)) {
            let deadline = sent.start_ns + READ_EXPIRE_MS * MS;
            let before_it = &log[..index];
            let late: Vec<&Sent> = before_it.iter().filter(|s| s.at > deadline).collect();
            let writes = late.iter().filter(|s| s.op == Op::Write).count();
            assert!(late.len() < 2 * FIFO_BATCH, "{} went before {sent:?}", late.len());
            assert!(late.len() - writes < FIFO_BATCH, "a batch of reads began before {sent:?}");
        }
    }
}

/// The deadline and the scheduler serve this: without them the same read waits far longer.
#[test]
fn without_expiry_or_scheduler_that_read_waits_longer() {
    let bound = READ_EXPIRE_MS * MS + 2 * batch_ns();
    let patient = flood(&mut Disk::new(1, Some(1_000_000)), 6_000);
    // The first one may go before the stream is there; none that follows it does.
    assert!(patient.iter().filter(is_alone).count() <= 1, "nothing but a deadline brings it");
    let none = flood(&mut Disk::new(1, None), 6_000);
    let longest = longest_wait(none.iter().filter(is_alone));
    assert!(longest > 4 * bound, "{longest} ns behind {WRITES} writes");
}

/// Writes get a batch after every two of reads, and none waits longer than its own expiry and
/// the batches until then.
#[test]
fn writes_are_not_starved() {
    for tags in [1, 4] {
        let log = flood(&mut Disk::new(tags, Some(READ_EXPIRE_MS)), 6_000);
        let reads = longest_run(&log, Op::Read);
        assert!(reads <= WRITES_STARVED * FIFO_BATCH, "{reads} reads in a row, {tags} tags");
        let writes = longest_run(&log, Op::Write);
        assert!(writes <= FIFO_BATCH, "{writes} writes in a row, {tags} tags");
        let share = log.iter().filter(|sent| sent.op == Op::Write).count() * 100 / log.len();
        assert!((30..=70).contains(&share), "{share} of 100 were writes");
        let longest = longest_wait(log.iter().filter(|sent| sent.op == Op::Write));
        let bound = WRITE_EXPIRE_MS * MS + (WRITES_STARVED as u64 + 2) * batch_ns();
        assert!(longest <= bound, "{longest} of {bound} ns, {tags} tags");
    }
}
