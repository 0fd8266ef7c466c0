//! The exports of a server: names, devices, and the access of each client.

use super::limits::{ConnectionLimits, Permit};
use super::peer::Peer;
use super::settings::Settings;
use crate::nbd::export::{BlockSizes, ExportDirectory, ExportInfo, Lookup};
use crate::nbd::proto::TransmissionFlags;
use crate::server::{Access, AllowList, Volume, find};
use drystone_core::Limits;
use drystone_core::sync::LockCounters;
use std::cell::RefCell;
use std::sync::Arc;

/// A volume as NBD clients see it.
#[derive(Clone)]
pub struct Export {
    /// The volume, under the name that clients ask for.
    pub volume: Volume,
    /// Shown in listings.
    pub description: String,
    /// Let clients open several connections at once.
    pub multi_conn: bool,
    /// Send long reads from the pages of the device where that can be done, instead of a copy. A
    /// client that takes such a reply late may see a later write to the device
    /// ([`drystone_core::pipe`]).
    pub zero_copy: bool,
    /// Served over TLS only.
    pub tls_required: bool,
    /// The clients that may use it; all if there is no list. For others it does not exist.
    pub allow: Option<AllowList>,
}

impl Export {
    /// Its description for the handshake.
    pub fn info(&self, settings: &Settings) -> ExportInfo {
        let shape = self.volume.shape();
        let mut info = ExportInfo::new(self.volume.name.clone(), shape.geometry.size);
        info.description = self.description.clone();
        info.block_sizes = block_sizes(&shape.limits, settings.max_request);
        info.flags = self.flags(&shape.limits);
        // A client that may have only one connection is not invited to open more.
        let one = settings.max_connections.min(settings.max_connections_per_client) == 1;
        info.flags.set(TransmissionFlags::CAN_MULTI_CONN, self.multi_conn && !one);
        info
    }

    fn flags(&self, limits: &Limits) -> TransmissionFlags {
        use TransmissionFlags as F;
        let zeroes = limits.max_write_zeroes_bytes > 0;
        let mut flags = F::SEND_FLUSH | F::SEND_FUA | F::SEND_DF | F::SEND_CACHE;
        flags.set(F::READ_ONLY, limits.read_only);
        flags.set(F::ROTATIONAL, limits.rotational);
        flags.set(F::SEND_TRIM, limits.max_discard_bytes > 0);
        // On a device without write-zeroes the server writes zeroes, which is not fast.
        flags |= F::SEND_WRITE_ZEROES;
        flags.set(F::SEND_FAST_ZERO, zeroes);
        flags
    }
}

/// The block sizes: any byte can be addressed. With a larger minimum a client would refuse shorter
/// requests itself (libnbd does), or read blocks and write them back without regard to other
/// clients (QEMU does).
fn block_sizes(limits: &Limits, max_request: u32) -> BlockSizes {
    let block = limits.logical_block_size;
    let preferred = limits.io_min.max(4096).next_power_of_two().min(1 << 20);
    BlockSizes { min: 1, preferred, max_payload: max_request / block * block }
}

/// The exports of one listener, with its bounds. The first that is `default` (or else the
/// first) answers to the empty name.
#[derive(Clone, Default)]
pub struct ExportTable {
    exports: Vec<Export>,
    default: usize,
    settings: Settings,
    /// Connections of the listener that have chosen an export.
    limits: ConnectionLimits,
}

impl ExportTable {
    /// A table of `exports`, of which number `default` answers to the empty name.
    pub fn new(exports: Vec<Export>, default: usize, settings: Settings) -> Self {
        ExportTable { exports, default, settings, limits: ConnectionLimits::default() }
    }

    /// Bounds and times of the listener.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The exports, in order.
    pub fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Number of the export with this name; the empty name is the default one.
    pub fn index_of(&self, name: &str) -> Option<usize> {
        let by_name = find(self.exports.iter().map(|export| &export.volume), name.as_bytes());
        let default =
            (name.is_empty() && self.default < self.exports.len()).then_some(self.default);
        by_name.or(default)
    }

    /// The directory as `peer` sees it on a connection with or without TLS.
    pub(super) fn for_client<'a>(
        &'a self,
        peer: &'a Peer,
        tls: bool,
        locks: &'a Arc<LockCounters>,
    ) -> ClientView<'a> {
        ClientView { table: self, peer, tls, locks, permit: RefCell::default() }
    }
}

/// The exports as one client may see them.
pub(super) struct ClientView<'a> {
    table: &'a ExportTable,
    peer: &'a Peer,
    tls: bool,
    locks: &'a Arc<LockCounters>,
    permit: RefCell<Option<Permit>>,
}

impl ClientView<'_> {
    /// The permit that the client took, if it did.
    pub(super) fn into_permit(self) -> Option<Permit> {
        self.permit.into_inner()
    }

    /// True if listings show the export to the client.
    fn shows(&self, export: &Export) -> bool {
        (self.tls || !export.tls_required) && self.access(export).is_some()
    }

    /// The access of the client, as far as it is known.
    fn access(&self, export: &Export) -> Option<Access> {
        let Some(list) = &export.allow else { return Some(Access::ReadWrite) };
        let origin = self.peer.origin();
        list.access(self.peer.names(), origin.uid(), origin.address())
    }
}

impl ExportDirectory for ClientView<'_> {
    fn find(&self, name: &str) -> Lookup {
        let Some(export) = self.table.index_of(name).map(|i| &self.table.exports[i]) else {
            return Lookup::Unknown;
        };
        if export.tls_required && !self.tls {
            return Lookup::TlsRequired;
        }
        let Some(access) = self.access(export) else { return Lookup::Unknown };
        let mut info = export.info(&self.table.settings);
        // The connection refuses writes by this flag.
        info.flags |= match access {
            Access::ReadOnly => TransmissionFlags::READ_ONLY,
            Access::ReadWrite => TransmissionFlags::empty(),
        };
        Lookup::Found(info)
    }

    fn admit(&self, _export: &ExportInfo) -> Result<(), &'static str> {
        let settings = &self.table.settings;
        let most = (settings.max_connections, settings.max_connections_per_client);
        let permit = self.table.limits.take(self.peer, most, self.locks)?;
        *self.permit.borrow_mut() = Some(permit);
        Ok(())
    }

    fn count(&self) -> usize {
        self.table.exports.len()
    }

    fn list(&self, from: usize, visit: &mut dyn FnMut(&str, &str) -> bool) {
        let mut shown = self.table.exports.iter().filter(|e| self.shows(e)).skip(from);
        while shown.next().is_some_and(|e| visit(&e.volume.name, &e.description)) {}
    }
}
