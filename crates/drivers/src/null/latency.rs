//! The time that a request takes: a constant, or a distribution given by percentiles, from which a
//! seeded generator of the queue draws.

/// One point of a distribution: `percent` of all requests take `ns` or less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentile {
    /// 0 to 100.
    pub percent: f64,
    /// Nanoseconds.
    pub ns: u64,
}

/// A latency model.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// Ascending in both; the last one is at 100 percent.
    points: Vec<Percentile>,
}

impl Latency {
    /// Every request takes `ns`.
    pub fn constant(ns: u64) -> Self {
        Latency { points: vec![Percentile { percent: 100.0, ns }] }
    }

    /// A distribution through `points`, linear between them. Percentiles before the first
    /// take as long as the first, those behind the last as long as the last.
    ///
    /// # Errors
    /// A sentence when the points are none, or not ascending, or outside 0 to 100.
    pub fn percentiles(mut points: Vec<Percentile>) -> Result<Self, String> {
        points.sort_by(|a, b| a.percent.total_cmp(&b.percent));
        if points.is_empty() || points.iter().any(|p| !(0.0..=100.0).contains(&p.percent)) {
            return Err("a latency distribution has percentiles from 0 to 100".to_owned());
        }
        if points.windows(2).any(|w| w[0].ns > w[1].ns || w[0].percent == w[1].percent) {
            return Err("a higher percentile cannot take less time, nor stand twice".to_owned());
        }
        let last = points[points.len() - 1];
        if last.percent < 100.0 {
            points.push(Percentile { percent: 100.0, ns: last.ns });
        }
        Ok(Latency { points })
    }

    /// True if every request ends at once.
    pub fn is_zero(&self) -> bool {
        self.points.iter().all(|point| point.ns == 0)
    }

    /// The latency at `share` (0 to 1) of the distribution.
    pub fn at(&self, share: f64) -> u64 {
        let percent = share * 100.0;
        let next = self.points.iter().position(|p| p.percent >= percent);
        let Some(next) = next else { return self.points[self.points.len() - 1].ns };
        if next == 0 {
            return self.points[0].ns;
        }
        let (low, high) = (self.points[next - 1], self.points[next]);
        let t = (percent - low.percent) / (high.percent - low.percent);
        low.ns + ((high.ns - low.ns) as f64 * t) as u64
    }

    /// The model as text.
    pub fn describe(&self) -> String {
        match &self.points[..] {
            [one] => one.ns.to_string(),
            many => {
                let point = |p: &Percentile| format!("p{}={}", p.percent, p.ns);
                many.iter().map(point).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

/// A small generator of numbers (xorshift64*), seeded, one a queue.
#[derive(Clone, Debug)]
pub struct Generator(u64);

impl Generator {
    /// A generator; every seed gives its own sequence.
    pub fn new(seed: u64) -> Self {
        Generator(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// A number from 0 (inclusive) to 1 (exclusive).
    pub fn share(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_the_percentiles() {
        let p = |percent, ns| Percentile { percent, ns };
        let model = Latency::percentiles(vec![p(99.0, 80), p(50.0, 10), p(100.0, 1000)]).unwrap();
        assert_eq!([0.0, 0.5, 0.99, 0.9999999].map(|s| model.at(s)), [10, 10, 80, 999]);
        let mut generator = Generator::new(7);
        let mut draws: Vec<u64> = (0..100_000).map(|_| model.at(generator.share())).collect();
        draws.sort_unstable();
        assert_eq!(draws[49_000], 10);
        // Three standard deviations of a share of 100 000 draws are 0.1 percent here.
        let (p98, p99_5) = (draws[98_000], draws[99_500]);
        assert!((78..80).contains(&p98), "p98 is {p98}");
        assert!((450..630).contains(&p99_5), "p99.5 is {p99_5}");
        assert_eq!(model.describe(), "p50=10 p99=80 p100=1000");
    }

    #[test]
    fn nonsense_is_refused() {
        let p = |percent, ns| Percentile { percent, ns };
        assert!(Latency::percentiles(vec![]).is_err());
        assert!(Latency::percentiles(vec![p(101.0, 1)]).is_err());
        assert!(Latency::percentiles(vec![p(f64::NAN, 1)]).is_err());
        assert!(Latency::percentiles(vec![p(50.0, 9), p(60.0, 3)]).is_err());
        assert!(Latency::percentiles(vec![p(50.0, 9), p(50.0, 10)]).is_err());
        assert_eq!(Latency::constant(5).at(0.3), 5);
    }
}
