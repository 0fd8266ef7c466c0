//! Power cuts at every moment: an honest disk is never reported, each kind of wrong disk is, and
//! so is a subject that trusts an order which nobody keeps.

use drystone_sim::mixed::{Outcome, Plan, crash as volumes};
use drystone_sim::runner::Order;
use drystone_sim::shrink;
use fastrand::Rng;

/// Seeds that a wrong disk may need until it is found.
const SEEDS: u64 = 20;

/// A seed whose disks are not what their stack believes.
fn with_disks(order: &Order, change: impl Fn(&mut Plan)) -> Outcome {
    let mut rng = Rng::with_seed(order.seed);
    let mut plan = Plan::small(&mut rng);
    change(&mut plan);
    volumes::run_plan(order, plan, &mut rng)
}

fn order(seed: u64) -> Order {
    Order { seed, ..Order::default() }
}

/// The first seed that fails with disks changed so, its I/Os, and the sentence.
fn found(change: impl Fn(&mut Plan)) -> (u64, u64, String) {
    found_among(1..=SEEDS, change)
}

fn found_among(seeds: impl Iterator<Item = u64>, change: impl Fn(&mut Plan)) -> (u64, u64, String) {
    for seed in seeds {
        let outcome = with_disks(&order(seed), &change);
        if let Some(failure) = outcome.failure {
            return (seed, outcome.ios, failure.to_string());
        }
    }
    panic!("not found");
}

#[test]
fn honest_disks_are_not_reported_and_runs_repeat() {
    for seed in [3, 4, 5] {
        let outcome = volumes::run(&order(seed));
        assert_eq!(outcome.failure, None, "seed {seed}");
        let count = |name| outcome.counts.get(name);
        let (all, some) = (count("crash: moment, all images"), count("crash: moment, some images"));
        assert_eq!(all + some, count("crash: moment"));
        assert!(all > 0 && count("crash: restart") > count("crash: moment"), "seed {seed}");
        assert!(count("crash: restart, then used") > 0, "seed {seed}");
        let again = volumes::run(&order(seed));
        assert_eq!((outcome.digest, outcome.counts), (again.digest, again.counts), "seed {seed}");
    }
}

#[test]
fn a_disk_that_lies_is_found_and_the_failure_made_smaller() {
    let lies = |plan: &mut Plan| plan.disks.iter_mut().for_each(|disk| disk.lying = disk.cache);
    let (seed, ios, sentence) = found(lies);
    assert!(sentence.contains("the power goes at moment"), "{sentence}");
    assert!(sentence.contains("image") && sentence.contains("before: "), "{sentence}");
    let again = with_disks(&Order { trace: true, ..order(seed) }, lies);
    assert_eq!(again.failure.map(|failure| failure.to_string()), Some(sentence));
    let last = again.trace.iter().rposition(|(_, _, line)| line.contains("the power goes"));
    assert!(last.is_some_and(|last| last + 1 < again.trace.len()), "what happened after the cut");
    let fails = |keep: &_| {
        let order = Order { keep: Some(Clone::clone(keep)), ..order(seed) };
        with_disks(&order, lies).failure.is_some()
    };
    let keep = shrink::shrink(ios, fails);
    assert!((keep.len() as u64) < ios && fails(&keep), "{keep:?} of {ios}");
}

#[test]
fn a_disk_that_forgets_a_flushed_block_is_found() {
    found(|plan| plan.disks.iter_mut().for_each(|disk| disk.forgetful = disk.cache));
}

#[test]
fn a_disk_that_tears_blocks_is_found() {
    // Only a stack all of whose disks have large blocks is promised anything.
    let has_large = |seed: &u64| {
        let plan = Plan::small(&mut Rng::with_seed(*seed));
        plan.disks.iter().all(|disk| disk.physical_block == 4096)
    };
    let seeds = (1..).filter(has_large).take(SEEDS as usize);
    found_among(seeds, |plan| plan.disks.iter_mut().for_each(|disk| disk.physical_block = 512));
}
