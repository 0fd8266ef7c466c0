//! Figures of a benchmark, as lines and as JSON.

use drystone_core::histogram::Snapshot;
use serde_json::{Map, Value, json};

use drystone_bench::Counts;

/// Percentiles that are reported, with their names.
const PERCENTILES: [(&str, f64); 5] =
    [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p99.9", 99.9), ("p99.99", 99.99)];

/// The figures of one run.
pub struct Figures {
    /// Bytes of an I/O.
    pub bs: u64,
    /// Of each lane.
    pub lanes: Vec<Counts>,
    /// CPU time of other threads that took part.
    pub helpers_cpu_ns: u64,
    /// Latencies of the device in the measured time; empty when it does not count.
    pub latency: Snapshot,
}

impl Figures {
    fn sum(&self, of: impl Fn(&Counts) -> u64) -> u64 {
        self.lanes.iter().map(of).sum()
    }

    /// I/Os completed.
    pub fn ios(&self) -> u64 {
        self.sum(|lane| lane.ios)
    }

    /// I/Os a second: each lane's over its own time.
    pub fn iops(&self) -> f64 {
        self.lanes.iter().map(|lane| lane.ios as f64 * 1e9 / lane.wall_ns.max(1) as f64).sum()
    }

    fn per_io(&self, of: impl Fn(&Counts) -> u64) -> f64 {
        self.sum(of) as f64 / self.ios() as f64
    }

    fn cpu_ns_per_io(&self) -> f64 {
        self.per_io(|lane| lane.cpu_ns) + self.helpers_cpu_ns as f64 / self.ios() as f64
    }

    fn rate(&self) -> Rate {
        Rate {
            iops: self.iops(),
            bs: self.bs,
            completed: self.ios(),
            submitted: self.sum(|lane| lane.submitted),
            calls: self.sum(|lane| lane.calls),
        }
    }

    /// The figures as JSON; `configuration` becomes a key of its own.
    pub fn json(&self, configuration: Value) -> Value {
        let rate = self.rate();
        json!({
            "iops": self.iops(),
            "bytes_per_second": self.iops() * self.bs as f64,
            "wall_ns_per_io": 1e9 / self.iops(),
            "cpu_ns_per_io": self.cpu_ns_per_io(),
            "clock_reads_per_io": self.per_io(|lane| lane.clock_reads),
            "lock_acquisitions_per_io": self.per_io(|lane| lane.locks.acquisitions),
            "lock_wait_ns_per_io": self.per_io(|lane| lane.locks.wait_ns),
            "allocations_per_io": self.per_io(|lane| lane.allocations),
            "sleeps_per_io": self.per_io(|lane| lane.waits.sleeps),
            "looks_per_io": self.per_io(|lane| lane.waits.polls),
            "vain_looks_per_io": self.per_io(|lane| lane.waits.fruitless_polls),
            "ios": self.ios(),
            "ios_per_call": rate.per_call(rate.submitted),
            "wall_ns": self.lanes.iter().map(|lane| lane.wall_ns).max(),
            "latency_ns": latency_json(&self.latency),
            "configuration": configuration,
        })
    }

    /// The summary at the end of a run.
    pub fn lines(&self) -> String {
        format!(
            "average: {}\nper I/O: {:.1}ns wall, {:.1}ns CPU, {:.4} clock reads, {} lock \
             acquisitions, {:.1}ns lock wait, {} allocations\n{}\n",
            self.rate().line(),
            1e9 / self.iops(),
            self.cpu_ns_per_io(),
            self.per_io(|lane| lane.clock_reads),
            few(self.per_io(|lane| lane.locks.acquisitions)),
            self.per_io(|lane| lane.locks.wait_ns),
            few(self.per_io(|lane| lane.allocations)),
            latency_line(&self.latency),
        )
    }
}

/// A number that is hoped to be 0: not rounded to it.
fn few(number: f64) -> String {
    match number {
        0.0 => "0".to_owned(),
        few if few < 0.000_001 => "less than 0.000001".to_owned(),
        few if few < 0.01 => format!("{few:.6}"),
        more => format!("{more:.2}"),
    }
}

fn latency_values(latency: &Snapshot) -> Vec<(&'static str, Option<u64>)> {
    let percentiles = PERCENTILES.iter().map(|(name, at)| (*name, latency.percentile(*at)));
    let least = std::iter::once(("min", latency.min()));
    least.chain(percentiles).chain([("max", latency.max())]).collect()
}

fn latency_json(latency: &Snapshot) -> Value {
    let values = latency_values(latency).into_iter().map(|(name, ns)| (name.to_owned(), json!(ns)));
    Value::Object(values.collect::<Map<String, Value>>())
}

fn latency_line(latency: &Snapshot) -> String {
    if latency.total() == 0 {
        return "latency: not counted by the device (queue.iostats)".to_owned();
    }
    let values = latency_values(latency);
    let parts = values.iter().filter_map(|(name, ns)| Some(format!("{name} {}", (*ns)?)));
    format!("latency (ns): {}", parts.collect::<Vec<String>>().join(", "))
}

/// The speed of some time, drawn as t/io_uring draws it.
pub struct Rate {
    /// I/Os a second.
    pub iops: f64,
    /// Bytes of an I/O.
    pub bs: u64,
    /// I/Os completed.
    pub completed: u64,
    /// I/Os submitted.
    pub submitted: u64,
    /// Submit calls.
    pub calls: u64,
}

impl Rate {
    fn per_call(&self, ios: u64) -> f64 {
        if self.calls == 0 { 0.0 } else { ios as f64 / self.calls as f64 }
    }

    /// `IOPS=52.31M, BW=24.94GiB/s, IOS/call=32/32`: submitted and completed for each call.
    pub fn line(&self) -> String {
        let iops = match self.iops {
            iops if iops >= 1e6 => format!("{:.2}M", iops / 1e6),
            iops if iops >= 1e5 => format!("{:.2}K", iops / 1e3),
            iops => format!("{iops:.0}"),
        };
        let mib = self.iops * self.bs as f64 / f64::from(1 << 20);
        let bandwidth = match mib {
            mib if mib >= 2000.0 => format!("{:.2}GiB/s", mib / 1024.0),
            mib if mib >= 10.0 => format!("{mib:.0}MiB/s"),
            mib => format!("{mib:.2}MiB/s"),
        };
        let (submitted, completed) = (self.per_call(self.submitted), self.per_call(self.completed));
        format!("IOPS={iops}, BW={bandwidth}, IOS/call={submitted:.0}/{completed:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_look_like_those_of_t_io_uring() {
        let rate =
            |iops: f64, bs| Rate { iops, bs, completed: 320, submitted: 320, calls: 10 }.line();
        assert_eq!(rate(52_310_000.0, 512), "IOPS=52.31M, BW=24.94GiB/s, IOS/call=32/32");
        assert_eq!(rate(123_456.0, 4096), "IOPS=123.46K, BW=482MiB/s, IOS/call=32/32");
        assert_eq!(rate(999.0, 512), "IOPS=999, BW=0.49MiB/s, IOS/call=32/32");
    }

    #[test]
    fn figures_are_sums_over_lanes() {
        let lane = Counts {
            ios: 1000,
            submitted: 1000,
            calls: 100,
            wall_ns: 1_000_000,
            cpu_ns: 900_000,
            clock_reads: 50,
            allocations: 10,
            ..Counts::default()
        };
        let figures = Figures {
            bs: 512,
            lanes: vec![lane, Counts { ios: 3000, ..lane }],
            helpers_cpu_ns: 200_000,
            latency: Snapshot::default(),
        };
        let json = figures.json(Value::Null);
        assert_eq!(json["iops"], 4_000_000.0);
        assert_eq!(json["bytes_per_second"], 2_048_000_000.0);
        assert_eq!(json["wall_ns_per_io"], 250.0);
        assert_eq!(json["cpu_ns_per_io"], 500.0);
        assert_eq!(json["clock_reads_per_io"], 0.025);
        assert_eq!(json["allocations_per_io"], 0.005);
        assert_eq!(json["latency_ns"]["p50"], Value::Null);
        assert!(figures.lines().contains(", 0.005000 allocations"), "{}", figures.lines());
        assert!(figures.lines().starts_with("average: IOPS="), "{}", figures.lines());
        let numbers = [0.0, 2.306, 0.00164, 0.000_000_3].map(few);
        assert_eq!(numbers, ["0", "2.31", "0.001640", "less than 0.000001"]);
    }
}
