//! The numbers of hardware and poll queues change on a live device. Contexts whose owners are away
//! meanwhile are visited by the contexts that need something from them.

use super::attributes::refused;
use super::*;
use drystone_core::Holder;
use drystone_core::context::Handle;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

fn setup(default: u32, poll: u32, depth: u32) -> Setup {
    Setup { hw: crate::HwQueues { default, poll, depth }, ..Setup::depth(depth) }
}

fn set(rig: &Rig, name: &str, value: u32) {
    rig.device.set_attribute(name, &value.to_string()).unwrap();
    assert_eq!(rig.attribute(name), value.to_string());
}

fn submit(cx: &mut Context, dev: ChannelId, sectors: impl IntoIterator<Item = u64>) {
    let mut list = BioList::new();
    list.extend(sectors.into_iter().map(|sector| read(sector, 1)));
    cx.submit(dev, &mut list);
}

/// The requests that the driver holds, by sector.
fn held(rig: &Rig) -> Vec<u64> {
    rig.stage.held_requests().iter().map(|seen| seen.sector).collect()
}

/// The driver gives back the request at `sector`, and kicks its context, whose owner is away.
fn give_back(rig: &Rig, of: &Handle, sector: u64) {
    let at = held(rig).iter().position(|other| *other == sector).expect("it is held");
    assert!(rig.stage.give_back(at, Status::Ok));
    rig.set.kick(of.id());
}

/// Two contexts share one tag. One of them holds it, and its owner is away. The other one waits in
/// line. With a second queue it goes on at once, although its owner is away too.
#[test]
fn who_waits_for_a_tag_goes_to_a_new_queue() {
    let mut rig = Rig::new(setup(1, 0, 1));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit([read(0, 1)]);
    submit(&mut other, dev, [10, 20]);
    assert_eq!(held(&rig), [0]);
    set(&rig, "queue/hw_queues", 2);
    assert_eq!(held(&rig), [0, 10]);
    // Its place in the old line does not hold up other contexts there.
    rig.submit([read(30, 1)]);
    let sleeper = rig.cx.handle().clone();
    give_back(&rig, &sleeper, 0);
    assert_eq!(held(&rig), [10, 30]);
    let mut ends = Vec::new();
    while rig.stage.give_back(0, Status::Ok) {
        ends.extend(ended(&mut other).into_iter().chain(rig.ended()).map(|end| end.0));
    }
    ends.sort_unstable();
    assert_eq!(ends, [0, 10, 20, 30]);
}

/// A queue is removed while a context has a request there. Later bios wait until that request is
/// back, and then in line for a tag of the remaining queue.
#[test]
fn a_queue_that_is_taken_away_is_drained_first() {
    let mut rig = Rig::new(setup(2, 0, 1));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit([read(0, 1)]);
    submit(&mut other, dev, [10]);
    set(&rig, "queue/hw_queues", 1);
    submit(&mut other, dev, [20]);
    assert_eq!(held(&rig), [0, 10]);
    let sleeper = other.handle().clone();
    give_back(&rig, &sleeper, 10);
    assert_eq!(held(&rig), [0], "the one tag that is left is taken");
    let sleeper = rig.cx.handle().clone();
    give_back(&rig, &sleeper, 0);
    assert_eq!(held(&rig), [20]);
    assert!(rig.stage.give_back(0, Status::Ok));
    let ends = |cx: &mut Context| ended(cx).iter().map(|end| end.0).collect::<Vec<_>>();
    assert_eq!((ends(&mut other), ends(&mut rig.cx)), (vec![10, 20], vec![0]));
}

