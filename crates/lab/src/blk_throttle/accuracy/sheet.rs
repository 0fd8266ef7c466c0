//! The sheets: limits of groups, with loads that exceed the limits.

use drystone_throttle::Change;

const KIB: u64 = 1024;
const MIB: u64 = KIB * KIB;
const GIB: u64 = KIB * MIB;

/// I/Os of one thread.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    pub(super) name: &'static str,
    pub(super) group: &'static str,
    pub(super) is_write: bool,
    pub(super) bytes: u64,
    pub(super) depth: usize,
    /// The most I/Os a second that it submits by itself.
    pub(super) wants: Option<u64>,
    /// The rate that it must get, I/Os a second: in the first half, and in the second.
    pub(super) asked: [f64; 2],
}

/// The unit in which rates are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RateUnit {
    Iops,
    Mib,
}

impl RateUnit {
    pub(super) fn name(self) -> &'static str {
        match self {
            RateUnit::Iops => "IOPS",
            RateUnit::Mib => "MiB/s",
        }
    }

    /// A rate of I/Os of `bytes`, in this unit.
    pub(super) fn of(self, iops: f64, bytes: u64) -> f64 {
        match self {
            RateUnit::Iops => iops,
            RateUnit::Mib => iops * bytes as f64 / MIB as f64,
        }
    }
}

/// Limits with the flows that they bind.
#[derive(Clone, Debug)]
pub(super) struct Sheet {
    pub(super) name: &'static str,
    pub(super) unit: RateUnit,
    /// All groups, parents first.
    pub(super) groups: &'static [&'static str],
    /// The group with limits, its limits, and their values from half-way on.
    pub(super) limited: &'static str,
    pub(super) limits: Change,
    pub(super) then: Option<Change>,
    pub(super) flows: Vec<Flow>,
}

fn riops(limit: u64) -> Change {
    Change { riops: Some(Some(limit)), ..Change::default() }
}

fn rbps(limit: u64) -> Change {
    Change { rbps: Some(Some(limit)), ..Change::default() }
}

/// Reads of `bytes` in a group, which must get `asked` of them a second.
fn reads(group: &'static str, bytes: u64, depth: usize, asked: f64) -> Flow {
    let (name, asked) = (group, [asked; 2]);
    Flow { name, group, is_write: false, bytes, depth, wants: None, asked }
}

/// One group of `limits`, with a load by itself.
fn single(name: &'static str, unit: RateUnit, limits: Change, flow: Flow) -> Sheet {
    let flows = vec![flow];
    Sheet { name, unit, groups: &["g"], limited: "g", limits, then: None, flows }
}

fn by_ios(name: &'static str, limit: u64) -> Sheet {
    single(name, RateUnit::Iops, riops(limit), reads("g", 4 * KIB, 32, limit as f64))
}

fn by_bytes(name: &'static str, limit: u64, bytes: u64) -> Sheet {
    let flow = reads("g", bytes, 32, limit as f64 / bytes as f64);
    single(name, RateUnit::Mib, rbps(limit), flow)
}

/// Two children of a group with `limits`.
fn children(name: &'static str, unit: RateUnit, limits: Change, flows: [Flow; 2]) -> Sheet {
    let (groups, flows): (&[&str], _) = (&["p", "p/a", "p/b"], flows.into());
    Sheet { name, unit, groups, limited: "p", limits, then: None, flows }
}

fn changing(name: &'static str, from: u64, to: u64) -> Sheet {
    let mut sheet = by_ios(name, from);
    sheet.then = Some(riops(to));
    sheet.flows[0].asked[1] = to as f64;
    sheet
}

/// Four threads in one group, whose rates need not be equal.
fn shared(name: &'static str, limit: u64) -> Sheet {
    let mut sheet = by_ios(name, limit);
    let names = ["thread 1", "thread 2", "thread 3", "thread 4"];
    let thread = |name| Flow { name, ..reads("g", 4 * KIB, 32, limit as f64 / 4.0) };
    sheet.flows = names.map(thread).into();
    sheet
}

