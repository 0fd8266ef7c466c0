//! The control protocol: one request line in JSON, one response line. No I/O here: the program
//! moves the lines over a Unix socket of mode 0600.

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
use crate::graph::{MEMBER_TIMEOUT_HINT, MEMBER_TIMEOUT_MIN_NS, short_timeout};
use crate::md::MemberReport;
use crate::nearest::nearest;
use crate::node::{Node, Raw};
use crate::runtime::{LockReport, Runtime, SetError, Snapshot};
use crate::schema::Type;
use crate::values::parse_simple;

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
            Some(device) => Ok(json!(device)),
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
        let now = now.unwrap_or_else(|| text.to_owned());
        let warning = match attribute.name {
            TIMEOUT => self.timeout_warning(&[device.to_owned()]),
            _ => None,
        };
        Ok(
            json!({ "device": device, "attribute": attribute.name, "value": now, "warning": warning }),
        )
    }

    /// What to say if one of the devices is a member of an array, and has a time-out that makes it fail soon.
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
        let array_of = |name: &String| {
            let is_it = |member: &MemberReport| member.device.as_ref() == Some(name);
            arrays.iter().find(|array| array.devices.iter().any(is_it))
        };
        let texts: Vec<String> =
            short.filter_map(|name| Some(short_timeout(name, &array_of(name)?.name))).collect();
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
        Ok(crate::fields::Value::Number(number)) => Ok(number.to_string()),
        Ok(other) => unreachable!("a number is no {other:?}"),
        Err(refusal) => Err(format!("`{shown}` {}: write {}", refusal.reason, refusal.hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Attribute, Setting};
    use crate::iomax::{IoMax, MaxLine, StatLine, limits_of};
    use crate::md::{ArrayChange, ArrayReport};
    use crate::runtime::{
        Change, ChangeError, DeviceDetail, DeviceSummary, DiskStats, ExportSummary, GroupStat,
        GroupSummary, Refused, TableReport, VolumeReport,
    };
    use drystone_core::clock::ManualClock;
    use drystone_core::context::PollSwitch;
    use drystone_core::sync::{Lock, LockClass, LockRegistry};
    use drystone_throttle::IoStat;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    /// One device `disk` of which `queue/nomerges` can be set, and which is a volume too; it
    /// notes changes.
    struct Fake {
        nomerges: AtomicU64,
        changes: Lock<Vec<String>>,
        locks: Arc<LockRegistry>,
        poll: PollSwitch,
    }

    impl Fake {
        fn new() -> Self {
            let changes = Lock::new(LockClass::Other, Vec::new());
            let locks = LockRegistry::new(ManualClock::new(1));
            Fake { nomerges: AtomicU64::new(0), changes, locks, poll: PollSwitch::default() }
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
                attributes: [(
                    "queue/nomerges".to_owned(),
                    self.nomerges.load(Relaxed).to_string(),
                )]
                .into(),
            })
        }

        fn set(
            &self,
            _device: &str,
            attribute: &'static Attribute,
            value: &Setting,
        ) -> Result<(), SetError> {
            match (attribute.name, value) {
                ("queue/nomerges", Setting::Number(number)) => {
                    self.nomerges.store(*number, Relaxed)
                }
                ("queue/nr_requests", _) => {
                    return Err(SetError::OutOfRange { permitted: "4 to 64".to_owned() });
                }
                _ => return Err(SetError::Unsupported { reason: "a test".to_owned() }),
            }
            Ok(())
        }

        fn volume(&self, name: &str) -> Option<VolumeReport> {
            (name == "disk").then(|| self.volumes().remove(0))
        }

        fn volumes(&self) -> Vec<VolumeReport> {
            let live =
                TableReport { text: "0 8 zero\n8 8 error\n".to_owned(), ..Default::default() };
            let (name, suspended, live) = ("disk".to_owned(), true, Some(live));
            vec![VolumeReport { name, suspended, live, ..VolumeReport::default() }]
        }

        fn change(&self, name: &str, change: &Change<'_>) -> Result<(), ChangeError> {
            if name == "none" {
                let (refused, message) = (Refused::TimedOut, "a test".to_owned());
                return Err(ChangeError { refused, message });
            }
            self.changes.lock(&self.locks.counters()).push(format!("{change:?}"));
            Ok(())
        }

        fn arrays(&self, name: Option<&str>) -> Result<Vec<ArrayReport>, ChangeError> {
            let name = name.unwrap_or("all").to_owned();
            Ok(vec![ArrayReport { name, ..ArrayReport::default() }])
        }

        fn manage(&self, name: &str, change: &ArrayChange<'_>) -> Result<Vec<String>, ChangeError> {
            if name == "none" {
                let (refused, message) = (Refused::Busy, "it cannot be failed".to_owned());
                return Err(ChangeError { refused, message });
            }
            self.changes.lock(&self.locks.counters()).push(format!("{change:?}"));
            Ok(vec!["m0".to_owned()])
        }

        fn groups(&self) -> Vec<GroupSummary> {
            let group =
                |path: &str| GroupSummary { path: path.to_owned(), members: 0, io_max: Vec::new() };
            vec![group(""), group("1")]
        }

        fn create_group(&self, path: &str) -> Result<(), ChangeError> {
            self.changes.lock(&self.locks.counters()).push(format!("create {path}"));
            Ok(())
        }

        fn remove_group(&self, path: &str) -> Result<(), ChangeError> {
            self.changes.lock(&self.locks.counters()).push(format!("remove {path}"));
            Ok(())
        }

        fn set_group(&self, _path: &str, line: &IoMax) -> Result<MaxLine, ChangeError> {
            Ok(MaxLine::new(&line.device, &limits_of(&line.change)))
        }

        fn group_stats(
            &self,
            path: Option<&str>,
            reset: bool,
        ) -> Result<Vec<GroupStat>, ChangeError> {
            let stat = IoStat { rios: u64::from(reset), rbytes: 1, ..IoStat::default() };
            let path = path.unwrap_or("all").to_owned();
            Ok(vec![GroupStat {
                path,
                io_stat: StatLine::new("disk", &stat).into_iter().collect(),
            }])
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

        fn poll_switch(&self) -> &PollSwitch {
            &self.poll
        }
    }

    fn server() -> ServerInfo {
        ServerInfo { version: "0".to_owned(), pid: 1, stack: "s".to_owned() }
    }

    fn ask(line: &str) -> Value {
        answer_of(&Fake::new(), line)
    }

    fn answer_of(fake: &Fake, line: &str) -> Value {
        let answer = Control::new(fake, &server()).handle(line);
        assert!(!answer.contains('\n'), "{answer}");
        serde_json::from_str(&answer).unwrap()
    }

    #[test]
    fn the_poll_mode_is_told_and_changed() {
        let (runtime, server) = (Fake::new(), server());
        let control = Control::new(&runtime, &server);
        let ask = |arguments: &[(&str, &str)]| {
            response(&control.handle(&request("poll-mode", arguments))).expect("a result")
        };
        assert_eq!(ask(&[]), json!({ "mode": "interrupt" }));
        for mode in PollMode::ALL {
            let answer = json!({ "mode": mode.name() });
            assert_eq!(ask(&[("mode", mode.name())]), answer);
            assert_eq!((runtime.poll.mode(), ask(&[])), (mode, answer));
        }
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
                        "reset" | "hold" | "now" | "noflush" | "force" | "run" => "true",
                        "inactive" | "read_only" => "false",
                        "line" => "disk rbps=1",
                        "mode" => "poll",
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
    fn changes_arrive_as_they_were_asked_for() {
        let fake = Fake::new();
        let cases = [
            ("create", json!({}), "Create { table: None, read_only: false, force: false }"),
            (
                "create",
                json!({ "table": "t", "read_only": true, "force": "true" }),
                "Create { table: Some(\"t\"), read_only: true, force: true }",
            ),
            (
                "reload",
                json!({ "table": "t", "timeout": 3 }),
                "Reload { table: \"t\", force: false, resume_within: None }",
            ),
            (
                "reload",
                json!({ "table": "t", "now": true, "timeout": "5ms" }),
                "Reload { table: \"t\", force: false, resume_within: Some(5000000) }",
            ),
            ("clear", json!({}), "Clear"),
            ("suspend", json!({}), "Suspend { within: Some(30000000000) }"),
            ("suspend", json!({ "noflush": true, "timeout": 1 }), "Suspend { within: None }"),
            ("resume", json!({ "timeout": 2 }), "Resume { within: 2000000000 }"),
            (
                "message",
                json!({ "sector": 7, "text": "a b" }),
                "Message { sector: 7, text: \"a b\" }",
            ),
            ("remove", json!({}), "Remove"),
        ];
        for (command, mut arguments, expected) in cases {
            arguments["device"] = json!("disk");
            let line = json!({ "command": command, "arguments": arguments }).to_string();
            let answer = answer_of(&fake, &line);
            assert_eq!(answer["result"]["name"], "disk", "{answer}");
            let last = fake.changes.lock(&fake.locks.counters()).pop();
            assert_eq!(last.as_deref(), Some(expected), "{line}");
        }
        let info = answer_of(&fake, &request("info", &[]))["result"]["volumes"][0].take();
        let expected = json!({
            "name": "disk", "state": "SUSPENDED", "read_only": false, "tables_present": "LIVE",
            "open_count": 0, "targets": 2,
        });
        assert_eq!(info, expected);
        let inactive = request("table", &[("device", "disk"), ("inactive", "true")]);
        let answer = answer_of(&fake, &inactive);
        assert_eq!(answer["result"]["volumes"], json!([{ "name": "disk", "table": null }]));
    }

    #[test]
    fn changes_of_arrays_arrive_as_they_were_asked_for() {
        let fake = Fake::new();
        let cases = [
            (
                "md-add",
                json!({ "member": "m0", "path": "/x/m0", "force": true }),
                "Add { member: Named { word: \"m0\", path: Some(\"/x/m0\") }, force: true }",
            ),
            (
                "md-fail",
                json!({ "member": "/x/m0" }),
                "Fail(Named { word: \"/x/m0\", path: Some(\"/x/m0\") })",
            ),
            (
                "md-remove",
                json!({ "member": "failed" }),
                "Remove(Named { word: \"failed\", path: None })",
            ),
            ("md-replace", json!({ "member": "m" }), "Replace(Named { word: \"m\", path: None })"),
            ("md-check", json!({}), "Sync(\"check\")"),
            ("md-repair", json!({}), "Sync(\"repair\")"),
            ("md-stop", json!({}), "Stop"),
            (
                "md-assemble",
                json!({ "members": "/a\n/b", "run": true }),
                "Assemble(Assemble { members: \"/a\\n/b\", uuid: None, run: true, force: false, read_only: false })",
            ),
        ];
        for (command, mut arguments, expected) in cases {
            arguments["device"] = json!("array");
            let line = json!({ "command": command, "arguments": arguments }).to_string();
            let answer = answer_of(&fake, &line);
            assert_eq!(
                answer["result"],
                json!({ "device": "array", "members": ["m0"], "warning": null })
            );
            let last = fake.changes.lock(&fake.locks.counters()).pop();
            assert_eq!(last.as_deref(), Some(expected), "{line}");
        }
        let told = answer_of(&fake, &request("md-detail", &[("device", "array")]));
        assert_eq!(told["result"]["arrays"][0]["name"], "array");
        let line = request("md-fail", &[("device", "none"), ("member", "m0")]);
        let error = json!({ "code": "busy", "message": "it cannot be failed" });
        assert_eq!(answer_of(&fake, &line)["error"], error);
    }

    #[test]
    fn groups_are_asked_for_by_path() {
        let fake = Fake::new();
        let last = || fake.changes.lock(&fake.locks.counters()).pop();
        let result = |command: &str, arguments: &[(&str, &str)]| {
            answer_of(&fake, &request(command, arguments))["result"].take()
        };
        assert_eq!(result("group-create", &[("path", "a/b")]), json!({ "path": "a/b" }));
        assert_eq!(last().as_deref(), Some("create a/b"));
        assert_eq!(result("group-remove", &[("path", "a/b")]), json!({ "path": "a/b" }));
        assert_eq!(last().as_deref(), Some("remove a/b"));
        let set = result("group-set", &[("path", "a"), ("line", "disk wiops=max rbps=2M")]);
        let max = json!({ "device": "disk", "rbps": 2 << 20, "wbps": null, "riops": null, "wiops": null });
        assert_eq!(set, json!({ "path": "a", "io_max": max }));
        assert_eq!(result("group-list", &[])["groups"][0]["path"], "/");
        let stat = |arguments: &[(&str, &str)]| result("group-stat", arguments)["groups"][0].take();
        assert_eq!(stat(&[])["path"], "all");
        assert_eq!(
            (stat(&[("path", "/")])["path"].take(), stat(&[("path", "a")])["path"].take()),
            (json!("/"), json!("a"))
        );
        let line = json!({ "device": "disk", "rbytes": 1, "wbytes": 0, "rios": 1, "wios": 0, "dbytes": 0, "dios": 0 });
        assert_eq!(stat(&[("reset", "true")])["io_stat"], json!([line]));
    }

    #[test]
    fn the_examples_of_the_docs_hold() {
        let fake = Fake::new();
        for pair in schema::example().chunks(2) {
            let answer = Control::new(&fake, &server()).handle(pair[0]);
            let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap();
            assert_eq!(parsed(&answer), parsed(pair[1]));
        }
        assert_eq!(fake.nomerges.load(Relaxed), 2, "the refused value has changed nothing");
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
            (r#"{"command":"list","arguments":3}"#.to_owned(), "bad-request", "no JSON object"),
            (request("list", &[("device", "x")]), "bad-request", "it takes none"),
            (request("show", &[]), "bad-request", "`device` is missing"),
            (request("show", &[("device", "dikc")]), "not-found", "no device"),
            (request("show", &[("device", "dsik")]), "not-found", "did you mean `disk`?"),
            (
                request("poll-mode", &[("mode", "poling")]),
                "bad-request",
                "is `poling`, not \"interrupt\", \"poll\" or \"adaptive\"",
            ),
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
            (request("table", &[("device", "dsik")]), "not-found", "did you mean `disk`?"),
            (request("suspend", &[("device", "none")]), "timed-out", "a test"),
            (request("reload", &[("device", "disk")]), "bad-request", "`table` is missing"),
            (request("group-create", &[("path", "/")]), "bad-request", "the root is always there"),
            (request("group-remove", &[("path", "a//b")]), "bad-request", "`a//b` is not a path"),
            (
                request("group-set", &[("path", "/"), ("line", "disk rbps=1")]),
                "bad-request",
                "takes no limits: name a group below it",
            ),
            (
                request("group-set", &[("path", "a"), ("line", "disk rbps=0")]),
                "bad-request",
                "`rbps`: `0` would let nothing pass: write max, or bytes a second from 1 up, as in 200MiB",
            ),
            (
                request("group-set", &[("path", "a"), ("line", "dikc rbps=1")]),
                "not-found",
                "no device `dikc`",
            ),
            (
                request("resume", &[("device", "disk"), ("timeout", "x")]),
                "bad-request",
                "argument `timeout` `x` is not a time",
            ),
            (
                request("resume", &[("device", "disk"), ("timeout", "2h")]),
                "bad-request",
                "`2h` is out of range: write a time from 0s to 1h",
            ),
            (
                request("message", &[("device", "disk"), ("sector", "-1"), ("text", "")]),
                "bad-request",
                "argument `sector` `-1` is not a whole number",
            ),
        ];
        for (line, code, sentence) in cases {
            let answer = ask(&line);
            assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
            assert!(answer["error"]["message"].as_str().unwrap().contains(sentence), "{answer}");
        }
    }

    #[test]
    fn lock_statistics_are_given_then_reset() {
        let fake = Fake::new();
        let (lock, user) = (Lock::new(LockClass::RamShard, ()), fake.locks.counters());
        let report = |arguments: Value| {
            drop(lock.lock(&user));
            let line = json!({ "command": "lockstat", "arguments": arguments }).to_string();
            let report: LockReport =
                serde_json::from_value(answer_of(&fake, &line)["result"].take()).unwrap();
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
        for id in [
            "123456789012345678901234567890",
            "-0.10",
            "1E400",
            r#""\u00e9""#,
            r#"{"a" : 1.50, "a":[ ]}"#,
            "null",
        ] {
            let (fake, line) = (Fake::new(), format!(r#"{{ "id" : {id} , "command":"list"}}"#));
            let answer = Control::new(&fake, &server()).handle(&line);
            assert!(answer.starts_with(&format!(r#"{{"id":{id},"result":"#)), "{answer}");
        }
    }

    #[test]
    fn numbers_keep_their_digits() {
        let line = r#"{"command":"set","arguments":{"device":"disk","attribute":"queue/nomerges","value":123456789012345678901234567890}}"#;
        let message = ask(line)["error"]["message"].take();
        assert!(message.as_str().unwrap().contains("123456789012345678901234567890"), "{message}");
    }

    #[test]
    fn a_key_that_is_there_twice_is_refused() {
        let fake = Fake::new();
        for (line, key) in [
            (r#"{"command":"list","command":"version","id":1}"#, "command"),
            (r#"{"command":"list","\u0063ommand":"list","id":1}"#, "command"),
            (r#"{"command":"lockstat","arguments":{"reset":true,"reset":false},"id":1}"#, "reset"),
            (r#"{"command":"list","arguments":{},"arguments":{},"id":1}"#, "arguments"),
            (r#"{"command":"list","x":1,"x":2,"id":1}"#, "x"),
        ] {
            let answer = answer_of(&fake, line);
            assert_eq!(
                (&answer["id"], &answer["error"]["code"]),
                (&json!(1), &json!("bad-request"))
            );
            let message = answer["error"]["message"].as_str().unwrap();
            assert_eq!(message, format!("key `{key}` is given twice: give it once"));
        }
        let answer = answer_of(&fake, r#"{"command":"list","id":1,"id":2}"#);
        assert_eq!(answer.get("id"), None, "either may be meant: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().contains("`id` is given twice"));
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
