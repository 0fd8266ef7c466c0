//! Reads a table of latency percentiles.

use drystone_drivers::null::Percentile;

use super::fields::{Check, Value};
use super::node::{Entry, Node, Raw};
use super::values::{Refusal, parse_simple};
use crate::diagnostic::shorten;
use crate::duration::{Unit, format_duration};
use crate::schema::{LATENCY_DOC, Type};

/// Longest latency of the null driver: an hour.
const MAX_LATENCY: u64 = 3_600_000_000_000;
static LATENCY_TIME: Type = Type::Duration { unit: Unit::Nanoseconds, min: 0, max: MAX_LATENCY };

/// Reads the table in `node`; reports its faults, and then returns `None`.
pub fn parse_latency(check: &mut Check<'_>, node: &Node, path: &str) -> Option<Vec<Percentile>> {
    let Raw::Table(entries) = &node.value else {
        check.refuse(node, path, "is not a table", LATENCY_DOC);
        return None;
    };
    if entries.is_empty() {
        check.refuse(node, path, "is empty", LATENCY_DOC);
        return None;
    }
    let mut points: Vec<(u32, u64, &Entry)> = Vec::new();
    for entry in entries {
        let (ppm, time) = (percentile(check, entry), latency_time(check, entry));
        points.extend(ppm.zip(time).map(|(ppm, time)| (ppm, time, entry)));
    }
    if points.len() < entries.len() {
        return None;
    }
    points.sort_by_key(|(ppm, ..)| *ppm);
    for pair in points.windows(2) {
        if pair[1].1 < pair[0].1 {
            let message = format!(
                "`{}` is shorter than `{}` ({})",
                pair[1].2.key,
                pair[0].2.key,
                format_duration(pair[0].1)
            );
            check.findings.error(&pair[1].2.node.span, message, "percentiles rise");
            return None;
        }
        if pair[1].0 == pair[0].0 {
            let message = format!("`{}` and `{}` are the same", pair[0].2.key, pair[1].2.key);
            check.findings.error(&pair[1].2.key_span, message, "give each percentile once");
            return None;
        }
    }
    let point = |(ppm, ns, _): (u32, u64, _)| Percentile { percent: f64::from(ppm) / 1e4, ns };
    Some(points.into_iter().map(point).collect())
}

/// Parts per million of `min`, `p50`, `p99.9`, `max`.
fn percentile(check: &mut Check<'_>, entry: &Entry) -> Option<u32> {
    let ppm = match entry.key.as_str() {
        "min" => Some(0),
        "max" => Some(1_000_000),
        key => key.strip_prefix('p').and_then(|number| {
            let ppm = crate::size::scaled(number, 10_000).ok()?;
            u32::try_from(ppm).ok().filter(|ppm| (1..1_000_000).contains(ppm))
        }),
    };
    if ppm.is_none() {
        let message = format!("`{}` is not a percentile", shorten(&entry.key));
        check.findings.error(&entry.key_span, message, "use min, p50, p99, \"p99.9\" or max");
    }
    ppm
}

fn latency_time(check: &mut Check<'_>, entry: &Entry) -> Option<u64> {
    if matches!(entry.node.value, Raw::Table(_)) {
        let message = format!("`{}` is not a time", shorten(&entry.key));
        let hint = "a percentile with a point stands in quotes, as in \"p99.9\"";
        check.findings.error(&entry.key_span, message, hint);
        return None;
    }
    match parse_simple(&LATENCY_TIME, &entry.node) {
        Ok(Value::Number(nanoseconds)) => Some(nanoseconds),
        Ok(other) => unreachable!("a duration is a number, not {other:?}"),
        Err(Refusal { reason, hint }) => {
            check.refuse(&entry.node, &entry.key, &reason, &hint);
            None
        }
    }
}
