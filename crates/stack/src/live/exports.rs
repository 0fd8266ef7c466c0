//! The exports of a live stack: a volume for each export, and the objects that front ends need to
//! serve them: for NBD an export table for each address, for FUSE a mount for each place.

use std::path::PathBuf;
use std::sync::Arc;

use drystone_exports::nbd::server::{Export, ExportTable, ListenerTls, Settings};
use drystone_exports::server::{AllowList, Clients, Membership, Volume};
use drystone_throttle::Groups;

use super::LiveDevice;
use crate::diagnostic::Findings;
use crate::front_ends::tls;
use crate::spec::{
    AllowRule, Allowed, Client, ClientGroup, ExportSpec, Listener, StackSpec, TlsMode,
};

/// An address to listen on.
#[derive(Debug, Clone)]
pub struct LiveListener {
    /// The address.
    pub address: Listener,
    /// The way its connections treat TLS.
    pub tls: ListenerTls,
    /// Number of its export table.
    pub table: usize,
}

/// An export with its volume, for all front ends.
#[derive(Clone)]
pub struct LiveExport {
    /// As the stack file has it.
    pub spec: ExportSpec,
    /// The volume that all front ends serve.
    pub volume: Volume,
}

/// The exports of a stack whose devices are open, in the order of the stack file.
pub fn exports(
    stack: &StackSpec,
    devices: &[Arc<LiveDevice>],
    groups: &Arc<Groups>,
) -> Vec<LiveExport> {
    let live = |spec: &ExportSpec| {
        let live = devices.iter().find(|live| live.name == spec.device)?;
        Some(LiveExport { spec: spec.clone(), volume: volume(spec, live, groups) })
    };
    stack.exports.iter().filter_map(live).collect()
}

/// Builds the listeners and their tables; faults of certificates go to `findings`.
pub fn build(
    stack: &StackSpec,
    exports: &[LiveExport],
    findings: &mut Findings,
) -> (Vec<LiveListener>, Vec<Arc<ExportTable>>) {
    let (mut listeners, mut tables) = (Vec::new(), Vec::new());
    for (address, sharers) in stack.listeners() {
        let names: Vec<&str> = sharers.iter().map(|at| stack.exports[*at].name.as_str()).collect();
        let sharing = exports.iter().filter(|live| names.contains(&live.spec.name.as_str()));
        let sharing: Vec<&LiveExport> = sharing.collect();
        let Some(first) = sharing.first() else { continue };
        let Some(tls) = tls(stack, &first.spec, findings) else { continue };
        listeners.push(LiveListener { address: address.clone(), tls, table: tables.len() });
        tables.push(Arc::new(table(&sharing)));
    }
    (listeners, tables)
}

/// Devices that appear as files at one place.
pub struct LiveMount {
    /// The file, or the folder that they are in.
    pub path: PathBuf,
    /// The exports, of which there is one unless it is a folder.
    pub exports: Vec<LiveExport>,
}

/// The mounts, in the order of the stack file. Paths have been checked to be spelled alike where
/// they are the same.
pub fn mounts(exports: &[LiveExport]) -> Vec<LiveMount> {
    let mut mounts: Vec<LiveMount> = Vec::new();
    for live in exports {
        let Some(fuse) = &live.spec.fuse else { continue };
        match mounts.iter_mut().find(|mount| mount.path == fuse.path) {
            Some(mount) => mount.exports.push(live.clone()),
            None => {
                mounts.push(LiveMount { path: fuse.path.clone(), exports: vec![live.clone()] });
            }
        }
    }
    mounts
}

fn table(sharing: &[&LiveExport]) -> ExportTable {
    let exports = sharing.iter().map(|live| export(live)).collect();
    // If several exports share the address without a default, none answers to the empty name.
    let default = sharing.iter().position(|live| live.spec.default);
    let default = default.unwrap_or(if sharing.len() == 1 { 0 } else { usize::MAX });
    ExportTable::new(exports, default, settings(&sharing[0].spec))
}

fn export(live: &LiveExport) -> Export {
    let spec = &live.spec;
    Export {
        volume: live.volume.clone(),
        description: spec.description.clone(),
        multi_conn: spec.multi_conn,
        zero_copy: spec.zero_copy,
        tls_required: spec.tls.mode == TlsMode::Required,
        allow: spec.allow.as_deref().map(allow_list),
    }
}

/// The clients that may use an export.
fn allow_list(rules: &[AllowRule]) -> AllowList {
    let mut list = AllowList::default();
    for AllowRule { who, access, .. } in rules {
        match who {
            Allowed::Client(Client::Uid(uid)) => list.allow_uid(*uid, *access),
            Allowed::Client(Client::Tls(name)) => list.allow_name(name, *access),
            Allowed::Network(network) => list.allow_network(*network, *access),
        }
    }
    list
}

fn volume(spec: &ExportSpec, live: &LiveDevice, groups: &Arc<Groups>) -> Volume {
    Volume {
        name: spec.name.clone(),
        device: live.device.clone(),
        read_only: spec.read_only,
        priority: spec.priority,
        membership: membership(spec, groups),
        clients: Clients::default(),
        write_lock: live.write_lock.clone(),
    }
}

/// The rules for the groups of an export's clients.
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
        max_connections_per_client: spec.max_connections_per_client,
        max_in_flight: spec.max_in_flight,
        max_bytes_in_flight: own.max_bytes_in_flight,
        max_request: spec.max_request,
        handshake_timeout_ns: spec.handshake_timeout,
        idle_timeout_ns: spec.idle_timeout,
        peer_timeout_ns: spec.peer_timeout,
        stall_timeout_ns: own.stall_timeout_ns,
    }
}
