//! Clients of exports: their throttle groups, and what each may do.

use std::fmt;

use drystone_exports::server::{Access, Network};

use crate::diagnostic::Span;

/// The identity of a client, for `[export.NAME.clients]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A user id, of clients on a Unix socket.
    Uid(u32),
    /// A name in the certificate of a client that uses TLS.
    Tls(String),
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Client::Uid(uid) => write!(f, "uid:{uid}"),
            Client::Tls(name) => write!(f, "tls:{name}"),
        }
    }
}

/// A client with the group that its I/O belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientGroup {
    /// The client.
    pub client: Client,
    /// The group's path, empty for the root.
    pub group: String,
    /// Where the group is named.
    pub span: Span,
}

/// The clients that a rule lets in.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    /// By user id, or by a name in a certificate.
    Client(Client),
    /// By address, of clients over TCP.
    Network(Network),
}

/// A rule: the access of some clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllowRule {
    /// The clients.
    pub who: Allowed,
    /// The access that they have.
    pub access: Access,
    /// The place of the rule in the text.
    pub span: Span,
}
