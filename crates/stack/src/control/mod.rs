//! The control protocol: one request line in JSON, one response line. No I/O here: the program
//! moves the lines over a Unix socket of mode 0600.

mod line;
mod schema;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::attributes::{Mode, attribute};
use crate::diagnostic::shorten;
use crate::nearest::nearest;
use crate::runtime::{LockReport, Runtime, SetError, Snapshot};
use crate::schema::Type;

pub use line::{Line, LineBuffer};
pub use schema::{Argument, CODES, COMMANDS, Command, Shape, help_text, markdown};

/// Longest request line in bytes, its end not counted.
pub const MAX_LINE_BYTES: usize = 64 << 10;
/// The number of this protocol; it grows when something is taken away or means something else.
pub const PROTOCOL: u64 = 1;

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

/// Answers requests for one client.
pub struct Control<'r> {
    runtime: &'r mut dyn Runtime,
    server: &'r ServerInfo,
}

/// An error as it goes into a response.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
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

/// The response to a client that is one more than the `most` that a server takes at a time.
pub fn too_many_clients(most: usize) -> String {
    let message = format!("{most} clients are connected; try again later");
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
    pub fn new(runtime: &'r mut dyn Runtime, server: &'r ServerInfo) -> Self {
        Self { runtime, server }
    }

    /// Answers one request line; both are without line end. Never fails: what is wrong is the
    /// response.
    pub fn handle(&mut self, line: &str) -> String {
        let mut answer = Map::new();
        let result = match serde_json::from_str::<Value>(line) {
            Ok(Value::Object(mut request)) => {
                answer.extend(request.remove("id").map(|id| ("id".to_owned(), id)));
                self.request(request)
            }
            Ok(_) => Err(ControlError::new("bad-request", "a request is a JSON object")),
            Err(error) => Err(ControlError::new("bad-request", format!("not JSON: {error}"))),
        };
        match result {
            Ok(result) => answer.insert("result".to_owned(), result),
            Err(ControlError { code, message }) => {
                answer.insert("error".to_owned(), json!({ "code": code, "message": message }))
            }
        };
        Value::Object(answer).to_string()
    }

    fn request(&mut self, mut request: Map<String, Value>) -> Result<Value, ControlError> {
        let name = match request.remove("command") {
            Some(Value::String(name)) => name,
            _ => return Err(ControlError::new("bad-request", "`command` is missing or no text")),
        };
        let arguments = match request.remove("arguments") {
            None => Map::new(),
            Some(Value::Object(arguments)) => arguments,
            Some(_) => return Err(ControlError::new("bad-request", "`arguments` is no object")),
        };
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
            ("iostat", []) => Ok(self.iostat()),
            ("lockstat", [reset, hold]) => {
                Ok(self.lockstat(*reset == Some("true"), hold.map(|hold| hold == "true")))
            }
            ("version", []) => Ok(self.version()),
            _ => unreachable!("`{}` is in the schema with other arguments", command.name),
        }
    }

    fn list(&self) -> Value {
        json!({ "devices": self.runtime.devices(), "exports": self.runtime.exports() })
    }

    fn show(&self, name: &str) -> Result<Value, ControlError> {
        match self.runtime.device(name) {
            Some(device) => Ok(json!(device)),
            None => Err(self.no_device(name)),
        }
    }

    fn set(&mut self, device: &str, name: &str, text: &str) -> Result<Value, ControlError> {
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
        let now = now.unwrap_or_else(|| text.to_owned());
        Ok(json!({ "device": device, "attribute": attribute.name, "value": now }))
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
fn arguments_of(
    command: &Command,
    given: &Map<String, Value>,
) -> Result<Vec<Option<String>>, ControlError> {
    let known: Vec<&str> = command.arguments.iter().map(|argument| argument.name).collect();
    known_keys(given.keys(), &known)?;
    command.arguments.iter().map(|argument| argument_text(command, argument, given)).collect()
}

fn argument_text(
    command: &Command,
    argument: &Argument,
    given: &Map<String, Value>,
) -> Result<Option<String>, ControlError> {
    let name = argument.name;
    let wrong = |what: &str| {
        let message = format!("`{}`: argument `{name}` {what}", command.name);
        Err(ControlError::new("bad-request", message))
    };
    let text = match given.get(name) {
        None if argument.required => return wrong("is missing"),
        None => return Ok(None),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Bool(switch)) if argument.ty == Type::Bool => switch.to_string(),
        Some(value @ (Value::Number(_) | Value::Bool(_))) if name == "value" => value.to_string(),
        Some(_) if argument.ty == Type::Bool => return wrong("is neither true nor false"),
        Some(_) => return wrong("is no text"),
    };
    match argument.ty {
        Type::Text { max } if text.len() > max => wrong(&format!("is longer than {max} bytes")),
        Type::Bool if text != "true" && text != "false" => wrong("is neither true nor false"),
        _ => Ok(Some(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Attribute, Setting};
    use crate::runtime::{DeviceDetail, DeviceSummary, DiskStats, ExportSummary};
    use drystone_core::clock::ManualClock;
    use drystone_core::sync::{Lock, LockClass, LockRegistry};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// One device `disk` of which `queue/nomerges` can be set.
    struct Fake {
        nomerges: u64,
        locks: Arc<LockRegistry>,
    }

    impl Fake {
        fn new() -> Self {
            Fake { nomerges: 0, locks: LockRegistry::new(ManualClock::new(1)) }
        }
    }

    impl Runtime for Fake {
        fn devices(&self) -> Vec<DeviceSummary> {
            vec![DeviceSummary {
                name: "disk".to_owned(),
                kind: "ram".to_owned(),
                size: 1 << 30,
                read_only: false,
                in_flight: 0,
            }]
        }

        fn device(&self, name: &str) -> Option<DeviceDetail> {
            (name == "disk").then(|| DeviceDetail {
                name: name.to_owned(),
                kind: "ram".to_owned(),
                size: 1 << 30,
                description: String::new(),
                members: Vec::new(),
                exports: vec!["e".to_owned()],
                attributes: [("queue/nomerges".to_owned(), self.nomerges.to_string())].into(),
            })
        }

        fn set(
            &mut self,
            _device: &str,
            attribute: &'static Attribute,
            value: &Setting,
        ) -> Result<(), SetError> {
            match (attribute.name, value) {
                ("queue/nomerges", Setting::Number(number)) => self.nomerges = *number,
                ("queue/nr_requests", _) => {
                    return Err(SetError::OutOfRange { permitted: "4 to 64".to_owned() });
                }
                _ => return Err(SetError::Unsupported { reason: "a test".to_owned() }),
            }
            Ok(())
        }

        fn diskstats(&self) -> Vec<DiskStats> {
            vec![DiskStats { device: "disk".to_owned(), reads: 5, ..DiskStats::default() }]
        }

        fn exports(&self) -> Vec<ExportSummary> {
            Vec::new()
        }

        fn uptime_ns(&self) -> u64 {
            7
        }

        fn locks(&self) -> &LockRegistry {
            &self.locks
        }
    }

    fn server() -> ServerInfo {
        ServerInfo { version: "0".to_owned(), pid: 1, stack: "s".to_owned() }
    }

    fn ask(line: &str) -> Value {
        answer_of(&mut Fake::new(), line)
    }

    fn answer_of(fake: &mut Fake, line: &str) -> Value {
        let answer = Control::new(fake, &server()).handle(line);
        assert!(!answer.contains('\n'), "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn results_have_the_keys_of_the_schema() {
        for command in COMMANDS {
            let arguments: Map<String, Value> = command
                .arguments
                .iter()
                .map(|argument| {
                    let value = match argument.name {
                        "device" => "disk",
                        "attribute" => "queue/nomerges",
                        "reset" | "hold" => "true",
                        _ => "1",
                    };
                    (argument.name.to_owned(), json!(value))
                })
                .collect();
            let line = json!({ "command": command.name, "arguments": arguments }).to_string();
            let answer = ask(&line);
            let result = answer["result"].as_object().unwrap_or_else(|| panic!("{answer}"));
            let mut keys: Vec<&str> = command.result.iter().map(|(key, _)| *key).collect();
            keys.sort_unstable();
            assert_eq!(result.keys().collect::<Vec<_>>(), keys, "{}", command.name);
        }
    }

    #[test]
    fn the_examples_of_the_docs_hold() {
        let mut fake = Fake::new();
        for pair in schema::example().chunks(2) {
            let answer = Control::new(&mut fake, &server()).handle(pair[0]);
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parsed(&answer), parsed(pair[1]));
        }
        assert_eq!(fake.nomerges, 2, "the refused value has changed nothing");
    }

    #[test]
    fn bad_requests_get_a_code_and_one_sentence() {
        let set = |attribute: &str, value: &str| {
            request("set", &[("device", "disk"), ("attribute", attribute), ("value", value)])
        };
        let cases = [
            ("x".to_owned(), "bad-request", "not JSON"),
            ("[]".to_owned(), "bad-request", "JSON object"),
            ("{}".to_owned(), "bad-request", "`command` is missing"),
            (r#"{"command":"lsit"}"#.to_owned(), "unknown-command", "did you mean `list`?"),
            (r#"{"command":"list","args":{}}"#.to_owned(), "bad-request", "known: command"),
            (r#"{"command":"list","arguments":3}"#.to_owned(), "bad-request", "no object"),
            (request("list", &[("device", "x")]), "bad-request", "it takes none"),
            (request("show", &[]), "bad-request", "`device` is missing"),
            (request("show", &[("device", "dikc")]), "not-found", "no device"),
            (request("show", &[("device", "dsik")]), "not-found", "did you mean `disk`?"),
            (request("lockstat", &[("hold", "on")]), "bad-request", "`hold` is neither true nor"),
            (request("lockstat", &[("rest", "true")]), "bad-request", "did you mean `reset`?"),
            (
                r#"{"command":"lockstat","arguments":{"reset":1}}"#.to_owned(),
                "bad-request",
                "`reset` is neither true nor false",
            ),
            (set("queue/nomerge", "1"), "not-found", "did you mean `queue/nomerges`?"),
            (set("queue/nomerges", "3"), "out-of-range", "permitted: a whole number from 0 to 2"),
            (set("queue/nr_requests", "100"), "out-of-range", "permitted: 4 to 64"),
            (set("queue/fua", "1"), "unsupported", "read-only"),
            (set("queue/iostats", "1"), "unsupported", "cannot be set: a test"),
        ];
        for (line, code, sentence) in cases {
            let answer = ask(&line);
            assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(sentence), "{answer}");
        }
    }

    #[test]
    fn lock_statistics_are_given_then_reset() {
        let mut fake = Fake::new();
        let (lock, user) = (Lock::new(LockClass::RamShard, ()), fake.locks.counters());
        let mut report = |arguments: Value| {
            drop(lock.lock(&user));
            let line = json!({ "command": "lockstat", "arguments": arguments }).to_string();
            let report: LockReport =
                serde_json::from_value(answer_of(&mut fake, &line)["result"].take()).unwrap();
            let line = report.classes.iter().find(|line| line.class == "ram_shard").unwrap();
            assert_eq!(line.stats().acquisitions, line.acquisitions);
            (report.hold, line.acquisitions, line.holdtime_total_ns)
        };
        assert_eq!(report(json!({})), (false, 1, None));
        assert_eq!(report(json!({ "reset": false })), (false, 2, None));
        assert_eq!(report(json!({ "reset": true, "hold": true })), (true, 3, None));
        assert_eq!(report(json!({})), (true, 1, Some(0)));
        assert_eq!(report(json!({ "hold": "false" })), (false, 2, Some(0)));
        assert_eq!(report(json!({ "reset": true })), (false, 3, Some(0)));
        assert_eq!(report(json!({})), (false, 1, None));
    }

    #[test]
    fn the_id_comes_back() {
        assert_eq!(ask(r#"{"command":"version","id":[1,"a"]}"#)["id"], json!([1, "a"]));
        assert_eq!(ask(r#"{"id":7}"#)["id"], 7);
    }

    #[test]
    fn responses_are_read_back() {
        assert_eq!(response(r#"{"result":{"a":1}}"#), Ok(json!({ "a": 1 })));
        let error = response(r#"{"error":{"code":"failed","message":"m"}}"#).unwrap_err();
        assert_eq!((error.code.as_str(), error.message.as_str()), ("failed", "m"));
        assert_eq!(response("garbage").unwrap_err().code, "failed");
        assert_eq!(response("{}").unwrap_err().code, "failed");
    }

    proptest! {
        #[test]
        fn any_line_gets_one_line(line: String) {
            ask(&line);
        }
    }
}
