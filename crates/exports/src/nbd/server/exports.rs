//! The exports of a server: names, devices, and what each client may see.

use super::Settings;
use crate::nbd::export::{BlockSizes, ExportDirectory, ExportInfo, Lookup};
use crate::nbd::proto::TransmissionFlags;
use crate::server::{Client, Clients, Volume, find};
use drystone_core::Limits;

/// A volume as NBD clients see it.
#[derive(Clone)]
pub struct Export {
    /// What is exported, under the name that clients ask for.
    pub volume: Volume,
    /// Shown in listings.
    pub description: String,
    /// Let clients open several connections at once.
    pub multi_conn: bool,
    /// Served over TLS only.
    pub tls_required: bool,
}

impl Export {
    /// What the handshake tells of it now.
    pub fn info(&self, max_request: u32) -> ExportInfo {
        let shape = self.volume.shape();
        let mut info = ExportInfo::new(self.volume.name.clone(), shape.geometry.size);
        info.description = self.description.clone();
        info.block_sizes = block_sizes(&shape.limits, max_request);
        info.flags = self.flags(&shape.limits);
        info
    }

    fn flags(&self, limits: &Limits) -> TransmissionFlags {
        use TransmissionFlags as F;
        let zeroes = limits.max_write_zeroes_bytes > 0;
        let mut flags = F::SEND_FLUSH | F::SEND_FUA | F::SEND_DF | F::SEND_CACHE;
        flags.set(F::READ_ONLY, limits.read_only);
        flags.set(F::ROTATIONAL, limits.rotational);
        flags.set(F::SEND_TRIM, limits.max_discard_bytes > 0);
        flags.set(F::SEND_WRITE_ZEROES, zeroes);
        flags.set(F::SEND_FAST_ZERO, zeroes);
        flags.set(F::CAN_MULTI_CONN, self.multi_conn);
        flags
    }
}

fn block_sizes(limits: &Limits, max_request: u32) -> BlockSizes {
    let min = limits.logical_block_size;
    let preferred = limits.io_min.max(4096).next_power_of_two().min(1 << 20);
    BlockSizes { min, preferred, max_payload: max_request / min * min }
}

/// The exports of one listener, with its bounds. The first that is `default` (or else the
/// first) answers to the empty name.
#[derive(Clone, Default)]
pub struct ExportTable {
    exports: Vec<Export>,
    default: usize,
    settings: Settings,
    /// Connections of the listener, those that have not chosen an export included.
    connections: Clients,
}

impl ExportTable {
    /// A table of `exports`, of which number `default` answers to the empty name.
    pub fn new(exports: Vec<Export>, default: usize, settings: Settings) -> Self {
        ExportTable { exports, default, settings, connections: Clients::default() }
    }

    /// A connection was accepted; `None` if there are too many already. Called by one thread.
    pub(crate) fn admit(&self) -> Option<Client> {
        if self.connections.count() >= self.settings.max_connections {
            return None;
        }
        Some(self.connections.enter())
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

    /// The directory as a client on a connection with or without TLS sees it.
    pub(super) fn for_client(&self, tls: bool) -> ClientView<'_> {
        ClientView { table: self, tls }
    }
}

/// What one client may see.
pub(super) struct ClientView<'a> {
    table: &'a ExportTable,
    tls: bool,
}

impl ClientView<'_> {
    fn shows(&self, export: &Export) -> bool {
        self.tls || !export.tls_required
    }
}

impl ExportDirectory for ClientView<'_> {
    fn find(&self, name: &str) -> Lookup {
        match self.table.index_of(name).map(|i| &self.table.exports[i]) {
            None => Lookup::Unknown,
            Some(export) if !self.shows(export) => Lookup::TlsRequired,
            Some(export) => Lookup::Found(export.info(self.table.settings.max_request)),
        }
    }

    fn list(&self, visit: &mut dyn FnMut(&str, &str)) {
        let shown = self.table.exports.iter().filter(|e| self.shows(e));
        shown.for_each(|e| visit(&e.volume.name, &e.description));
    }
}
