//! Steps of other threads, placed between two steps of one thread.

use super::*;
use crate::config::Config;
use crate::scheduler::{Caller, Exclusive, InsertAt, MqDeadline, Port, Scheduler};
use drystone_core::PortId;
use drystone_core::clock::Ns;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

type Hook = Box<dyn FnOnce()>;

thread_local! {
    /// The steps that happen while a closing channel has the turn, and just after it has left the
    /// turn.
    static AT_CLOSE: RefCell<Option<(Hook, Hook)>> = const { RefCell::new(None) };
    /// The steps that happen after the next turns, one after each.
    static AFTER_TURN: RefCell<VecDeque<Hook>> = const { RefCell::new(VecDeque::new()) };
    /// The step that happens before the next turn.
    static BEFORE_TURN: RefCell<Option<Hook>> = const { RefCell::new(None) };
}

/// `mq-deadline`, with steps of other threads at points where they may happen.
#[derive(Default)]
struct Interleaved(MqDeadline);

impl Scheduler for Interleaved {
    type Local = <MqDeadline as Scheduler>::Local;

    fn run(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: InsertAt,
    ) -> bool {
        if let Some(hook) = BEFORE_TURN.take() {
            hook();
            // The turn does the same before it looks up another channel's port.
            caller.split();
        }
        let again = self.0.run(local, caller, bios, place);
        let mut hooks = AFTER_TURN.take();
        let hook = hooks.pop_front();
        let hooked = hook.is_some();
        hook.into_iter().for_each(|hook| hook());
        AFTER_TURN.set(hooks);
        again || hooked
    }

    fn exclusive(
        &self,
        l: &mut Self::Local,
        bios: &mut BioList,
        now: Ns,
        config: &Config,
    ) -> Exclusive {
        self.0.exclusive(l, bios, now, config)
    }

    fn run_exclusive(&self, local: &mut Self::Local, caller: &mut Caller<'_>, bios: &mut BioList) {
        self.0.run_exclusive(local, caller, bios);
    }

