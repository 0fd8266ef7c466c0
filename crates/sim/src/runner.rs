//! Runs many seeds on several threads. Each simulation stays on one thread.

use crate::counts::Counts;
use crate::mixed;
use crate::order::Keep;
pub use crate::order::Order;
use crate::outcome::Outcome;
pub use crate::panics::quiet_panics;
use crate::shrink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Sender, channel};

/// A scenario that can be simulated.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Its name.
    pub name: &'static str,
    /// One line that describes it.
    pub what: &'static str,
    /// The function that runs one seed.
    pub run: fn(&Order) -> Outcome,
}

/// All scenarios, the default one first.
pub const SCENARIOS: [Scenario; 8] = [
    Scenario {
        name: "mixed",
        what: "volumes of every kind under load from 4 to 8 threads, changed while they run, on \
           disks that fail and lose their power",
        run: mixed::run,
    },
    Scenario {
        name: "nbd",
        what: "the same volumes behind the NBD server, with clients of all manners",
        run: mixed::run_nbd,
    },
    Scenario {
        name: "raid",
        what: "an array of level 4, 5 or 6 under the same load, on disks that fail, come back and \
           lose their power",
        run: mixed::run_raid,
    },
    Scenario {
        name: "bad-sectors",
        what: "disks of which some sectors cannot be read or written: nothing else fails, whatever \
           it was merged with",
        run: mixed::run_bad_sectors,
    },
    Scenario {
        name: "crash",
        what: "small volumes, the power lost at every moment, and all that may be left of them",
        run: mixed::crash::run,
    },
    Scenario {
        name: "raid-crash",
        what: "the same of small arrays, whole, degraded, and of which members fail and come back, \
           whose parity has to fit after it",
        run: mixed::crash::run_raid,
    },
    Scenario {
        name: "raid-metadata",
        what: "an array of whose members some are edited before it starts: the data is right, or \
           it is refused and nothing is changed",
        run: mixed::run_metadata,
    },
    Scenario {
        name: "shrinks",
        what: "arrays and disks whose files are cut off while they are used: errors, never zeroes \
            for what was there",
        run: mixed::run_shrinks,
    },
];

/// The scenario of that name.
pub fn scenario(name: &str) -> Option<&'static Scenario> {
    static ALL: [Scenario; SCENARIOS.len()] = SCENARIOS;
    ALL.iter().find(|scenario| scenario.name == name)
}

/// The outcome of many seeds.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Seeds that were run.
    pub seeds: u64,
    /// I/Os begun.
    pub ios: u64,
    /// Simulated time.
    pub simulated_ns: u64,
    /// Counts of what happened.
    pub counts: Counts,
    /// The first seed that failed, with its outcome.
    pub failed: Option<(u64, Outcome)>,
}

/// Run the seeds that `next` gives, until it gives none or one fails. This thread calls `each` for
/// every seed that ends.
pub fn run(
    scenario: &Scenario,
    mistake: Option<&'static str>,
    threads: usize,
    next: impl Fn() -> Option<u64> + Sync,
    mut each: impl FnMut(&Summary),
) -> Summary {
    let failed = AtomicBool::new(false);
    let (sender, outcomes) = channel::<(u64, Outcome)>();
    let mut summary = Summary::default();
    let work = |sender: Sender<(u64, Outcome)>| {
        while !failed.load(Relaxed) {
            let Some(seed) = next() else { return };
            let outcome = (scenario.run)(&Order { seed, mistake, ..Order::default() });
            failed.fetch_or(outcome.failure.is_some(), Relaxed);
            // A send fails only if the receiving thread panicked: nobody needs the outcome then.
            let _ = sender.send((seed, outcome));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (work, sender) = (&work, sender.clone());
            scope.spawn(move || work(sender));
        }
        drop(sender);
        for (seed, outcome) in outcomes {
            summary.add(seed, outcome);
            each(&summary);
        }
    });
    summary
}

impl Summary {
    fn add(&mut self, seed: u64, outcome: Outcome) {
        self.seeds += 1;
        self.ios += outcome.ios;
        self.simulated_ns += outcome.simulated_ns;
        self.counts.add_all(&outcome.counts);
        let first = self.failed.as_ref().is_none_or(|(before, _)| seed < *before);
        if outcome.failure.is_some() && first {
            self.failed = Some((seed, outcome));
        }
    }
}

/// The smallest set of I/Os found with which the failing seed still fails.
pub fn smallest(scenario: &Scenario, order: &Order, ios: u64) -> Keep {
    let fails = |keep: &Keep| {
        let order = Order { keep: Some(keep.clone()), trace: false, ..order.clone() };
        (scenario.run)(&order).failure.is_some()
    };
    shrink::shrink(ios, fails)
}

/// Seeds from `first` on, `count` of them.
pub fn seeds(first: u64, count: u64) -> impl Fn() -> Option<u64> + Sync {
    let taken = AtomicU64::new(0);
    move || {
        let n = taken.fetch_add(1, Relaxed);
        (n < count).then(|| first.wrapping_add(n))
    }
}
