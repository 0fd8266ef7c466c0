//! Errors of the control protocol.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::runtime::ChangeError;

/// An error as it goes into a response.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct ControlError {
    /// One of [`CODES`].
    pub code: String,
    /// One sentence.
    pub message: String,
}

impl ControlError {
    pub(super) fn new(code: &str, message: impl Into<String>) -> Self {
        debug_assert!(CODES.iter().any(|(known, _)| *known == code));
        Self { code: code.to_owned(), message: message.into() }
    }

    /// The response line, without `id`, without line end.
    pub fn into_line(self) -> String {
        json!({ "error": { "code": self.code, "message": self.message } }).to_string()
    }
}

/// A refusal as it goes into a response.
pub(super) fn refusal(error: ChangeError) -> ControlError {
    ControlError::new(error.refused.code(), error.message)
}

/// Error codes with what they mean.
pub const CODES: [(&str, &str); 11] = [
    ("bad-request", "the line is no request: not JSON, too long, keys missing or unknown"),
    ("unknown-command", "there is no such command"),
    ("not-found", "there is no such device, attribute or group"),
    ("out-of-range", "the value is not permitted; the message names the permitted ones"),
    ("unsupported", "the attribute is read-only, or this device cannot change it"),
    ("failed", "the change was tried and failed"),
    ("exists", "there is a device of that name, or such a group"),
    ("bad-table", "the table is wrong, or does not fit what is there; the message says where"),
    (
        "in-use",
        "an export or a table uses the device, or it holds something; or an export, a client or a \
         group below uses the group",
    ),
    ("timed-out", "I/O of the volume did not end in time, or the array did not finish in time"),
    (
        "busy",
        "another client is changing the device, the array cannot do it now, or too many clients \
         are connected (then the server closes the connection of a new client, or of an idle one)",
    ),
];
