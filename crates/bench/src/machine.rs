//! The machine that a measurement ran on, and CPU time of threads that are not lanes.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

/// The machine as JSON: processor, cores that may be used, kernel.
pub fn describe() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split_once(':')).map(|(_, name)| name.trim().to_owned());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": model.unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
        "cores": std::thread::available_parallelism().map_or(1, usize::from),
        "kernel": kernel.trim(),
    })
}

/// The date and time in UTC, as ISO 8601 writes them.
pub fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    date(since.as_secs())
}

fn date(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year}-{month:02}-{:02}T{hours:02}:{minutes:02}:{seconds:02}Z", days + 1)
}

/// CPU time in ns of this process's threads other than `lanes` and the calling one: those that
/// complete for a null device, make blocking calls, or work for the kernel's io_uring.
pub fn helpers_cpu_ns(lanes: &[i32]) -> u64 {
    let own = rustix::thread::gettid().as_raw_nonzero().get();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return 0 };
    let ids = tasks.flatten().filter_map(|task| task.file_name().to_str()?.parse::<i32>().ok());
    ids.filter(|id| *id != own && !lanes.contains(id)).filter_map(run_ns).sum()
}

/// Time on a processor: the first number of `schedstat`.
fn run_ns(id: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/self/task/{id}/schedstat")).ok()?;
    text.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(date(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(date(1_767_225_599), "2025-12-31T23:59:59Z");
    }
}
