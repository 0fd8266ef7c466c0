//! Checks of the stack as a graph: members that exist, are large enough and used once, no cycles,
//! not too many levels, exports of devices that exist and addresses that agree.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostic::{Findings, Span, shorten};
use crate::front_ends;
use crate::nearest::nearest;
use crate::size::format_size;
use crate::spec::{DeviceKind, DeviceSpec, Member, RaidSpec, SECTOR_BYTES, Segment, StackSpec};

/// Most volumes that stand on one another. A call to a volume calls its members in turn, so this
/// bounds the depth of calls; far more than anybody builds.
pub const MAX_LEVELS: usize = 64;

/// Names of devices or groups that were found but could not be built. References to them are not
/// reported in addition.
pub type Broken = BTreeSet<String>;

/// Reports all faults in the references between devices and exports. `broken` devices have been
/// reported before and count as existing, of unknown size.
pub fn check(stack: &StackSpec, broken: &Broken, findings: &mut Findings) {
    missing(stack, broken, findings);
    cycles(stack, findings);
    too_many_levels(stack, findings);
    used_twice(stack, findings);
    too_small(stack, &stack.sizes, findings);
    front_ends::check(stack, findings);
    short_timeouts(stack, findings);
    unused(stack, broken, findings);
}

/// Reports members that end beyond the device they name. Called again when the sizes of files are
/// known.
pub fn too_small(stack: &StackSpec, sizes: &BTreeMap<String, u64>, findings: &mut Findings) {
    for (_, member) in uses(stack) {
        let (Some(size), Some((start, length))) = (sizes.get(&member.device), member.area_sectors)
        else {
            continue;
        };
        let end = start.saturating_add(length);
        let has = size / SECTOR_BYTES;
        if end > has {
            findings.error(
                &member.span,
                format!("`{}` is too small: sectors up to {end} are used", member.device),
                format!("it has {has} sectors ({})", format_size(*size)),
            );
        }
    }
}

/// A function that returns the size in bytes of an array, by its name, if the size is known.
pub type ArraySize<'a> = &'a dyn Fn(&str, &RaidSpec, &StackSpec) -> Option<u64>;

/// Computes the sizes of volumes whose members' sizes are known by now, and of arrays by
/// `array_size`. Reports members without usable space.
pub fn complete_sizes(stack: &mut StackSpec, array_size: ArraySize<'_>, findings: &mut Findings) {
    for index in members_first(&stack.devices, None) {
        let device = &stack.devices[index];
        if stack.sizes.contains_key(&device.name) {
            continue;
        }
        let volume = match &device.kind {
            DeviceKind::Volume(volume) => volume,
            DeviceKind::Raid(raid) => {
                let size = array_size(&device.name, raid, stack);
                stack.sizes.extend(size.map(|size| (device.name.clone(), size)));
                continue;
            }
            _ => continue,
        };
        match volume.table(&|name| stack.sizes.get(name).copied()) {
            Ok(None) => {}
            Ok(Some(table)) => {
                let sectors = table.last().map_or(0, Segment::end_sector);
                stack.sizes.insert(device.name.clone(), sectors.saturating_mul(SECTOR_BYTES));
            }
            Err(wrong) => {
                findings.error(&wrong.member.span, wrong.message, "leave it out, or enlarge it");
            }
        }
    }
}

/// Indices of the devices, or of `only` and the devices below it. Each comes after its members,
/// unless they form a cycle. The walk keeps its own path instead of recursion, since a chain may be
/// as long as the file.
pub fn members_first(devices: &[DeviceSpec], only: Option<&str>) -> Vec<usize> {
    let numbers: BTreeMap<&str, usize> =
        devices.iter().enumerate().map(|(index, device)| (device.name.as_str(), index)).collect();
    let (mut order, mut seen) = (Vec::with_capacity(devices.len()), vec![false; devices.len()]);
    let roots = (0..devices.len()).filter(|index| only.is_none_or(|n| n == devices[*index].name));
    for root in roots {
        let mut path = vec![(root, false)];
        while let Some((index, done)) = path.pop() {
            if done {
                order.push(index);
            } else if !std::mem::replace(&mut seen[index], true) {
                path.push((index, true));
                let members = devices[index].members();
                let below = members.iter().rev().filter_map(|m| numbers.get(m.device.as_str()));
                path.extend(below.map(|index| (*index, false)));
            }
        }
    }
    order
}

/// Each device with each of its members.
fn uses(stack: &StackSpec) -> Vec<(&str, Member)> {
    let mut uses = Vec::new();
    for device in &stack.devices {
        uses.extend(device.members().into_iter().map(|member| (device.name.as_str(), member)));
    }
    uses
}

