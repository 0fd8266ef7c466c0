//! The control protocol: one request line in JSON, one response line. No I/O here: the program
//! moves the lines over a Unix socket of mode 0600.

mod fake;
mod fuzz;
mod groups;
mod line;
mod md;
mod object;
mod schema;
mod volumes;

use drystone_core::context::PollMode;
use object::Object;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::attributes::{Mode, attribute};
use crate::diagnostic::shorten;
use crate::graph::{MEMBER_TIMEOUT_HINT, MEMBER_TIMEOUT_MIN_NS, array_above, short_timeout};
use crate::md::MemberReport;
use crate::nearest::nearest;
use crate::parse::node::{Node, Raw};
use crate::parse::values::parse_simple;
use crate::runtime::{DeviceSummary, LockReport, Runtime, SetError, Snapshot};
use crate::schema::Type;
use crate::size::format_size;

pub use fuzz::fuzz_control;
pub use line::{Line, LineBuffer};
pub use md::MANAGER_PATIENCE_NS;
pub use schema::{Argument, CODES, COMMANDS, Command, Shape, help_text, markdown};
pub use volumes::DEFAULT_TIMEOUT_NS;

/// Longest request line in bytes, its end not counted.
pub const MAX_LINE_BYTES: usize = 512 << 10; // a table of 4096 lines of 100 bytes, and room
/// The number of this protocol; it grows when something is taken away or means something else.
pub const PROTOCOL: u64 = 1;

/// The attribute whose low values make members fail.
const TIMEOUT: &str = "queue/io_timeout";

/// Which server this is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerInfo {
    /// The program's version.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// The stack's name.
    pub stack: String,
}

/// Answers requests of one client, or of several at a time.
pub struct Control<'r> {
    runtime: &'r dyn Runtime,
    server: &'r ServerInfo,
}

/// An error as it goes into a response.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
pub struct ControlError {
    /// One of [`CODES`].
    pub code: String,
    /// One sentence.
    pub message: String,
}

impl ControlError {
    fn new(code: &str, message: impl Into<String>) -> Self {
        debug_assert!(CODES.iter().any(|(known, _)| *known == code));
        Self { code: code.to_owned(), message: message.into() }
    }

    /// The response line, without `id`, without line end.
    pub fn into_line(self) -> String {
        json!({ "error": { "code": self.code, "message": self.message } }).to_string()
    }
}

/// The response to a line that was longer than [`MAX_LINE_BYTES`].
pub fn too_long() -> String {
    let message = format!("the line is longer than {MAX_LINE_BYTES} bytes");
    ControlError::new("bad-request", message).into_line()
}

/// The response to a client that is one more than the `most` that a server takes at a time, all of which wait for
/// an answer.
pub fn too_many_clients(most: usize) -> String {
    let message = format!("{most} clients wait for an answer; try again later");
    ControlError::new("busy", message).into_line()
}

/// The response to a client for which no thread could be started, and why.
pub fn no_thread(reason: &std::io::Error) -> String {
    let message = format!("no thread can be started for this client: {reason}; try again later");
    ControlError::new("busy", message).into_line()
}

/// What a client is told that is disconnected because another needs its place.
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

impl<'r> Control<'r> {
    /// Answers for `runtime`.
    pub fn new(runtime: &'r dyn Runtime, server: &'r ServerInfo) -> Self {
        Self { runtime, server }
    }

