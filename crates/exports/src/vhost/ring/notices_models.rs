//! Models of notifications: a side that goes to sleep is told of what it did not see.

use super::notices::{Field, Fields, Notices, passes};
use loom::sync::atomic::{AtomicBool, AtomicU16, Ordering, Ordering::*, fence};
use std::sync::Arc;

/// How many chains are added, or used.
const CHAINS: u16 = 2;
/// The first value of both indices, which then wrap.
const START: u16 = 0xffff;
/// The last value.
const END: u16 = START.wrapping_add(CHAINS);
/// An event that the index passed long ago.
const LONG_AGO: u16 = 0x8000;

/// What driver and device share.
struct Shared {
    event_idx: bool,
    /// By [`Field`].
    numbers: [AtomicU16; 6],
    /// Entries of a ring: what is stored before its index.
    entries: [AtomicU16; CHAINS as usize],
    /// One side has told the other.
    told: AtomicBool,
}

impl Fields for Shared {
    fn load(&self, field: Field, order: Ordering) -> u16 {
        self.numbers[field as usize].load(order)
    }

    fn store(&self, field: Field, value: u16, order: Ordering) {
        self.numbers[field as usize].store(value, order);
    }
}

impl Shared {
    /// Nobody wants to be told.
    fn new(event_idx: bool) -> Arc<Self> {
        let shared = Self {
            event_idx,
            numbers: std::array::from_fn(|_| AtomicU16::new(0)),
            entries: std::array::from_fn(|_| AtomicU16::new(0)),
            told: AtomicBool::new(false),
        };
        for (field, value) in [
            (Field::AvailableFlags, 1),
            (Field::UsedFlags, 1),
            (Field::UsedEvent, LONG_AGO),
            (Field::AvailableEvent, LONG_AGO),
            (Field::AvailableIndex, START),
            (Field::UsedIndex, START),
        ] {
            shared.store(field, value, Relaxed);
        }
        Arc::new(shared)
    }

    /// All entries before `index` are there.
    fn check_entries(&self, index: u16) {
        for entry in &self.entries[..index.wrapping_sub(START).into()] {
            assert_eq!(entry.load(Relaxed), 1, "an entry is seen later than its index");
        }
    }

    /// Stores chain `number`; the index after it.
    fn fill(&self, number: u16) -> u16 {
        self.entries[usize::from(number)].store(1, Relaxed);
        START.wrapping_add(number + 1)
    }

    /// The driver makes chain `number` available, and kicks if it must.
    fn add(&self, number: u16) {
        let index = self.fill(number);
        self.store(Field::AvailableIndex, index, Release);
        fence(SeqCst);
        let must_kick = match self.event_idx {
            true => passes(index.wrapping_sub(1), index, self.load(Field::AvailableEvent, Relaxed)),
            false => self.load(Field::UsedFlags, Relaxed) == 0,
        };
        if must_kick {
            self.told.store(true, Relaxed);
        }
    }

    /// The driver wants a call if the used index leaves `seen`; true if it has.
    fn ask_for_call(&self, seen: u16) -> bool {
        match self.event_idx {
            true => self.store(Field::UsedEvent, seen, Relaxed),
            false => self.store(Field::AvailableFlags, 0, Relaxed),
        }
        fence(SeqCst);
        self.load(Field::UsedIndex, Acquire) != seen
    }
}

fn check(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// A driver adds chains while the device takes one in each round, and goes to sleep if there is no
/// more. It asks for no kicks during a round.
fn check_kicks(event_idx: bool) {
    check(move || {
        let shared = Shared::new(event_idx);
        let driver = shared.clone();
        let driver = loom::thread::spawn(move || (0..CHAINS).for_each(|number| driver.add(number)));
        let (notices, mut next) = (Notices::new(event_idx), START);
        loop {
            notices.disable(&*shared);
            if notices.available(&*shared) != next {
                next = next.wrapping_add(1);
                shared.check_entries(next);
            }
            if !notices.enable(&*shared, next) {
                break;
            }
        }
        driver.join().unwrap();
        assert!(next == END || shared.told.load(Relaxed), "the device sleeps for ever");
    });
}

/// The device uses chains while the driver takes what is there and goes to sleep.
fn check_calls(event_idx: bool) {
    check(move || {
        let shared = Shared::new(event_idx);
        let mut notices = Notices::new(event_idx);
        // The first index is always told.
        notices.publish(&*shared, START);
        let device = shared.clone();
        let device = loom::thread::spawn(move || {
            for number in 0..CHAINS {
                let used = device.fill(number);
                if notices.publish(&*device, used) {
                    device.told.store(true, Relaxed);
                }
            }
        });
        let taken = loop {
            let used = shared.load(Field::UsedIndex, Acquire);
            shared.check_entries(used);
            if !shared.ask_for_call(used) {
                break used;
            }
        };
        device.join().unwrap();
        assert!(taken == END || shared.told.load(Relaxed), "the driver sleeps for ever");
    });
}

#[test]
fn loom_ring_kicks_by_event() {
    check_kicks(true);
}

#[test]
fn loom_ring_kicks_by_flag() {
    check_kicks(false);
}

#[test]
fn loom_ring_calls_by_event() {
    check_calls(true);
}

#[test]
fn loom_ring_calls_by_flag() {
    check_calls(false);
}
