//! Exports: the properties of one, and the directory in which the handshake looks.
//!
//! The driver decides which exports exist. It may give each connection a directory of its own, for
//! example one that shows more exports to a known TLS peer.

use super::proto::{MIN_BLOCK_SIZE_MAX_BYTES, STRING_MAX_BYTES, TransmissionFlags};

/// The most metadata contexts that one connection can select.
pub const CONTEXTS_MAX: usize = 8;

/// Block size constraints of an export, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Clients must ask for multiples of this, a power of two, at most 64 KiB. Other requests are
    /// served, too.
    pub min: u32,
    /// Requests of this size and alignment are served best: a power of two, at least `min` and 512.
    pub preferred: u32,
    /// Longest payload of one read or write: a multiple of `min`, or `u32::MAX` for no limit.
    pub max_payload: u32,
}

impl Default for BlockSizes {
    /// Any byte may be addressed, 4 KiB are preferred, and payloads go up to 32 MiB (the size that
    /// the protocol text recommends to careful clients).
    fn default() -> Self {
        Self { min: 1, preferred: 4096, max_payload: 32 << 20 }
    }
}

impl BlockSizes {
    /// True if these sizes keep the protocol text's rules for an export of `size_bytes`.
    pub const fn are_valid_for(&self, size_bytes: u64) -> bool {
        let floor = if self.min > 512 { self.min } else { 512 };
        let need =
            if (self.preferred as u64) < size_bytes { self.preferred as u64 } else { size_bytes };
        self.min.is_power_of_two()
            && self.min <= MIN_BLOCK_SIZE_MAX_BYTES
            && self.preferred.is_power_of_two()
            && self.preferred >= floor
            && (self.max_payload == u32::MAX || self.max_payload.is_multiple_of(self.min))
            && self.max_payload > 0
            && self.max_payload as u64 >= need
    }
}

/// A kind of metadata that `BLOCK_STATUS` can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetaContext {
    /// Whether a range is allocated, and whether it reads as zeroes.
    BaseAllocation,
}

impl MetaContext {
    /// Every context that exists here, in the order in which they are listed.
    pub const ALL: [Self; 1] = [Self::BaseAllocation];

    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BaseAllocation => "base:allocation",
        }
    }
}

/// One export as clients see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name; may be empty.
    pub name: String,
    /// A sentence for people; may be empty.
    pub description: String,
    /// Size of the export.
    pub size_bytes: u64,
    /// The abilities of the export. The handshake adds `HAS_FLAGS` and `BLOCK_STATUS_PAYLOAD`, and
    /// does not send flags that contradict others or were not negotiated.
    pub flags: TransmissionFlags,
    /// Block size constraints.
    pub block_sizes: BlockSizes,
    /// Metadata that the export can report.
    pub contexts: Vec<MetaContext>,
}

/// A fault of an export's description: a configuration error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// Name or description is too long or has a NUL.
    #[error("export {name:?}: the {what} must have at most {STRING_MAX_BYTES} bytes and no NUL")]
    BadString {
        /// The export.
        name: String,
        /// The name of the string.
        what: &'static str,
    },
    /// The block sizes break the protocol's rules.
    #[error(
        "export {name:?}: block sizes {sizes:?} are not usable: the minimum must be a power of two \
         up to 65536, the preferred size a power of two of at least the minimum and 512, the \
         maximum payload a multiple of the minimum that holds a preferred block"
    )]
    BadBlockSizes {
        /// The export.
        name: String,
        /// Its sizes.
        sizes: BlockSizes,
    },
}

impl ExportInfo {
    /// A writable export with flush, FUA, trim, write zeroes, `DF`, multi-conn and
    /// `base:allocation`, for drivers to adapt.
    pub fn new(name: impl Into<String>, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            description: String::new(),
            size_bytes,
            flags: TransmissionFlags::SEND_FLUSH
                | TransmissionFlags::SEND_FUA
                | TransmissionFlags::SEND_TRIM
                | TransmissionFlags::SEND_WRITE_ZEROES
                | TransmissionFlags::SEND_DF
                | TransmissionFlags::CAN_MULTI_CONN
                | TransmissionFlags::SEND_CACHE,
            block_sizes: BlockSizes::default(),
            contexts: vec![MetaContext::BaseAllocation],
        }
    }

    /// Checks what the configuration can get wrong.
    ///
    /// # Errors
    /// [`ExportError`] names the export and what would be right.
    pub fn validate(&self) -> Result<(), ExportError> {
        for (what, text) in [("name", &self.name), ("description", &self.description)] {
            if text.len() > STRING_MAX_BYTES || text.contains('\0') {
                return Err(ExportError::BadString { name: self.name.clone(), what });
            }
        }
        if !self.block_sizes.are_valid_for(self.size_bytes) {
            let sizes = self.block_sizes;
            return Err(ExportError::BadBlockSizes { name: self.name.clone(), sizes });
        }
        Ok(())
    }

    /// The flags to send: the export's own, without those that contradict the rest or need an
    /// extension that was not negotiated.
    pub(super) fn flags_on_wire(
        &self,
        structured: bool,
        status_payload: bool,
    ) -> TransmissionFlags {
        let mut flags = self.flags | TransmissionFlags::HAS_FLAGS;
        if flags.contains(TransmissionFlags::READ_ONLY) {
            flags -= TransmissionFlags::SEND_TRIM | TransmissionFlags::SEND_WRITE_ZEROES;
        }
        if !flags.contains(TransmissionFlags::SEND_WRITE_ZEROES) {
            flags -= TransmissionFlags::SEND_FAST_ZERO;
        }
        if !structured {
            flags -= TransmissionFlags::SEND_DF;
        }
        flags.set(TransmissionFlags::BLOCK_STATUS_PAYLOAD, status_payload);
        flags
    }
}

