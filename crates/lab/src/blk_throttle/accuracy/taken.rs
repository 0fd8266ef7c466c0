//! The result of a run of a sheet: counts over time, and figures computed from them.

use super::sheet::Sheet;

/// Lengths of the parts of a run, in steps between two readings of the counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steps {
    pub(super) step_ns: u64,
    /// Steps that are not judged, at the beginning.
    pub(super) settle: usize,
    /// Steps of the window over which deviations are taken.
    pub(super) window: usize,
}

impl Steps {
    /// The steps of a runtime. For two seconds: a reading each 100 ms, a second to settle, windows
    /// of ten steps.
    pub(super) fn of(runtime_ns: u64) -> Self {
        Steps { step_ns: (runtime_ns / 20).max(1), settle: 10, window: 100 }
    }

    /// The step at which limits change.
    pub(super) fn half(&self) -> usize {
        self.settle + self.window
    }

    pub(super) fn all(&self) -> usize {
        self.half() + self.window
    }

    pub(super) fn window_seconds(&self) -> f64 {
        (self.window as u64 * self.step_ns) as f64 / 1e9
    }
}

/// One reading: the time since the start, s, and the I/Os of each flow so far.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Look {
    pub(super) at: f64,
    pub(super) ios: Vec<u64>,
}

/// One run.
#[derive(Clone, Debug)]
pub(super) struct Taken {
    pub(super) looks: Vec<Look>,
    pub(super) cpu_ns_per_io: f64,
}

impl Taken {
    /// I/Os a second of a flow between two readings.
    fn rate(&self, flow: usize, from: usize, to: usize) -> f64 {
        let (from, to) = (&self.looks[from], &self.looks[to]);
        (to.ios[flow] - from.ios[flow]) as f64 / (to.at - from.at)
    }

    /// I/Os a second of a flow after it has settled: in the first half or the second.
    pub(super) fn mean(&self, flow: usize, steps: Steps, half: usize) -> f64 {
        let (from, to) = match half {
            0 => (steps.settle, steps.half()),
            _ => (steps.half(), steps.all()),
        };
        self.rate(flow, from, to)
    }

    /// The greatest deviation of `flows` together, relative to the requested rate, over any window
    /// after the start in which that rate did not change.
    pub(super) fn deviation(&self, sheet: &Sheet, flows: &[usize], steps: Steps) -> f64 {
        let windows = (steps.settle..=steps.all() - steps.window)
            .filter(|from| sheet.then.is_none() || *from <= steps.settle || *from >= steps.half());
        let deviation = |from: usize| {
            let half = usize::from(from >= steps.half());
            let asked: f64 = flows.iter().map(|flow| sheet.share(*flow, half)).sum();
            let rate = |flow: &usize| {
                let unit = sheet.unit.of(1.0, sheet.flows[*flow].bytes);
                unit * self.rate(*flow, from, from + steps.window)
            };
            flows.iter().map(rate).sum::<f64>() / asked - 1.0
        };
        windows
            .map(deviation)
            .fold(0.0, |most: f64, it| if it.abs() > most.abs() { it } else { most })
    }

    /// The rate of a flow over time, in the sheet's unit: each point is the mean over the time
    /// before it, which is so long that some I/Os fall into it.
    pub(super) fn series(&self, sheet: &Sheet, flow: usize, steps: Steps) -> Vec<(f64, f64)> {
        let each = sheet.flows[flow].asked[0] * steps.step_ns as f64 / 1e9;
        let stride = if each >= 5.0 { 1 } else { 10 };
        let ends = (stride..self.looks.len()).step_by(stride);
        let unit = |rate| sheet.unit.of(rate, sheet.flows[flow].bytes);
        ends.map(|end| (self.looks[end].at, unit(self.rate(flow, end - stride, end)))).collect()
    }
}

impl Sheet {
    /// The share that a flow must have, in the sheet's unit.
    pub(super) fn share(&self, flow: usize, half: usize) -> f64 {
        let flow = &self.flows[flow];
        self.unit.of(flow.asked[half], flow.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sheet;
    use super::*;

    fn taken(steps: Steps, ios: impl Fn(usize) -> u64) -> Taken {
        let look = |n: usize| Look { at: n as f64 / 10.0, ios: vec![ios(n)] };
        Taken { looks: (0..=steps.all()).map(look).collect(), cpu_ns_per_io: 1.0 }
    }

    #[test]
    fn deviations_are_those_of_the_worst_window() {
        let steps = Steps::of(2_000_000_000);
        assert_eq!((steps.step_ns, steps.window_seconds(), steps.all()), (100_000_000, 10.0, 210));
        let sheet = sheet::all().into_iter().find(|it| it.name == "100 IOPS").unwrap();
        let exact = taken(steps, |n| 10 * n as u64);
        assert!(exact.deviation(&sheet, &[0], steps).abs() < 1e-9);
        // Deviations before it settled do not count.
        let late = taken(steps, |n| 10 * n.max(5) as u64);
        assert!(late.deviation(&sheet, &[0], steps).abs() < 1e-9);
        // Fifty too few of a thousand, from the middle on.
        let hole = taken(steps, |n| 10 * n as u64 - if n > 100 { 50 } else { 0 });
        assert!((hole.deviation(&sheet, &[0], steps) + 0.05).abs() < 1e-9);
    }

    #[test]
    fn a_change_is_judged_on_both_sides_of_it() {
        let steps = Steps::of(2_000_000_000);
        let sheet = sheet::all().into_iter().find(|it| it.then.is_some()).unwrap();
        let (slow, fast) = (100, 300);
        let ios = |n: usize, fast: u64| {
            let before = n.min(steps.half()) as u64;
            before * slow + (n as u64 - before) * fast
        };
        let exact = taken(steps, |n| ios(n, fast));
        assert!(exact.deviation(&sheet, &[0], steps).abs() < 1e-9);
        let missed = taken(steps, |n| ios(n, slow));
        assert!((missed.deviation(&sheet, &[0], steps) + 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(
            (exact.mean(0, steps, 0).round(), exact.mean(0, steps, 1).round()),
            (1000.0, 3000.0)
        );
    }

    #[test]
    fn a_slow_flow_is_shown_by_longer_means() {
        let steps = Steps::of(2_000_000_000);
        let all = sheet::all();
        let points = |name: &str| {
            let sheet = all.iter().find(|it| it.name == name).unwrap();
            taken(steps, |n| n as u64).series(sheet, 0, steps).len()
        };
        assert_eq!((points("10 IOPS"), points("3000 IOPS")), (21, 210));
    }
}
