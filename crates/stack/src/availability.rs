//! The kinds and keys that this version serves, and those that it only knows by name. A new kind,
//! target or key changes only this file.
//!
//! A planned kind or key is refused with the sentence "not available in this version" instead of
//! "unknown".

use crate::schema::DEVICE_KINDS;

/// Device kinds that later versions bring.
const PLANNED_KINDS: &[&str] = &["raid1", "nbd", "rbd", "delay", "flakey", "log-writes"];

/// Keys that later versions bring, by section.
const PLANNED_KEYS: &[(&str, &[&str])] = &[("export", &["vhost-user-blk", "ublk"])];

/// The kind's own spelling if `name` is a kind that a later version brings.
pub fn planned_kind(name: &str) -> Option<&'static str> {
    PLANNED_KINDS.iter().copied().find(|kind| *kind == name)
}

/// True if `key` of `section` (`""`: the sections themselves) comes with a later version.
pub fn planned_key(section: &str, key: &str) -> bool {
    PLANNED_KEYS.iter().any(|(name, keys)| *name == section && keys.contains(&key))
}

/// Advice, with a space at its end, for a kind of other programs that has no counterpart here.
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

/// The reason why a planned kind is refused, and the right form.
pub fn refusal(kind: &str) -> (String, String) {
    match kind {
        "delay" | "flakey" | "log-writes" => {
            let arguments = if kind == "log-writes" { "DEVICE LOG" } else { "DEVICE OFFSET ..." };
            let message = format!("`{kind}` is a target of tables, not a type of its own");
            (message, format!("write table = \"0 SECTORS {kind} {arguments}\" instead"))
        }
        _ => {
            let message = format!("device type `{kind}` is not available in this version");
            let instead = instead_of(kind).unwrap_or_default();
            (message, format!("{instead}use {}", available_kinds()))
        }
    }
}