fn missing(stack: &StackSpec, broken: &Broken, findings: &mut Findings) {
    let names = stack.devices.iter().map(|device| device.name.as_str());
    let known = || names.clone().chain(broken.iter().map(String::as_str));
    let exist: BTreeSet<&str> = known().collect();
    let mut report = |name: &str, span: &Span| {
        if exist.contains(name) {
            return;
        }
        let near = if findings.is_full() { None } else { nearest(name, known()) };
        let hint = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("add [device.{}], or use one of: {}", shorten(name), listed(known())),
        };
        findings.error(span, format!("there is no device `{}`", shorten(name)), hint);
    };
    for (_, member) in uses(stack) {
        report(&member.device, &member.span);
    }
    for export in &stack.exports {
        report(&export.device, &stack.places.export(&export.name, "device"));
    }
    for line in stack.groups.iter().flat_map(|group| &group.io_max) {
        report(&line.device, &line.span);
    }
}

/// Some of the names, for a hint.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 8;
    let names: Vec<&str> = names.collect();
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

/// Reports each cycle once, at the member that closes it.
fn cycles(stack: &StackSpec, findings: &mut Findings) {
    let edges: BTreeMap<&str, Vec<Member>> =
        stack.devices.iter().map(|device| (device.name.as_str(), device.members())).collect();
    let mut done: BTreeMap<&str, bool> = BTreeMap::new();
    for root in stack.devices.iter().map(|device| device.name.as_str()) {
        walk(root, &edges, &mut done, findings);
    }
}

/// Walks depth first from `root`. The walk keeps its own path instead of recursion, since a chain
/// may be as long as the file. `done` holds visited devices (false: on the present path).
fn walk<'a>(
    root: &'a str,
    edges: &'a BTreeMap<&'a str, Vec<Member>>,
    done: &mut BTreeMap<&'a str, bool>,
    findings: &mut Findings,
) {
    if done.contains_key(root) {
        return;
    }
    let mut path: Vec<(&str, usize)> = vec![(root, 0)];
    done.insert(root, false);
    while let Some((name, next)) = path.last_mut() {
        let Some(member) = edges[name].get(*next) else {
            done.insert(name, true);
            path.pop();
            continue;
        };
        *next += 1;
        let Some((member_name, _)) = edges.get_key_value(member.device.as_str()) else { continue };
        match done.get(member_name) {
            Some(true) => {}
            Some(false) => closed(&path, member, findings),
            None => {
                done.insert(member_name, false);
                path.push((member_name, 0));
            }
        }
    }
}

fn closed(path: &[(&str, usize)], member: &Member, findings: &mut Findings) {
    let start = path.iter().position(|(name, _)| *name == member.device).unwrap_or(0);
    let names: Vec<&str> = path[start..].iter().map(|(name, _)| *name).collect();
    let message = match names.as_slice() {
        [one] => format!("`{one}` stands on itself"),
        names => format!("a cycle: {} -> {}", names.join(" -> "), member.device),
    };
    findings.error(&member.span, message, "a device can stand only on devices below it");
}

/// Reports the first device with too many levels below it.
fn too_many_levels(stack: &StackSpec, findings: &mut Findings) {
    let mut levels: BTreeMap<&str, usize> = BTreeMap::new();
    for index in members_first(&stack.devices, None) {
        let device = &stack.devices[index];
        let members = device.members();
        let below = members.iter().filter_map(|member| levels.get(member.device.as_str()));
        let level = below.max().map_or(0, |below| below + 1);
        if level > MAX_LEVELS {
            let span = stack.places.get(&format!("device/{}", device.name));
            let message = format!("`{}` is the {level}th level of volumes", device.name);
            findings.error(&span, message, format!("at most {MAX_LEVELS} stand on one another"));
            return;
        }
        levels.insert(&device.name, level);
    }
}

/// Reports members whose sectors another user has too.
fn used_twice(stack: &StackSpec, findings: &mut Findings) {
    let mut by_member: BTreeMap<String, Vec<(&str, Member)>> = BTreeMap::new();
    for (user, member) in uses(stack) {
        by_member.entry(member.device.clone()).or_default().push((user, member));
    }
    for (name, users) in &mut by_member {
        // Sorted by first sector: an area that overlaps any earlier one overlaps the one that
        // reaches furthest.
        users.sort_by_key(|(_, member)| (area(member).0, member.span.start));
        let mut furthest = 0;
        for index in 1..users.len() {
            let ((first_user, first), (user, member)) = (&users[furthest], &users[index]);
            if area(member).0 < area(first).1 {
                report_twice(name, (first_user, first), (user, member), findings);
            }
            if area(member).1 > area(first).1 {
                furthest = index;
            }
        }
    }
    exported_members(stack, &by_member, findings);
}

