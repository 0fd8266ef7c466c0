//! Checks a table of the text against the schema, and reads each of its values by its type.

use std::path::Path;

use super::allow::parse_allow;
use super::clients::parse_clients;
use super::fields::{Check, Fields, Value};
use super::latency::parse_latency;
use super::listener::parse_listener;
use super::node::{Entry, Node, Raw};
use super::table::parse_table;
use super::values::{Refusal, parse_simple};
use crate::availability;
use crate::diagnostic::{Findings, Source, Span, shorten};
use crate::group::{header, path_of_place};
use crate::iomax::{IoMax, IoMaxError, parse_io_max};
use crate::nearest::nearest;
use crate::schema::{IfAbsent, Param, Type};
use crate::spec::Places;

/// Most items of a list.
const MAX_LIST: usize = 4096;

impl Fields {
    /// The defaults of `params`; required ones stay out.
    pub fn defaults_of(params: &'static [Param]) -> Self {
        let source = Source { name: String::new(), text: String::new() };
        let (mut findings, mut places) = (Findings::default(), Places::default());
        let mut check = Check {
            source: &source,
            base: Path::new(""),
            findings: &mut findings,
            places: &mut places,
        };
        check.table(&[params], &[], "", &(0..0))
    }
}

impl Check<'_> {
    /// Checks `entries` against `params`. `path` (`device/d0`) is the place under which values are
    /// noted; a missing key is reported at `owner`. Faulty values are reported and left out, so the
    /// result is complete only if no error was added.
    pub fn table(
        &mut self,
        params: &[&'static [Param]],
        entries: &[Entry],
        path: &str,
        owner: &Span,
    ) -> Fields {
        let known = || params.iter().flat_map(|part| part.iter());
        let mut fields = Fields::default();
        for entry in entries {
            match known().find(|param| param.key == entry.key) {
                Some(param) => self.entry(param, entry, path, &mut fields),
                None => self.unknown_key(entry, path, known().map(|param| param.key)),
            }
        }
        for param in known().filter(|param| entries.iter().all(|entry| entry.key != param.key)) {
            let keys = || known().map(|param| param.key);
            let misspelt = |entry: &Entry| {
                keys().all(|key| key != entry.key) && nearest(&entry.key, keys()) == Some(param.key)
            };
            // A misspelt key has been reported; the missing right key is the same error.
            let reported = matches!(param.default, IfAbsent::Required);
            if !(reported && entries.iter().any(misspelt)) {
                self.absent(param, path, owner, &mut fields);
            }
        }
        fields
    }

    fn entry(&mut self, param: &'static Param, entry: &Entry, path: &str, fields: &mut Fields) {
        let path = format!("{path}/{}", param.key);
        self.places.note(path.clone(), entry.node.span.clone());
        if let Some(value) = parse_value(self, &param.ty, &entry.node, &entry.key_span, &path) {
            fields.values.push((param.key, value));
        }
    }

    fn absent(&mut self, param: &'static Param, path: &str, owner: &Span, fields: &mut Fields) {
        match param.default {
            IfAbsent::Unset(_) => {}
            IfAbsent::Required => {
                let (section, name) = path.split_once('/').unwrap_or((path, ""));
                let message = format!("{section} `{}` has no `{}`", shorten(name), param.key);
                let hint = format!("add `{} = ...`: {}", param.key, param.ty.expected());
                self.findings.error(owner, message, hint);
            }
            IfAbsent::Value(text) => {
                let node = Node { span: owner.clone(), value: Raw::Word(text.to_owned()) };
                let value = parse_value(self, &param.ty, &node, owner, path);
                fields.values.extend(value.map(|value| (param.key, value)));
            }
        }
    }

    /// Reports an unknown key, with the nearest of `known`.
    pub fn unknown_key<'k>(
        &mut self,
        entry: &Entry,
        path: &str,
        known: impl IntoIterator<Item = &'k str>,
    ) {
        let mut known: Vec<&str> = known.into_iter().collect();
        known.sort_unstable();
        let section = path.split('/').next().unwrap_or("");
        let word = shorten(&entry.key);
        if availability::planned_key(section, &entry.key) {
            let message = format!("`{word}` is not available in this version");
            self.findings.error(&entry.key_span, message, "remove it");
            return;
        }
        let hint = match nearest(&entry.key, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        let inside = match path {
            "" => String::new(),
            path => format!(" in [{}]", section_of(path)),
        };
        self.findings.error(&entry.key_span, format!("unknown key `{word}`{inside}"), hint);
    }
}

