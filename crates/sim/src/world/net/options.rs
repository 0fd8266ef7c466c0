//! The properties of a network, and counts of its events.

use drystone_core::clock::Ns;

/// The properties of a network.
#[derive(Clone, Copy, Debug)]
pub struct NetOptions {
    /// The shortest latency.
    pub latency_ns: Ns,
    /// The most by which the latency is longer.
    pub spread_ns: Ns,
    /// Bytes that a way holds.
    pub capacity: usize,
    /// Most bytes of one receive or send; each takes fewer by chance.
    pub piece: usize,
    /// Operations, per million, that the kernel cancels, as when a thread ends.
    pub cancelled_ppm: u32,
    /// Accepts, per million, that find no free descriptor.
    pub exhausted_ppm: u32,
    /// True if the server knows at once that a client has closed, as with a Unix socket.
    pub unix: bool,
}

impl Default for NetOptions {
    fn default() -> Self {
        NetOptions {
            latency_ns: 5_000,
            spread_ns: 20_000,
            capacity: 200_000,
            piece: usize::MAX,
            cancelled_ppm: 0,
            exhausted_ppm: 0,
            unix: false,
        }
    }
}

/// Counts of what was done, for coverage.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetCounts {
    /// Connections accepted.
    pub accepted: u64,
    /// Receives and sends that moved less than they could.
    pub partial: u64,
    /// Sends that found no room at first.
    pub full: u64,
    /// Sends that moved bytes out of a pipe.
    pub piped: u64,
    /// Operations cut short by the kernel.
    pub cancelled: u64,
    /// Accepts without a descriptor.
    pub exhausted: u64,
    /// Connections that the client reset.
    pub resets: u64,
    /// Connections that the server closed with bytes unread.
    pub server_resets: u64,
}

impl NetCounts {
    /// All counts with their names.
    pub fn each(&self) -> [(&'static str, u64); 8] {
        [
            ("accepted", self.accepted),
            ("partial", self.partial),
            ("full", self.full),
            ("piped", self.piped),
            ("cancelled", self.cancelled),
            ("exhausted", self.exhausted),
            ("reset by a client", self.resets),
            ("reset by the server", self.server_resets),
        ]
    }
}
