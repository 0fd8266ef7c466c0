//! `nbd = [...]`: the addresses that the NBD server listens on.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::diagnostic::{Findings, Span};
use crate::parse::fields::{Check, Value};
use crate::spec::{ExportSpec, Listener, StackSpec, TlsSpec};
use crate::uri::nbd_uri;
use crate::used_files::{Identity, Kind, Seen, Used, folder};

use super::exposed;
use super::front_end::{FrontEnd, Section};

/// NBD, over Unix sockets and TCP.
pub(crate) struct Nbd;

impl FrontEnd for Nbd {
    fn read(&self, check: &mut Check<'_>, section: &Section<'_>, export: &mut ExportSpec) {
        let items = section.fields.list("nbd").iter().filter_map(|value| match value {
            Value::Listener(listener) => Some(listener.clone()),
            _ => None,
        });
        export.nbd = items.collect();
        if !check.places.has(&format!("{}/nbd", section.path)) {
            without_listener(check, section);
        }
    }

    fn knows_users(&self, export: &ExportSpec) -> bool {
        export.nbd.iter().any(|listener| matches!(listener, Listener::Unix { .. }))
    }

    /// Reports exports that share an address and differ in a property of the whole connection, or
    /// of which several are the default.
    fn check(&self, stack: &StackSpec, findings: &mut Findings) {
        for (listener, sharers) in stack.listeners() {
            let first = &stack.exports[sharers[0]];
            let mut default: Option<&ExportSpec> = None;
            for (place, index) in sharers.iter().enumerate() {
                let export = &stack.exports[*index];
                if place > 0 && sharers[place - 1] == *index {
                    let span = listener_span(stack, export, listener);
                    findings.error(&span, format!("{listener} is given twice"), "give it once");
                    continue;
                }
                shared(stack, export, first, listener, findings);
                match default {
                    Some(other) if export.default => {
                        two_defaults(stack, export, other, listener, findings)
                    }
                    _ if export.default => default = Some(export),
                    _ => {}
                }
            }
        }
        exposed::listeners(stack, findings);
    }

    /// Sockets need a folder, must not replace another file, and must not be a device's file;
    /// certificates must be readable.
    fn look(&self, stack: &StackSpec, seen: &mut Seen, findings: &mut Findings) {
        for export in &stack.exports {
            for (at, listener) in export.nbd.iter().enumerate() {
                let Listener::Unix { path, .. } = listener else { continue };
                let span = stack.places.get(&format!("export/{}/nbd/{at}", export.name));
                socket(path, &span, findings);
                let identity = Identity::of(path);
                if let Some(other) = seen.find(&identity) {
                    clash(other, path, &span, stack, findings);
                }
                seen.add(identity, Kind::Socket, &export.name, span);
            }
        }
        tls_files(stack, findings);
        exposed::keys(stack, findings);
    }

    fn ways_in(&self, export: &ExportSpec) -> Vec<String> {
        export.nbd.iter().map(|listener| nbd_uri(export, listener)).collect()
    }

    fn explain(&self, export: &ExportSpec) -> Option<String> {
        let places: Vec<String> = export.nbd.iter().map(ToString::to_string).collect();
        (!places.is_empty()).then(|| format!("nbd {}", places.join(", ")))
    }
}

/// Reports keys of connections although the export has no address.
fn without_listener(check: &mut Check<'_>, section: &Section<'_>) {
    const KEYS: [&str; 11] = [
        "description",
        "multi_conn",
        "zero_copy",
        "tls",
        "max_connections",
        "max_connections_per_client",
        "max_in_flight",
        "max_request",
        "handshake_timeout",
        "idle_timeout",
        "peer_timeout",
    ];
    for key in KEYS {
        let place = format!("{}/{key}", section.path);
        if check.places.has(&place) {
            let message = format!("`{key}` has no effect: the export has no `nbd`");
            let span = check.places.get(&place);
            check.findings.error(&span, message, "add nbd = \"unix:NAME.sock\" or remove it");
        }
    }
}

