//! The progress of an experiment, and the request to end it early.

use std::time::{Duration, Instant};

use drystone_bench::Stop;

use crate::{Options, Progress};

impl Options {
    /// The runs of a point: all of them, or fewer, but at least one, if the experiment must end
    /// early.
    pub(crate) fn turns(&self) -> impl Iterator<Item = u32> + use<> {
        let stop = self.stop.clone();
        (0..self.runs).take_while(move |run| *run == 0 || !stop.is_asked())
    }
}

/// The points of an experiment, one after the other.
pub(crate) struct Steps {
    stop: Stop,
    all: usize,
    begun: usize,
    start: Instant,
}

impl Steps {
    pub(crate) fn new(options: &Options, all: usize) -> Self {
        Steps { stop: options.stop.clone(), all, begun: 0, start: Instant::now() }
    }

    /// Announces the next point, and the remaining time, estimated from the points before. False if
    /// the experiment must end early, with its results so far; it has at least one point.
    pub(crate) fn next(&mut self, point: &str, say: Progress<'_>) -> bool {
        if self.begun > 0 && self.stop.is_asked() {
            return false;
        }
        say(&format!("{} of {}{}: {point}", self.begun + 1, self.all, self.left()));
        self.begun += 1;
        true
    }

    fn left(&self) -> String {
        let begun = u32::try_from(self.begun).unwrap_or(u32::MAX);
        let left = u32::try_from(self.all.saturating_sub(self.begun)).unwrap_or(u32::MAX);
        match begun {
            0 => String::new(),
            begun => format!(", {} left", time(self.start.elapsed() / begun * left)),
        }
    }
}

/// `about 4 min 5 s`.
fn time(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds / 60 {
        0 => format!("about {seconds} s"),
        minutes => format!("about {minutes} min {} s", seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_says_how_many_there_are_and_what_is_left() {
        let mut said = Vec::new();
        let options = Options::default();
        let mut steps = Steps::new(&options, 2);
        assert!(steps.next("one", &mut |line| said.push(line.to_owned())));
        assert!(steps.next("two", &mut |line| said.push(line.to_owned())));
        assert_eq!(said[0], "1 of 2: one");
        assert!(said[1].starts_with("2 of 2, about ") && said[1].ends_with(" left: two"));
        assert_eq!(time(Duration::from_secs(245)), "about 4 min 5 s");
    }

    #[test]
    fn what_is_to_end_early_has_one_run_of_one_point() {
        let options = Options { runs: 5, ..Options::default() };
        assert_eq!(options.turns().count(), 5);
        options.stop.ask();
        assert_eq!(options.turns().count(), 1);
        let mut steps = Steps::new(&options, 3);
        assert!(steps.next("", &mut |_| ()) && !steps.next("", &mut |_| ()));
    }
}
