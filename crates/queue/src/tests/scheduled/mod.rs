//! Contexts that share mq-deadline, in random histories; each step is compared with a plain model.

mod model;

use super::*;
use crate::scheduler::deadline::tests::set_tunable;
use crate::scheduler::deadline::{Tunables, class_of};
use drystone_core::{PortId, PriorityClass};
use model::{Make, Scheduled, Sent};
use proptest::prelude::*;
use std::rc::Rc;

const CONTEXTS: usize = 3;
const TAGS: u32 = 64;

#[derive(Clone, Debug)]
struct New {
    op: Op,
    class: PriorityClass,
    nowait: bool,
    sector: u64,
    sectors: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Submit(usize, Vec<New>),
    Complete(Vec<usize>),
    Pass(u64),
}

fn new_bio(space: u64, odd: u32) -> impl Strategy<Value = New> {
    use PriorityClass::*;
    let op = prop_oneof![12 => Just(Op::Read), odd => Just(Op::Write), 1 => Just(Op::Discard)];
    let class = prop_oneof![
        20 => Just(None), 10 => Just(BestEffort), odd => Just(RealTime), odd => Just(Idle)
    ];
    (op, class, prop::bool::weighted(0.1), 0..space, 1..4u64)
        .prop_map(|(op, class, nowait, sector, sectors)| New { op, class, nowait, sector, sectors })
}

fn step(space: u64, odd: u32) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..CONTEXTS, prop::collection::vec(new_bio(space, odd), 1..20))
            .prop_map(|(context, bios)| Step::Submit(context, bios)),
        5 => prop::collection::vec(0..1000usize, 1..20).prop_map(Step::Complete),
        1 => (0..5u64).prop_map(Step::Pass),
    ]
}

/// The queue and the model.
struct Both {
    rig: Rig,
    contexts: Vec<(Context, ChannelId)>,
    queue: Arc<RequestQueue<Fake>>,
    model: Scheduled,
    /// The number of requests that the driver had taken before this step.
    seen: usize,
    number: u64,
    ended: usize,
}

