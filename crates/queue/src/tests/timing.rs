//! Clock readings and the latencies that are computed from them.

use super::*;
use drystone_core::clock::AGE_BOUND_NS;
use drystone_core::op::OpGroup;
use fastrand::Rng;
use std::collections::BTreeMap;

fn batch() -> impl Iterator<Item = Box<Bio>> {
    (0..32).map(|i| read(i * 10, 1))
}

#[test]
fn a_loop_of_32_reads_the_clock_once_a_round() {
    for held in [false, true] {
        let mut rig = Rig::new(Setup::depth(64));
        rig.stage.otherwise(if held { Answer::Hold } else { Answer::Done(Status::Ok) });
        let mut before = 0;
        for round in 0..11 {
            if round == 1 {
                before = rig.cx.clock_reads();
            }
            rig.submit(batch());
            rig.clock.advance(500);
            while rig.stage.give_back(0, Status::Ok) {}
            rig.clock.advance(500);
            assert_eq!(rig.ended().len(), 32);
        }
        assert_eq!(rig.cx.clock_reads() - before, 10, "held: {held}");
    }
}

#[test]
fn no_latency_is_zero() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.stage.otherwise(Answer::Hold);
    for _ in 0..10 {
        rig.submit(batch());
        rig.clock.advance(700);
        while rig.stage.give_back(0, Status::Ok) {}
        assert_eq!(rig.ended().len(), 32);
    }
    let latencies = rig.device.latencies(OpGroup::Read);
    assert_eq!(latencies.total(), 320);
    let (least, most) = (latencies.min().unwrap(), latencies.max().unwrap());
    assert!(least <= 700 && 700 <= most && least > 650 && most < 750, "{least} to {most}");
}

#[test]
fn a_reading_that_is_too_old_opens_no_plug() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.stage.otherwise(Answer::Hold);
    for away in [AGE_BOUND_NS - 1, AGE_BOUND_NS, 5 * MS] {
        rig.submit(batch());
        while rig.stage.give_back(0, Status::Ok) {}
        rig.ended();
        // The thread loses its processor between two calls.
        rig.clock.advance(away);
        let now = rig.clock.now();
        rig.submit([read(0, 1)]);
        rig.stage.give_back(0, Status::Ok);
        let mut out = BioList::new();
        rig.cx.reap(&mut out);
        let start = out.pop().unwrap().start_ns;
        assert!(now - start < AGE_BOUND_NS, "{away}: {} ns too early", now - start);
        assert_eq!(start == now, away >= AGE_BOUND_NS);
    }
}

#[test]
fn statistics_survive_pre_emption() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.stage.otherwise(Answer::Hold);
    for _ in 0..50 {
        rig.submit([read(0, 1)]);
        rig.clock.advance(10_000);
        rig.stage.give_back(0, Status::Ok);
        assert_eq!(rig.ended().len(), 1);
        rig.clock.advance(5 * MS);
    }
    let reads = *rig.device.stats().group(OpGroup::Read);
    assert_eq!((reads.completed, reads.time_ns), (50, 50 * 10_000));
}

#[test]
fn a_sleep_ends_a_reading() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.submit([read(0, 1)]);
    rig.ended();
    rig.cx.wait(Some(0));
    rig.clock.advance(100);
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(0, 1)]);
    rig.clock.advance(100);
    rig.stage.give_back(0, Status::Ok);
    let mut out = BioList::new();
    rig.cx.reap(&mut out);
    assert_eq!(out.pop().unwrap().start_ns, rig.clock.now() - 100);
}

#[test]
fn a_plugged_bio_counts_from_its_submission() {
    let mut rig = Rig::new(Setup::depth(64));
    rig.cx.start_plug();
    rig.submit([read(0, 1)]);
    rig.clock.advance(3 * MS);
    rig.cx.finish_plug();
    rig.ended();
    assert_eq!(rig.device.stats().group(OpGroup::Read).time_ns, 3 * MS);
}

