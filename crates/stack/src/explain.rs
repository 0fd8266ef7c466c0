//! A stack as a tree, for people: each export with its device, and below it what it stands on.

use std::fmt::Write;

use crate::size::format_size;
use crate::spec::{DeviceKind, DeviceSpec, ExportSpec, SECTOR_BYTES, StackSpec, Target, TlsMode};

/// Deepest level that is drawn; a checked stack of this version has one.
const MAX_DEPTH: usize = 64;

/// Draws the stack. Devices that no export reaches come last.
pub fn explain(stack: &StackSpec) -> String {
    let mut out = format!("stack {}\n", stack.name);
    let mut shown = Vec::new();
    for export in &stack.exports {
        let _ = writeln!(out, "export {}", export_line(export));
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
    out
}

fn export_line(export: &ExportSpec) -> String {
    let places: Vec<String> = export.nbd.iter().map(ToString::to_string).collect();
    let mut line = format!("{}  nbd {}", export.name, places.join(", "));
    let tls = match export.tls.mode {
        TlsMode::Off => "",
        TlsMode::Optional => ", TLS optional",
        TlsMode::Required => ", TLS required",
    };
    line.push_str(tls);
    for (flag, text) in [(export.default, ", default"), (export.read_only, ", read-only")] {
        line.push_str(if flag { text } else { "" });
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
    let Some(device) = stack.device(name).filter(|_| depth < MAX_DEPTH) else { return };
    let branch = if last { "└── " } else { "├── " };
    let _ = writeln!(out, "{indent}{branch}{}", device_line(stack, device));
    shown.push(name.to_owned());
    let indent = format!("{indent}{}", if last { "    " } else { "│   " });
    let members = device.members();
    for (index, member) in members.iter().enumerate() {
        let last = index + 1 == members.len();
        draw(stack, &member.device, &indent, last, depth + 1, shown, out);
    }
}

fn device_line(stack: &StackSpec, device: &DeviceSpec) -> String {
    let size = stack.sizes.get(&device.name).map_or("size unknown".to_owned(), |s| format_size(*s));
    let detail = match &device.kind {
        DeviceKind::File(file) => file.path.display().to_string(),
        DeviceKind::Null(null) => {
            format!("irqmode {}", format!("{:?}", null.irqmode).to_lowercase())
        }
        DeviceKind::Table(segments) => {
            let lines: Vec<String> = segments
                .iter()
                .map(|s| {
                    format!(
                        "{} {}",
                        target(&s.target),
                        format_size(s.length_sectors * SECTOR_BYTES)
                    )
                })
                .collect();
            lines.join(" + ")
        }
        DeviceKind::Ram(_) | DeviceKind::Planned { .. } => String::new(),
    };
    let read_only = if device.read_only { "read-only" } else { "" };
    let parts = [device.name.as_str(), device.kind.name(), &size, read_only, &detail];
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join("  ")
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
