//! Exports: how clients reach a device.

use std::path::PathBuf;

use drystone_core::Priority;

use super::client::{AllowRule, ClientGroup};

/// `[export.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportSpec {
    /// Its name, as NBD clients ask for it.
    pub name: String,
    /// The device it serves.
    pub device: String,
    /// Where NBD listens.
    pub nbd: Vec<Listener>,
    /// Where it appears as a file.
    pub fuse: Option<FuseSpec>,
    /// True if clients' writes are refused.
    pub read_only: bool,
    /// The clients that may use it, if not all.
    pub allow: Option<Vec<AllowRule>>,
    /// Text for listings.
    pub description: String,
    /// True if it is also the export of clients that name none.
    pub default: bool,
    /// True if several connections are offered.
    pub multi_conn: bool,
    /// True if long reads may be sent from the pages of the device.
    pub zero_copy: bool,
    /// Class and level of its I/O.
    pub priority: Priority,
    /// The path of the throttle group of its clients; empty is the root.
    pub group: String,
    /// Clients that belong to groups of their own.
    pub clients: Vec<ClientGroup>,
    /// Encryption.
    pub tls: TlsSpec,
    /// Connections at a time.
    pub max_connections: u32,
    /// Those of one client.
    pub max_connections_per_client: u32,
    /// Requests in flight for each connection.
    pub max_in_flight: u32,
    /// Largest read or write in bytes.
    pub max_request: u32,
    /// Time to negotiate, in nanoseconds.
    pub handshake_timeout: u64,
    /// Time after which an idle connection is closed, in nanoseconds; 0 is never.
    pub idle_timeout: u64,
    /// Time after which a TCP client that gives no sign of life is given up, in nanoseconds.
    pub peer_timeout: u64,
}

/// A device as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FuseSpec {
    /// The file, or the folder that it is in.
    pub path: PathBuf,
    /// True if there is a loop device of it too.
    pub loop_device: bool,
    /// True if other users may open it.
    pub allow_other: bool,
    /// Its file mode, if not the usual one: 0666 where others may open it, else 0600.
    pub mode: Option<u32>,
    /// Its owner, if not the user who runs the server.
    pub uid: Option<u32>,
    /// Its group, if not that of the user who runs the server.
    pub gid: Option<u32>,
    /// True if the kernel may hold writes back.
    pub writeback_cache: bool,
    /// True if `O_TRUNC` changes nothing.
    pub ignore_truncate: bool,
}

impl FuseSpec {
    /// A file at `path` with no other key given.
    pub fn at(path: PathBuf) -> Self {
        FuseSpec {
            path,
            loop_device: false,
            allow_other: false,
            mode: None,
            uid: None,
            gid: None,
            writeback_cache: false,
            ignore_truncate: false,
        }
    }

    /// Its file mode.
    pub fn permissions(&self) -> u32 {
        self.mode.unwrap_or(if self.allow_other { 0o666 } else { 0o600 })
    }
}

/// An address that a server listens on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listener {
    /// A Unix socket.
    Unix {
        /// Its path.
        path: PathBuf,
        /// Its file mode.
        mode: u32,
    },
    /// A TCP port.
    Tcp {
        /// Host name or address, without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Listener {
    /// The address without the mode, in one spelling.
    pub fn address(&self) -> String {
        match self {
            Listener::Unix { .. } => self.to_string(),
            Listener::Tcp { .. } => self.to_string().to_ascii_lowercase(),
        }
    }

    /// True if both are the same address, whatever the mode.
    pub fn same_address(&self, other: &Listener) -> bool {
        self.address() == other.address()
    }
}

impl std::fmt::Display for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listener::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Listener::Tcp { host, port } if host.contains(':') => write!(f, "tcp:[{host}]:{port}"),
            Listener::Tcp { host, port } => write!(f, "tcp:{host}:{port}"),
        }
    }
}

/// Encryption of an export's listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsSpec {
    /// Whether clients may or must encrypt.
    pub mode: TlsMode,
    /// Certificate chain; given unless the mode is off.
    pub cert: Option<PathBuf>,
    /// Private key; given unless the mode is off.
    pub key: Option<PathBuf>,
    /// Certificates that must have signed the client's.
    pub client_ca: Option<PathBuf>,
}

/// Whether clients may or must encrypt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TlsMode {
    /// Plain text only.
    Off,
    /// As the client wants.
    Optional,
    /// Encrypted only.
    Required,
}
