//! What the commands share that ask a running server.

use std::path::absolute;
use std::time::Duration;

use drystone_stack::control::MANAGER_PATIENCE_NS;
use drystone_stack::md::ArrayReport;
use serde_json::Value;

use crate::client::Client;
use crate::commands::read;
use crate::failure::Failure;

/// What the server tells of the arrays named, or of all.
pub fn reports(client: &mut Client, names: &[String]) -> Result<Vec<ArrayReport>, Failure> {
    let mut ask = |arguments: &[(&str, &str)]| -> Result<Vec<ArrayReport>, Failure> {
        read(client.ask("md-detail", arguments)?["arrays"].take())
    };
    if names.is_empty() {
        return ask(&[]);
    }
    let mut all = Vec::new();
    for name in names {
        all.extend(ask(&[("device", name)])?);
    }
    Ok(all)
}

/// Asks for a change, which an array's manager may work at for a while.
pub fn change(
    client: &mut Client,
    command: &str,
    arguments: &[(&str, &str)],
) -> Result<Value, Failure> {
    client.ask_for(command, arguments, Duration::from_nanos(MANAGER_PATIENCE_NS))
}

/// The names in a change's answer.
pub fn names(answer: &Value) -> Vec<&str> {
    let members = answer["members"].as_array().map_or(&[][..], Vec::as_slice);
    members.iter().filter_map(Value::as_str).collect()
}

/// A word as a path from the root, since the server may run in another folder.
pub fn path(word: &str) -> Result<String, Failure> {
    if word.is_empty() {
        let text = "a device is an empty word, expected its name or a path";
        return Err(Failure::Refused(text.to_owned()));
    }
    let path = absolute(word).map_err(|error| Failure::Refused(format!("{word}: {error}")))?;
    Ok(path.to_string_lossy().into_owned())
}
