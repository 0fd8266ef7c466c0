//! Samples as lines of Markdown and as JSON.

use serde_json::{Value, json};

use crate::load::Sample;

/// The samples of a variant, one for each round.
pub struct Samples {
    pub name: String,
    pub samples: Vec<Sample>,
}

fn iops(sample: &Sample) -> f64 {
    sample.ios as f64 * 1e9 / sample.wall_ns.max(1) as f64
}

fn cpu(sample: &Sample) -> f64 {
    per_io(sample, sample.cpu_ns)
}

fn per_io(sample: &Sample, count: u64) -> f64 {
    count as f64 / sample.ios.max(1) as f64
}

/// Median, least and greatest.
fn spread(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// A whole number with commas between its thousands.
fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number that is hoped to be 0 or whole: not rounded to it.
fn few(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        small if small < 0.001 => format!("{small:.0e}"),
        other => format!("{other:.3}").trim_end_matches('0').trim_end_matches('.').to_owned(),
    }
}

/// The head of the table that [`Samples::line`] fills.
pub const HEAD: &str = "| load | IOPS | CPU ns an I/O | member reads, writes an I/O | locks, wait \
    ns, allocations an I/O |\n|---|---|---|---|---|";

impl Samples {
    fn median(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        spread(self.samples.iter().map(of).collect()).0
    }

    fn ranged(&self, of: impl Fn(&Sample) -> f64) -> String {
        let (median, least, most) = spread(self.samples.iter().map(of).collect());
        format!("{} ({} to {})", grouped(median), grouped(least), grouped(most))
    }

    /// A line of the table.
    pub fn line(&self) -> String {
        let of =
            |count: fn(&Sample) -> u64| few(self.median(|sample| per_io(sample, count(sample))));
        format!(
            "| {} | {} | {} | {}, {} | {}, {}, {} |",
            self.name,
            self.ranged(iops),
            self.ranged(cpu),
            of(|sample| sample.member_reads),
            of(|sample| sample.member_writes),
            of(|sample| sample.locks),
            of(|sample| sample.lock_wait_ns),
            of(|sample| sample.allocations),
        )
    }

    /// The ratio of CPU times an I/O, round by round: of `other` to this one.
    pub fn cpu_ratio(&self, other: &Samples) -> String {
        let rounds = self.samples.iter().zip(&other.samples);
        let (median, least, most) = spread(rounds.map(|(a, b)| cpu(b) / cpu(a)).collect());
        format!("{median:.3} ({least:.3} to {most:.3})")
    }

    /// All rounds, with the keys of `drystone bench`.
    pub fn json(&self) -> Value {
        let one = |sample: &Sample| {
            json!({
                "iops": iops(sample),
                "cpu_ns_per_io": cpu(sample),
                "lock_acquisitions_per_io": per_io(sample, sample.locks),
                "lock_wait_ns_per_io": per_io(sample, sample.lock_wait_ns),
                "allocations_per_io": per_io(sample, sample.allocations),
                "member_reads_per_io": per_io(sample, sample.member_reads),
                "member_writes_per_io": per_io(sample, sample.member_writes),
                "ios": sample.ios,
                "wall_ns": sample.wall_ns,
            })
        };
        Value::Array(self.samples.iter().map(one).collect())
    }
}
