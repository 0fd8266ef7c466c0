//! Draws a stack as trees, for people: each export with its device, and below the device its
//! members; then the throttle groups with their limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use crate::front_ends;
use crate::graph::MAX_LEVELS;
use crate::group::{parent, shown as path_shown};
use crate::iomax::{MaxLine, limits_of};
use crate::lines::one_line;
use crate::size::format_size;
use crate::spec::{
    DeviceKind, DeviceSpec, ExportSpec, GroupSpec, SECTOR_BYTES, Segment, StackSpec, Target,
    TlsMode,
};

/// Most segments of a table that its line names one by one.
const SEGMENTS_SHOWN: usize = 4;

/// Draws the stack. Devices that no export reaches come last. The members of a device are drawn
/// only below its first appearance.
pub fn explain(stack: &StackSpec) -> String {
    let mut out = format!("stack {}\n", stack.name);
    let mut shown = Vec::new();
    for export in &stack.exports {
        let _ = writeln!(out, "export {}", one_line(&export_line(export)));
        for client in &export.clients {
            let group = path_shown(&client.group);
            let client = client.client.to_string();
            let _ = writeln!(out, "├── client {}  group {group}", one_line(&client));
        }
        draw(stack, &export.device, "", true, 0, &mut shown, &mut out);
    }
    let members: Vec<String> =
        stack.devices.iter().flat_map(|d| d.members()).map(|member| member.device).collect();
    for device in &stack.devices {
        if !shown.contains(&device.name) && !members.contains(&device.name) {
            let _ = writeln!(out, "not exported");
            draw(stack, &device.name, "", true, 0, &mut shown, &mut out);
        }
    }
    if !stack.groups.is_empty() {
        out.push_str("groups\n");
        let mut below: BTreeMap<&str, Vec<&GroupSpec>> = BTreeMap::new();
        for group in &stack.groups {
            below.entry(parent(&group.path)).or_default().push(group);
        }
        draw_groups(&below, "", "", &mut out);
    }
    out
}

/// Draws the groups below `path`; a stack that was checked has few levels.
fn draw_groups(
    below: &BTreeMap<&str, Vec<&GroupSpec>>,
    path: &str,
    indent: &str,
    out: &mut String,
) {
    let groups = below.get(path).map_or(&[][..], Vec::as_slice);
    for (index, group) in groups.iter().enumerate() {
        let last = index + 1 == groups.len();
        let (branch, under) = if last { ("└── ", "    ") } else { ("├── ", "│   ") };
        let name = group.path.rsplit('/').next().unwrap_or("");
        let limits = group
            .io_max
            .iter()
            .map(|line| format!("  {}", MaxLine::new(&line.device, &limits_of(&line.change))));
        let _ = writeln!(out, "{indent}{branch}{name}{}", limits.collect::<Vec<_>>().join(","));
        draw_groups(below, &group.path, &format!("{indent}{under}"), out);
    }
}

fn export_line(export: &ExportSpec) -> String {
    let mut line = format!("{}  {}", export.name, front_ends::explain(export));
    let tls = match export.tls.mode {
        TlsMode::Off => "",
        TlsMode::Optional => ", TLS optional",
        TlsMode::Required => ", TLS required",
    };
    line.push_str(tls);
    for (flag, text) in [(export.default, ", default"), (export.read_only, ", read-only")] {
        line.push_str(if flag { text } else { "" });
    }
    if !export.group.is_empty() {
        let _ = write!(line, ", group {}", export.group);
    }
    line
}

fn draw(
    stack: &StackSpec,
    name: &str,
    indent: &str,
    last: bool,
    depth: usize,
    shown: &mut Vec<String>,
    out: &mut String,
) {
    let Some(device) = stack.device(name).filter(|_| depth <= MAX_LEVELS) else { return };
    let branch = if last { "└── " } else { "├── " };
    let members = members(device);
    let again = shown.iter().any(|known| known == name) && !members.is_empty();
    let see = if again { "  (as above)" } else { "" };
    let _ = writeln!(out, "{indent}{branch}{}{see}", one_line(&device_line(stack, device)));
    if again {
        return;
    }
    shown.push(name.to_owned());
    let indent = format!("{indent}{}", if last { "    " } else { "│   " });
    for (index, member) in members.iter().enumerate() {
        let last = index + 1 == members.len();
        draw(stack, member, &indent, last, depth + 1, shown, out);
    }
}

/// The members of a device, each once.
fn members(device: &DeviceSpec) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let names = device.members().into_iter().map(|member| member.device);
    names.filter(|name| seen.insert(name.clone())).collect()
}

fn device_line(stack: &StackSpec, device: &DeviceSpec) -> String {
    let size = stack.sizes.get(&device.name).map_or("size unknown".to_owned(), |s| format_size(*s));
    let detail = match &device.kind {
        DeviceKind::File(file) => file.options.path.display().to_string(),
        DeviceKind::Null(null) => {
            format!("irqmode {}", null.options.irqmode.name())
        }
        DeviceKind::Volume(volume) => {
            let table = volume.table(&|name| stack.sizes.get(name).copied());
            table.ok().flatten().map_or_else(String::new, |segments| table_line(&segments))
        }
        DeviceKind::Raid(raid) => format!("{} members", raid.members.len()),
        DeviceKind::Ram(_) => String::new(),
    };
    let read_only = if device.read_only { "read-only" } else { "" };
    let parts = [device.name.as_str(), device.kind.name(), &size, read_only, &detail];
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("  ")
}

fn table_line(segments: &[Segment]) -> String {
    if segments.len() > SEGMENTS_SHOWN {
        return format!("{} segments", segments.len());
    }
    let segment = |segment: &Segment| {
        let size = format_size(segment.length_sectors.saturating_mul(SECTOR_BYTES));
        format!("{} {size}", target(&segment.target))
    };
    segments.iter().map(segment).collect::<Vec<_>>().join(" + ")
}

fn target(target: &Target) -> String {
    match target {
        Target::Striped { chunk_sectors, stripes } => {
            let chunk = format_size(u64::from(*chunk_sectors) * SECTOR_BYTES);
            format!("striped {} by {chunk}", stripes.len())
        }
        other => other.name().to_owned(),
    }
}