#[test]
fn all_seventeen_fields() {
    let mut rig = Rig::new(Setup::cache(false));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(0, 2), read(2, 2), read(100, 4)]);
    rig.submit([write(0, 8), write(8, 8), write(16, 8)]);
    rig.submit([without_data(Op::WriteZeroes, 800, 8)]);
    rig.submit([without_data(Op::Discard, 0, 64), without_data(Op::Discard, 64, 64)]);
    rig.submit([Bio::flush()]);
    let before = rig.device.stats().fields();
    assert_eq!(before[8], 5, "two reads, two writes, one discard; flushes are not counted");
    assert_eq!(rig.attribute("inflight").split_whitespace().collect::<Vec<_>>(), ["2", "3"]);
    rig.clock.advance(8 * MS);
    rig.give_back_all();
    let fields = rig.device.stats().fields();
    let (reads, writes) = ([2, 1, 8, 16], [2, 2, 32, 16]);
    let (discards, flushes) = ([1, 1, 128, 8], [1, 8]);
    assert_eq!(fields[0..4], reads);
    assert_eq!(fields[4..8], writes);
    assert_eq!(fields[8], 0, "in flight");
    assert!((6..=9).contains(&fields[9]), "busy for {} ms", fields[9]);
    assert_eq!(fields[10], 16 + 16 + 8 + 8, "weighted");
    assert_eq!(fields[11..15], discards);
    assert_eq!(fields[15..17], flushes);
    let text = rig.attribute("stat");
    let shown: Vec<u64> = text.split_whitespace().map(|n| n.parse().unwrap()).collect();
    assert_eq!(shown, fields);
}

#[test]
fn without_statistics_nothing_is_left_in_flight() {
    let mut rig = Rig::new(Setup::depth(8));
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(0, 1)]);
    rig.device.set_attribute("queue/iostats", "0").unwrap();
    rig.submit([read(10, 1)]);
    rig.device.set_attribute("queue/iostats", "1").unwrap();
    rig.submit([read(20, 1)]);
    assert_eq!(rig.give_back_all().len(), 3);
    let stats = rig.device.stats();
    assert_eq!(stats.in_flight(), (0, 0));
    assert_eq!(stats.group(OpGroup::Read).completed, 2, "the second was not counted");
    assert_eq!(rig.device.latencies(OpGroup::Read).total(), 2);
}

/// The true times of bios, without shared readings.
struct Truth {
    rig: Rig,
    rng: Rng,
    next: u64,
    submitted: BTreeMap<u64, u64>,
    /// The sum of the latencies of ended bios.
    total_ns: u64,
    ended: u64,
}

impl Truth {
    fn pass(&mut self) {
        let away = if self.rng.u32(0..20) == 0 { 5 * MS } else { AGE_BOUND_NS * 3 / 4 };
        self.rig.clock.advance(self.rng.u64(0..away));
    }

    fn submit(&mut self) {
        let count = self.rng.u64(1..=32);
        let bios = (self.next..self.next + count).map(|number| {
            let mut bio = read(number % 50_000 * 10, 1);
            bio.user_data = number;
            bio
        });
        self.submitted.extend((self.next..self.next + count).map(|n| (n, self.rig.clock.now())));
        self.next += count;
        self.rig.submit(bios);
    }

    fn end_some(&mut self) {
        for _ in 0..self.rng.usize(0..48) {
            self.rig.stage.give_back(0, Status::Ok);
        }
        self.pass();
        let (now, mut out) = (self.rig.clock.now(), BioList::new());
        self.rig.cx.reap(&mut out);
        while let Some(bio) = out.pop() {
            let began = self.submitted.remove(&bio.user_data).expect("it ends once");
            assert!(began - bio.start_ns < AGE_BOUND_NS, "{} too early", began - bio.start_ns);
            self.total_ns += now - began;
            self.ended += 1;
        }
    }

    fn round(&mut self) {
        let is_plug = self.rng.bool();
        if is_plug {
            self.rig.cx.start_plug();
        }
        for _ in 0..self.rng.u32(1..4) {
            self.submit();
            self.pass();
        }
        if is_plug {
            self.rig.cx.finish_plug();
        }
        self.pass();
        self.end_some();
    }
}

