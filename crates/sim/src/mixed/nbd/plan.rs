//! The exports that are served, and how their clients behave: more of a seed's plan.

use crate::world::NetOptions;
use drystone_core::clock::Ns;

/// An export.
#[derive(Clone, Debug)]
pub struct ExportPlan {
    /// Its name.
    pub name: String,
    /// The target that it serves.
    pub target: usize,
    /// It refuses writes.
    pub read_only: bool,
    /// The address at which it is listened for.
    pub listener: usize,
    /// True if clients that name no export get it.
    pub default: bool,
}

/// An address, and the limits that its exports share.
#[derive(Clone, Debug)]
pub struct ListenerPlan {
    /// Connections at a time.
    pub max_connections: u32,
    /// Requests of a connection at a time.
    pub max_in_flight: u32,
    /// Bytes of the longest read or write.
    pub max_request: u32,
    /// Time for the handshake.
    pub handshake_ns: Ns,
    /// Time without a request, or 0.
    pub idle_ns: Ns,
}

/// The requests of clients, and how often each is chosen.
#[derive(Clone, Debug)]
pub struct ClientMix {
    /// Weights: read, write, flush, trim, write zeroes, block status, cache, nonsense.
    pub weights: [u32; 8],
    /// Percent of writes with FUA.
    pub fua: u32,
    /// Most blocks of a request.
    pub blocks_max: u64,
    /// Percent of requests that are long.
    pub long: u32,
    /// Percent of requests for parts of blocks, if a block is more than a sector.
    pub unaligned: u32,
    /// Most requests in flight of a client.
    pub depth: u64,
    /// Most requests of a session.
    pub session: u64,
    /// Percent of sessions that end without a farewell, and of handshakes that do not end.
    pub rude: u32,
    /// Longest absence of a client, in nanoseconds.
    pub away_ns: Ns,
}

/// Everything that a seed serves over NBD.
#[derive(Clone, Debug)]
pub struct NbdPlan {
    /// The exports.
    pub exports: Vec<ExportPlan>,
    /// The addresses.
    pub listeners: Vec<ListenerPlan>,
    /// Data threads.
    pub threads: u64,
    /// Clients.
    pub clients: u64,
    /// The mix of their requests.
    pub mix: ClientMix,
    /// The network.
    pub net: NetOptions,
    /// Bytes of buffers that a data thread's ring knows.
    pub registered: usize,
    /// True if the server stops in the end while clients are connected.
    pub stops_early: bool,
}