#[test]
fn a_queue_that_comes_back_has_all_its_tags() {
    let mut rig = Rig::new(setup(1, 0, 4));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    for _ in 0..3 {
        set(&rig, "submit_queues", 2);
        rig.submit((0..6).map(|i| read(10 * i, 1)));
        submit(&mut other, dev, (0..6).map(|i| 1000 + 10 * i));
        assert_eq!(rig.stage.held(), 8);
        set(&rig, "queue/hw_queues", 1);
        let mut ends = 0;
        while rig.stage.give_back(0, Status::Ok) {
            ends += ended(&mut other).len() + rig.ended().len();
        }
        ends += ended(&mut other).len() + rig.ended().len();
        assert_eq!(ends, 12);
    }
}

/// The limit in force applies to new queues too.
#[test]
fn new_queues_have_as_many_tags_as_the_others() {
    let rig = Rig::new(setup(1, 0, 4));
    rig.stage.otherwise(Answer::Hold);
    set(&rig, "queue/nr_requests", 2);
    set(&rig, "queue/hw_queues", 2);
    let (mut other, dev) = rig.another();
    submit(&mut other, dev, (0..4).map(|i| 10 * i));
    assert_eq!(rig.stage.held(), 2);
    while rig.stage.give_back(0, Status::Ok) {
        ended(&mut other);
    }
    assert_eq!(other.outstanding(), 0);
}

#[test]
fn what_may_not_wait_is_told_so_only_while_a_queue_is_drained() {
    let rig = Rig::new(setup(2, 0, 4));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    let mut send = |sector| {
        let mut list = BioList::new();
        list.push(with(read(sector, 1), BioFlags::NOWAIT));
        other.submit(dev, &mut list);
        ended(&mut other)
    };
    set(&rig, "queue/hw_queues", 1);
    assert_eq!(send(10), []);
    set(&rig, "queue/hw_queues", 2);
    assert_eq!(send(20), [(20, Status::Again)]);
    assert!(rig.stage.give_back(0, Status::Ok));
    assert_eq!(send(30), [(30, Status::Again), (10, Status::Ok)], "it was not back then");
    assert_eq!(send(40), []);
    assert!(rig.stage.give_back(0, Status::Ok));
    assert_eq!(ended(&mut other), [(40, Status::Ok)]);
}

/// The queues change under a write with a flush after it, and under a write with a flush before it.
#[test]
fn a_flush_sequence_goes_on_in_the_other_queue() {
    let rig = Rig::new(Setup { hw: setup(2, 0, 1).hw, ..Setup::cache(false) });
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    let mut list = BioList::new();
    list.push(with(write(10, 1), BioFlags::FUA));
    other.submit(dev, &mut list);
    set(&rig, "queue/hw_queues", 1);
    list.push(with(write(20, 1), BioFlags::PREFLUSH));
    other.submit(dev, &mut list);
    assert_eq!(rig.ops(), [Op::Write], "the queue is left first");
    let mut ends = Vec::new();
    for queues in [2, 1, 2, 1] {
        rig.stage.give_back(0, Status::Ok);
        ends.extend(ended(&mut other));
        set(&rig, "queue/hw_queues", queues);
    }
    assert_eq!(ends, [(10, Status::Ok), (20, Status::Ok)]);
    assert_eq!(rig.ops(), [Op::Write, Op::Flush, Op::Write]);
}

/// A context is dropped while its bios are between two queues.
#[test]
fn a_dropped_context_leaves_both_queues() {
    let mut rig = Rig::new(setup(2, 0, 1));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    submit(&mut other, dev, [10, 20]);
    rig.submit([read(0, 1)]);
    set(&rig, "queue/hw_queues", 1);
    drop(other);
    assert_eq!(rig.set.free_idle_orphans(), 1, "the driver has one request of it");
    assert!(rig.stage.give_back(0, Status::Ok));
    assert_eq!(rig.set.free_idle_orphans(), 0);
    rig.submit([read(30, 1)]);
    assert_eq!(rig.give_back_all(), [(0, Status::Ok), (30, Status::Ok)]);
    assert_eq!(rig.taken().len(), 3, "what no driver had was never sent");
}

