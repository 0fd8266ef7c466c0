//! Builds an `[export.NAME]` section.

use std::path::Path;

use drystone_core::{Priority, PriorityClass};

use crate::diagnostic::{Span, shorten};
use crate::front_ends::{self, Section};
use crate::group::from_shown;
use crate::parse::fields::{Check, Fields};
use crate::parse::node::Entry;
use crate::schema::{EXPORT, TLS};
use crate::spec::{Allowed, Client, ExportSpec, Listener, TlsMode, TlsSpec};

/// Builds an export, or reports why not. It appears as `file`, whatever its section says.
pub fn export(check: &mut Check<'_>, section: &Entry, file: Option<&Path>) -> Option<ExportSpec> {
    let errors = check.findings.errors();
    let path = format!("export/{}", section.key);
    let fields = check.table(&[EXPORT], section.node.entries(), &path, &section.key_span);
    if check.findings.errors() > errors {
        return None;
    }
    let tls = match fields.fields("tls") {
        Some(given) => tls(given),
        None => tls(&Fields::defaults_of(TLS)),
    };
    check_tls(check, &tls, &path);
    let mut export = ExportSpec {
        name: section.key.clone(),
        device: fields.text("device"),
        nbd: Vec::new(),
        fuse: None,
        read_only: fields.bool("read_only"),
        allow: fields.allow("allow"),
        description: fields.text("description"),
        default: fields.bool("default"),
        multi_conn: fields.bool("multi_conn"),
        zero_copy: fields.bool("zero_copy"),
        priority: priority(&fields),
        group: fields
            .text_if("group")
            .map_or_else(String::new, |group| from_shown(&group).to_owned()),
        clients: fields.clients("clients"),
        tls,
        max_connections: fields.number32("max_connections"),
        max_connections_per_client: fields
            .number32_if("max_connections_per_client")
            .unwrap_or_else(|| fields.number32("max_connections")),
        max_in_flight: fields.number32("max_in_flight"),
        max_request: fields.number32("max_request"),
        handshake_timeout: fields.number("handshake_timeout"),
        idle_timeout: fields.number("idle_timeout"),
        peer_timeout: fields.number("peer_timeout"),
    };
    let section = Section { fields: &fields, path: &path, name: &section.key_span, file };
    front_ends::read(check, &section, &mut export);
    check_clients(check, &export);
    check_allow(check, &export);
    check_ways_in(check, &section, &export);
    (check.findings.errors() == errors).then_some(export)
}

fn check_ways_in(check: &mut Check<'_>, section: &Section<'_>, export: &ExportSpec) {
    let is_given = check.places.has(&format!("{}/nbd", section.path));
    if front_ends::ways_in(export).is_empty() && !is_given {
        let message = format!("export `{}` has no way in", shorten(&export.name));
        let hint = "add nbd = \"unix:NAME.sock\" or fuse = \"NAME.img\"";
        check.findings.error(section.name, message, hint);
    }
}

/// Class and level of an export's I/O.
fn priority(fields: &Fields) -> Priority {
    let class = fields.fields("io").and_then(|io| io.fields("prio"));
    let class = match class.and_then(|prio| prio.choice("class")) {
        Some("promote-to-rt") => PriorityClass::RealTime,
        Some("restrict-to-be") => PriorityClass::BestEffort,
        Some("idle") => PriorityClass::Idle,
        _ => PriorityClass::None,
    };
    Priority { class, level: fields.number32("prio_level") as u8 }
}

fn tls(fields: &Fields) -> TlsSpec {
    TlsSpec {
        mode: match fields.choice("mode") {
            Some("optional") => TlsMode::Optional,
            Some("required") => TlsMode::Required,
            _ => TlsMode::Off,
        },
        cert: fields.path("cert"),
        key: fields.path("key"),
        client_ca: fields.path("client_ca"),
    }
}

/// Checks that certificates come with a mode that uses them, and the reverse.
fn check_tls(check: &mut Check<'_>, tls: &TlsSpec, path: &str) {
    let files = [("cert", &tls.cert), ("key", &tls.key), ("client_ca", &tls.client_ca)];
    for (key, file) in files {
        let needed = tls.mode != TlsMode::Off && key != "client_ca";
        if needed && file.is_none() {
            let span = check.places.get(&format!("{path}/tls"));
            let message = format!("`tls` has no `{key}`");
            check.findings.error(&span, message, format!("add {key} = \"FILE.pem\""));
        }
        if file.is_some() && tls.mode == TlsMode::Off {
            let span = check.places.get(&format!("{path}/tls/{key}"));
            let message = format!("`tls.{key}` has no effect: the mode is off");
            check.findings.error(&span, message, "add mode = \"required\" or remove it");
        }
    }
}

/// Checks that the export can tell its clients apart: they come from a Unix socket, open a file, or
/// show a certificate.
fn check_clients(check: &mut Check<'_>, export: &ExportSpec) {
    for client in &export.clients {
        check_known(check, export, &client.client, &client.span);
    }
}

/// Reports a client that the export cannot recognise.
fn check_known(check: &mut Check<'_>, export: &ExportSpec, client: &Client, span: &Span) {
    let certificates = export.tls.mode != TlsMode::Off && export.tls.client_ca.is_some();
    let (known, why, hint) = match client {
        Client::Uid(_) => (
            front_ends::know_users(export),
            "no client has a user id",
            "listen on a Unix socket, as in nbd = \"unix:nbd.sock\"",
        ),
        Client::Tls(_) => {
            (certificates, "no client shows a certificate", "add client_ca = \"CA.pem\" to `tls`")
        }
    };
    if !known {
        let message = format!("`{}` has no effect: {why}", shorten(&client.to_string()));
        check.findings.error(span, message, hint);
    }
}

/// Checks that no other front end bypasses `allow`, which holds for NBD.
fn check_allow(check: &mut Check<'_>, export: &ExportSpec) {
    let Some(rules) = &export.allow else { return };
    if export.fuse.is_some() {
        let span = check.places.get(&format!("export/{}/allow", export.name));
        let message = "`allow` is for NBD, and the export also appears as a file";
        let hint = "make an export of its own for the file; fuse_mode, fuse_uid and fuse_gid say \
            who may open that";
        check.findings.error(&span, message, hint);
    }
    let has_tcp = export.nbd.iter().any(|place| matches!(place, Listener::Tcp { .. }));
    for rule in rules {
        match &rule.who {
            Allowed::Client(client) => check_known(check, export, client, &rule.span),
            Allowed::Network(network) if !has_tcp => {
                let message = format!("`net:{network}` has no effect: no client has an address");
                let hint = "listen on TCP, as in nbd = \"tcp:127.0.0.1:10809\"";
                check.findings.error(&rule.span, message, hint);
            }
            Allowed::Network(_) => {}
        }
    }
}