    /// Answers one request line; both are without line end. Never fails: what is wrong is the
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
            return Err(ControlError::new("bad-request", "`command` is missing or no text"));
        };
        let arguments = match request.get("arguments") {
            None => Object::empty(),
            Some(arguments) => Object::parse(arguments.get(), "`arguments`")?,
        };
        arguments.check_unique()?;
        known_keys(request.keys(), &["command", "arguments", "id"])?;
        let command = command(&name)?;
        let texts = arguments_of(command, &arguments)?;
        let texts: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
        match (command.name, texts.as_slice()) {
            ("list", []) => Ok(self.list()),
            ("show", [Some(device)]) => self.show(device),
            ("set", [Some(device), Some(attribute), Some(value)]) => {
                self.set(device, attribute, value)
            }
            ("reopen", [Some(device), replaced]) => self.reopen(device, *replaced == Some("true")),
            ("iostat", []) => Ok(self.iostat()),
            ("lockstat", [reset, hold]) => {
                Ok(self.lockstat(*reset == Some("true"), hold.map(|hold| hold == "true")))
            }
            ("poll-mode", [mode]) => Ok(self.poll_mode(*mode)),
            ("version", []) => Ok(self.version()),
            (name, texts) => self
                .groups(name, texts)
                .or_else(|| self.md(name, texts))
                .or_else(|| self.volumes(name, texts))
                .unwrap_or_else(|| unreachable!("`{name}` is in the schema with other arguments")),
        }
    }

    fn list(&self) -> Value {
        json!({ "devices": self.runtime.devices(), "exports": self.runtime.exports() })
    }

    fn show(&self, name: &str) -> Result<Value, ControlError> {
        match self.runtime.device(name) {
            Some(mut device) => {
                let modes = device.modes();
                for (name, value) in &mut device.attributes {
                    *value = in_unit_that_it_takes(name, std::mem::take(value));
                }
                let mut shown = json!(device);
                shown["modes"] = json!(modes);
                Ok(shown)
            }
            None => Err(self.no_device(name)),
        }
    }

    fn set(&self, device: &str, name: &str, text: &str) -> Result<Value, ControlError> {
        if self.runtime.device(device).is_none() {
            return Err(self.no_device(device));
        }
        let attribute = attribute(name).map_err(|error| ControlError::new("not-found", error))?;
        let code = match attribute.mode {
            Mode::ReadOnly => "unsupported",
            Mode::ReadWrite => "out-of-range",
        };
        let value = attribute.parse(text).map_err(|error| ControlError::new(code, error))?;
        self.runtime.set(device, attribute, &value).map_err(|error| {
            let code = match error {
                SetError::NoSuchDevice => return self.no_device(device),
                SetError::OutOfRange { .. } => "out-of-range",
                SetError::Unsupported { .. } => "unsupported",
                SetError::Failed { .. } => "failed",
            };
            let value = shorten(text);
            ControlError::new(code, format!("`{name}` of `{device}`: `{value}` {error}"))
        })?;
        let now = self
            .runtime
            .device(device)
            .and_then(|device| device.attributes.get(attribute.name).cloned());
        let now = now.map_or_else(|| text.to_owned(), |now| in_unit_that_it_takes(name, now));
        let warning = match attribute.name {
            TIMEOUT => self.timeout_warning(&[device.to_owned()]),
            "size" => self.size_warning(device, &now),
            _ => None,
        };
        Ok(
            json!({ "device": device, "attribute": attribute.name, "value": now, "warning": warning }),
        )
    }

    fn reopen(&self, device: &str, replaced: bool) -> Result<Value, ControlError> {
        let has_ended = self.runtime.reopen(device, replaced).map_err(volumes::error)?;
        let warning = (!has_ended).then_some(
            "I/O that was under way has not ended: the file that was open before stays open until it has",
        );
        Ok(json!({ "device": device, "warning": warning }))
    }

    /// What to say of a size that the stack file does not say: a file system that was grown does not fit after the
    /// next start. A file without a size there keeps its own.
    fn size_warning(&self, device: &str, now: &str) -> Option<String> {
        let now = now.parse().ok()?;
        let configured = self.runtime.configured_size(device)?;
        (configured != now).then(|| {
            format!(
                "`{device}` has this size until the server stops; to keep it, write size = \"{}\" into the stack \
                 file",
                format_size(now)
            )
        })
    }

    /// What to say if one of the devices is a member of an array, or below one, and has a time-out that makes it fail soon.
    fn timeout_warning(&self, devices: &[String]) -> Option<String> {
        let is_short = |name: &&String| {
            let device = self.runtime.device(name);
            let timeout =
                device.and_then(|device| device.attributes.get(TIMEOUT)?.trim().parse().ok());
            timeout.is_some_and(|ms: u64| ms < MEMBER_TIMEOUT_MIN_NS / 1_000_000)
        };
        let mut short = devices.iter().filter(is_short).peekable();
        short.peek()?;
        let arrays = self.runtime.arrays(None).unwrap_or_default();
        let array_of = |name: &str| {
            let is_it = |member: &MemberReport| member.device.as_deref() == Some(name);
            let array = arrays.iter().find(|array| array.devices.iter().any(is_it));
            array.map(|array| array.name.clone())
        };
        let users = |name: &str| {
            let device = |user: &DeviceSummary| self.runtime.device(&user.name);
            let stands_on = |user: &DeviceSummary| {
                device(user).is_some_and(|user| user.members.iter().any(|member| member == name))
            };
            let all = self.runtime.devices().into_iter().filter(stands_on);
            all.map(|user| user.name).collect()
        };
        let told = |name: &String| {
            let (member, array) = array_above(name, array_of, users)?;
            Some(short_timeout(name, (&member, &array)))
        };
        let texts: Vec<String> = short.filter_map(told).collect();
        (!texts.is_empty()).then(|| format!("{}: {MEMBER_TIMEOUT_HINT}", texts.join(", ")))
    }

    fn iostat(&self) -> Value {
        json!(Snapshot { uptime_ns: self.runtime.uptime_ns(), devices: self.runtime.diskstats() })
    }

    /// The figures until now; then what was asked for is done.
    fn lockstat(&self, reset: bool, hold: Option<bool>) -> Value {
        let locks = self.runtime.locks();
        let stats = if reset { locks.reset() } else { locks.stats() };
        if let Some(on) = hold {
            locks.time_holds(on);
        }
        json!(LockReport::new(locks.times_holds(), &stats))
    }

    fn poll_mode(&self, mode: Option<&str>) -> Value {
        let switch = self.runtime.poll_switch();
        if let Some(mode) = mode.and_then(PollMode::from_name) {
            switch.set(mode);
        }
        json!({ "mode": switch.mode().name() })
    }

    fn version(&self) -> Value {
        json!({
            "version": self.server.version,
            "protocol": PROTOCOL,
            "pid": self.server.pid,
            "stack": self.server.stack,
        })
    }

    fn no_device(&self, name: &str) -> ControlError {
        let names: Vec<String> =
            self.runtime.devices().into_iter().map(|device| device.name).collect();
        let near = nearest(name, names.iter().map(String::as_str));
        let hint = near.map(|near| format!(": did you mean `{near}`?")).unwrap_or_default();
        ControlError::new("not-found", format!("there is no device `{}`{hint}", shorten(name)))
    }
}

