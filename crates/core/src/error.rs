//! Errors of set-up and control. I/O outcomes are [`crate::Status`].

/// The kind of an error; match on this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A parameter is outside what is permitted.
    Invalid,
    /// Not there.
    NotFound,
    /// Held by somebody else.
    Busy,
    /// This kernel, device or build cannot do it.
    NotSupported,
    /// The operating system refused.
    Os,
}

/// One clear sentence about what failed and where, with a kind to match on.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// The sentence: what, where, what would be right.
    pub message: String,
    /// The cause, if the operating system gave one.
    #[source]
    pub source: Option<std::io::Error>,
}

/// Result of set-up and control calls.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` with its sentence.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into(), source: None }
    }

    /// A parameter is wrong.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    /// The operating system refused `what`; its reason becomes part of the sentence.
    pub fn os(what: impl std::fmt::Display, source: std::io::Error) -> Self {
        Error { kind: ErrorKind::Os, message: format!("{what}: {source}"), source: Some(source) }
    }
}
