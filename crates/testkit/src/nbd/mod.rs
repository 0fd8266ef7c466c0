//! A small NBD client over any `Read + Write`, for tests: written from the protocol text alone,
//! strict about what the server may send, and able to send what it should not.
//!
//! It blocks where its stream blocks, allocates as it likes, and trusts no length it has not
//! bounded.

use std::io::{Read, Write};

use drystone_exports::nbd::proto::{self, ErrorCode, ReplyCode};

mod connection;
mod description;
mod negotiation;

pub use connection::{Connection, RawRequest, Reply, Status};
pub use description::Description;
pub use negotiation::{Negotiation, OptionReply};

/// Longest option reply or chunk that is believed.
const MESSAGE_MAX_BYTES: u64 = 80 << 20;

/// Why the client gave up on a call.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The stream failed or ended.
    #[error("the stream failed: {0}")]
    Io(#[from] std::io::Error),
    /// The server broke the protocol.
    #[error("the server broke the protocol: {0}")]
    Protocol(String),
    /// The server refused an option; the negotiation goes on.
    #[error("the option was refused with {code:#x}: {message}")]
    Refused {
        /// The reply code on the wire.
        code: u32,
        /// The server's words.
        message: String,
    },
    /// The server failed a command; the connection goes on.
    #[error("the command failed with {code}: {message}")]
    Failed {
        /// The error code on the wire.
        code: u32,
        /// The server's words.
        message: String,
    },
}

impl ClientError {
    /// The code of a refused option, if it is one of ours.
    pub fn refusal(&self) -> Option<ReplyCode> {
        match self {
            Self::Refused { code, .. } => ReplyCode::from_wire(*code),
            _ => None,
        }
    }

    /// The code of a failed command, if it is one of ours.
    pub fn failure(&self) -> Option<ErrorCode> {
        match self {
            Self::Failed { code, .. } => ErrorCode::from_wire(*code),
            _ => None,
        }
    }
}

/// The result of a client's call.
pub type Result<T> = std::result::Result<T, ClientError>;

fn broken<T>(what: impl Into<String>) -> Result<T> {
    Err(ClientError::Protocol(what.into()))
}

fn ensure(holds: bool, what: &str) -> Result<()> {
    if holds { Ok(()) } else { broken(what) }
}

fn read_array<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn read_u16(stream: &mut impl Read) -> Result<u16> {
    read_array(stream).map(u16::from_be_bytes)
}

fn read_u32(stream: &mut impl Read) -> Result<u32> {
    read_array(stream).map(u32::from_be_bytes)
}

fn read_u64(stream: &mut impl Read) -> Result<u64> {
    read_array(stream).map(u64::from_be_bytes)
}

fn read_bytes(stream: &mut impl Read, length: u64) -> Result<Vec<u8>> {
    ensure(length <= MESSAGE_MAX_BYTES, "a message is unreasonably long")?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(bytes: &[u8]) -> Result<String> {
    ensure(bytes.len() <= proto::STRING_MAX_BYTES, "a string is too long")?;
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
        _ => broken("a string is not UTF-8 without NUL"),
    }
}

fn send(stream: &mut impl Write, parts: &[&[u8]]) -> Result<()> {
    stream.write_all(&parts.concat())?;
    Ok(stream.flush()?)
}
