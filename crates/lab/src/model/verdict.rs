//! The error of the model, and the missing effect that its own figures suggest.

use super::design::Loser;
use crate::outcome::threads_text;

/// The error above which an explanation is required.
pub const LIMIT: f64 = 0.30;

/// A measured point, and the model's figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Check {
    pub threads: u32,
    /// IOPS measured, the median of the runs.
    pub measured: f64,
    /// IOPS modelled, with the cores that were had.
    pub modelled: f64,
    /// The share of the usable cores that the machine gave.
    pub had: f64,
}

impl Check {
    /// The relative error: modelled over measured, less 1.
    pub fn error(&self) -> f64 {
        self.modelled / self.measured - 1.0
    }
}

/// The check with the largest error.
pub fn worst(checks: &[Check]) -> Option<&Check> {
    checks.iter().max_by(|a, b| a.error().abs().total_cmp(&b.error().abs()))
}

/// How the threads share the cores, which decides the kind of error.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CoreUse {
    Alone,
    CoreEach,
    Shared,
}

fn core_use(threads: u32, cores: u32) -> CoreUse {
    match threads {
        1 => CoreUse::Alone,
        _ if threads <= cores => CoreUse::CoreEach,
        _ => CoreUse::Shared,
    }
}

/// A sentence for each point where the error of the model of `title` exceeds [`LIMIT`]. `loser` is
/// that of its main lock; `none` has the checks without a scheduler, whose errors no lock can
/// explain.
pub fn lacks(
    title: &str,
    loser: Option<Loser>,
    checks: &[Check],
    none: &[Check],
    cores: u32,
) -> Vec<String> {
    let sentence = |at: CoreUse| {
        let here = |all: &[Check]| {
            all.iter().filter(|c| core_use(c.threads, cores) == at).copied().collect::<Vec<Check>>()
        };
        let (own, base) = (here(checks), here(none));
        let worst_here = worst(&own)?;
        let error = worst_here.error();
        if error.abs() <= LIMIT {
            return None;
        }
        let base = worst(&base).map_or(0.0, Check::error);
        let too_fast = error > 0.0;
        let same = loser.is_some() && base.abs() > LIMIT && (base > 0.0) == too_fast;
        let why = if same { NONE_TOO } else { effect(at, loser, too_fast) };
        Some(format!(
            "{title}, {}: modelled {} by {:.0}%. {why}",
            threads_text(worst_here.threads),
            if too_fast { "too high" } else { "too low" },
            error.abs() * 100.0,
        ))
    };
    [CoreUse::Alone, CoreUse::CoreEach, CoreUse::Shared].into_iter().filter_map(sentence).collect()
}

const NONE_TOO: &str = "Without a scheduler it misses in the same direction, so locks do not \
    explain it: it lacks what the machine does to threads, which had other cores, or at other \
    times, than the model's.";

fn effect(at: CoreUse, loser: Option<Loser>, too_fast: bool) -> &'static str {
    match (at, too_fast, loser) {
        (CoreUse::Alone, ..) => {
            "One thread meets nobody, and its costs were measured a moment before: it lacks the \
             machine's own unsteadiness."
        }
        (_, _, None) => {
            "There is no lock in it: it lacks what threads share besides (caches, memory, the \
             clock of the cores), or cores were had otherwise than in the model."
        }
        (CoreUse::CoreEach, true, Some(Loser::HandOver)) => {
            "It lacks what a hand-over costs besides its counted lines: memory of bios, trees \
             and tags that the other core finds cold, and messages between contexts."
        }
        (CoreUse::CoreEach, true, _) => {
            "It lacks lines that move besides those it counts, of memory behind the lock that \
             the other core finds cold."
        }
        (CoreUse::CoreEach, false, Some(Loser::HandOver)) => {
            "It lacks that transfers overlap with other work of a core, or that cores were had \
             together less often than in the model."
        }
        (CoreUse::CoreEach, false, _) => {
            "It lacks that who lets a lock go often takes it again before the other core has \
             seen it free, and that transfers overlap with other work; or cores were had \
             together less often than in the model."
        }
        (CoreUse::Shared, true, _) => {
            "It lacks what a pre-emption costs besides the switch: caches gone cold, tags and \
             turns kept by threads that are off their core, and threads that the kernel moves."
        }
        (CoreUse::Shared, false, Some(Loser::Spin)) => {
            "It lacks that the kernel's slices are not all alike: who spins for a holder that \
             is off its core is put off sooner than by a round robin."
        }
        (CoreUse::Shared, false, _) => {
            "It lacks how the kernel shares cores out: one round-robin queue makes threads \
             meet, and sleep, that in the kernel run one after the other in their slices."
        }
    }
}

/// The sentence on the mail's row after, if its error exceeds [`LIMIT`].
pub fn mail_lacks(error: f64) -> Option<String> {
    let (how, why) = match error {
        e if e > LIMIT => (
            "too high",
            "work that came to the dispatcher with others' requests (issuing them, interrupts \
             that end them) beyond the lines it counts",
        ),
        e if e < -LIMIT => (
            "too low",
            "that a section which nobody disturbs is shorter than one fitted to a full lock, \
             whose lines all cores wanted, and that look-ups which find nothing hold it shortly",
        ),
        _ => return None,
    };
    Some(format!(
        "The mail's row after: modelled {how} by {:.0}%. It lacks {why}.",
        error.abs() * 100.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(threads: u32, error: f64) -> Check {
        Check { threads, measured: 100.0, modelled: 100.0 * (1.0 + error), had: 1.0 }
    }

    #[test]
    fn a_miss_is_explained_by_its_sign_and_place() {
        let lacks = |error: f64, threads: u32, none: f64| {
            lacks("x", Some(Loser::Sleep), &[check(threads, error)], &[check(threads, none)], 2)
        };
        assert!(lacks(0.29, 2, 0.0).is_empty() && lacks(-0.29, 32, 0.0).is_empty());
        let all = [
            lacks(0.31, 2, 0.0),
            lacks(-0.31, 2, 0.0),
            lacks(0.5, 32, 0.0),
            lacks(-0.5, 32, 0.0),
            lacks(0.5, 1, 0.0),
            lacks(0.5, 2, 0.4),
        ];
        assert!(all.iter().all(|found| found.len() == 1), "{all:?}");
        for (n, one) in all.iter().enumerate() {
            assert!(!all[..n].contains(one), "each has words of its own: {one:?}");
        }
        assert!(all[5][0].contains("Without a scheduler") && all[0][0].contains("too high by 31%"));
        assert_eq!(lacks(0.5, 2, -0.4), lacks(0.5, 2, 0.0), "the other direction explains nothing");
    }

    #[test]
    fn the_mail_is_missed_in_words() {
        assert_eq!(mail_lacks(0.29), None);
        assert!(mail_lacks(0.4).is_some_and(|text| text.contains("too high by 40%")));
        assert!(mail_lacks(-0.4).is_some_and(|text| text.contains("too low by 40%")));
    }
}