/// Reads and writes of one group, limited apart: by bytes and by I/Os.
fn mixed() -> Sheet {
    let limits = Change { wiops: Some(Some(500)), ..rbps(10 * MIB) };
    let mut sheet = by_bytes("reads 10 MiB/s, writes 500 IOPS", 10 * MIB, 64 * KIB);
    let write = Flow { name: "writes", is_write: true, ..reads("g", 4 * KIB, 32, 500.0) };
    (sheet.limits, sheet.unit, sheet.flows[0].name) = (limits, RateUnit::Iops, "reads");
    sheet.flows.push(write);
    sheet
}

/// All sheets.
pub(super) fn all() -> Vec<Sheet> {
    let (a, b) = ("p/a", "p/b");
    let half = |depth| reads(a, 4 * KIB, depth, 500.0);
    let modest = Flow { wants: Some(100), ..reads(a, 4 * KIB, 4, 100.0) };
    let bytes = |group, bytes| reads(group, bytes, 32, 8.0 * MIB as f64 / bytes as f64);
    vec![
        by_ios("1 IOPS", 1),
        by_ios("10 IOPS", 10),
        by_ios("100 IOPS", 100),
        by_ios("3000 IOPS", 3000),
        by_ios("100000 IOPS", 100_000),
        by_bytes("100 KiB/s", 100 * KIB, 4 * KIB),
        by_bytes("10 MiB/s", 10 * MIB, 4 * KIB),
        by_bytes("1 GiB/s", GIB, 64 * KIB),
        by_bytes("5 GiB/s", 5 * GIB, 64 * KIB),
        mixed(),
        shared("3000 IOPS, four threads", 3000),
        shared("100000 IOPS, four threads", 100_000),
        children(
            "two children of 1000 IOPS, equal loads",
            RateUnit::Iops,
            riops(1000),
            [half(32), reads(b, 4 * KIB, 32, 500.0)],
        ),
        children(
            "two children of 1000 IOPS, depth 1 and 32",
            RateUnit::Iops,
            riops(1000),
            [half(1), reads(b, 4 * KIB, 32, 500.0)],
        ),
        children(
            "two children of 1000 IOPS, one wants 100",
            RateUnit::Iops,
            riops(1000),
            [modest, reads(b, 4 * KIB, 32, 900.0)],
        ),
        children(
            "two children of 16 MiB/s, 4 KiB and 64 KiB",
            RateUnit::Mib,
            rbps(16 * MIB),
            [bytes(a, 4 * KIB), bytes(b, 64 * KIB)],
        ),
        changing("1000 IOPS, then 3000", 1000, 3000),
        changing("3000 IOPS, then 1000", 3000, 1000),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The requested rates of a sheet are those of its limits.
    #[test]
    fn what_is_asked_is_what_the_limits_give() {
        for sheet in all() {
            let limits = [Some(sheet.limits), sheet.then.or(Some(sheet.limits))];
            for (half, limits) in limits.into_iter().flatten().enumerate() {
                let sum = |writes: bool, bytes: bool| -> f64 {
                    let flows = sheet.flows.iter().filter(|flow| flow.is_write == writes);
                    let rate = |flow: &Flow| {
                        flow.asked[half] * if bytes { flow.bytes as f64 } else { 1.0 }
                    };
                    flows.map(rate).sum()
                };
                let Change { rbps, wbps, riops, wiops } = limits;
                let all = [(rbps, false, true), (riops, false, false)];
                for (limit, writes, bytes) in
                    all.into_iter().chain([(wbps, true, true), (wiops, true, false)])
                {
                    if let Some(Some(limit)) = limit {
                        assert_eq!(sum(writes, bytes).round() as u64, limit, "{}", sheet.name);
                    }
                }
            }
            let known = |flow: &Flow| sheet.groups.contains(&flow.group);
            assert!(sheet.flows.iter().all(known), "{}", sheet.name);
        }
    }
}
