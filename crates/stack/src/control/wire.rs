//! Lines of the control protocol that need no running stack: a client's, and those of a server that
//! cannot answer.

use serde_json::{Map, Value, json};

use super::error::ControlError;

/// Longest request line in bytes, its end not counted.
pub const MAX_LINE_BYTES: usize = 512 << 10; // a table of 4096 lines of 100 bytes, and room
/// The version of the protocol; it grows when a feature is removed or changes its meaning.
pub const PROTOCOL: u64 = 1;

/// The response to a line that was longer than [`MAX_LINE_BYTES`].
pub fn too_long() -> String {
    let message = format!("the line is longer than {MAX_LINE_BYTES} bytes");
    ControlError::new("bad-request", message).into_line()
}

/// The response to a client beyond the `most` that a server takes at a time, if all of those wait
/// for an answer.
pub fn too_many_clients(most: usize) -> String {
    let message = format!("{most} clients wait for an answer; try again later");
    ControlError::new("busy", message).into_line()
}

/// The response to a client for which no thread could be started, and why.
pub fn no_thread(reason: &std::io::Error) -> String {
    let message = format!("no thread can be started for this client: {reason}; try again later");
    ControlError::new("busy", message).into_line()
}

/// The message to a client that is disconnected because another needs its place.
pub fn gave_way() -> String {
    let message = "this connection was idle, and another client needed its place: connect again";
    ControlError::new("busy", message).into_line()
}

/// A request line for `command`, without line end.
pub fn request(command: &str, arguments: &[(&str, &str)]) -> String {
    let arguments: Map<String, Value> =
        arguments.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "command": command, "arguments": arguments }).to_string()
}

/// The result of a response line, or its error.
///
/// # Errors
/// The server's error, or `failed` if the line is no response.
pub fn response(line: &str) -> Result<Value, ControlError> {
    let no_response = |_| ControlError::new("failed", "the server's answer is no response");
    let mut object: Map<String, Value> = serde_json::from_str(line).map_err(no_response)?;
    match (object.remove("result"), object.remove("error")) {
        (Some(result), _) => Ok(result),
        (None, error) => Err(serde_json::from_value(error.into()).unwrap_or_else(no_response)),
    }
}
