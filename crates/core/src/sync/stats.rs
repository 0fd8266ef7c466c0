//! Lock statistics as users see them: figures of each class, sums of several users' figures, and
//! the one table that shows them.
//!
//! Source of columns, units and decimals: Linux `Documentation/locking/lockstat.rst`. Its columns
//! con-bounces and acq-bounces count lock words that moved between processors; nothing here knows
//! that, so they are left out.

use super::LockClass;
use std::fmt;

/// Times that were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes {
    /// How many.
    pub count: u64,
    /// Their sum in nanoseconds.
    pub total_ns: u64,
    /// The shortest in nanoseconds. `None` if there is none, or if the only ones ended while the
    /// statistics were being reset.
    pub min_ns: Option<u64>,
    /// The longest in nanoseconds; `None` as for the shortest.
    pub max_ns: Option<u64>,
}

impl LockTimes {
    /// Their average in whole nanoseconds; `None` if there is none.
    pub fn avg_ns(&self) -> Option<u64> {
        self.total_ns.checked_div(self.count)
    }
}

impl std::ops::AddAssign for LockTimes {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.total_ns += other.total_ns;
        self.min_ns = self.min_ns.into_iter().chain(other.min_ns).min();
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// The figures of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStats {
    /// Times a lock was not free: waits, and tries that gave up.
    pub contentions: u64,
    /// The waits. A try that gives up does not wait and is not among them.
    pub waits: LockTimes,
    /// Nanoseconds of processor time in these waits (spinning, and going to sleep), extrapolated
    /// from one contention in 32; 0 unless a registry samples it.
    pub wait_cpu_ns: u64,
    /// Times a lock was taken.
    pub acquisitions: u64,
    /// For how long it was held, as far as that was measured. A holder that sleeps on a condition
    /// ends one hold and begins another, which counts as an acquisition of the condition's class:
    /// there may be more holds than acquisitions.
    pub holds: LockTimes,
}

impl ClassStats {
    /// True if a lock of the class was taken or tried.
    pub fn is_used(&self) -> bool {
        self.acquisitions > 0 || self.contentions > 0
    }
}

impl std::ops::AddAssign for ClassStats {
    fn add_assign(&mut self, other: Self) {
        self.contentions += other.contentions;
        self.waits += other.waits;
        self.wait_cpu_ns += other.wait_cpu_ns;
        self.acquisitions += other.acquisitions;
        self.holds += other.holds;
    }
}

/// The figures of all classes at one moment, of one user of locks or of several together (`+=`).
/// `Display` is the table of [`lock_table`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockStats {
    classes: [ClassStats; LockClass::ALL.len()],
}

impl LockStats {
    /// The figures of one class.
    pub fn get(&self, class: LockClass) -> &ClassStats {
        &self.classes[class as usize]
    }

    /// The classes that were used, in order, with their figures.
    pub fn used(&self) -> impl Iterator<Item = (LockClass, &ClassStats)> {
        let all = LockClass::ALL.iter().map(|class| (*class, self.get(*class)));
        all.filter(|(_, stats)| stats.is_used())
    }

    pub(super) fn of(each: impl FnMut(LockClass) -> ClassStats) -> Self {
        LockStats { classes: LockClass::ALL.map(each) }
    }
}

impl std::ops::AddAssign for LockStats {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.classes.iter_mut().zip(other.classes) {
            *sum += more;
        }
    }
}

impl fmt::Display for LockStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&lock_table(self.used().map(|(class, stats)| (class.name(), stats))))
    }
}

/// The columns of [`lock_table`], named as Linux names them.
pub const LOCK_COLUMNS: [&str; 11] = [
    "class name",
    "contentions",
    "waittime-min",
    "waittime-max",
    "waittime-total",
    "waittime-avg",
    "acquisitions",
    "holdtime-min",
    "holdtime-max",
    "holdtime-total",
    "holdtime-avg",
];

/// Least width of a column, as in `/proc/lock_stat`: figures that grow seldom move the columns.
const WIDTH: usize = 14;

