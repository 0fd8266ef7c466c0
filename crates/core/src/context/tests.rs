//! The promises of a context, on a device written for these tests.

use super::*;
use crate::bio::Bio;
use crate::buf::{IoBuf, Segment};
use crate::clock::SystemClock;
use crate::device::{Channel, DeviceInfo};
use crate::extent::Extent;
use crate::histogram::Snapshot;
use crate::limits::Limits;
use crate::mailbox::Message;
use crate::op::OpGroup;
use crate::ring::{Engine, FileOp, RingFile};
use crate::stats::DiskStats;
use crate::status::Status;
use crate::sync::{Lock, LockClass};
use crate::units::Sector;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// How the fake driver completes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Mode {
    /// In the submit call.
    Inline,
    /// By a message, when the test says so ([`Fake::give_back`]). It takes this many at once.
    Message(usize),
    /// By a timer of the ring.
    Timer,
    /// By a timer, one bio of all contexts at a time: the others wait for the tag.
    OneTag,
    /// By two writes to a file, the second started when the first has ended.
    TwoWrites,
}

/// A bio that the fake driver has.
struct Ticket {
    handle: Weak<Handle>,
    channel: ChannelId,
    value: u64,
    memory: Vec<Segment>,
}

pub(super) struct Fake {
    mode: Mode,
    tickets: Lock<Vec<Ticket>>,
    locks: Arc<LockCounters>,
    /// One count more for each channel that is alive.
    alive: Arc<()>,
    /// Messages and ring events that reached a channel.
    delivered: AtomicUsize,
    tag_taken: AtomicBool,
    tag_waiters: Lock<Vec<(Weak<Handle>, ChannelId)>>,
    file: std::fs::File,
}

/// The contents of every buffer while the driver has it.
const PATTERN: u8 = 0xa7;

impl Fake {
    pub(super) fn new(mode: Mode) -> Arc<Fake> {
        // SAFETY: the name lives for the call; the descriptor is ours alone.
        let file = unsafe { libc::memfd_create(c"fake".as_ptr(), libc::MFD_CLOEXEC) };
        Arc::new(Fake {
            mode,
            tickets: Lock::new(LockClass::Other, Vec::new()),
            locks: LockCounters::new(SystemClock::new()),
            alive: Arc::new(()),
            delivered: AtomicUsize::new(0),
            tag_taken: AtomicBool::new(false),
            tag_waiters: Lock::new(LockClass::Other, Vec::new()),
            // SAFETY: as above.
            file: unsafe { std::fs::File::from_raw_fd(file) },
        })
    }

    fn channels(&self) -> usize {
        Arc::strong_count(&self.alive) - 1
    }

    /// Complete everything the driver has, from a thread of its own. Returns how many.
    pub(super) fn give_back(&self) -> usize {
        let tickets = std::mem::take(&mut *self.tickets.lock(&self.locks));
        let complete = || tickets.iter().for_each(Ticket::complete);
        std::thread::scope(|s| s.spawn(complete).join().unwrap());
        tickets.len()
    }

    fn delivered(&self) -> usize {
        self.delivered.load(SeqCst)
    }
}

impl Ticket {
    fn complete(&self) {
        for s in &self.memory {
            // SAFETY: the promise under test: a driver may use the memory until it gives it back.
            let bytes = unsafe { std::slice::from_raw_parts(s.ptr, s.len) };
            assert!(bytes.iter().all(|b| *b == PATTERN), "the buffer was freed or used again");
        }
        let handle = self.handle.upgrade().expect("a context stays while a driver needs it");
        handle.send(Message::new(self.channel, self.value));
    }
}

struct FakeChannel {
    device: Arc<Fake>,
    id: ChannelId,
    held: BTreeMap<u64, Box<Bio>>,
    next: u64,
    pending: BioList,
    _alive: Arc<()>,
}

impl Device for Arc<Fake> {
    fn info(&self) -> DeviceInfo {
        let limits = Limits::default();
        DeviceInfo { name: "fake".into(), kind: "fake", size_bytes: 1 << 30, limits }
    }

