//! `mq-deadline` under real threads: nothing is lost or stranded, whichever thread has the turn,
//! whichever is away, and whatever is changed meanwhile.

use drystone_core::clock::{Clock, SystemClock};
use drystone_core::ring::Engine;
use drystone_core::sync::LockCounters;
use drystone_core::{Bio, BioList, ChannelId, Context, ContextSet, Device, IoBuf, Sector, Status};
use drystone_drivers::null::{Completion, Latency, Null, NullOptions};
use drystone_drivers::ram::Ram;
use drystone_queue::RequestQueue;
use drystone_queue::queue::QueueOptions;
use drystone_queue::scheduler::SchedulerKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

const BATCH: u64 = 4;

fn options(straight: bool) -> QueueOptions {
    QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", u8::from(straight).to_string())],
        ..QueueOptions::default()
    }
}

fn null(irqmode: Completion, depth: u32, straight: bool) -> Arc<dyn Device> {
    let clock: Arc<dyn Clock> = SystemClock::new();
    let null = NullOptions {
        irqmode,
        latency: Some(Latency::constant(20_000)),
        submit_queues: 1,
        hw_queue_depth: depth,
        ..NullOptions::default()
    };
    let driver = Null::new(null).expect("a null device");
    let locks = LockCounters::new(clock);
    Arc::new(RequestQueue::new("n", driver, &options(straight), locks).expect("a queue"))
}

fn ram(straight: bool) -> Arc<dyn Device> {
    let driver = Ram::new(1 << 20, true).expect("memory");
    let locks = LockCounters::new(SystemClock::new());
    Arc::new(RequestQueue::new("r", driver, &options(straight), locks).expect("a queue"))
}

/// One thread's context, with random numbers of its own.
struct Submitter {
    cx: Context,
    device: ChannelId,
    state: u64,
    blocks: (u64, u64),
}

impl Submitter {
    fn random(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }

    fn submit(&mut self, mut bio: impl FnMut(&mut Self) -> Box<Bio>) {
        let mut bios = BioList::new();
        (0..BATCH).for_each(|_| bios.push(bio(self)));
        self.cx.submit(self.device, &mut bios);
    }

    fn wait_all(&mut self, mut each: impl FnMut(&Bio)) {
        let mut left = BATCH;
        while left > 0 {
            let mut out = BioList::new();
            if self.cx.reap(&mut out) == 0 {
                self.cx.wait(None);
                continue;
            }
            for bio in out.iter() {
                assert_eq!(bio.status, Status::Ok);
                each(bio);
                left -= 1;
            }
        }
    }

    fn read(&mut self) -> Box<Bio> {
        let (first, count) = self.blocks;
        let block = first + self.random() % count;
        Bio::read(Sector(block), IoBuf::zeroed(512))
    }

    fn round(&mut self) {
        self.submit(Submitter::read);
        self.wait_all(|_| ());
    }
}

fn submitters(device: &Arc<dyn Device>, threads: u64, blocks: u64) -> Vec<Submitter> {
    let set = ContextSet::new(SystemClock::new());
    let submitter = |n| {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let index = cx.open(device).expect("a channel");
        let each = blocks / threads;
        Submitter { cx, device: index, state: n + 1, blocks: (n * each, each) }
    };
    (0..threads).map(submitter).collect()
}

/// Runs `body` on each submitter's thread; a run that hangs fails after a minute.
fn run(submitters: Vec<Submitter>, body: impl Fn(usize, &mut Submitter) + Sync) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (body, done) = (&body, &done);
        let threads: Vec<_> = submitters
            .into_iter()
            .enumerate()
            .map(|(n, mut s)| scope.spawn(move || body(n, &mut s)))
            .collect();
        scope.spawn(move || {
            for _ in 0..600 {
                std::thread::sleep(Duration::from_millis(100));
                if done.load(Relaxed) {
                    return;
                }
            }
            eprintln!("a request is stranded");
            std::process::abort();
        });
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        done.store(true, Relaxed);
    });
}

#[test]
fn nothing_is_stranded_when_tags_are_few() {
    for irqmode in [Completion::Inline, Completion::Thread, Completion::Timer] {
        for (depth, straight) in [(1, false), (2, true), (64, false)] {
            let device = null(irqmode, depth, straight);
            let rounds = if irqmode == Completion::Inline { 1_500 } else { 300 };
            run(submitters(&device, 8, 1 << 20), |_, s| (0..rounds).for_each(|_| s.round()));
            let stats = device.stats().fields();
            assert_eq!(stats[0] + stats[1], 8 * rounds * BATCH, "{irqmode:?} {depth} {straight}");
            assert_eq!(stats[8], 0, "in flight");
        }
    }
}