fn scheduled() -> QueueOptions {
    QueueOptions {
        scheduler: Some(SchedulerKind::MqDeadline),
        iosched: vec![("straight", "0".to_owned())],
        ..QueueOptions::default()
    }
}

/// Units that are kept because there is no tag go on in queues that come and go; each ends once.
#[test]
fn kept_units_go_on_when_queues_come_and_go() {
    let mut rig = Rig::with(setup(1, 0, 1), &scheduled(), Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    rig.submit((0..20).map(|i| read(10 * i, 1)));
    submit(&mut other, dev, (0..20).map(|i| 1000 + 10 * i));
    assert_eq!(rig.stage.held(), 1);
    let mut ends = Vec::new();
    for round in 0.. {
        set(&rig, "queue/hw_queues", 1 + round % 3);
        let last = rig.stage.held().saturating_sub(1);
        if !rig.stage.give_back(if round % 2 == 0 { 0 } else { last }, Status::Ok) {
            break;
        }
        ends.extend(ended(&mut other).into_iter().chain(rig.ended()).map(|end| end.0));
    }
    ends.sort_unstable();
    let all: Vec<_> = (0..20).map(|i| 10 * i).chain((0..20).map(|i| 1000 + 10 * i)).collect();
    assert_eq!(ends, all);
}

/// The next unit is of a context that must leave its queue first, and another context's unit waits
/// behind it. Both owners are away, but both contexts go on when the driver has given back the
/// requests that they wait for.
#[test]
fn a_unit_of_a_context_between_two_queues_is_let_go_when_it_has_arrived() {
    let mut rig = Rig::with(setup(2, 0, 2), &scheduled(), Engine::Auto);
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    submit(&mut other, dev, [10]);
    set(&rig, "queue/hw_queues", 1);
    submit(&mut other, dev, [20]);
    rig.submit([read(30, 1)]);
    assert_eq!(held(&rig), [10], "20 is next");
    let sleeper = other.handle().clone();
    give_back(&rig, &sleeper, 10);
    assert_eq!(held(&rig), [20, 30]);
    rig.give_back_all();
    assert_eq!(ended(&mut other).len(), 2);
}

/// A polled request stays in its queue until it is found. The next one goes to the queue in use
/// then.
#[test]
fn a_poll_queue_is_left_when_nothing_is_in_it() {
    let rig = Rig::new(setup(1, 2, 8));
    rig.stage.otherwise(Answer::Hold);
    let (mut other, dev) = rig.another();
    let queues = |rig: &Rig| [0, 1].map(|context| rig.stage.poll_queue_of(context));
    assert_eq!(queues(&rig), [Some(0), Some(1)]);
    submit(&mut other, dev, [10]);
    set(&rig, "poll_queues", 1);
    assert_eq!(queues(&rig), [Some(0), Some(1)]);
    let sleeper = other.handle().clone();
    give_back(&rig, &sleeper, 10);
    assert_eq!(queues(&rig), [Some(0), Some(0)]);
    set(&rig, "poll_queues", 0);
    assert_eq!(queues(&rig), [None, None]);
    assert_eq!(rig.attribute("queue/io_poll"), "0");
    set(&rig, "poll_queues", 3);
    assert_eq!(queues(&rig), [Some(0), Some(1)]);
    assert_eq!(rig.attribute("queue/io_poll"), "1", "the wish is remembered");
    assert_eq!(ended(&mut other).len(), 1);
}

/// Records what its member reports when polling is about to end.
struct Above {
    device: Mutex<Option<Arc<dyn Device>>>,
    seen: Mutex<Vec<[String; 2]>>,
    changes: AtomicU64,
}

impl Holder for Above {
    fn polling_ends(&self) {
        let device = self.device.lock().unwrap();
        let device = device.as_ref().expect("a device");
        let says = ["queue/io_poll", "poll_queues"].map(|name| device.attribute(name).unwrap());
        self.seen.lock().unwrap().push(says);
    }

    fn member_changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }
}