    fn open_channel(&self, _env: &mut Env, id: ChannelId) -> Result<Box<dyn Channel>> {
        Ok(Box::new(FakeChannel {
            device: self.clone(),
            id,
            held: BTreeMap::new(),
            next: 0,
            pending: BioList::new(),
            _alive: self.alive.clone(),
        }))
    }

    fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>> {
        Ok(Vec::new())
    }

    fn stats(&self) -> DiskStats {
        DiskStats::default()
    }

    fn latencies(&self, _: OpGroup) -> Snapshot {
        Snapshot::default()
    }

    fn attribute(&self, _: &str) -> Option<String> {
        None
    }

    fn set_attribute(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
}

impl FakeChannel {
    fn pump(&mut self, env: &mut Env) {
        while self.may_start() {
            let Some(bio) = self.pending.pop() else { break };
            self.start(env, bio);
        }
        if self.waits_on_peer() {
            let mut waiters = self.device.tag_waiters.lock(&env.locks);
            waiters.push((env.handle(), self.id));
        }
    }

    fn may_start(&self) -> bool {
        match self.device.mode {
            Mode::Message(depth) => self.held.len() < depth,
            Mode::OneTag => !self.pending.is_empty() && !self.device.tag_taken.swap(true, SeqCst),
            _ => true,
        }
    }

    fn start(&mut self, env: &mut Env, bio: Box<Bio>) {
        self.next += 1;
        let (value, token) = (self.next, Env::token(self.id, self.next));
        match self.device.mode {
            Mode::Inline => return env.end_bio(bio),
            Mode::Message(_) => {
                let mut memory = Vec::new();
                bio.each_segment(|s| memory.push(s));
                let ticket = Ticket { handle: env.handle(), channel: self.id, value, memory };
                self.device.tickets.lock(&env.locks).push(ticket);
            }
            Mode::Timer | Mode::OneTag => {
                let at = env.time.now() + 1_000_000;
                env.ring.timer(at, token);
            }
            Mode::TwoWrites => self.write(env, &bio, 0, token),
        }
        self.held.insert(value, bio);
    }

    fn write(&self, env: &mut Env, bio: &Bio, offset: u64, token: Token) {
        let segment = bio.single_segment().expect("one segment");
        let file = RingFile::Fd(self.device.file.as_raw_fd());
        // SAFETY: the bio is held until the event, and the device keeps the file.
        unsafe { env.ring.file(file, FileOp::Write { segment, offset, dsync: false }, token) };
    }

    fn over(&mut self, env: &mut Env, value: u64) {
        let bio = self.held.remove(&value).expect("each completion comes once");
        env.end_bio(bio);
        if self.device.mode == Mode::OneTag {
            self.device.tag_taken.store(false, SeqCst);
            let waiters = std::mem::take(&mut *self.device.tag_waiters.lock(&env.locks));
            for (handle, channel) in waiters {
                handle.upgrade().unwrap().send(Message::new(channel, 0));
            }
        }
        self.pump(env);
    }
}

impl Channel for FakeChannel {
    fn submit(&mut self, env: &mut Env, bios: &mut BioList) {
        self.pending.append(bios);
        self.pump(env);
    }

    fn flush_plug(&mut self, _: &mut Env) {}

    fn ring_event(&mut self, env: &mut Env, event: RingEvent) {
        self.device.delivered.fetch_add(1, SeqCst);
        let value = event.token.value();
        if self.device.mode == Mode::TwoWrites && value < 1000 {
            let bio = self.held.remove(&value).unwrap();
            self.write(env, &bio, 4096, Env::token(self.id, value + 1000));
            self.held.insert(value + 1000, bio);
            return;
        }
        self.over(env, value);
    }

    fn message(&mut self, env: &mut Env, message: Arc<Message>) {
        self.device.delivered.fetch_add(1, SeqCst);
        match self.device.mode {
            Mode::OneTag => self.pump(env),
            _ => self.over(env, message.payload()),
        }
    }

    fn delivered(&mut self, _: &mut Env) {}

    fn must_poll(&self) -> bool {
        false
    }

    fn poll(&mut self, _: &mut Env) -> usize {
        0
    }

    fn deadline(&self) -> Option<Ns> {
        None
    }

    fn tick(&mut self, _: &mut Env, _: Ns) {}

    fn members(&self) -> &[ChannelId] {
        &[]
    }