/// A start that shares a reading is off by at most the permitted age of a reading, and errors do
/// not accumulate.
#[test]
fn latencies_are_within_the_age_of_a_reading_of_the_truth() {
    for seed in 0..20 {
        let rig = Rig::new(Setup::depth(64));
        rig.stage.otherwise(Answer::Hold);
        let (next, submitted) = (0, BTreeMap::new());
        let mut truth =
            Truth { rig, rng: Rng::with_seed(seed), next, submitted, total_ns: 0, ended: 0 };
        (0..200).for_each(|_| truth.round());
        while !truth.submitted.is_empty() {
            truth.end_some();
        }
        let reads = *truth.rig.device.stats().group(OpGroup::Read);
        assert_eq!(reads.completed, truth.ended);
        let wrong = reads.time_ns - truth.total_ns;
        assert!(wrong < truth.ended * AGE_BOUND_NS, "{seed}: {wrong} ns of {}", truth.ended);
    }
}

/// The time of a clock without its cycle counter: no reading is kept between calls.
struct Uncached(Arc<ManualClock>);

impl Clock for Uncached {
    fn now(&self) -> u64 {
        self.0.now()
    }

    fn cycles(&self) -> Option<u64> {
        None
    }

    fn cycles_in(&self, _: u64) -> u64 {
        0
    }
}

/// A rig whose driver holds all requests, beside a device that leaves clock readings behind.
struct Aged {
    rig: Rig,
    other: ChannelId,
}

impl Aged {
    fn new(setup: Setup, options: &QueueOptions, is_cached: bool) -> Self {
        let clock = ManualClock::new(1000 * MS);
        let shown: Arc<dyn Clock> =
            if is_cached { clock.clone() } else { Arc::new(Uncached(clock.clone())) };
        let fake = Fake::new(Setup::depth(1), &Stage::new());
        let device = queue(fake, &QueueOptions::default(), shown.clone());
        let mut rig = Rig::timed(setup, options, Engine::Auto, clock, shown);
        rig.stage.otherwise(Answer::Hold);
        let other = rig.cx.open(&device).expect("a channel");
        Aged { rig, other }
    }

    /// Have the context read the clock, then let `age` pass. The completions are not reaped,
    /// because a reap would make the first device do its due work.
    fn age(&mut self, age: u64) {
        let mut list = BioList::new();
        list.push(read(0, 1));
        self.rig.cx.submit(self.other, &mut list);
        self.rig.clock.advance(age);
    }

    /// The time until the request is reported that the driver has just got.
    fn time_to_end(&mut self) -> u64 {
        let (given, reported) = (self.rig.clock.now(), self.rig.stage.timed_out().len());
        for _ in 0..10 {
            let due = self.rig.cx.next_deadline().expect("somebody looks");
            self.rig.clock.advance(due.saturating_sub(self.rig.clock.now()));
            self.rig.cx.wait(Some(0));
            if self.rig.stage.timed_out().len() > reported {
                let passed = self.rig.clock.now() - given;
                self.rig.give_back_all();
                return passed;
            }
        }
        panic!("it is never reported");
    }
}

/// The times until requests are reported. The clock readings have random ages; if the bios are
/// plugged, the plugs stay open for `plugged`.
fn times_to_end(is_cached: bool, plugged: Option<u64>) -> Vec<u64> {
    let options = QueueOptions { io_timeout_ms: Some(100), ..QueueOptions::default() };
    let mut aged = Aged::new(Setup::depth(4), &options, is_cached);
    let mut rng = Rng::with_seed(1);
    let one = |number| {
        aged.age(rng.u64(0..AGE_BOUND_NS));
        if plugged.is_some() {
            aged.rig.cx.start_plug();
        }
        aged.rig.submit([read(number, 1)]);
        if let Some(ns) = plugged {
            aged.rig.clock.advance(ns);
            aged.rig.cx.finish_plug();
        }
        aged.time_to_end()
    };
    (0..100).map(one).collect()
}

