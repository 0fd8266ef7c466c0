//! Turns a request line into a response line.

use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::command::{Arguments, Command, check_known};
use super::commands::COMMANDS;
use super::context::Control;
use super::error::ControlError;
use super::object::Object;
use crate::diagnostic::shorten;
use crate::nearest::nearest;

impl Control<'_> {
    /// Answers one request line; both lines are without line end. Never fails: an error becomes the
    /// response.
    pub fn handle(&self, line: &str) -> String {
        match Object::parse(line, "the request") {
            Ok(request) => answer(request.get("id"), self.request(&request)),
            Err(error) => answer(None, Err(error)),
        }
    }

    fn request(&self, request: &Object<'_>) -> Result<Value, ControlError> {
        request.check_unique()?;
        let name = request.get("command").map(|name| serde_json::from_str(name.get()));
        let Some(Ok(Value::String(name))) = name else {
            return Err(ControlError::new("bad-request", "`command` is missing or is not a text"));
        };
        let arguments = match request.get("arguments") {
            None => Object::empty(),
            Some(arguments) => Object::parse(arguments.get(), "`arguments`")?,
        };
        arguments.check_unique()?;
        check_known(request.keys(), &["command", "arguments", "id"])?;
        let command = command(&name)?;
        (command.run)(self, &Arguments::check(command, &arguments)?)
    }
}

/// A response line; `id` is as it was in the request.
fn answer(id: Option<&RawValue>, result: Result<Value, ControlError>) -> String {
    #[derive(Serialize)]
    struct Answer<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        id: Option<&'a RawValue>,
        #[serde(skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<ControlError>,
    }
    let (result, error) = match result {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    let answer = serde_json::to_string(&Answer { id, result, error });
    answer.unwrap_or_else(|error| unreachable!("texts and numbers become JSON: {error}"))
}

fn command(name: &str) -> Result<&'static Command, ControlError> {
    let found = COMMANDS.iter().find(|command| command.name == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
        let hint = match nearest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known: {}", names.join(", ")),
        };
        ControlError::new("unknown-command", format!("unknown command `{}`: {hint}", shorten(name)))
    })
}