    fn in_flight(&self) -> usize {
        self.held.len() + self.pending.len()
    }

    fn waits_on_peer(&self) -> bool {
        self.device.mode == Mode::OneTag && !self.pending.is_empty()
    }

    fn cancel_pending(&mut self, env: &mut Env) {
        while let Some(bio) = self.pending.pop() {
            env.end_with(bio, Status::Cancelled);
        }
    }
}

pub(super) const ENGINES: [Engine; 2] = [Engine::Uring, Engine::Plain];

pub(super) fn new_set() -> Arc<ContextSet> {
    ContextSet::new(SystemClock::new())
}

pub(super) fn open(
    set: &Arc<ContextSet>,
    engine: Engine,
    fake: &Arc<Fake>,
) -> (Context, ChannelId) {
    let mut context = set.open(engine).unwrap();
    let device: Arc<dyn Device> = Arc::new(fake.clone());
    let channel = context.open(&device).unwrap();
    assert_eq!(context.open(&device).unwrap(), channel, "opening again is the same channel");
    (context, channel)
}

pub(super) fn writes(from: u64, count: u64) -> BioList {
    let mut bios = BioList::new();
    for i in from..from + count {
        let mut bio = Bio::write(Sector(i * 8), IoBuf::from_slice(&[PATTERN; 4096]));
        bio.user_data = i;
        bios.push(bio);
    }
    bios
}

/// Wait and reap until `count` bios came; their numbers, sorted.
fn reap(context: &mut Context, count: usize) -> Vec<u64> {
    let mut out = BioList::new();
    while out.len() < count {
        context.wait(None);
        context.reap(&mut out);
    }
    assert!(out.iter().all(|b| b.status.is_ok()));
    let mut numbers: Vec<_> = out.iter().map(|b| b.user_data).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn completions_arrive_in_the_context_that_submitted() {
    for engine in ENGINES {
        for mode in [Mode::Inline, Mode::Message(usize::MAX), Mode::Timer, Mode::OneTag] {
            let (set, fake) = (new_set(), Fake::new(mode));
            let (mut a, on_a) = open(&set, engine, &fake);
            let (mut b, on_b) = open(&set, engine, &fake);
            a.submit(on_a, &mut writes(0, 5));
            b.submit(on_b, &mut writes(100, 5));
            assert_eq!((a.outstanding(), b.outstanding()), (5, 5));
            if let Mode::Message(_) = mode {
                assert_eq!(fake.give_back(), 10);
            }
            // One tag for both: the last to have it is not always the first to be reaped.
            let (ours, theirs) = std::thread::scope(|s| {
                let theirs = s.spawn(|| reap(&mut b, 5));
                (reap(&mut a, 5), theirs.join().unwrap())
            });
            assert_eq!(ours, [0, 1, 2, 3, 4], "{mode:?}");
            assert_eq!(theirs, [100, 101, 102, 103, 104], "{mode:?}");
            assert_eq!((a.outstanding(), b.outstanding()), (0, 0));
        }
    }
}

/// The owner of the tag never comes back: the context that waits for the tag runs it.
#[test]
fn who_waits_for_a_tag_does_not_need_its_holders_thread() {
    for holder in ENGINES {
        for waiter in ENGINES {
            let (set, fake) = (new_set(), Fake::new(Mode::OneTag));
            let (mut a, on_a) = open(&set, holder, &fake);
            let (mut b, on_b) = open(&set, waiter, &fake);
            for round in 0..3 {
                a.submit(on_a, &mut writes(0, 1));
                b.submit(on_b, &mut writes(round, 1));
                assert_eq!(reap(&mut b, 1), [round]);
            }
            let mut out = BioList::new();
            assert_eq!(a.reap(&mut out), 3, "its bios are there when it comes back");
        }
    }
}

#[test]
fn what_a_channel_starts_in_answer_to_a_reap_is_on_its_way() {
    for engine in ENGINES {
        let (set, fake) = (new_set(), Fake::new(Mode::TwoWrites));
        let (mut a, channel) = open(&set, engine, &fake);
        a.submit(channel, &mut writes(0, 1));
        let mut out = BioList::new();
        while fake.delivered() == 0 {
            a.reap(&mut out);
        }
        // The owner stays away; the second write must have been handed to the kernel.
        while fake.file.metadata().unwrap().len() < 8192 {
            std::thread::yield_now();
        }
        assert_eq!(reap(&mut a, 1), [0]);
    }
}

#[test]
fn a_dropped_context_frees_nothing_that_a_driver_has() {
    for engine in ENGINES {
        let (set, fake) = (new_set(), Fake::new(Mode::Message(3)));
        let (mut a, channel) = open(&set, engine, &fake);
        a.submit(channel, &mut writes(0, 5));
        let handle = Arc::downgrade(a.handle());
        drop(a);
        assert_eq!((set.free_idle_orphans(), fake.channels()), (1, 1));
        // Give other buffers a chance to be put where freed ones were.
        let others: Vec<_> = (0..8).map(|_| IoBuf::zeroed(4096)).collect();
        assert_eq!(fake.give_back(), 3, "the two that it did not have were cancelled");
        assert_eq!((set.free_idle_orphans(), fake.channels()), (0, 0));
        assert!(handle.upgrade().is_none(), "nothing of the context is left");
        drop(others);
        let (b, _) = open(&set, engine, &fake);
        assert_eq!(b.id().0, 0, "its number is free");
    }
}

#[test]
fn a_dropped_idle_context_is_gone_at_once() {
    let (set, fake) = (new_set(), Fake::new(Mode::Inline));
    let (mut a, channel) = open(&set, Engine::Auto, &fake);
    a.submit(channel, &mut writes(0, 4));
    drop(a);
    assert_eq!((set.free_idle_orphans(), fake.channels()), (0, 0), "unreaped bios are freed");
}

#[test]
fn a_thread_that_panics_leaves_its_io_in_order() {
    let (set, fake) = (new_set(), Fake::new(Mode::Message(2)));
    let thread = {
        let (set, fake) = (set.clone(), fake.clone());
        std::thread::spawn(move || {
            let (mut a, channel) = open(&set, Engine::Auto, &fake);
            a.submit(channel, &mut writes(0, 4));
            std::panic::resume_unwind(Box::new("on purpose, without a message"));
        })
    };
    assert!(thread.join().is_err());
    assert_eq!(set.free_idle_orphans(), 1);
    assert_eq!(fake.give_back(), 2);
    assert_eq!((set.free_idle_orphans(), fake.channels()), (0, 0));
}

#[test]
fn a_thread_that_ends_without_dropping_is_as_if_away() {
    let (set, fake) = (new_set(), Fake::new(Mode::Message(2)));
    let (mut a, channel) = open(&set, Engine::Auto, &fake);
    let mut a = std::thread::scope(|s| {
        s.spawn(move || {
            a.submit(channel, &mut writes(0, 4));
            a
        })
        .join()
        .unwrap()
    });
    assert_eq!(fake.give_back(), 2);
    set.kick(a.id());
    assert_eq!(fake.give_back(), 2, "the visit started what was pending");
    assert_eq!(reap(&mut a, 4), [0, 1, 2, 3]);
}

#[test]
fn a_context_whose_owner_is_away_is_cranked_by_a_kick() {
    for engine in ENGINES {
        let (set, fake) = (new_set(), Fake::new(Mode::Message(1)));
        let (mut a, channel) = open(&set, engine, &fake);
        a.submit(channel, &mut writes(0, 2));
        for round in 1..=2 {
            assert_eq!(fake.give_back(), 1);
            assert_eq!(fake.delivered(), round - 1, "nobody has looked yet");
            std::thread::scope(|s| s.spawn(|| set.kick(a.id())).join().unwrap());
            assert_eq!(fake.delivered(), round);
        }
        let mut out = BioList::new();
        assert_eq!(a.reap(&mut out), 2);
        set.kick(crate::ContextId(77));
        set.kick_all();
    }
}

#[test]
fn a_kick_wakes_an_owner_that_sleeps() {
    for engine in ENGINES {
        let set = new_set();
        let mut a = set.open(engine).unwrap();
        let (id, back) = (a.id(), AtomicBool::new(false));
        std::thread::scope(|s| {
            s.spawn(|| {
                a.wait(None);
                back.store(true, SeqCst);
            });
            // A kick before it sleeps may find the owner outside; one that finds it asleep wakes.
            while !back.load(SeqCst) {
                set.kick(id);
                std::thread::yield_now();
            }
        });
    }
}

#[test]
fn a_message_wakes_an_owner_that_sleeps() {
    for engine in ENGINES {
        let (set, fake) = (new_set(), Fake::new(Mode::Message(1)));
        let (mut a, channel) = open(&set, engine, &fake);
        for i in 0..100 {
            a.submit(channel, &mut writes(i, 1));
            std::thread::scope(|s| {
                s.spawn(|| assert_eq!(fake.give_back(), 1));
                assert_eq!(reap(&mut a, 1), [i]);
            });
        }
    }
}

/// Owner and visitors at the same time: every completion comes once.
#[test]
fn kicks_from_many_threads_lose_nothing() {
    for engine in ENGINES {
        let (set, fake) = (new_set(), Fake::new(Mode::Message(4)));
        let (mut a, channel) = open(&set, engine, &fake);
        let (id, over) = (a.id(), AtomicBool::new(false));
        std::thread::scope(|s| {
            for _ in 0..2 {
                s.spawn(|| {
                    while !over.load(SeqCst) {
                        set.kick(id);
                        fake.give_back();
                    }
                });
            }
            for round in 0..20 {
                a.submit(channel, &mut writes(round * 20, 20));
                let numbers = reap(&mut a, 20);
                assert!(numbers.into_iter().eq(round * 20..round * 20 + 20));
            }
            over.store(true, SeqCst);
        });
        assert_eq!(fake.delivered(), 400);
    }
}

#[test]
fn a_forked_child_does_not_disturb_its_parents_io() {
    for engine in ENGINES {
        for mode in [Mode::Message(2), Mode::Timer, Mode::TwoWrites] {
            let (set, fake) = (new_set(), Fake::new(mode));
            let (mut a, channel) = open(&set, engine, &fake);
            a.submit(channel, &mut writes(0, 1));
            // SAFETY: the child only drops a context, which takes no lock, and ends at once.
            let child = unsafe { libc::fork() };
            if child == 0 {
                drop(a);
                // SAFETY: ends the child without running anything of the parent's.
                unsafe { libc::_exit(0) };
            }
            let mut status = -1;
            // SAFETY: the status lives for the call.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0, "the child ended by itself");
            fake.give_back();
            assert_eq!(reap(&mut a, 1), [0]);
            a.submit(channel, &mut writes(1, 1));
            fake.give_back();
            assert_eq!(reap(&mut a, 1), [1]);
            assert_eq!((set.free_idle_orphans(), fake.channels()), (0, 1));
        }
    }
}

#[test]
fn front_ends_have_events_timers_and_time() {
    for engine in ENGINES {
        let set = new_set();
        let mut a = set.open(engine).unwrap();
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let recv = NetOp::Recv { buf: IoBuf::zeroed(4), range: 0..4 };
        a.start_net(near.as_raw_fd(), recv, 5);
        let at = a.now() + 1_000_000;
        a.start_timer(at, 6);
        a.submit_ring();
        let mut events = Vec::new();
        while events.is_empty() {
            a.wait(None);
            a.take_events(&mut events);
        }
        assert_eq!(events[0].token, Token::new(Token::FRONT_END, 6));
        assert!(a.now() >= at && a.clock_reads() >= 2);
        a.cancel_net(5);
        while events.len() < 2 {
            a.wait(None);
            a.take_events(&mut events);
        }
        assert_eq!((events[1].token.value(), events[1].result), (5, -libc::ECANCELED));
        a.close(near.into());
        a.submit_ring();
        let mut byte = [0];
        assert_eq!(std::io::Read::read(&mut &far, &mut byte).unwrap(), 0, "closed");
    }
}

/// A wake-up that comes while the owner is busy counts for its next wait, though a reap in
/// between has cleared the ring's descriptor. Without that this test never ends.
#[test]
fn a_wake_up_survives_a_reap() {
    for engine in [Engine::Auto, Engine::Plain] {
        let set = ContextSet::new(SystemClock::new());
        let mut cx = set.open(engine).unwrap();
        let mut out = BioList::new();
        cx.handle().wake();
        cx.reap(&mut out);
        cx.wait(None);
    }
}
