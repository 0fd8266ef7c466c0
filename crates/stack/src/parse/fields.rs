//! The state of a check, and the typed values that it gives.

use std::path::{Path, PathBuf};

use super::node::{Node, Raw};
use drystone_drivers::null::Percentile;

use crate::diagnostic::{Findings, Source, shorten};
use crate::iomax::IoMax;
use crate::setting::Setting;
use crate::spec::{AllowRule, ClientGroup, Listener, Places, Segment};

/// The state of a check: the text, where relative paths start, and where results go.
pub struct Check<'a> {
    /// The text.
    pub source: &'a Source,
    /// Folder that relative paths start from.
    pub base: &'a Path,
    /// The faults that were found.
    pub findings: &'a mut Findings,
    /// The places of values in the text.
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
    /// First and last sector.
    Sectors((u64, u64)),
    /// Latency percentiles.
    Latency(Vec<Percentile>),
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

impl Value {
    /// The value of a setting, which is a number, a switch or a word.
    pub(crate) fn setting(&self) -> Setting {
        match self {
            Value::Number(number) => Setting::Number(*number),
            Value::Bool(switch) => Setting::Bool(*switch),
            Value::Choice(word) => Setting::Choice(word),
            other => unreachable!("no setting has the value {other:?}"),
        }
    }
}

/// The checked values of a table. Asking for a key or a type that the schema does not give it is
/// a mistake of ours and panics; every getter is reached by the tests of defaults.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fields {
    pub(super) values: Vec<(&'static str, Value)>,
}

impl Fields {
    /// The value of `key`, if it was given or has a default.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.iter().find(|(known, _)| *known == key).map(|(_, value)| value)
    }

    /// True if `key` has a value.
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
    /// Reports that the value at `path` is wrong; `reason` follows the value in the sentence.
    pub fn refuse(&mut self, node: &Node, path: &str, reason: &str, hint: &str) {
        let key = path.splitn(3, '/').nth(2).unwrap_or(path).replace('/', ".");
        let written = match &node.value {
            Raw::List(_) | Raw::Table(_) => node.written().to_owned(),
            _ => self.source.word(&node.span),
        };
        let repeated = matches!(&node.value, Raw::List(items)
            if items.iter().all(|item| matches!(item.value, Raw::Word(_))) && !items.is_empty());
        let message = match repeated {
            true => format!("`{}` is given more than once", shorten(&key)),
            false => format!("`{}`: {written} {reason}", shorten(&key)),
        };
        self.findings.error(&node.span, message, format!("write {hint}"));
    }
}