/// A table with a header, a line for each class; times are microseconds with two decimals. No
/// wait is 0.00; hold times that were not measured are `-`.
pub fn lock_table<'a>(lines: impl IntoIterator<Item = (&'a str, &'a ClassStats)>) -> String {
    let mut rows = vec![LOCK_COLUMNS.map(str::to_owned)];
    rows.extend(lines.into_iter().map(|(name, stats)| row(name, stats)));
    let widest = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; 11] = std::array::from_fn(|column| widest(column).max(WIDTH));
    let mut table = String::new();
    for row in &rows {
        let cells: Vec<_> =
            row.iter().zip(widths).map(|(c, width)| format!("{c:>width$}")).collect();
        table.push_str(&cells.join(" "));
        table.push('\n');
    }
    table
}

fn row(name: &str, stats: &ClassStats) -> [String; 11] {
    let waited = if stats.waits.count == 0 { [Some(0); 4] } else { times(&stats.waits) };
    let [wait_min, wait_max, wait_total, wait_avg] = waited.map(microseconds);
    let [hold_min, hold_max, hold_total, hold_avg] = times(&stats.holds).map(microseconds);
    [
        name.to_owned(),
        stats.contentions.to_string(),
        wait_min,
        wait_max,
        wait_total,
        wait_avg,
        stats.acquisitions.to_string(),
        hold_min,
        hold_max,
        hold_total,
        hold_avg,
    ]
}

fn times(times: &LockTimes) -> [Option<u64>; 4] {
    let total_ns = (times.count > 0).then_some(times.total_ns);
    [times.min_ns, times.max_ns, total_ns, times.avg_ns()]
}

/// Nanoseconds as microseconds, rounded to two decimals.
fn microseconds(ns: Option<u64>) -> String {
    let Some(ns) = ns else { return "-".to_owned() };
    let hundredths = ns / 10 + u64::from(ns % 10 >= 5);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn times(all: &[u64]) -> LockTimes {
        LockTimes {
            count: all.len() as u64,
            total_ns: all.iter().sum(),
            min_ns: all.iter().min().copied(),
            max_ns: all.iter().max().copied(),
        }
    }

    #[test]
    fn sums_are_of_all_users() {
        let none = LockTimes::default();
        for (a, b) in [(&[5, 9][..], &[3][..]), (&[], &[4, 4]), (&[7], &[]), (&[], &[])] {
            let mut sum = times(a);
            sum += times(b);
            assert_eq!(sum, times(&[a, b].concat()));
        }
        assert_eq!(none.avg_ns(), None);
        assert_eq!(times(&[5, 9, 3]).avg_ns(), Some(5));
    }

    #[test]
    fn the_table_has_the_columns_of_lock_stat() {
        let mut stats = LockStats::default();
        assert_eq!(stats.used().count(), 0);
        let waits = times(&[260, 939_104, 5]);
        stats.classes[LockClass::Control as usize] = ClassStats {
            contentions: 4,
            waits,
            wait_cpu_ns: 0,
            acquisitions: 20,
            holds: times(&[1_999]),
        };
        stats.classes[LockClass::PlainRing as usize].acquisitions = 123_456_789_012_345;
        let text = stats.to_string();
        let lines: Vec<Vec<&str>> = text.lines().map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0].join(" "), LOCK_COLUMNS.join(" "));
        let idle = ["plain_ring", "0", "0.00", "0.00", "0.00", "0.00", "123456789012345"];
        assert_eq!(lines[1], [&idle[..], &["-"; 4]].concat());
        let waited = ["control", "4", "0.01", "939.10", "939.37", "313.12", "20"];
        assert_eq!(lines[2], [&waited[..], &["2.00"; 4]].concat());
        assert_eq!(lines.len(), 3, "unused classes have no line");
        let ends = |line: &str| line.len();
        assert!(text.lines().all(|line| ends(line) == ends(text.lines().next().unwrap())));
    }

    #[test]
    fn an_extreme_that_a_reset_has_swallowed_is_shown_as_unknown() {
        let late = LockTimes { count: 1, total_ns: 70, min_ns: None, max_ns: None };
        let stats =
            ClassStats { contentions: 1, waits: late, acquisitions: 1, ..Default::default() };
        let text = lock_table([("x", &stats)]);
        let cells: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(cells[1..6], ["1", "-", "-", "0.07", "0.07"]);
    }
}