/// A holder of the device hears of the end of polling before it takes effect. From then on it
/// cannot see the device as one that polls, whichever thread makes it check.
#[test]
fn those_above_hear_of_the_last_poll_queue_before_it_goes() {
    let mut rig = Rig::new(setup(1, 2, 8));
    let above = Arc::new(Above {
        device: Mutex::new(Some(rig.device.clone())),
        seen: Mutex::default(),
        changes: AtomicU64::new(0),
    });
    let holder: Arc<dyn Holder> = above.clone();
    rig.device.holders().unwrap().add(Arc::downgrade(&holder));
    set(&rig, "poll_queues", 1);
    assert!(above.seen.lock().unwrap().is_empty(), "it still polls");
    set(&rig, "poll_queues", 0);
    assert_eq!(*above.seen.lock().unwrap(), [["0", "1"]]);
    assert_eq!(above.changes.load(SeqCst), 2);
    rig.submit([with(read(0, 1), BioFlags::POLLED)]);
    assert!(!rig.stage.seen()[0].flags.contains(BioFlags::POLLED));
    refused(&rig, "queue/io_poll", "1", "from 0 to 0");
    *above.device.lock().unwrap() = None;
}

#[test]
fn refused_counts_change_nothing() {
    let rig = Rig::new(setup(2, 1, 8));
    for value in ["0", "1025", "-1", "", "many"] {
        refused(&rig, "queue/hw_queues", value, "from 1 to 1024");
        refused(&rig, "submit_queues", value, "from 1 to 1024");
    }
    for value in ["1025", "-1", "x"] {
        refused(&rig, "poll_queues", value, "from 0 to 1024");
    }
}

/// Several threads load a device with few tags. Another thread gives the device's requests back,
/// and one changes all numbers and the scheduler. Each bio ends once, and no tag is lost.
#[test]
fn counts_change_under_load_from_several_threads() {
    const EACH: u64 = 1_500;
    for options in [QueueOptions::default(), scheduled()] {
        let rig = Rig::with(setup(2, 2, 2), &options, Engine::Auto);
        rig.stage.otherwise(Answer::Hold);
        let (over, left) = (AtomicBool::new(false), AtomicU64::new(4));
        let contexts: Vec<_> = (0..4).map(|_| rig.another()).collect();
        std::thread::scope(|s| {
            for (mut cx, dev) in contexts {
                let left = &left;
                s.spawn(move || {
                    let (mut submitted, mut seen) = (0, vec![0; EACH as usize]);
                    while seen.contains(&0) {
                        while submitted < EACH && cx.outstanding() < 8 {
                            submit(&mut cx, dev, [submitted]);
                            submitted += 1;
                        }
                        cx.wait(None);
                        for (sector, status) in ended(&mut cx) {
                            assert_eq!(status, Status::Ok);
                            seen[sector as usize] += 1;
                        }
                    }
                    assert!(seen.iter().all(|times| *times == 1) && cx.outstanding() == 0);
                    left.fetch_sub(1, SeqCst);
                });
            }
            s.spawn(|| {
                let mut n = 0;
                while left.load(SeqCst) > 0 {
                    n += 1;
                    rig.stage.give_back(n % 3, Status::Ok);
                    rig.stage.give_back(0, Status::Ok);
                    std::thread::yield_now();
                }
                over.store(true, SeqCst);
            });
            s.spawn(|| {
                for n in 0u32.. {
                    if over.load(SeqCst) {
                        break;
                    }
                    set(&rig, "queue/hw_queues", 1 + n * 7 % 5);
                    set(&rig, "poll_queues", n * 5 % 4);
                    if n % 16 == 0 {
                        let name = ["none", "mq-deadline"][n as usize / 16 % 2];
                        rig.device.set_attribute("queue/scheduler", name).unwrap();
                    }
                    std::thread::yield_now();
                }
            });
        });
        assert_eq!(rig.stage.held(), 0);
        set(&rig, "queue/hw_queues", 5);
    }
}
