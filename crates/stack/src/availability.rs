//! What this version can serve, and what it only knows by name. The one place to open when a
//! kind, a target or a key arrives.
//!
//! Everything planned is parsed as far as it is understood, passes the graph checks, and is
//! refused here at the very end, so that one sentence says "not available in this version"
//! instead of "unknown".

use crate::diagnostic::Findings;
use crate::schema::DEVICE_KINDS;
use crate::spec::{DeviceKind, StackSpec};

/// Device kinds that later versions bring.
const PLANNED_KINDS: &[&str] = &["raid1", "nbd", "rbd", "delay", "flakey", "log-writes"];

/// Keys that later versions bring, by section.
const PLANNED_KEYS: &[(&str, &[&str])] = &[("export", &["vhost-user-blk", "ublk"])];

/// The kind's own spelling if `name` is a kind that a later version brings.
pub fn planned_kind(name: &str) -> Option<&'static str> {
    PLANNED_KINDS.iter().copied().find(|kind| *kind == name)
}

/// Whether `key` of `section` (`""`: the sections themselves) comes with a later version.
pub fn planned_key(section: &str, key: &str) -> bool {
    PLANNED_KEYS.iter().any(|(name, keys)| *name == section && keys.contains(&key))
}

/// What to do instead, with a space at its end, for a kind that others have and that there is nothing like here.
pub fn instead_of(name: &str) -> Option<&'static str> {
    match name.to_ascii_lowercase().as_str() {
        "mirror" | "raid1" | "raid-1" | "raid10" | "raid-10" => Some(
            "there are no mirrors; `raid5` survives the loss of a disk too, of three or more. ",
        ),
        "qcow2" | "vmdk" | "vdi" | "vhdx" => {
            Some("images are raw: `qemu-img convert -O raw` makes one for `file`. ")
        }
        "luks" | "crypt" => {
            Some("encrypt above it: cryptsetup takes the loop device of `serve --mount`. ")
        }
        "nbd" | "iscsi" | "rbd" => {
            Some("connect it as a block device, and name that in a `file`. ")
        }
        name if name.contains(['/', '.']) => Some(
            "a file or block device is of type `file`, with `path`: as in file,path=disk.img. ",
        ),
        _ => None,
    }
}

/// The kinds of device that can be served, for hints and help.
pub fn available_kinds() -> String {
    let names: Vec<String> = DEVICE_KINDS.iter().map(|kind| format!("\"{}\"", kind.name)).collect();
    names.join(", ")
}

/// Refuses what this version cannot serve.
pub fn check(stack: &StackSpec, findings: &mut Findings) {
    for device in &stack.devices {
        let span = |key: &str| stack.places.device(&device.name, key);
        match &device.kind {
            DeviceKind::Planned { kind: kind @ ("delay" | "flakey" | "log-writes"), .. } => {
                findings.error(
                    &span("type"),
                    format!("`{kind}` is a target of tables, not a type of its own"),
                    match *kind {
                        "log-writes" => {
                            format!("write table = \"0 SECTORS {kind} DEVICE LOG\" instead")
                        }
                        _ => {
                            format!("write table = \"0 SECTORS {kind} DEVICE OFFSET ...\" instead")
                        }
                    },
                )
            }
            DeviceKind::Planned { kind, .. } => findings.error(
                &span("type"),
                format!("device type `{kind}` is not available in this version"),
                format!("{}use {}", instead_of(kind).unwrap_or_default(), available_kinds()),
            ),
            DeviceKind::File(_)
            | DeviceKind::Ram(_)
            | DeviceKind::Null(_)
            | DeviceKind::Raid(_)
            | DeviceKind::Volume(_) => {}
        }
    }
}