/// First sector and the one after the last.
fn area(member: &Member) -> (u64, u64) {
    match member.area_sectors {
        Some((start, length)) => (start, start.saturating_add(length)),
        None => (0, u64::MAX),
    }
}

fn report_twice(name: &str, a: (&str, &Member), b: (&str, &Member), findings: &mut Findings) {
    let (first, second) = if a.1.span.start <= b.1.span.start { (a, b) } else { (b, a) };
    let message = match (first.1.area_sectors, second.1.area_sectors) {
        (Some(_), Some((start, length))) => {
            format!("sectors {start} to {} of `{name}` are used twice", start + length - 1)
        }
        _ => format!("`{name}` is used twice: by `{}` and by `{}`", first.0, second.0),
    };
    let also = (&first.1.span, "first used here");
    findings.error_also(&second.1.span, message, "use another device or other sectors", also);
}

/// Reports writable exports of devices that other devices stand on: such writes would bypass the
/// upper device.
fn exported_members(
    stack: &StackSpec,
    by_member: &BTreeMap<String, Vec<(&str, Member)>>,
    findings: &mut Findings,
) {
    for export in stack.exports.iter().filter(|export| !export.read_only) {
        let Some((user, member)) = by_member.get(&export.device).and_then(|users| users.first())
        else {
            continue;
        };
        findings.error_also(
            &stack.places.export(&export.name, "device"),
            format!("`{}` is part of `{user}`, so clients must not write to it", export.device),
            format!("export `{user}`, or add read_only = true"),
            (&member.span, "used here"),
        );
    }
}

/// Members with shorter time-outs get a warning. A disk that wakes up or corrects an error is
/// silent for tenths of a second to seconds, and a member whose writes count as lost fails.
pub const MEMBER_TIMEOUT_MIN_NS: u64 = 1_000_000_000;

/// A warning of a shorter time-out: `device` is `member` of `array`, or below it.
pub fn short_timeout(device: &str, (member, array): (&str, &str)) -> String {
    if device == member {
        return format!(
            "the array `{array}` may fail its member `{device}` after one slow request"
        );
    }
    format!(
        "the array `{array}` may fail its member `{member}` after one slow request of `{device}` \
         below it"
    )
}

/// The first array above `device`, and its member on that way: the device, or a volume above it.
/// `users` names the devices that stand on one, and `array_of` the array that a device is a member
/// of.
pub fn array_above(
    device: &str,
    array_of: impl Fn(&str) -> Option<String>,
    users: impl Fn(&str) -> Vec<String>,
) -> Option<(String, String)> {
    let mut found = vec![device.to_owned()];
    let mut next = 0;
    while let Some(name) = found.get(next).cloned() {
        if let Some(array) = array_of(&name) {
            return Some((name, array));
        }
        for user in users(&name) {
            if !found.contains(&user) {
                found.push(user);
            }
        }
        next += 1;
    }
    None
}

/// The hint for a time-out that is too short.
pub const MEMBER_TIMEOUT_HINT: &str = "set io_timeout to 1s or more; the default is 30s";

fn short_timeouts(stack: &StackSpec, findings: &mut Findings) {
    for device in stack.devices.iter().filter(|device| {
        device.queue.io_timeout_ms.is_some_and(|ms| ms < MEMBER_TIMEOUT_MIN_NS / 1_000_000)
    }) {
        let of = |name: &str| {
            let has = |user: &&DeviceSpec| user.members().iter().any(|m| m.device == name);
            stack.devices.iter().filter(has).collect::<Vec<_>>()
        };
        let is_array = |user: &&DeviceSpec| matches!(user.kind, DeviceKind::Raid(_));
        let array_of = |name: &str| Some(of(name).into_iter().find(is_array)?.name.clone());
        let users = |name: &str| of(name).into_iter().map(|user| user.name.clone()).collect();
        let Some((member, array)) = array_above(&device.name, array_of, users) else { continue };
        findings.warning(
            &stack.places.get(&format!("device/{}/queue/io_timeout", device.name)),
            short_timeout(&device.name, (&member, &array)),
            MEMBER_TIMEOUT_HINT,
        );
    }
}

fn unused(stack: &StackSpec, broken: &Broken, findings: &mut Findings) {
    // A broken device or export may use any other device, so unused ones are not reported.
    if !broken.is_empty() || findings.errors() > 0 {
        return;
    }
    let used = uses(stack);
    for device in &stack.devices {
        let exported = stack.exports.iter().any(|export| export.device == device.name);
        if !exported && used.iter().all(|(_, member)| member.device != device.name) {
            findings.warning(
                &stack.places.get(&format!("device/{}", device.name)),
                format!("device `{}` is not used", device.name),
                format!("export it: [export.NAME] with device = \"{}\"", device.name),
            );
        }
    }
}
