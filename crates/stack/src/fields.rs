//! Checks a table of the text against the schema and gives typed values.

use std::path::{Path, PathBuf};

use crate::allow::AllowRule;
use crate::availability;
use crate::diagnostic::{Findings, Source, Span, shorten};
use crate::group::{ClientGroup, header, path_of_place};
use crate::iomax::IoMax;
use crate::nearest::nearest;
use crate::node::{Entry, Node, Raw};
use crate::schema::{IfAbsent, Param};
use crate::spec::{Latency, Listener, Places, SectorRange, Segment};
use crate::values::parse_value;

/// What a check needs at hand: the text, where relative paths start, and where results go.
pub struct Check<'a> {
    /// The text.
    pub source: &'a Source,
    /// Folder that relative paths start from.
    pub base: &'a Path,
    /// What was found wrong.
    pub findings: &'a mut Findings,
    /// Where values stand.
    pub places: &'a mut Places,
}

/// A checked value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A switch.
    Bool(bool),
    /// Bytes, a count, nanoseconds or a file mode, as the type says.
    Number(u64),
    /// One of the type's words.
    Choice(&'static str),
    /// Text.
    Text(String),
    /// A path, joined with the base folder.
    Path(PathBuf),
    /// An address.
    Listener(Listener),
    /// Sectors.
    Sectors(SectorRange),
    /// Latency percentiles.
    Latency(Latency),
    /// Lines of a table.
    Segments(Vec<Segment>),
    /// A line of `io.max`.
    IoMax(IoMax),
    /// Clients with their groups.
    Clients(Vec<ClientGroup>),
    /// Clients with what they may do.
    Allow(Vec<AllowRule>),
    /// A table of parameters.
    Fields(Fields),
    /// A list.
    List(Vec<Value>),
}

/// The checked values of a table. Asking for a key or a type that the schema does not give it is
/// a mistake of ours and panics; every getter is reached by the tests of defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fields {
    values: Vec<(&'static str, Value)>,
}

impl Fields {
    /// What holds when none of `params` is given; required ones stay out.
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

    /// The value of `key`, if it was given or has a default.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// Whether `key` has a value.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// A switch with a default.
    pub fn bool(&self, key: &str) -> bool {
        match self.get(key) {
            Some(Value::Bool(value)) => *value,
            other => unreachable!("{key} is a switch with a default, not {other:?}"),
        }
    }

    /// A number, if given.
    pub fn number_if(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Number(value) => Some(*value),
            other => unreachable!("{key} is a number, not {other:?}"),
        }
    }

    /// A number that is required or has a default.
    pub fn number(&self, key: &str) -> u64 {
        self.number_if(key).unwrap_or_else(|| unreachable!("{key} has a value"))
    }

    /// A number whose type in the schema fits 32 bits.
    pub fn number32(&self, key: &str) -> u32 {
        self.number32_if(key).unwrap_or_else(|| unreachable!("{key} has a value"))
    }

    /// A number whose type in the schema fits 32 bits, if given.
    pub fn number32_if(&self, key: &str) -> Option<u32> {
        let value = self.number_if(key)?;
        Some(u32::try_from(value).unwrap_or_else(|_| unreachable!("{key} fits 32 bits")))
    }

    /// One of a choice's words, if given.
    pub fn choice(&self, key: &str) -> Option<&'static str> {
        match self.get(key)? {
            Value::Choice(word) => Some(word),
            other => unreachable!("{key} is a choice, not {other:?}"),
        }
    }

    /// A text that is required or has a default.
    pub fn text(&self, key: &str) -> String {
        self.text_if(key).unwrap_or_else(|| unreachable!("{key} has a value"))
    }

    /// A text, if given.
    pub fn text_if(&self, key: &str) -> Option<String> {
        match self.get(key)? {
            Value::Text(text) => Some(text.clone()),
            other => unreachable!("{key} is a text, not {other:?}"),
        }
    }

    /// Clients with their groups; none if not given.
    pub fn clients(&self, key: &str) -> Vec<ClientGroup> {
        match self.get(key) {
            Some(Value::Clients(clients)) => clients.clone(),
            None => Vec::new(),
            other => unreachable!("{key} are clients, not {other:?}"),
        }
    }

    /// Clients with what they may do, if given.
    pub fn allow(&self, key: &str) -> Option<Vec<AllowRule>> {
        match self.get(key)? {
            Value::Allow(rules) => Some(rules.clone()),
            other => unreachable!("{key} are clients, not {other:?}"),
        }
    }

    /// A path, if given.
    pub fn path(&self, key: &str) -> Option<PathBuf> {
        match self.get(key)? {
            Value::Path(path) => Some(path.clone()),
            other => unreachable!("{key} is a path, not {other:?}"),
        }
    }

    /// The items of a list; empty if not given.
    pub fn list(&self, key: &str) -> &[Value] {
        match self.get(key) {
            Some(Value::List(items)) => items,
            None => &[],
            other => unreachable!("{key} is a list, not {other:?}"),
        }
    }

    /// A table of parameters, if given.
    pub fn fields(&self, key: &str) -> Option<&Fields> {
        match self.get(key)? {
            Value::Fields(fields) => Some(fields),
            other => unreachable!("{key} is a table, not {other:?}"),
        }
    }
}

impl Check<'_> {
    /// Checks `entries` against `params`. `path` (`device/d0`) is where values are noted, `owner`
    /// what a missing key is reported at. What is wrong is reported and left out, so the result is
    /// whole only if no error was added.
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
            // A misspelt key has been reported; that the right one is missing is the same error.
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

    /// Reports a key that nothing knows, with the nearest of `known`.
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
