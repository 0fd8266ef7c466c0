//! The error of the model, and the effects that it lacks.

use super::load::Way;
use super::points::{Point, had};
use crate::dm_poll::scene::{DEPTH, ONE, STRIPE};
use crate::model::verdict::LIMIT;
use crate::outcome::threads_text;

/// Effects that the model always lacks, whatever its inputs.
const ALWAYS: [&str; 7] = [
    "The disks: the model's take what the experiment's take, without a limit of their own. The \
     mail's had one, and its processors were others: its figures stand beside as context.",
    "By interrupt, each thread has a core of the devices' that tells it, so nothing is shared \
     and no device is ever short: what grows with the cores there does so by assumption. A \
     disk's interrupt takes its time from the very core that submitted instead; what that costs \
     is not in the model.",
    "Caches beyond the counted lines (a queue's lock, what it protects, the end of its \
     arrivals, each arrival of another core, words to another's inbox), sockets, and lines that \
     several cores read at once: all cores are equally far apart.",
    "Between two cores a lock may be taken again by who has just let it go before the other has \
     seen it free; the model's waiter has the word first, whenever it had its core.",
    "Whoever waits spins for a moment and sleeps, as our lock does; the mail's waited with a \
     spin lock, which never sleeps.",
    "*Adaptive*, which is ours: it decides by what it learns from the clock, which no line of \
     costs says.",
    "Work that changes with how many ends come together: of an I/O by interrupt one mean is \
     known, that of one submitter.",
];

/// The share of the machine below which an error says nothing about the model.
const QUIET: f64 = 0.9;
const NOT_HAD: &str = "The machine gave others more than a tenth of the cores meanwhile, at other \
    times and for other stretches than the model's: measure again when it is quiet.";

/// The error of a modelled figure: the worst error of its table's checks in the same way, one
/// poller of the same volume included.
pub fn carried(points: &[Point], table: &str, depth: usize, way: Way) -> f64 {
    let striped = table == STRIPE;
    let alike = |point: &&Point| {
        let same = point.scene.depth == depth
            && (point.scene.name == table || !striped && point.scene.name == ONE);
        same && (point.way() == way
            || point.scene.name == ONE && is_poll(point.way()) == is_poll(way))
    };
    points.iter().filter(alike).map(|point| point.error().abs()).fold(0.0, f64::max)
}

fn is_poll(way: Way) -> bool {
    way != Way::Interrupt
}

/// All sentences: the effects that it always lacks, and one for each point with an error above
/// [`LIMIT`].
pub fn lacks(points: &[Point]) -> Vec<String> {
    let mut all: Vec<String> = ALWAYS.iter().map(|text| (*text).to_owned()).collect();
    all.extend(points.iter().enumerate().filter_map(|(number, point)| {
        let asleep = point.scene.depth == DEPTH;
        let effect =
            effect(point.way(), asleep, point.scene.threads, point.cores(), point.error())?;
        let effect = if had(points, number) < QUIET { NOT_HAD } else { effect };
        Some(format!(
            "{}, {}, {} on {}, depth {}: modelled {} by {:.0}%. {effect} That is concluded from \
             where it misses, not measured.",
            point.scene.name,
            way_text(point.way()),
            threads_text(point.scene.threads),
            cores_text(point.cores()),
            point.scene.depth,
            if point.error() > 0.0 { "too high" } else { "too low" },
            point.error().abs() * 100.0,
        ))
    }));
    all
}

fn cores_text(cores: u32) -> String {
    format!("{cores} core{}", if cores == 1 { "" } else { "s" })
}

pub fn way_text(way: Way) -> &'static str {
    match way {
        Way::Interrupt => "interrupt",
        Way::Poll { skips: true } => "poll, busy queues skipped",
        Way::Poll { skips: false } => "poll, busy queues waited for",
    }
}

/// The effect that explains an error.
fn effect(way: Way, asleep: bool, threads: u32, cores: u32, error: f64) -> Option<&'static str> {
    // Without a measurement the error is not a number.
    if error.is_nan() || error.abs() <= LIMIT {
        return None;
    }
    let too_fast = error > 0.0;
    Some(match (way, threads) {
        (Way::Interrupt, _) if asleep && too_fast => {
            "It lacks what a wake-up costs beyond that of a thread woken every now and then: \
             other threads on the core, and the kernel's choice among them."
        }
        (Way::Interrupt, _) if asleep => {
            "It lacks that a thread which has slept shortly is woken faster than one that has \
             slept as long as where that was measured, and that it may be told before it \
             sleeps."
        }
        (Way::Interrupt, 1) if too_fast => {
            "It lacks what the device's core does besides taking requests in and telling: it \
             looks at the clock and for what is due."
        }
        (_, 1) => {
            "One thread meets nobody, and was fed by this very point: it lacks the machine's \
             own unsteadiness."
        }
        (Way::Interrupt, _) if too_fast => {
            "It lacks that threads on one core wait for one another's turn while ends come for \
             all, or what the device's core does besides taking requests in and telling."
        }
        (Way::Interrupt, _) => {
            "It lacks that ends which come many at a time cost less each than those of one \
             submitter."
        }
        (_, _) if threads > cores && too_fast => {
            "It lacks what a turn on a shared core costs besides the switch: caches gone cold, \
             and who is off its core with ends of others."
        }
        (_, _) if threads > cores => {
            "It lacks that what came due while a thread was off its core is found all together, \
             and cheaper."
        }
        _ if too_fast => {
            "It lacks lines that move besides those it counts: of bios, requests and statistics \
             that another core found ended."
        }
        _ => {
            "It lacks that lines move while a core does other work, and that who lets a queue \
             go often takes it again at once."
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_miss_is_explained_by_its_sign_and_place() {
        let skip = Way::Poll { skips: true };
        assert!(
            effect(skip, false, 3, 1, 0.29).is_none()
                && effect(skip, false, 3, 1, f64::NAN).is_none()
        );
        let all = [
            effect(skip, false, 2, 2, 0.4),
            effect(skip, false, 2, 2, -0.4),
            effect(skip, false, 3, 1, 0.4),
            effect(skip, false, 3, 1, -0.4),
            effect(skip, false, 1, 1, 0.4),
            effect(Way::Interrupt, false, 3, 1, 0.4),
            effect(Way::Interrupt, false, 3, 1, -0.4),
            effect(Way::Interrupt, false, 1, 1, 0.4),
            effect(Way::Interrupt, true, 1, 1, 0.4),
            effect(Way::Interrupt, true, 3, 1, -0.4),
        ];
        for (n, one) in all.iter().enumerate() {
            assert!(one.is_some() && !all[..n].contains(one), "each has words of its own: {one:?}");
        }
    }
}
