//! The reasons why a connection ends.

/// The reason why the state machine ended a connection. Then the driver sends the remaining output,
/// ends TLS with a close_notify, and closes the socket. The text is for the log, never for the
/// peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The client sent `ABORT`.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client sent `DISC`. The driver completes requests in flight, then closes.
    #[error("the client disconnected")]
    Disconnected,
    /// The client answered the greeting with flags that were not offered.
    #[error("client flags {0:#010x} contain flags that were not offered")]
    UnknownClientFlags(u32),
    /// An option request does not start with its magic number.
    #[error("option magic {0:#018x} is wrong")]
    BadOptionMagic(u64),
    /// A client without fixed newstyle used an option other than `EXPORT_NAME`.
    #[error("option {0} needs fixed newstyle, which the client did not ask for")]
    NotFixedNewstyle(u32),
    /// The data of an option is longer than is worth skipping.
    #[error("option {option} brings {length} bytes of data, more than is worth skipping")]
    OptionTooLong {
        /// The option.
        option: u32,
        /// Its data length, bytes.
        length: u32,
    },
    /// More options than one handshake needs.
    #[error("more than {0} options in one handshake")]
    TooManyOptions(u32),
    /// `EXPORT_NAME` cannot be answered with an error.
    #[error("EXPORT_NAME could not be served: {0}")]
    ExportName(&'static str),
    /// Plain bytes behind `STARTTLS`, where only a TLS handshake may follow.
    #[error("plain-text bytes after STARTTLS")]
    PlaintextAfterStartTls,
    /// Memory is too short for the client's data.
    #[error("memory is short")]
    OutOfMemory,
    /// A request does not start with its magic number; the stream is out of step.
    #[error("request magic {0:#010x} is wrong")]
    BadRequestMagic(u32),
    /// A payload longer than is worth skipping.
    #[error("a request brings {0} bytes of payload, more than is worth skipping")]
    PayloadTooLong(u64),
}

impl CloseReason {
    /// True if the client asked for the end and broke no rule.
    pub const fn is_polite(self) -> bool {
        matches!(self, Self::Aborted | Self::Disconnected)
    }
}