/// With a reading for each call, every request has its full time-out. A shared reading shortens the
/// time-out by its age, in the last round no more than in the first; the time that a plug stays
/// open makes no difference.
#[test]
fn time_outs_do_not_drift_with_shared_readings() {
    for plugged in [None, Some(AGE_BOUND_NS / 2), Some(30 * MS)] {
        assert!(times_to_end(false, plugged).iter().all(|ns| *ns == 100 * MS), "{plugged:?}");
        let shared = times_to_end(true, plugged);
        let is_near = |ns: &u64| (100 * MS - AGE_BOUND_NS + 1..=100 * MS).contains(ns);
        assert!(shared.iter().all(is_near), "{plugged:?}: {shared:?}");
        let is_aged = plugged.is_some_and(|ns| ns >= AGE_BOUND_NS);
        assert_eq!(shared.iter().any(|ns| *ns < 100 * MS), !is_aged, "{plugged:?}: {shared:?}");
    }
}

/// A request that waited for another context's tag has its full time-out from then on, even if the
/// readings of its submission and of its context are old.
#[test]
fn a_wait_for_a_tag_takes_nothing_from_a_time_out() {
    for (is_cached, scheduler) in [
        (false, SchedulerKind::None),
        (true, SchedulerKind::None),
        (false, SchedulerKind::MqDeadline),
        (true, SchedulerKind::MqDeadline),
    ] {
        let scheduler = Some(scheduler);
        let options =
            QueueOptions { io_timeout_ms: Some(100), scheduler, ..QueueOptions::default() };
        let mut aged = Aged::new(Setup::depth(1), &options, is_cached);
        let (mut holder, dev) = aged.rig.another();
        let mut list = BioList::new();
        list.push(read(1, 1));
        holder.submit(dev, &mut list);
        aged.rig.submit([read(2, 1)]);
        aged.rig.clock.advance(60 * MS);
        assert!(aged.rig.stage.give_back(0, Status::Ok));
        assert_eq!(ended(&mut holder).len(), 1);
        assert!(aged.rig.ended().is_empty());
        assert_eq!(aged.rig.taken(), [(1, 512), (2, 512)], "{scheduler:?}");
        assert_eq!(aged.time_to_end(), 100 * MS, "{scheduler:?}, cached: {is_cached}");
    }
}

/// True if a read that was kept for `kept` goes before a nearer one. `submitted` and `chosen` are
/// the ages of the readings when it was submitted and when a unit was chosen.
fn is_late(is_cached: bool, (submitted, chosen): (u64, u64), kept: u64) -> bool {
    let iosched = [("straight", "0"), ("read_expire", "3"), ("fifo_batch", "1")];
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: iosched.map(|(name, value)| (name, value.to_owned())).to_vec(),
        ..QueueOptions::default()
    };
    let mut aged = Aged::new(Setup::depth(64), &options, is_cached);
    aged.age(submitted);
    aged.rig.stage.next(Answer::Busy(aged.rig.clock.now() + 1));
    aged.rig.submit([read(1000, 1)]);
    aged.rig.submit([read(100, 1), read(2000, 1)]);
    assert!(aged.rig.taken().is_empty(), "everything is kept while the driver is busy");
    aged.rig.clock.advance(kept - chosen);
    aged.age(chosen);
    aged.rig.submit([read(3000, 1)]);
    let order = aged.rig.taken();
    let place = |sector| order.iter().position(|taken| taken.0 == sector).expect("it went");
    let is_late = place(100) < place(2000);
    aged.rig.give_back_all();
    is_late
}

/// The shortest time for which a read must be kept to be late.
fn expiry(is_cached: bool, ages: (u64, u64)) -> u64 {
    let (mut early, mut late) = (2 * AGE_BOUND_NS, 6 * MS);
    assert!(!is_late(is_cached, ages, early) && is_late(is_cached, ages, late));
    while late - early > 1 {
        let middle = early.midpoint(late);
        *(if is_late(is_cached, ages, middle) { &mut late } else { &mut early }) = middle;
    }
    late
}

/// With a reading for each call, a read is late after exactly 3 ms. A shared reading moves that by
/// its age, at either end, and by nothing else.
#[test]
fn read_expire_does_not_drift_with_shared_readings() {
    let oldest = AGE_BOUND_NS - 1;
    for ages in [(0, 0), (oldest, 0), (0, oldest), (oldest, oldest)] {
        assert_eq!(expiry(false, ages), 3 * MS, "{ages:?}");
        assert_eq!(expiry(true, ages), 3 * MS + ages.1 - ages.0, "{ages:?}");
    }
}