/// The answer of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The export, as this client may see it.
    Found(ExportInfo),
    /// It is served over TLS only. Treated as `Unknown` where the protocol text forbids to say so.
    TlsRequired,
    /// There is no such export.
    Unknown,
}

/// Where the handshake finds exports. Called on the connection's thread, only during the handshake.
pub trait ExportDirectory {
    /// Finds an export by the name that the client sent; the empty name asks for the default
    /// export.
    fn find(&self, name: &str) -> Lookup;

    /// Decides whether this client may begin to use the export. Called last, when nothing else
    /// refuses the client.
    ///
    /// # Errors
    /// The reason of the refusal, for the client.
    fn admit(&self, _export: &ExportInfo) -> Result<(), &'static str> {
        Ok(())
    }

    /// The number of exports, those that this client may not see included.
    fn count(&self) -> usize;

    /// Calls `visit` with the name and description of each export that this client may see, from
    /// number `from` on, until it returns false. The numbers stay as they are while a connection
    /// negotiates.
    fn list(&self, from: usize, visit: &mut dyn FnMut(&str, &str) -> bool);
}

/// A list of exports of which the first is the default.
impl ExportDirectory for [ExportInfo] {
    fn find(&self, name: &str) -> Lookup {
        let by_name = self.iter().find(|export| export.name == name);
        let found = by_name.or_else(|| self.first().filter(|_| name.is_empty()));
        found.cloned().map_or(Lookup::Unknown, Lookup::Found)
    }

    fn count(&self) -> usize {
        self.len()
    }

    fn list(&self, from: usize, visit: &mut dyn FnMut(&str, &str) -> bool) {
        let mut rest = self.iter().skip(from);
        while rest.next().is_some_and(|export| visit(&export.name, &export.description)) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_keep_the_protocols_rules() {
        let valid = |min, preferred, max_payload| {
            BlockSizes { min, preferred, max_payload }.are_valid_for(1 << 30)
        };
        assert!(BlockSizes::default().are_valid_for(0));
        assert!(valid(512, 512, 1 << 20));
        assert!(valid(1, 4096, u32::MAX));
        assert!(!valid(0, 4096, 1 << 20), "zero minimum");
        assert!(!valid(3, 4096, 1 << 20), "not a power of two");
        assert!(!valid(1 << 17, 1 << 17, 1 << 20), "minimum above 64 KiB");
        assert!(!valid(1, 256, 1 << 20), "preferred below 512");
        assert!(!valid(4096, 512, 1 << 20), "preferred below minimum");
        assert!(!valid(512, 4096, 1000), "maximum not a multiple");
        assert!(!valid(512, 4096, 2048), "maximum below preferred");
    }

    #[test]
    fn validate_names_the_export() {
        let mut export = ExportInfo::new("vol", 1 << 20);
        assert_eq!(export.validate(), Ok(()));
        export.description = "a\0b".into();
        assert!(export.validate().unwrap_err().to_string().contains("\"vol\""));
        export.description = String::new();
        export.block_sizes.min = 3;
        assert!(matches!(export.validate(), Err(ExportError::BadBlockSizes { .. })));
    }

    #[test]
    fn flags_that_contradict_are_not_sent() {
        let mut export = ExportInfo::new("vol", 1 << 20);
        export.flags |= TransmissionFlags::SEND_FAST_ZERO;
        let flags = export.flags_on_wire(true, true);
        assert!(flags.contains(TransmissionFlags::HAS_FLAGS | TransmissionFlags::SEND_FAST_ZERO));
        assert!(
            flags.contains(TransmissionFlags::BLOCK_STATUS_PAYLOAD | TransmissionFlags::SEND_DF)
        );
        export.flags |= TransmissionFlags::READ_ONLY;
        let flags = export.flags_on_wire(false, false);
        assert!(!flags.intersects(
            TransmissionFlags::SEND_TRIM
                | TransmissionFlags::SEND_WRITE_ZEROES
                | TransmissionFlags::SEND_FAST_ZERO
                | TransmissionFlags::SEND_DF
                | TransmissionFlags::BLOCK_STATUS_PAYLOAD
        ));
    }

    #[test]
    fn a_slice_is_a_directory_with_a_default() {
        let exports = [ExportInfo::new("a", 1), ExportInfo::new("b", 2)];
        assert_eq!(exports.find("b"), Lookup::Found(exports[1].clone()));
        assert_eq!(exports.find(""), Lookup::Found(exports[0].clone()));
        assert_eq!(exports.find("c"), Lookup::Unknown);
        assert_eq!([].as_slice().find(""), Lookup::Unknown);
    }
}