    fn expel(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        port: PortId,
    ) -> (BioList, bool) {
        self.0.expel(local, caller, port)
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn last_publisher(&self) -> PortId {
        self.0.last_publisher()
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        let hooks = AT_CLOSE.take();
        let Some((during, after)) = hooks else { return self.0.closed(port, locks, remove) };
        let mut during = Some(during);
        let again = self.0.closed(port, locks, &mut || {
            remove();
            during.take().expect("once")();
        });
        after();
        again
    }
}

fn interleaved(
    setup: Setup,
    stage: &Arc<Stage>,
    options: &QueueOptions,
    clock: Arc<dyn Clock>,
) -> Arc<RequestQueue<Fake, Interleaved>> {
    let (fake, locks) = (Fake::new(setup, stage), LockCounters::new(clock));
    let queue = RequestQueue::with_scheduler("q0", fake, options, locks);
    Arc::new(queue.expect("a queue"))
}

fn submit((cx, dev): &mut (Context, ChannelId), bios: impl IntoIterator<Item = Box<Bio>>) {
    let mut list = BioList::new();
    list.extend(bios);
    cx.submit(*dev, &mut list);
}

/// The driver has two requests, which is the limit. A third context has the turn because it closes.
/// Meanwhile one context publishes a bio, and another one a bio with NOWAIT. Then the first context
/// is dropped before any context has rechecked.
#[test]
fn a_dropped_context_ends_what_may_not_wait() {
    let clock = ManualClock::new(1000 * MS);
    let (set, stage) = (ContextSet::new(clock.clone()), Stage::new());
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        nr_requests: Some(2),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let device: Arc<dyn Device> = interleaved(Setup::depth(8), &stage, &options, clock);
    let open = || {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        (cx, dev)
    };
    stage.otherwise(Answer::Hold);
    let (mut stays, mut goes, closes) = (open(), open(), open());
    submit(&mut stays, [read(10, 1)]);
    submit(&mut stays, [read(20, 1)]);
    assert_eq!(stage.held(), 2);
    let stays = Rc::new(RefCell::new(stays));
    let brought = stays.clone();
    let dropped = Rc::new(RefCell::new(None));
    let to_drop = dropped.clone();
    let during: Hook = Box::new(move || {
        submit(&mut goes, [read(30, 1)]);
        submit(&mut brought.borrow_mut(), [with(read(40, 1), BioFlags::NOWAIT)]);
        *to_drop.borrow_mut() = Some(goes);
    });
    let after: Hook = Box::new(move || drop(dropped.borrow_mut().take()));
    AT_CLOSE.set(Some((during, after)));
    drop(closes);
    assert!(AT_CLOSE.take().is_none(), "the channel was closed");
    let mut all = Vec::new();
    for _ in 0..2 {
        assert!(stage.give_back(0, Status::Ok));
        all.extend(ended(&mut stays.borrow_mut().0));
    }
    all.extend(ended(&mut stays.borrow_mut().0));
    all.sort_by_key(|(sector, _)| *sector);
    assert_eq!(all, [(10, Status::Ok), (20, Status::Ok), (40, Status::Again)]);
}

/// The driver has both tags. While a context submits a read and a flush, one tag comes back and is
/// granted to the read. The context then waits for a tag for the flush, and the other tag comes
/// back. The context finds both messages at once, and the driver completes both requests.
#[test]
fn a_grant_and_a_turn_at_tags_that_come_together_lose_no_tag() {
    let clock = ManualClock::new(1000 * MS);
    let (set, stage, others) = (ContextSet::new(clock.clone()), Stage::new(), Stage::new());
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut setup = Setup::cache(false);
    setup.hw.depth = 2;
    let queue = interleaved(setup, &stage, &options, clock.clone());
    let device: Arc<dyn Device> = queue.clone();
    let second: Arc<dyn Device> = interleaved(Setup::depth(2), &others, &options, clock);
    let open = || {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        (cx, dev)
    };
    let (mut holder, mut gets) = (open(), open());
    let also = gets.0.open(&second).expect("a channel");
    stage.otherwise(Answer::Hold);
    submit(&mut holder, [read(10, 1), read(20, 1)]);
    assert_eq!((stage.held(), queue.tags(0).in_use()), (2, 2));
    stage.otherwise(Answer::Done(Status::Ok));
    let holder = Rc::new(RefCell::new(holder));
    let comes_back = || -> Hook {
        let (stage, holder) = (stage.clone(), holder.clone());
        Box::new(move || {
            assert!(stage.give_back(0, Status::Ok));
            assert_eq!(ended(&mut holder.borrow_mut().0).len(), 1);
        })
    };
    AFTER_TURN.set(VecDeque::from([comes_back(), comes_back()]));
    let mut real_time = read(50, 1);
    real_time.priority.class = drystone_core::PriorityClass::RealTime;
    gets.0.start_plug();
    submit(&mut gets, [read(30, 1), Bio::flush()]);
    let mut list = BioList::new();
    list.push(real_time);
    gets.0.submit(also, &mut list);
    gets.0.finish_plug();
    assert!(AFTER_TURN.take().is_empty(), "both came back");
    assert_eq!(ended(&mut gets.0).len(), 3);
    assert_eq!(queue.tags(0).in_use(), 0, "a tag is lost");
}

/// The driver was busy for a unit, which must go before all others, even a real-time one. It makes
/// no difference that a third context submits a bio and is dropped.
#[test]
fn what_the_driver_was_busy_for_goes_first_though_a_context_is_dropped() {
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let mut rig = Rig::with(Setup::depth(4), &options, Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    rig.submit([read(5, 1)]);
    rig.stage.next(Answer::Busy(0));
    rig.submit([read(100, 1)]);
    assert_eq!(rig.stage.refused(), [100]);
    let mut other = rig.another();
    let mut real_time = read(20, 1);
    real_time.priority.class = drystone_core::PriorityClass::RealTime;
    submit(&mut other, [real_time]);
    let mut third = rig.another();
    submit(&mut third, [read(30, 1)]);
    drop(third);
    for _ in 0..3 {
        let _ = rig.give_back_all();
        let _ = ended(&mut other.0);
    }
    let sectors: Vec<_> = rig.taken().iter().map(|t| t.0).collect();
    assert_eq!(sectors, [5, 100, 20]);
}

/// Two queues have one tag each; that of the second queue is in use. A context of that queue
/// submits two units. As soon as its turn is over, the queue is removed and the tag comes back, so
/// one unit is granted with it. Before the context sees the grant it sees the change, and moves.
#[test]
fn a_unit_that_was_granted_in_the_queue_before_goes_in_the_next_one() {
    let clock = ManualClock::new(1000 * MS);
    let (set, stage) = (ContextSet::new(clock.clone()), Stage::new());
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let hw = crate::HwQueues { default: 2, poll: 0, depth: 1 };
    let queue = interleaved(Setup { hw, ..Setup::depth(1) }, &stage, &options, clock);
    let device: Arc<dyn Device> = queue.clone();
    let open = || {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        (cx, dev)
    };
    stage.otherwise(Answer::Hold);
    let (_first, mut moves, _third) = (open(), open(), open());
    let mut holds = open();
    submit(&mut holds, [read(10, 1)]);
    let (device, giver) = (device.clone(), stage.clone());
    let after: Hook = Box::new(move || {
        device.set_attribute("queue/hw_queues", "1").unwrap();
        assert!(giver.give_back(0, Status::Ok));
        assert_eq!(ended(&mut holds.0), [(10, Status::Ok)]);
    });
    // The next turn finds the change.
    AFTER_TURN.set(VecDeque::from([after, Box::new(|| ())]));
    submit(&mut moves, [read(20, 1), read(30, 1)]);
    let in_use = || [0, 1].map(|hctx| queue.tags(hctx).in_use());
    assert_eq!((stage.held(), in_use()), (1, [1, 0]), "it was let go once more");
    assert!(stage.give_back(0, Status::Ok));
    assert_eq!(ended(&mut moves.0), [(20, Status::Ok)]);
    assert!(stage.give_back(0, Status::Ok));
    assert_eq!(ended(&mut moves.0), [(30, Status::Ok)]);
    assert_eq!(in_use(), [0, 0], "a tag is lost");
}

/// A turn at the scheduler takes over a change that came after the call had begun. The channel's
/// driver queue is informed of it too, exactly once.
#[test]
fn the_driver_is_told_of_a_change_that_a_turn_finds() {
    let clock = ManualClock::new(1000 * MS);
    let (set, stage) = (ContextSet::new(clock.clone()), Stage::new());
    let options = QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        nr_requests: Some(1),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    };
    let device: Arc<dyn Device> = interleaved(Setup::depth(8), &stage, &options, clock);
    stage.otherwise(Answer::Hold);
    let mut cx = set.open(Engine::Auto).expect("a ring");
    let dev = cx.open(&device).expect("a channel");
    let mut user = (cx, dev);
    submit(&mut user, [read(10, 1)]);
    let before = stage.refreshes();
    let changed = device.clone();
    let change: Hook = Box::new(move || changed.set_attribute("queue/nomerges", "1").unwrap());
    BEFORE_TURN.set(Some(change));
    submit(&mut user, [read(20, 1)]);
    assert!(BEFORE_TURN.take().is_none(), "there was a turn");
    submit(&mut user, [read(30, 1)]);
    assert_eq!(stage.refreshes(), before + 1);
    while stage.give_back(0, Status::Ok) {
        assert_eq!(ended(&mut user.0).len(), 1);
    }
}
