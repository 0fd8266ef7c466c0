//! The export tables of a stack: one for each address that is listened on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drystone_core::Device;
use drystone_exports::nbd::TlsPolicy;
use drystone_exports::nbd::server::{Export, ExportTable, ListenerTls, Settings};
use drystone_exports::nbd::tls::{TlsConfig, TlsConfigError};
use drystone_exports::server::{Membership, Volume};
use drystone_throttle::Groups;

use super::LiveDevice;
use crate::diagnostic::Findings;
use crate::spec::{Client, ClientGroup, ExportSpec, Listener, StackSpec, TlsMode};

/// An address to listen on.
#[derive(Debug, Clone)]
pub struct LiveListener {
    /// The address.
    pub address: Listener,
    /// How its connections treat TLS.
    pub tls: ListenerTls,
    /// Number of its export table.
    pub table: usize,
}

/// Builds the listeners and their tables; what is wrong with certificates goes to `findings`.
pub fn build(
    stack: &StackSpec,
    devices: &[Arc<LiveDevice>],
    groups: &Arc<Groups>,
    findings: &mut Findings,
) -> (Vec<LiveListener>, Vec<ExportTable>) {
    let (mut listeners, mut tables) = (Vec::new(), Vec::new());
    for (address, sharers) in stack.listeners() {
        let specs: Vec<&ExportSpec> = sharers.iter().map(|index| &stack.exports[*index]).collect();
        let Some(first) = specs.first() else { continue };
        let Some(tls) = tls(stack, first, findings) else { continue };
        listeners.push(LiveListener { address: address.clone(), tls, table: tables.len() });
        tables.push(table(&specs, devices, groups));
    }
    (listeners, tables)
}

/// Devices that appear as files at one place.
pub struct LiveMount {
    /// The file, or the folder that they are in.
    pub path: PathBuf,
    /// The exports, of which there is one unless it is a folder.
    pub exports: Vec<ExportSpec>,
    /// What is served, in the order of the exports.
    pub volumes: Vec<Volume>,
}

/// What is to be mounted, in the order of the stack file.
pub fn mounts(
    exports: &[ExportSpec],
    devices: &[Arc<LiveDevice>],
    groups: &Arc<Groups>,
) -> Vec<LiveMount> {
    let mut mounts: Vec<LiveMount> = Vec::new();
    for spec in exports {
        let Some(fuse) = &spec.fuse else { continue };
        let Some(live) = devices.iter().find(|live| live.name == spec.device) else { continue };
        let volume = volume(spec, &live.device, groups);
        let place = mounts.iter_mut().find(|mount| mount.path == fuse.path);
        match place {
            Some(mount) => {
                mount.exports.push(spec.clone());
                mount.volumes.push(volume);
            }
            None => mounts.push(LiveMount {
                path: fuse.path.clone(),
                exports: vec![spec.clone()],
                volumes: vec![volume],
            }),
        }
    }
    mounts
}

fn table(specs: &[&ExportSpec], devices: &[Arc<LiveDevice>], groups: &Arc<Groups>) -> ExportTable {
    let find = |name: &str| devices.iter().find(|device| device.name == name);
    let exports =
        specs.iter().filter_map(|spec| Some(export(spec, &find(&spec.device)?.device, groups)));
    // Without a default nothing answers to the empty name.
    let default = specs.iter().position(|spec| spec.default).unwrap_or(usize::MAX);
    ExportTable::new(exports.collect(), default, settings(specs[0]))
}

fn export(spec: &ExportSpec, device: &Arc<dyn Device>, groups: &Arc<Groups>) -> Export {
    Export {
        volume: volume(spec, device, groups),
        description: spec.description.clone(),
        multi_conn: spec.multi_conn,
        tls_required: spec.tls.mode == TlsMode::Required,
    }
}

/// What an export serves, however it does.
pub fn volume(spec: &ExportSpec, device: &Arc<dyn Device>, groups: &Arc<Groups>) -> Volume {
    Volume {
        name: spec.name.clone(),
        device: device.clone(),
        read_only: spec.read_only,
        priority: spec.priority,
        membership: membership(spec, groups),
    }
}

/// Which groups the clients of an export belong to.
fn membership(spec: &ExportSpec, groups: &Arc<Groups>) -> Membership {
    let mut membership = Membership::new(groups.clone(), &spec.group);
    for ClientGroup { client, group, .. } in &spec.clients {
        match client {
            Client::Uid(uid) => membership.set_uid(*uid, group),
            Client::Tls(name) => membership.set_name(name, group),
        }
    }
    membership
}

/// The bounds of a listener; exports that share it have been checked to agree on them.
fn settings(spec: &ExportSpec) -> Settings {
    let own = Settings::default();
    Settings {
        max_connections: spec.max_connections,
        max_in_flight: spec.max_in_flight,
        max_bytes_in_flight: own.max_bytes_in_flight.max(spec.max_request.into()),
        max_request: spec.max_request,
        handshake_timeout_ns: spec.handshake_timeout,
        idle_timeout_ns: spec.idle_timeout,
    }
}

fn tls(stack: &StackSpec, spec: &ExportSpec, findings: &mut Findings) -> Option<ListenerTls> {
    let policy = match spec.tls.mode {
        TlsMode::Off => return Some(ListenerTls::off()),
        TlsMode::Optional => TlsPolicy::Optional,
        TlsMode::Required => TlsPolicy::Required,
    };
    let mut wrong = |key: &str, message: String| {
        let span = stack.places.export(&spec.name, &format!("tls/{key}"));
        findings.error(&span, message, "name PEM files that belong together");
    };
    let mut read = |key: &str, path: Option<&Path>| {
        let path = path?;
        let bytes = fs::read(path);
        bytes.map_err(|error| wrong(key, format!("{}: {error}", path.display()))).ok()
    };
    let cert = read("cert", spec.tls.cert.as_deref())?;
    let key = read("key", spec.tls.key.as_deref())?;
    let client_ca = match &spec.tls.client_ca {
        Some(path) => Some(read("client_ca", Some(path))?),
        None => None,
    };
    match TlsConfig::from_pem(&cert, &key, client_ca.as_deref()) {
        Ok(config) => Some(ListenerTls { policy, config: Some(config) }),
        Err(error) => {
            wrong(key_of(&error), error.to_string());
            None
        }
    }
}

/// The key of the `tls` table that an error is about.
fn key_of(error: &TlsConfigError) -> &'static str {
    let what = match error {
        TlsConfigError::Pem { what, .. } | TlsConfigError::Unusable { what, .. } => what,
        TlsConfigError::NoCertificate(what) => what,
        TlsConfigError::Verifier(_) => "client",
    };
    match what {
        what if what.starts_with("client") => "client_ca",
        what if what.ends_with("key") => "key",
        _ => "cert",
    }
}