impl Both {
    fn new(nr_requests: u32, settings: &[(&'static str, u32)]) -> Self {
        let clock = ManualClock::new(1000 * MS);
        let (set, stage) = (ContextSet::new(clock.clone()), Stage::new());
        stage.otherwise(Answer::Hold);
        let options = QueueOptions {
            scheduler: Some(SchedulerKind::MqDeadline),
            nr_requests: Some(nr_requests),
            iosched: settings.iter().map(|(name, n)| (*name, n.to_string())).collect(),
            ..QueueOptions::default()
        };
        let fake = Fake::new(Setup::depth(TAGS), &stage);
        let locks = LockCounters::new(clock.clone());
        let queue = Arc::new(RequestQueue::new("q0", fake, &options, locks).expect("a queue"));
        let device: Arc<dyn Device> = queue.clone();
        let open = || {
            let mut cx = set.open(Engine::Auto).expect("a ring");
            let dev = cx.open(&device).expect("a channel");
            (cx, dev)
        };
        let contexts: Vec<_> = (0..CONTEXTS).map(|_| open()).collect();
        let (cx, dev) = open();
        let mut tunables = Tunables::new(nr_requests);
        for (name, n) in settings.iter().filter(|(name, _)| *name != "straight") {
            set_tunable(&mut tunables, name, &n.to_string());
        }
        let mut model = Scheduled::new(CONTEXTS, TAGS as usize, nr_requests as usize, tunables);
        model.limits = device.info().limits;
        let rig = Rig { clock, set, stage, device, cx, dev };
        Both { rig, contexts, queue, model, seen: 0, number: 0, ended: 0 }
    }

    fn make(&mut self, new: &New) -> Make {
        let (new, number, now) = (new.clone(), self.number, self.rig.clock.now());
        self.number += 1;
        Rc::new(move || {
            let (sector, bytes) = (Sector(new.sector), new.sectors * 512);
            let mut bio = match new.op {
                Op::Read => Bio::read(sector, IoBuf::zeroed(bytes as usize)),
                Op::Write => Bio::write(sector, IoBuf::zeroed(bytes as usize)),
                op => Bio::without_data(op, sector, bytes),
            };
            bio.priority.class = new.class;
            if new.nowait {
                bio.flags.insert(BioFlags::NOWAIT);
            }
            (bio.user_data, bio.start_ns) = (number, now);
            bio
        })
    }

    /// True if the first attempt of a context finds that many tags at once.
    fn fits(&self, context: usize, bios: usize) -> bool {
        let tags = self.queue.tags(0);
        let found = tags.take(context as u32 % tags.words(), 32.min(bios as u32));
        if found.mask != 0 {
            let _ = tags.free(found);
        }
        bios <= 32 && found.mask.count_ones() as usize == bios
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Submit(context, news) => self.submit(*context, news)?,
            Step::Complete(which) => which.iter().try_for_each(|n| self.complete(*n))?,
            Step::Pass(ms) => self.pass(*ms)?,
        }
        Ok(())
    }

    fn submit(&mut self, context: usize, news: &[New]) -> Result<(), TestCaseError> {
        let made: Vec<Make> = news.iter().map(|new| self.make(new)).collect();
        self.model.now = self.rig.clock.now();
        let fits = self.fits(context, made.len());
        self.model.submit(PortId(context as u32), &made, fits);
        let mut list = BioList::new();
        list.extend(made.iter().map(|make| make()));
        let (cx, dev) = &mut self.contexts[context];
        cx.submit(*dev, &mut list);
        self.compare()
    }

    fn complete(&mut self, n: usize) -> Result<(), TestCaseError> {
        let in_flight = self.model.in_flight();
        if in_flight.is_empty() {
            return Ok(());
        }
        self.model.now = self.rig.clock.now();
        let sent = self.model.complete(n % in_flight.len());
        let held = self.rig.stage.held_requests();
        let index = held.iter().position(|seen| view(seen) == sent).expect("the driver has it");
        prop_assert!(self.rig.stage.give_back(index, Status::Ok));
        self.compare()
    }

    /// Let time pass; waiting contexts then check which units may go because of their age.
    fn pass(&mut self, ms: u64) -> Result<(), TestCaseError> {
        self.rig.clock.advance(ms * MS);
        self.model.now = self.rig.clock.now();
        self.model.look();
        self.compare()
    }

    /// Check that the requests of each context came in the model's order, and that the same bios
    /// were refused.
    fn compare(&mut self) -> Result<(), TestCaseError> {
        let mut refused = Vec::new();
        for (cx, _) in &mut self.contexts {
            for (number, status) in ended(cx) {
                self.ended += 1;
                if status == Status::Again {
                    refused.push(number);
                }
            }
        }
        refused.sort_unstable();
        let mut expected = std::mem::take(&mut self.model.refused);
        expected.sort_unstable();
        prop_assert_eq!(refused, expected);
        let seen: Vec<Sent> = self.rig.stage.seen()[self.seen..].iter().map(view).collect();
        self.seen += seen.len();
        let sent = std::mem::take(&mut self.model.sent);
        for port in (0..CONTEXTS as u32).map(PortId) {
            let of = |list: &[Sent]| -> Vec<Sent> {
                list.iter().filter(|sent| sent.port == port).copied().collect()
            };
            prop_assert_eq!(of(&seen), of(&sent));
        }
        prop_assert_eq!(seen.len(), sent.len());
        Ok(())
    }
}

fn view(seen: &Seen) -> Sent {
    let class = class_of(seen.priority);
    // The contexts opened their channels in their order.
    let port = PortId(seen.context);
    Sent { port, sector: seen.sector, bytes: seen.bytes, op: seen.op, class }
}

fn run(
    nr_requests: u32,
    async_depth: u32,
    starved: u32,
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let settings = [
        ("straight", 0),
        ("read_expire", 3),
        ("write_expire", 5),
        ("prio_aging_expire", 6),
        ("fifo_batch", 3),
        ("writes_starved", starved),
        ("async_depth", async_depth),
    ];
    let mut both = Both::new(nr_requests, &settings);
    steps.iter().try_for_each(|step| both.step(step))?;
    // Everything ends, including idle bios once no other class is in flight.
    while !both.model.is_idle() {
        both.complete(0)?;
    }
    prop_assert_eq!(both.ended as u64, both.number, "every bio ends once");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Few tags: many units are kept, and few bios go past the scheduler.
    #[test]
    fn few_tags(
        steps in prop::collection::vec(step(1 << 20, 3), 1..40),
        nr_requests in 1u32..24, async_depth in 1u32..30, starved in 0u32..3,
    ) {
        run(nr_requests, async_depth, starved, &steps)?;
    }

    /// Enough tags for most bios, few bios of other classes, and adjacent bios.
    #[test]
    fn many_tags(steps in prop::collection::vec(step(300, 1), 1..40), starved in 0u32..3) {
        run(64, 64, starved, &steps)?;
    }
}