/// Where the export names that address, the last time if it does so twice.
fn listener_span(stack: &StackSpec, export: &ExportSpec, listener: &Listener) -> Span {
    let at = export.nbd.iter().rposition(|own| own.same_address(listener)).unwrap_or(0);
    stack.places.get(&format!("export/{}/nbd/{at}", export.name))
}

/// Checks that keys of whole connections agree with the first export at this address.
fn shared(
    stack: &StackSpec,
    export: &ExportSpec,
    first: &ExportSpec,
    listener: &Listener,
    findings: &mut Findings,
) {
    let own = export.nbd.iter().find(|own| own.same_address(listener));
    let differs = [
        ("mode", own != Some(listener)),
        ("tls", export.tls != first.tls),
        ("max_connections", export.max_connections != first.max_connections),
        (
            "max_connections_per_client",
            export.max_connections_per_client != first.max_connections_per_client,
        ),
        ("max_in_flight", export.max_in_flight != first.max_in_flight),
        ("max_request", export.max_request != first.max_request),
        ("handshake_timeout", export.handshake_timeout != first.handshake_timeout),
        ("idle_timeout", export.idle_timeout != first.idle_timeout),
        ("peer_timeout", export.peer_timeout != first.peer_timeout),
    ];
    for (key, _) in differs.iter().filter(|(_, differs)| *differs) {
        findings.error_also(
            &listener_span(stack, export, listener),
            format!("{listener} is shared with export `{}`, but `{key}` differs", first.name),
            format!("give both the same `{key}`, or another address"),
            (&stack.places.export(&first.name, "nbd"), "first used here"),
        );
    }
}

fn two_defaults(
    stack: &StackSpec,
    export: &ExportSpec,
    other: &ExportSpec,
    listener: &Listener,
    findings: &mut Findings,
) {
    findings.error_also(
        &stack.places.export(&export.name, "default"),
        format!("`{}` and `{}` are both the default", other.name, export.name),
        format!("{listener} has one default export"),
        (&stack.places.export(&other.name, "default"), "the other default"),
    );
}

/// A socket's path is a device's file, or an export's socket under another name.
fn clash(other: &Used, path: &Path, span: &Span, stack: &StackSpec, findings: &mut Findings) {
    let also = (&other.span, "first used here");
    if other.kind == Kind::Device {
        let message = format!("{} is the file of device `{}`", path.display(), other.name);
        findings.error_also(span, message, "give the socket a path of its own", also);
        return;
    }
    let theirs = stack.exports.iter().filter(|export| export.name == other.name);
    let spelled_alike = { theirs }.flat_map(|export| &export.nbd).any(|listener| match listener {
        Listener::Unix { path: their_path, .. } => their_path == path,
        _ => false,
    });
    if !spelled_alike {
        let message = format!("{} is the socket of export `{}`", path.display(), other.name);
        findings.error_also(span, message, "write both paths alike to share it", also);
    }
}

fn socket(path: &Path, span: &Span, findings: &mut Findings) {
    let shown = path.display();
    match fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => {
            let message = format!("{shown} exists and is not a socket");
            findings.error(span, message, "name another path");
        }
        Err(_) if !folder(path).is_dir() => {
            let message = format!("{shown} cannot be made: its folder does not exist");
            let hint = format!("make the folder: mkdir -p {}", folder(path).display());
            findings.error(span, message, hint);
        }
        _ => {}
    }
}

fn tls_files(stack: &StackSpec, findings: &mut Findings) {
    // Exports that share a listener name the same files: each fault is reported once.
    let mut seen: Vec<&TlsSpec> = Vec::new();
    for export in &stack.exports {
        let tls = &export.tls;
        if seen.contains(&tls) {
            continue;
        }
        seen.push(tls);
        let mut is_readable = true;
        for (key, file) in [("cert", &tls.cert), ("key", &tls.key), ("client_ca", &tls.client_ca)] {
            let Some(path) = file else { continue };
            if let Err(error) = File::open(path) {
                let span = stack.places.get(&format!("export/{}/tls/{key}", export.name));
                let message = format!("{}: {error}", path.display());
                findings.error(&span, message, "name a PEM file that can be read");
                is_readable = false;
            }
        }
        if is_readable {
            super::certificates::tls(stack, export, findings);
        }
    }
}
