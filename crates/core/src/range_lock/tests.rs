use super::*;
use crate::clock::ManualClock;
use proptest::prelude::*;
use std::sync::atomic::AtomicU32 as Count;

/// Slots of each user.
const PLACES: usize = 8;

#[derive(Default)]
struct Thread(Count);

impl Wake for Thread {
    fn wake(&self) {
        self.0.fetch_add(1, SeqCst);
    }
}

fn locks() -> Arc<LockCounters> {
    LockCounters::new(ManualClock::new(1))
}

fn join(lock: &Arc<RangeLock>) -> RangeUser {
    lock.join(PLACES, Arc::new(Thread::default()), locks())
}

fn granted(user: &mut RangeUser) -> Vec<usize> {
    let mut slots = Vec::new();
    if user.has_news() {
        user.take_granted(&mut slots);
    }
    slots
}

#[test]
fn shared_writes_take_no_lock_while_nobody_is_exclusive() {
    let lock = RangeLock::new();
    let counters = locks();
    let mut user = lock.join(PLACES, Arc::new(Thread::default()), counters.clone());
    let before = counters.total().acquisitions;
    for round in 0..3 {
        assert!(user.lock_shared(0, &(0..8)) && user.lock_shared(1, &(4..12)));
        assert!(user.lock_shared(PLACES + round, &(0..8)), "a slot that the user does not have");
        (0..2).for_each(|slot| user.unlock(slot));
        user.unlock(PLACES + round);
    }
    assert_eq!(counters.total().acquisitions, before);
}

#[test]
fn an_exclusive_write_waits_for_what_overlaps_and_holds_up_only_that() {
    let lock = RangeLock::new();
    let [mut one, mut two, mut three] = std::array::from_fn(|_| join(&lock));
    assert!(one.lock_shared(0, &(0..8)) && one.lock_shared(1, &(16..24)));
    assert!(!two.lock_exclusive(0, &(4..12)), "the first is under way");
    assert!(two.lock_exclusive(1, &(32..40)), "nobody writes that");
    assert!(!three.lock_shared(0, &(8..16)) && three.lock_shared(1, &(12..20)));
    one.unlock(1);
    assert!(granted(&mut two).is_empty(), "something else has ended");
    one.unlock(0);
    assert_eq!(granted(&mut two), [0]);
    assert!(granted(&mut three).is_empty());
    two.unlock(0);
    assert_eq!(granted(&mut three), [0]);
    assert!(!one.lock_exclusive(0, &(15..17)), "one that has waited is seen as any other");
    three.unlock(0);
    assert!(granted(&mut one).is_empty());
    three.unlock(1);
    assert_eq!(granted(&mut one), [0]);
}

#[test]
fn a_user_is_woken_once_for_what_it_may_do() {
    let lock = RangeLock::new();
    let thread = Arc::new(Thread::default());
    let mut waits = lock.join(PLACES, thread.clone(), locks());
    let mut holds = join(&lock);
    assert!(holds.lock_exclusive(0, &(0..8)));
    assert!(!waits.lock_exclusive(0, &(0..4)) && !waits.lock_shared(1, &(4..8)));
    assert_eq!((thread.0.load(SeqCst), waits.has_news()), (0, false));
    holds.unlock(0);
    assert_eq!((thread.0.load(SeqCst), waits.has_news()), (2, true));
    assert_eq!(granted(&mut waits), [0, 1]);
    assert!(!waits.has_news());
}

#[test]
fn places_that_a_user_does_not_have_count_for_all_ranges() {
    let lock = RangeLock::new();
    let [mut one, mut two] = std::array::from_fn(|_| join(&lock));
    assert!(one.lock_shared(PLACES, &(0..8)));
    assert!(!two.lock_exclusive(0, &(100..108)));
    assert!(!one.lock_shared(PLACES + 1, &(0..8)), "or such slots would keep others out for ever");
    one.unlock(PLACES);
    assert_eq!(granted(&mut two), [0]);
    two.unlock(0);
    assert_eq!(granted(&mut one), [PLACES + 1]);
    one.unlock(PLACES + 1);
    assert!(two.lock_exclusive(0, &(0..8)));
}

#[test]
fn whoever_is_over_keeps_nobody() {
    let lock = RangeLock::new();
    let [mut gone, mut left, mut last] = std::array::from_fn(|_| join(&lock));
    assert!(gone.lock_exclusive(0, &(0..8)) && !gone.lock_shared(1, &(0..8)));
    assert!(!left.lock_exclusive(0, &(0..8)) && !last.lock_shared(0, &(0..8)));
    drop(gone);
    assert_eq!(granted(&mut left), [0]);
    drop(left);
    assert_eq!(granted(&mut last), [0]);
    last.unlock(0);
    let mut next = join(&lock);
    assert!(next.lock_exclusive(0, &(0..8)), "its number is another's now");
}

// --- against a list of all that was asked for, in order

struct Asked {
    user: usize,
    slot: usize,
    range: Range<u64>,
    exclusive: bool,
}

/// The slow and obvious lock.
#[derive(Default)]
struct Oracle(Vec<Asked>);

impl Oracle {
    fn holds(&self, at: usize) -> bool {
        let asked = &self.0[at];
        !self.0[..at].iter().any(|before| {
            let overlaps =
                (before.range.start..before.range.end).any(|byte| asked.range.contains(&byte));
            overlaps && (before.exclusive || asked.exclusive)
        })
    }

    fn find(&self, user: usize, slot: usize) -> Option<usize> {
        self.0.iter().position(|asked| asked.user == user && asked.slot == slot)
    }

    fn holding(&self) -> Vec<(usize, usize)> {
        let mut all: Vec<_> = (0..self.0.len()).filter(|at| self.holds(*at)).collect();
        let mut slots: Vec<_> =
            all.drain(..).map(|at| (self.0[at].user, self.0[at].slot)).collect();
        slots.sort_unstable();
        slots
    }
}

const USERS: usize = 3;

/// A user, one of its slots, and a range to lock there unless it holds one, which is given back
/// then.
type Step = (usize, usize, u64, u64, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..USERS, 0..PLACES, 0..16_u64, 1..6_u64, prop::bool::weighted(0.3));
    prop::collection::vec(step, 1..120)
}

fn run(steps: &[Step]) {
    let lock = RangeLock::new();
    let mut users: [RangeUser; USERS] = std::array::from_fn(|_| join(&lock));
    let (mut oracle, mut holding) = (Oracle::default(), Vec::new());
    for (user, slot, start, length, exclusive) in steps.iter().cloned() {
        let range = start..start + length;
        match oracle.find(user, slot) {
            Some(at) => {
                users[user].unlock(slot);
                oracle.0.remove(at);
                holding.retain(|held| *held != (user, slot));
            }
            None => {
                oracle.0.push(Asked { user, slot, range: range.clone(), exclusive });
                let goes = match exclusive {
                    true => users[user].lock_exclusive(slot, &range),
                    false => users[user].lock_shared(slot, &range),
                };
                holding.extend(goes.then_some((user, slot)));
            }
        }
        for (number, user) in users.iter_mut().enumerate() {
            holding.extend(granted(user).into_iter().map(|slot| (number, slot)));
        }
        holding.sort_unstable();
        assert_eq!(holding, oracle.holding());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn it_is_the_slow_lock(steps in steps()) {
        run(&steps);
    }
}
