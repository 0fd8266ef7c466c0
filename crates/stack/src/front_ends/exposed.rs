//! Warnings of exports and keys that are accessible to more people than was probably meant. A
//! client that can connect to an export may read it and, unless it is read-only, change it.

use std::collections::BTreeSet;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::diagnostic::Findings;
use crate::spec::{ExportSpec, Listener, StackSpec, TlsMode, TlsSpec};

/// Warns of listeners that let everybody in.
pub(super) fn listeners(stack: &StackSpec, findings: &mut Findings) {
    for (listener, sharers) in stack.listeners() {
        let export = &stack.exports[sharers[0]];
        let has_lists = sharers.iter().all(|at| stack.exports[*at].allow.is_some());
        if export.tls.mode == TlsMode::Optional && export.tls.client_ca.is_some() {
            let span = stack.places.export(&export.name, "tls/mode");
            let message = "`client_ca` protects nothing: with mode \"optional\" a client that does \
                not encrypt needs no certificate";
            findings.warning(&span, message, "write mode = \"required\"");
        } else if let Some((message, hint)) = open_to_all(listener, &export.tls, has_lists) {
            findings.warning(&span_of(stack, export, listener), message, hint);
        }
    }
}

/// The fault of a listener that everybody can use, and what would be right.
fn open_to_all(
    listener: &Listener,
    tls: &TlsSpec,
    has_lists: bool,
) -> Option<(String, &'static str)> {
    let asks = tls.mode == TlsMode::Required && tls.client_ca.is_some();
    match listener {
        _ if asks => None,
        _ if has_lists
            && (matches!(listener, Listener::Unix { .. }) || tls.mode == TlsMode::Required) =>
        {
            None
        }
        Listener::Unix { mode, .. } if mode & 0o002 != 0 => Some((
            format!("every user of this machine can connect to {listener}: its mode is {mode:04o}"),
            "write mode=0660, which lets its owner and its group in",
        )),
        Listener::Tcp { host, .. } if !is_loopback(host) => Some(match tls.mode {
            TlsMode::Required => (
                format!(
                    "everybody in the network can connect to {listener}: TLS without `client_ca` \
                     does not ask who a client is"
                ),
                "add client_ca = \"ca.pem\" to `tls`",
            ),
            _ => (
                format!(
                    "everybody in the network can connect to {listener} and read what is sent: it \
                     does not require TLS"
                ),
                "add tls = { mode = \"required\", ... } with client_ca, or listen on 127.0.0.1",
            ),
        }),
        _ => None,
    }
}

/// True if only this machine reaches the host. Names other than localhost are not looked up.
fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

fn span_of(stack: &StackSpec, export: &ExportSpec, listener: &Listener) -> crate::diagnostic::Span {
    let at = export.nbd.iter().position(|own| own.same_address(listener)).unwrap_or(0);
    stack.places.get(&format!("export/{}/nbd/{at}", export.name))
}

/// Warns of files that everybody may open although no mode says so, each once.
pub(super) fn files(stack: &StackSpec, findings: &mut Findings) {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for export in &stack.exports {
        let Some(fuse) = &export.fuse else { continue };
        let unasked = fuse.allow_other && fuse.mode.is_none();
        if !unasked || !seen.insert(&fuse.path) {
            continue;
        }
        let (shown, may) = (fuse.path.display(), if export.read_only { "read" } else { "change" });
        let message = format!(
            "every user of this machine can {may} {shown}: without `fuse_mode` its mode is {:04o}",
            fuse.permissions()
        );
        let span = stack.places.export(&export.name, "fuse_allow_other");
        let hint =
            "write fuse_mode = \"0660\" with fuse_gid, or fuse_mode = \"0666\" if that is meant";
        findings.warning(&span, message, hint);
    }
}

/// Warns of private keys that other users may read or change, each once.
pub(super) fn keys(stack: &StackSpec, findings: &mut Findings) {
    let mut seen: BTreeSet<&Path> = BTreeSet::new();
    for export in &stack.exports {
        let Some(key) = &export.tls.key else { continue };
        let Ok(meta) = fs::metadata(key) else { continue };
        if meta.mode() & 0o066 == 0 || !meta.is_file() || !seen.insert(key) {
            continue;
        }
        let who = if meta.mode() & 0o006 != 0 { "every user" } else { "its group" };
        let (shown, mode) = (key.display(), meta.mode() & 0o777);
        let message = format!("the private key {shown} is open to {who}: its mode is {mode:04o}");
        let span = stack.places.export(&export.name, "tls/key");
        findings.warning(&span, message, format!("chmod 600 {shown}"));
    }
}