/// A value as `set` takes it: a size in bytes, where sysfs and the device have sectors.
fn in_unit_that_it_takes(attribute: &str, shown: String) -> String {
    match shown.trim().parse::<u64>() {
        Ok(sectors) if attribute == "size" => sectors.saturating_mul(512).to_string(),
        _ => shown,
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

fn known_keys<'k>(
    keys: impl IntoIterator<Item = &'k String>,
    known: &[&str],
) -> Result<(), ControlError> {
    let Some(unknown) = keys.into_iter().find(|key| !known.contains(&key.as_str())) else {
        return Ok(());
    };
    let hint = match nearest(unknown, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if known.is_empty() => "it takes none".to_owned(),
        None => format!("known: {}", known.join(", ")),
    };
    let message = format!("unknown key `{}`: {hint}", shorten(unknown));
    Err(ControlError::new("bad-request", message))
}

/// The arguments as texts, in the order of the schema; `None` is an optional one that is missing.
/// A time is a text of its nanoseconds.
fn arguments_of(
    command: &Command,
    given: &Object<'_>,
) -> Result<Vec<Option<String>>, ControlError> {
    let known: Vec<&str> = command.arguments.iter().map(|argument| argument.name).collect();
    known_keys(given.keys(), &known)?;
    command.arguments.iter().map(|argument| argument_text(command, argument, given)).collect()
}

fn argument_text(
    command: &Command,
    argument: &'static Argument,
    given: &Object<'_>,
) -> Result<Option<String>, ControlError> {
    let name = argument.name;
    let wrong = |what: &str| {
        let message = format!("`{}`: argument `{name}` {what}", command.name);
        Err(ControlError::new("bad-request", message))
    };
    let Some(given) = given.get(name) else {
        return if argument.required { wrong("is missing") } else { Ok(None) };
    };
    let written = given.get();
    let text = match serde_json::from_str(written).ok() {
        Some(Value::String(text)) => text,
        Some(Value::Bool(switch)) if argument.ty == Type::Bool => switch.to_string(),
        Some(Value::Number(_) | Value::Bool(_)) if name == "value" => written.to_owned(),
        Some(Value::Number(_)) if is_number(&argument.ty) => written.to_owned(),
        _ if argument.ty == Type::Bool => return wrong("is neither true nor false"),
        _ => return wrong("is no text"),
    };
    match argument.ty {
        Type::Text { max } if text.len() > max => wrong(&format!("is longer than {max} bytes")),
        Type::Bool if text != "true" && text != "false" => wrong("is neither true nor false"),
        Type::Choice(names) if !names.contains(&text.as_str()) => {
            wrong(&format!("is `{}`, not {}", shorten(&text), argument.ty.expected()))
        }
        _ if is_number(&argument.ty) => number(&argument.ty, text).map(Some).or_else(|e| wrong(&e)),
        _ => Ok(Some(text)),
    }
}

fn is_number(ty: &Type) -> bool {
    matches!(ty, Type::Integer { .. } | Type::Duration { .. })
}

/// A number or a time that is within its range.
fn number(ty: &'static Type, text: String) -> Result<String, String> {
    let shown = shorten(&text);
    match parse_simple(ty, &Node { span: 0..0, value: Raw::Word(text) }) {
        Ok(crate::parse::fields::Value::Number(number)) => Ok(number.to_string()),
        Ok(other) => unreachable!("a number is no {other:?}"),
        Err(refusal) => Err(format!("`{shown}` {}: write {}", refusal.reason, refusal.hint)),
    }
}

#[cfg(test)]
mod tests;
