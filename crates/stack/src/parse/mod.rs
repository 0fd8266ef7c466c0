//! From the text of a stack file to the plain specification of a stack.
//!
//! The steps, each in files of its own: `node` (a tree of values with their places), `check` (each
//! table against the schema), `fields` (typed values), and `device`, `export` and `group` (a
//! section of the specification).

mod allow;
mod check;
mod clients;
mod device;
mod export;
pub(crate) mod fields;
mod group;
mod latency;
mod listener;
pub(crate) mod node;
pub(crate) mod table;
pub(crate) mod values;

use drystone_core::context::PollMode;
use std::collections::BTreeSet;
use std::path::Path;

use crate::check_groups;
use crate::diagnostic::{Findings, Report, Source, Span, shorten};
use crate::graph::{self, Broken};
use crate::group::{MAX_GROUPS, check_path, place};
use crate::names::{is_name, name_hint};
use crate::parse::fields::Check;
use crate::parse::node::{Entry, Raw, parse_toml, parse_words};
use crate::schema::{QUEUE, SERVER};
use crate::spec::{DeviceKind, DeviceSpec, ExportSpec, GroupSpec, Places, ServerSpec, StackSpec};

use device::device;
use export::export;
use group::group;

/// Largest stack file: as many groups as there may be, with two lines each, and room.
pub const MAX_TEXT_BYTES: usize = 16 << 20;
/// Most devices, and most exports, of a stack.
pub const MAX_SECTIONS: usize = 4096;

/// Sections that a stack file has.
const SECTIONS: [&str; 4] = ["device", "export", "group", "server"];

/// Checks a whole stack file without touching the file system. `base` is the folder that relative
/// paths start from, `name` the stack's name.
///
/// # Errors
/// Everything that is wrong, with its place.
pub fn parse(name: &str, source: Source, base: &Path) -> Result<StackSpec, Report> {
    parse_with_file(name, source, base, None)
}

/// As [`parse`]; the default export (or the only one) also appears as `file`.
pub fn parse_with_file(
    name: &str,
    source: Source,
    base: &Path,
    file: Option<&Path>,
) -> Result<StackSpec, Report> {
    let mut findings = Findings::default();
    let mut places = Places::default();
    let mut check = Check { source: &source, base, findings: &mut findings, places: &mut places };
    let built = build(&mut check, file);
    let Some(Built { server, devices, groups, exports, broken, broken_groups }) = built else {
        return Err(findings.into_report(source));
    };
    let size = |device: &DeviceSpec| Some((device.name.clone(), device.size()?));
    let mut stack = StackSpec {
        name: name.to_owned(),
        server,
        sizes: devices.iter().filter_map(size).collect(),
        absent: BTreeSet::new(),
        devices,
        groups,
        exports,
        warnings: Vec::new(),
        source: source.clone(),
        places,
    };
    graph::complete_sizes(&mut stack, &|_, _, _| None, &mut findings);
    graph::check(&stack, &broken, &mut findings);
    check_groups::check(&stack, &broken_groups, &mut findings);
    let refused = findings.errors() > 0;
    let report = findings.into_report(source);
    if refused {
        return Err(report);
    }
    stack.warnings = report.diagnostics;
    Ok(stack)
}

/// Checks one device as given on a command line: `file,path=disk.img,direct=true`. The device is
/// named after its kind.
///
/// # Errors
/// Everything that is wrong, with its column in `text`.
fn parse_device(text: &str, base: &Path) -> Result<DeviceSpec, Report> {
    let source = Source { name: "--device".to_owned(), text: text.to_owned() };
    let mut findings = Findings::default();
    let mut places = Places::default();
    let entries = parse_words(&source, queue_of, &mut findings);
    let name = source.text.split(',').next().unwrap_or("").to_owned();
    let mut check = Check { source: &source, base, findings: &mut findings, places: &mut places };
    let built = device(&mut check, &name, &(0..name.len()), &entries);
    let Some(device) = built else { return Err(findings.into_report(source)) };
    for member in device.members() {
        let message = format!("there is no device `{}`", shorten(&member.device));
        let hint = "name a device that stands on others in a stack file: --stack FILE --name NAME";
        findings.error(&member.span, message, hint);
    }
    match findings.errors() {
        0 => Ok(device),
        _ => Err(findings.into_report(source)),
    }
}

impl DeviceSpec {
    /// Reads one device as given on a command line: `file,path=disk.img,direct=true`; keys of
    /// tables are written `queue.nr_requests=64`, lists by repeating their key, a comma in a value
    /// as `,,`. Relative paths start from `base`.
    ///
    /// # Errors
    /// Everything that is wrong, with its column in `text`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Report> {
        parse_device(text, base)
    }

    /// A device with only its kind given.
    pub(crate) fn of_kind(name: &str, kind: DeviceKind) -> Self {
        let plain = Self::parse("null", Path::new(""))
            .unwrap_or_else(|report| unreachable!("it needs no keys: {report}"));
        DeviceSpec { name: name.to_owned(), kind, ..plain }
    }
}

/// The sections of a stack file.
struct Built {
    server: ServerSpec,
    devices: Vec<DeviceSpec>,
    groups: Vec<GroupSpec>,
    exports: Vec<ExportSpec>,
    broken: Broken,
    broken_groups: Broken,
}