/// Each block carries its number and the round that wrote it last.
#[test]
fn data_stays_right_while_the_scheduler_is_switched() {
    for straight in [false, true] {
        let device = ram(straight);
        let switched = AtomicU64::new(0);
        run(submitters(&device, 6, 2048), |n, s| {
            if n == 0 {
                for turn in 0..20 {
                    let name = ["none", "mq-deadline"][turn % 2];
                    device.set_attribute("queue/scheduler", name).expect("a switch");
                    let value = if straight { "1" } else { "0" };
                    let set = device.set_attribute("queue/iosched/straight", value);
                    assert_eq!(set.is_ok(), turn % 2 == 1);
                    switched.fetch_add(1, Relaxed);
                    (0..20).for_each(|_| s.round());
                }
                return;
            }
            write_and_verify(s, || switched.load(Relaxed) < 20);
        });
    }
}

fn write_and_verify(s: &mut Submitter, go_on: impl Fn() -> bool) {
    let mut written = vec![0u64; s.blocks.1 as usize];
    let mut round = 0;
    while go_on() {
        round += 1;
        let base = s.random();
        s.submit({
            let mut n = 0;
            let written = &mut written;
            move |s| {
                n += 1;
                let at = (base.wrapping_add(n * 37)) % s.blocks.1;
                written[at as usize] = round;
                let mut buf = IoBuf::zeroed(512);
                buf[..8].copy_from_slice(&(s.blocks.0 + at).to_le_bytes());
                buf[8..16].copy_from_slice(&round.to_le_bytes());
                Bio::write(Sector(s.blocks.0 + at), buf)
            }
        });
        s.wait_all(|_| ());
        s.submit(Submitter::read);
        let first = s.blocks.0;
        s.wait_all(|bio| {
            let buf = bio.buf().expect("its buffer");
            let number = |range| u64::from_le_bytes(<[u8; 8]>::try_from(&buf[range]).unwrap());
            let last = written[(bio.sector.0 - first) as usize];
            assert_eq!(number(8..16), last, "block {}", bio.sector.0);
            assert!(last == 0 || number(0..8) == bio.sector.0);
        });
    }
}

/// One after the other stops calling right after a submission, with I/O in flight; meanwhile the
/// others go on, and the scheduler can be switched.
#[test]
fn nobody_waits_for_a_thread_that_is_away() {
    const THREADS: u64 = 8;
    let device = null(Completion::Timer, 4, false);
    let rounds: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let ended = AtomicBool::new(false);
    run(submitters(&device, THREADS, 1 << 20), |n, s| {
        let lap = |s: &mut Submitter| {
            s.round();
            rounds[n].fetch_add(1, Relaxed);
        };
        if n == 0 {
            // The one that keeps time: everybody's turn to be away comes by the others' rounds.
            for away in 1..THREADS as usize {
                let before: Vec<u64> = rounds.iter().map(|r| r.load(Relaxed)).collect();
                let went_on = |i: usize| rounds[i].load(Relaxed) > before[i] + 20;
                while !(1..THREADS as usize).all(|i| i == away || went_on(i)) {
                    lap(s);
                }
                let name = ["none", "mq-deadline"][away % 2];
                device.set_attribute("queue/scheduler", name).expect("a switch");
            }
            ended.store(true, Relaxed);
            return;
        }
        while !ended.load(Relaxed) {
            lap(s);
            // Every few rounds: submit, and stay away while the others make progress.
            if rounds[n].load(Relaxed) % 16 == n as u64 {
                s.submit(Submitter::read);
                std::thread::sleep(Duration::from_millis(300));
                s.wait_all(|_| ());
            }
        }
    });
}

/// A dropped context's bios end, wherever they are, and the others go on.
#[test]
fn contexts_come_and_go() {
    let device = null(Completion::Timer, 2, false);
    let stay = submitters(&device, 3, 1 << 20);
    // Of the same set: only its contexts reap each other's completions.
    let set = stay[0].cx.set().clone();
    run(stay, |n, s| {
        for round in 0..200 {
            s.round();
            if n == 0 && round % 10 == 0 {
                let mut cx = set.open(Engine::Auto).expect("a ring");
                let index = cx.open(&device).expect("a channel");
                let mut bios = BioList::new();
                (0..8).for_each(|i| bios.push(Bio::read(Sector(i * 100), IoBuf::zeroed(512))));
                cx.submit(index, &mut bios);
            }
        }
    });
}
