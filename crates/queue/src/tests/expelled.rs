//! A context is dropped while bios are published that may not wait.

use super::*;
use crate::config::Config;
use crate::scheduler::{Alone, Caller, MqDeadline, Place, Port, Scheduler};
use drystone_core::clock::Ns;
use std::sync::Mutex;

type Hook = Box<dyn FnOnce() + Send>;

/// What happens while a closing channel has the turn, and just after it has left it.
static HOOKS: Mutex<Option<(Hook, Hook)>> = Mutex::new(None);

/// `mq-deadline`, with other threads' doings put where they could come.
#[derive(Default)]
struct Interleaved(MqDeadline);

impl Scheduler for Interleaved {
    type Local = <MqDeadline as Scheduler>::Local;

    fn run(
        &self,
        local: &mut Self::Local,
        caller: &mut Caller<'_>,
        bios: &mut BioList,
        place: Place,
    ) -> bool {
        self.0.run(local, caller, bios, place)
    }

    fn alone(&self, l: &mut Self::Local, bios: &mut BioList, now: Ns, config: &Config) -> Alone {
        self.0.alone(l, bios, now, config)
    }

    fn run_alone(&self, local: &mut Self::Local, caller: &mut Caller<'_>, bios: &mut BioList) {
        self.0.run_alone(local, caller, bios);
    }

    fn expel(&self, l: &mut Self::Local, caller: &mut Caller<'_>, home: u32) -> (BioList, bool) {
        self.0.expel(l, caller, home)
    }

    fn has_work(&self) -> bool {
        self.0.has_work()
    }

    fn is_busy(&self) -> bool {
        self.0.is_busy()
    }

    fn last_publisher(&self) -> u32 {
        self.0.last_publisher()
    }

    fn closed(&self, port: &Port, locks: &LockCounters, remove: &mut dyn FnMut()) -> bool {
        let hooks = HOOKS.lock().unwrap().take();
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

/// Two requests are with the driver, which is all that may be. A third context has the turn to
/// close; meanwhile one context publishes a bio, and another one a bio with NOWAIT. Then the first
/// one is dropped, before anybody has looked.
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
    let fake = Fake::new(Setup::depth(8), &stage);
    let queue = RequestQueue::<Fake, Interleaved>::with_scheduler(
        "q0",
        fake,
        &options,
        LockCounters::new(clock),
    );
    let device: Arc<dyn Device> = Arc::new(queue.expect("a queue"));
    let open = || {
        let mut cx = set.open(Engine::Auto).expect("a ring");
        let dev = cx.open(&device).expect("a channel");
        (cx, dev)
    };
    let submit = |(cx, dev): &mut (Context, DevIndex), bio: Box<Bio>| {
        let mut list = BioList::new();
        list.push(bio);
        cx.submit(*dev, &mut list);
    };
    stage.otherwise(Answer::Hold);
    let (mut stays, mut goes, closes) = (open(), open(), open());
    submit(&mut stays, read(10, 1));
    submit(&mut stays, read(20, 1));
    assert_eq!(stage.held(), 2);
    let stays = Arc::new(Mutex::new(stays));
    let brought = stays.clone();
    let dropped = Arc::new(Mutex::new(None));
    let to_drop = dropped.clone();
    let during: Hook = Box::new(move || {
        submit(&mut goes, read(30, 1));
        submit(&mut brought.lock().unwrap(), with(read(40, 1), BioFlags::NOWAIT));
        *to_drop.lock().unwrap() = Some(goes);
    });
    let after: Hook = Box::new(move || drop(dropped.lock().unwrap().take()));
    *HOOKS.lock().unwrap() = Some((during, after));
    drop(closes);
    assert!(HOOKS.lock().unwrap().is_none(), "the channel was closed");
    let mut all = Vec::new();
    for _ in 0..2 {
        assert!(stage.give_back(0, Status::Ok));
        all.extend(ended(&mut stays.lock().unwrap().0));
    }
    all.extend(ended(&mut stays.lock().unwrap().0));
    all.sort_by_key(|(sector, _)| *sector);
    assert_eq!(all, [(10, Status::Ok), (20, Status::Ok), (40, Status::Again)]);
}