/// The header of the table at `path` (`device/d0/queue`), without brackets.
fn section_of(path: &str) -> String {
    match path.split_once('/') {
        Some(("group", rest)) => {
            let (place, keys) = rest.split_once('/').unwrap_or((rest, ""));
            let header = header(&path_of_place(place));
            let keys = keys.split('/').filter(|key| !key.is_empty());
            let inside = header.trim_matches(['[', ']']);
            keys.fold(inside.to_owned(), |header, key| format!("{header}.{key}"))
        }
        _ => path.replace('/', "."),
    }
}

/// Reads `node` as a value of type `ty`; on an error, reports it and gives nothing. `key_span` is
/// the key, `path` where nested values are noted.
fn parse_value(
    check: &mut Check<'_>,
    ty: &'static Type,
    node: &Node,
    key_span: &Span,
    path: &str,
) -> Option<Value> {
    match ty {
        Type::Fields(params) => match &node.value {
            Raw::Table(entries) => {
                Some(Value::Fields(check.table(&[params], entries, path, key_span)))
            }
            _ => refuse(check, node, path, "is not a table", &ty.expected()),
        },
        Type::List(item) => list(check, item, node, key_span, path),
        Type::Latency => parse_latency(check, node, path).map(Value::Latency),
        Type::Table => match node.text() {
            Some(_) => parse_table(check, node).map(Value::Segments),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Listener => match node.text() {
            Some(_) => parse_listener(check, node).map(Value::Listener),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Path => match node.text() {
            Some("") => refuse(check, node, path, "is empty", &ty.expected()),
            Some(text) if text.contains('\0') => {
                refuse(check, node, path, "contains a zero byte", &ty.expected())
            }
            Some(text) => Some(Value::Path(check.base.join(text))),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::IoMax => match node.text() {
            Some(line) => io_max(check, node, line).map(Value::IoMax),
            None => refuse(check, node, path, "is not a text", &ty.expected()),
        },
        Type::Clients => parse_clients(check, node).map(Value::Clients),
        Type::Allow => parse_allow(check, node).map(Value::Allow),
        simple => match parse_simple(simple, node) {
            Ok(value) => Some(value),
            Err(Refusal { reason, hint }) => refuse(check, node, path, &reason, &hint),
        },
    }
}

/// A line of `io.max`, with its device's place in the whole text.
fn io_max(check: &mut Check<'_>, node: &Node, text: &str) -> Option<IoMax> {
    match parse_io_max(text) {
        Ok(line) => Some(IoMax { span: node.part(check.source, line.span), ..line }),
        Err(IoMaxError { part, message, hint }) => {
            // An empty line has only its quotes to point at.
            let span =
                if part.is_empty() { node.span.clone() } else { node.part(check.source, part) };
            check.findings.error(&span, message, hint);
            None
        }
    }
}

fn list(
    check: &mut Check<'_>,
    item: &'static Type,
    node: &Node,
    key_span: &Span,
    path: &str,
) -> Option<Value> {
    let single = std::slice::from_ref(node);
    let nodes = match &node.value {
        Raw::List(nodes) => nodes.as_slice(),
        _ => single,
    };
    if nodes.is_empty() || nodes.len() > MAX_LIST {
        let reason = format!("has {} entries", nodes.len());
        return refuse(check, node, path, &reason, &format!("1 to {MAX_LIST} entries"));
    }
    let mut values = Vec::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        check.places.note(format!("{path}/{index}"), node.span.clone());
        values.push(parse_value(check, item, node, key_span, path));
    }
    values.into_iter().collect::<Option<Vec<Value>>>().map(Value::List)
}

/// Reports that the value at `path` is wrong; there is no value then.
fn refuse(
    check: &mut Check<'_>,
    node: &Node,
    path: &str,
    reason: &str,
    hint: &str,
) -> Option<Value> {
    check.refuse(node, path, reason, hint);
    None
}
