//! An export as the server describes it.

use drystone_exports::nbd::export::BlockSizes;
use drystone_exports::nbd::proto::TransmissionFlags;

/// The server's description of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Size.
    pub size_bytes: u64,
    /// Transmission flags.
    pub flags: TransmissionFlags,
    /// Canonical name, if told.
    pub name: Option<String>,
    /// Description, if told.
    pub description: Option<String>,
    /// Block sizes, if told.
    pub block_sizes: Option<BlockSizes>,
}