fn build(check: &mut Check<'_>, file: Option<&Path>) -> Option<Built> {
    if check.source.text.len() > MAX_TEXT_BYTES {
        let message = format!("the file has {} bytes", check.source.text.len());
        let hint = format!("a stack file has at most {MAX_TEXT_BYTES} bytes");
        check.findings.error(&(0..0), message, hint);
        return None;
    }
    let entries = parse_toml(check.source, check.findings)?;
    for entry in &entries {
        if !SECTIONS.contains(&entry.key.as_str()) {
            check.unknown_key(entry, "", SECTIONS);
        }
    }
    let server = server(check, &entries);
    let mut broken = Broken::new();
    let mut devices = Vec::new();
    for section in sections(check, &entries, "device", MAX_SECTIONS) {
        match device(check, &section.key, &section.key_span, section.node.entries()) {
            Some(device) => devices.push(device),
            None => _ = broken.insert(section.key.clone()),
        }
    }
    let (mut groups, mut broken_groups) = (Vec::new(), Broken::new());
    for section in sections(check, &entries, "group", MAX_GROUPS) {
        match group(check, section) {
            Some(group) => groups.push(group),
            None => _ = broken_groups.insert(section.key.clone()),
        }
    }
    let exports = exports(check, &entries, file);
    if devices.is_empty() && broken.is_empty() && check.findings.errors() == 0 {
        let hint = "add a device, as in [device.disk] with type = \"ram\" and size = \"1GiB\"";
        check.findings.error(&(0..0), "the stack has no device", hint);
    }
    Some(Built { server: server?, devices, groups, exports, broken, broken_groups })
}

/// The exports; the first default one, or the only one, also appears as `file`.
fn exports(check: &mut Check<'_>, entries: &[Entry], mut file: Option<&Path>) -> Vec<ExportSpec> {
    let sections = sections(check, entries, "export", MAX_SECTIONS);
    let is_one = sections.len() == 1;
    let built = sections.into_iter().filter_map(|section| {
        let is_default =
            |entry: &Entry| entry.key == "default" && matches!(entry.node.value, Raw::Bool(true));
        let has_file = is_one || section.node.entries().iter().any(is_default);
        export(check, section, if has_file { file.take() } else { None })
    });
    built.collect()
}

/// The `[SECTION.NAME]` tables of a section, with names checked.
fn sections<'e>(
    check: &mut Check<'_>,
    entries: &'e [Entry],
    section: &str,
    most: usize,
) -> Vec<&'e Entry> {
    let Some(entry) = entries.iter().find(|entry| entry.key == section) else { return Vec::new() };
    let hint = format!("write [{section}.NAME] above its keys");
    let Raw::Table(named) = &entry.node.value else {
        let message = format!("`{section}` is {}, not a table", entry.node.written());
        check.findings.error(&entry.key_span, message, hint);
        return Vec::new();
    };
    let mut good = Vec::new();
    for item in named {
        let place = if section == "group" { place(&item.key) } else { item.key.clone() };
        check.places.note(format!("{section}/{place}"), item.key_span.clone());
        if !matches!(item.node.value, Raw::Table(_)) {
            let message = format!("`{section}.{}` is not a table", shorten(&item.key));
            check.findings.error(&item.key_span, message, hint.clone());
        } else if name_is_right(check, &item.key, &item.key_span, section) {
            good.push(item);
        }
    }
    if good.len() > most {
        let message = format!("{} {section}s", good.len());
        check.findings.error(&entry.key_span, message, format!("at most {most}"));
        good.truncate(most);
    }
    good
}

fn name_is_right(check: &mut Check<'_>, name: &str, span: &Span, section: &str) -> bool {
    let wrong = match section {
        "group" => check_path(name).err(),
        _ if is_name(name) => None,
        _ => Some((
            format!("`{}` is not a name for a {section}", shorten(name)),
            format!("use {}", name_hint()),
        )),
    };
    let right = wrong.is_none();
    wrong.into_iter().for_each(|(message, hint)| check.findings.error(span, message, hint));
    right
}

fn server(check: &mut Check<'_>, entries: &[Entry]) -> Option<ServerSpec> {
    let entry = entries.iter().find(|entry| entry.key == "server");
    let span = entry.map_or(0..0, |entry| entry.key_span.clone());
    if let Some(entry) = entry.filter(|entry| !matches!(entry.node.value, Raw::Table(_))) {
        let message = format!("`server` is {}, not a table", entry.node.written());
        check.findings.error(&entry.key_span, message, "write [server] above its keys");
        return None;
    }
    let errors = check.findings.errors();
    let inner = entry.map_or(&[][..], |entry| entry.node.entries());
    let fields = check.table(&[SERVER], inner, "server", &span);
    if check.findings.errors() > errors {
        // Its values are wrong and reported; the rest is still checked with these.
        return Some(ServerSpec::default());
    }
    let (threads, control) = (fields.number32("threads"), fields.path("control"));
    let poll_mode = fields.choice("poll_mode").and_then(PollMode::from_name).unwrap_or_default();
    let memory = fields.number_if("memory");
    Some(ServerSpec { threads, poll_mode, memory, control, lockstat: false })
}

/// The keys of the `queue` table can be written without it: `null,scheduler=mq-deadline`.
fn queue_of(key: &str) -> Option<&'static str> {
    QUEUE.iter().any(|param| param.key == key).then_some("queue")
}
