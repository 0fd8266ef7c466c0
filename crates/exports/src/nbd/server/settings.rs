//! The bounds and times of a server.

/// Most connections of a listener, on each data thread, that have not chosen an export.
pub const HANDSHAKES_MAX: usize = 64;

/// Bounds and times of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Most connections of a listener that have chosen an export; more are refused then.
    pub max_connections: u32,
    /// The most such connections of one client: of one certificate, or else of one user id or
    /// address.
    pub max_connections_per_client: u32,
    /// Most requests in flight of a connection in each direction: so many reads, and as many
    /// others.
    pub max_in_flight: u32,
    /// Most bytes of a connection's requests in flight in each direction; a longer request goes
    /// alone.
    pub max_bytes_in_flight: u64,
    /// Longest read or write request, bytes.
    pub max_request: u32,
    /// Time for the handshake, ns; 0 for no limit.
    pub handshake_timeout_ns: u64,
    /// Time without a request after which a connection is closed, ns; 0 for no limit.
    pub idle_timeout_ns: u64,
    /// The time without a sign of life after which a TCP client is given up, ns. The client's
    /// kernel gives signs even while the client is idle.
    pub peer_timeout_ns: u64,
    /// The time-out for stalls, ns; whole seconds count. A client that owes something (it has
    /// replies to take, or data to send) is disconnected if it has moved less than 1 MiB of it in
    /// this time while others wait for the memory of its requests.
    pub stall_timeout_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            max_connections: 4096,
            max_connections_per_client: 4096,
            max_in_flight: 256,
            max_bytes_in_flight: 64 << 20,
            max_request: 64 << 20,
            handshake_timeout_ns: 10_000_000_000,
            idle_timeout_ns: 0,
            peer_timeout_ns: 300_000_000_000,
            stall_timeout_ns: 30_000_000_000,
        }
    }
}
