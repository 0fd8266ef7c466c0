//! The slow and obvious oracle: groups as pipes through which a fluid runs.
//!
//! Every queue is full. All rates grow together, so that all that compete at a group get the same
//! share of what they share, until a limit is reached; what is below it stays as it is, and the
//! others grow on.

/// A group in one direction.
#[derive(Clone, Debug, Default)]
pub struct Pipe {
    pub parent: Option<usize>,
    pub bps: Option<u64>,
    pub iops: Option<u64>,
    /// Bytes of each I/O of the group's own, if it has any.
    pub size: Option<u64>,
}

impl Pipe {
    fn is_limited(&self) -> bool {
        self.bps.is_some() || self.iops.is_some()
    }

    /// Seconds that an I/O takes of this limit.
    fn worth(&self, size: u64) -> f64 {
        let bytes = self.bps.map_or(0.0, |bps| size as f64 / bps as f64);
        bytes.max(self.iops.map_or(0.0, |iops| 1.0 / iops as f64))
    }
}

/// Rates of the queues of `pipes`, in I/Os a second; infinite where nothing limits, and 0 without a
/// queue. A parent stands before its children.
pub fn rates(pipes: &[Pipe]) -> Vec<f64> {
    let mut rates = vec![0.0; pipes.len()];
    let mut grows: Vec<bool> = pipes.iter().map(|pipe| pipe.size.is_some()).collect();
    for top in (0..pipes.len()).filter(|at| pipes[*at].parent.is_none()) {
        fill(pipes, top, &mut rates, &mut grows);
    }
    rates
}

fn fill(pipes: &[Pipe], top: usize, rates: &mut [f64], grows: &mut [bool]) {
    loop {
        let mut growth = vec![0.0; pipes.len()];
        if !grow(pipes, top, grows, &mut growth) {
            return;
        }
        let step = |at: usize| {
            let below = |of: &[f64]| sums(pipes, at, of);
            let ((bytes, ios), (more_bytes, more_ios)) = (below(rates), below(&growth));
            let left = |limit: Option<u64>, used: f64, more: f64| match limit {
                Some(limit) if more > 0.0 => (limit as f64 - used).max(0.0) / more,
                _ => f64::INFINITY,
            };
            left(pipes[at].bps, bytes, more_bytes).min(left(pipes[at].iops, ios, more_ios))
        };
        let steps: Vec<f64> = (0..pipes.len()).map(step).collect();
        let least = steps.iter().copied().fold(f64::INFINITY, f64::min);
        for at in 0..pipes.len() {
            rates[at] += if growth[at] > 0.0 { growth[at] * least } else { 0.0 };
        }
        for (at, grows) in grows.iter_mut().enumerate() {
            let is_full = (0..pipes.len())
                .any(|limit| steps[limit] <= least * (1.0 + 1e-9) && is_below(pipes, at, limit));
            *grows &= !(is_full || least.is_infinite() && is_below(pipes, at, top));
        }
    }
}

pub fn is_below(pipes: &[Pipe], at: usize, above: usize) -> bool {
    std::iter::successors(Some(at), |at| pipes[*at].parent).any(|it| it == above)
}

/// Bytes and I/Os a second of all queues at `above` and below it.
fn sums(pipes: &[Pipe], above: usize, rates: &[f64]) -> (f64, f64) {
    let below = (0..pipes.len()).filter(|at| is_below(pipes, *at, above));
    below.fold((0.0, 0.0), |(bytes, ios), at| {
        (bytes + rates[at] * pipes[at].size.unwrap_or(0) as f64, ios + rates[at])
    })
}

/// The way the queues at `at` and below grow, in proportion. False if none does.
fn grow(pipes: &[Pipe], at: usize, grows: &[bool], growth: &mut [f64]) -> bool {
    // The limit that is shared here: the first one upwards.
    let shared =
        std::iter::successors(Some(at), |at| pipes[*at].parent).find(|at| pipes[*at].is_limited());
    let worth = |size: u64| shared.map_or(1.0, |shared| pipes[shared].worth(size));
    let mut any = false;
    if grows[at] {
        growth[at] = 1.0 / worth(pipes[at].size.unwrap());
        any = true;
    }
    for child in (0..pipes.len()).filter(|child| pipes[*child].parent == Some(at)) {
        if !grow(pipes, child, grows, growth) {
            continue;
        }
        any = true;
        let below: Vec<usize> = (0..pipes.len()).filter(|it| is_below(pipes, *it, child)).collect();
        let share: f64 = below
            .iter()
            .filter(|it| growth[**it] > 0.0)
            .map(|it| growth[*it] * worth(pipes[*it].size.unwrap()))
            .sum();
        below.iter().for_each(|it| growth[*it] /= share);
    }
    any
}

#[test]
fn fluid_runs_as_it_should() {
    let pipe = |parent, bps, iops, size| Pipe { parent, bps, iops, size };
    let alone = [pipe(None, Some(4096), None, Some(1024))];
    assert_eq!(rates(&alone), [4.0]);
    // Two children share alike by bytes; one of them has a limit of its own.
    let tree = [
        pipe(None, Some(1000), None, None),
        pipe(Some(0), None, None, Some(100)),
        pipe(Some(0), None, Some(2), Some(100)),
        pipe(Some(0), None, None, Some(10)),
    ];
    let got = rates(&tree);
    for (got, expected) in got.iter().zip([0.0, 4.0, 2.0, 40.0]) {
        assert!((got - expected).abs() < 1e-6, "{got} is not {expected}");
    }
    assert_eq!(rates(&[pipe(None, None, None, Some(1))]), [f64::INFINITY]);
}
